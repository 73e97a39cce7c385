package pgoutput_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	. "github.com/millrace/millrace/pgoutput"
)

// parse calls the function for the message's tag.
func parse(msg []byte, s *Slab) (any, error) {
	switch TagOf(msg) {
	case TagBegin:
		return ParseBegin(msg)
	case TagCommit:
		return ParseCommit(msg)
	case TagOrigin:
		return ParseOrigin(msg)
	case TagRelation:
		return ParseRelation(msg)
	case TagType:
		return ParseType(msg)
	case TagInsert:
		return ParseInsert(msg, s)
	case TagUpdate:
		return ParseUpdate(msg, s)
	case TagDelete:
		return ParseDelete(msg, s)
	case TagTruncate:
		return ParseTruncate(msg)
	case TagMessage:
		return ParseMessage(msg)
	case TagStreamStart:
		return ParseStreamStart(msg)
	case TagStreamStop:
		return streamStop{}, ParseStreamStop(msg)
	case TagStreamCommit:
		return ParseStreamCommit(msg)
	case TagStreamAbort:
		return ParseStreamAbort(msg)
	case TagBeginPrepare:
		return ParseBeginPrepare(msg)
	case TagPrepare:
		return ParsePrepare(msg)
	case TagStreamPrepare:
		return ParseStreamPrepare(msg)
	case TagCommitPrepared:
		return ParseCommitPrepared(msg)
	case TagRollbackPrepared:
		return ParseRollbackPrepared(msg)
	}
	return nil, fmt.Errorf("no message has the tag %q", byte(TagOf(msg)))
}

// streamStop stands for a message that says nothing.
type streamStop struct{}

// inBlock walks through the messages of a recording. Those inside of a block
// are given as they are outside, with the number that they carried.
func inBlock(t testing.TB, msgs [][]byte, visit func(xid uint32, msg []byte)) {
	t.Helper()
	open := false
	for _, msg := range msgs {
		var xid uint32
		switch tag := TagOf(msg); {
		case tag == TagStreamStart:
			open = true
		case tag == TagStreamStop:
			open = false
		case open && tag != TagOrigin: // which carries no number
			var err error
			if xid, msg, err = Unstream(bytes.Clone(msg)); err != nil {
				t.Fatal(err)
			}
		}
		visit(xid, msg)
	}
}

const timeLayout = "2006-01-02T15:04:05.000000Z"

// render writes a message as a person can read it.
func render(t *testing.T, msg []byte) string {
	m, err := parse(msg, new(Slab))
	if err != nil {
		t.Fatalf("%x: %v", msg, err)
	}
	switch m := m.(type) {
	case Begin:
		return fmt.Sprintf("BEGIN %d commit %v at %s", m.XID, m.Commit, m.Time.Format(timeLayout))
	case Commit:
		return fmt.Sprintf("COMMIT %v end %v at %s", m.Commit, m.End, m.Time.Format(timeLayout))
	case Origin:
		return fmt.Sprintf("ORIGIN %q commit %v", m.Name, m.Commit)
	case *millrace.Relation:
		return fmt.Sprintf("RELATION %d %v identity %v key %v columns%s", m.OID, m.Name, m.Identity, m.Key, renderColumns(m.Columns))
	case Type:
		return fmt.Sprintf("TYPE %d %s.%s", m.OID, m.Schema, m.Name)
	case Insert:
		return fmt.Sprintf("INSERT %d new%s", m.OID, renderRow(m.New))
	case Update:
		return fmt.Sprintf("UPDATE %d%s new%s", m.OID, renderOld(m.Old, m.OldFull), renderRow(m.New))
	case Delete:
		return fmt.Sprintf("DELETE %d%s", m.OID, renderOld(m.Old, m.OldFull))
	case Truncate:
		return fmt.Sprintf("TRUNCATE %v cascade %t restart identity %t", m.OIDs, m.Cascade, m.RestartIdentity)
	case StreamStart:
		return fmt.Sprintf("STREAM START %d first %t", m.XID, m.First)
	case streamStop:
		return "STREAM STOP"
	case StreamCommit:
		return fmt.Sprintf("STREAM COMMIT %d %v end %v at %s", m.XID, m.Commit.Commit, m.End, m.Time.Format(timeLayout))
	case StreamAbort:
		if m.LSN == 0 {
			return fmt.Sprintf("STREAM ABORT %d of %d", m.SubXID, m.XID)
		}
		return fmt.Sprintf("STREAM ABORT %d of %d at %v, %s", m.SubXID, m.XID, m.LSN, m.Time.Format(timeLayout))
	case Prepare:
		return fmt.Sprintf("%s %q of %d %v end %v at %s", prepareNames[TagOf(msg)], m.GID, m.XID, m.Prepare, m.End, m.Time.Format(timeLayout))
	case CommitPrepared:
		return fmt.Sprintf("COMMIT PREPARED %q of %d %v end %v at %s", m.GID, m.XID, m.Commit.Commit, m.End, m.Time.Format(timeLayout))
	case RollbackPrepared:
		return fmt.Sprintf("ROLLBACK PREPARED %q of %d end %v at %s, prepared up to %v at %s", m.GID, m.XID, m.End, m.Time.Format(timeLayout),
			m.PrepareEnd, m.PrepareTime.Format(timeLayout))
	case Message:
		return fmt.Sprintf("MESSAGE transactional %t lsn %v prefix %q content %q", m.Transactional, m.LSN, m.Prefix, m.Content)
	}
	return fmt.Sprintf("%+v", m)
}

var prepareNames = map[Tag]string{TagBeginPrepare: "BEGIN PREPARE", TagPrepare: "PREPARE", TagStreamPrepare: "STREAM PREPARE"}

func renderColumns(columns []millrace.Column) string {
	var b strings.Builder
	for _, c := range columns {
		fmt.Fprintf(&b, " %q:%d:%d", c.Name, c.Type, c.Mod)
	}
	return b.String()
}

func renderOld(row millrace.Row, full bool) string {
	switch {
	case row == nil:
		return ""
	case full:
		return " old" + renderRow(row)
	}
	return " key" + renderRow(row)
}

func renderRow(row millrace.Row) string {
	var b strings.Builder
	for _, v := range row {
		switch {
		case v.Kind == millrace.Text && len(v.Raw) > 100:
			fmt.Fprintf(&b, " t:%q…(%d)", v.Raw[:10], len(v.Raw))
		case v.Kind == millrace.Text:
			fmt.Fprintf(&b, " t:%q", v.Raw)
		case v.Kind == millrace.Binary && len(v.Raw) > 100:
			fmt.Fprintf(&b, " b:%x…(%d)", v.Raw[:10], len(v.Raw))
		case v.Kind == millrace.Binary:
			fmt.Fprintf(&b, " b:%x", v.Raw)
		default:
			fmt.Fprintf(&b, " %c", v.Kind)
		}
	}
	return b.String()
}
