package pgoutput_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"

	"github.com/millrace/millrace"
	. "github.com/millrace/millrace/pgoutput"
)

// TestLikePglogrepl reads every recorded message with a second decoder.
func TestLikePglogrepl(t *testing.T) {
	for _, rec := range recordings {
		if rec.streamed {
			continue
		}
		for _, msg := range readHex(t, rec.name) {
			ours, err := parse(msg, new(Slab))
			if err != nil {
				t.Fatalf("%s: %x: %v", rec.name, msg, err)
			}
			if insert, ok := ours.(Insert); ok && len(insert.New) == 0 {
				continue // a table without columns, which pglogrepl refuses
			}
			theirs, err := pglogrepl.Parse(msg)
			if err != nil {
				t.Fatalf("%s: %x: %v", rec.name, msg, err)
			}
			if diff := cmp.Diff(convert(t, theirs), ours); diff != "" {
				t.Errorf("%s: %x (-pglogrepl +ours):\n%s", rec.name, msg, diff)
			}
		}
	}
}

// TestStreamsLikePglogrepl does so with protocol version 2. pglogrepl knows no
// prepared transactions, and leaves out what version 4 adds.
func TestStreamsLikePglogrepl(t *testing.T) {
	for _, rec := range recordings {
		if !rec.streamed {
			continue
		}
		block := false
		for _, msg := range readHex(t, rec.name) {
			tag := TagOf(msg)
			switch tag {
			case TagStreamStart:
				block = true
			case TagStreamStop:
				block = false
			case TagBeginPrepare, TagPrepare, TagStreamPrepare, TagCommitPrepared, TagRollbackPrepared:
				continue
			}
			plain := msg
			var want any
			if block && tag != TagStreamStart && tag != TagOrigin {
				xid, m, err := Unstream(bytes.Clone(msg))
				if err != nil {
					t.Fatal(err)
				}
				plain, want = m, xid
			}
			ours, err := parse(plain, new(Slab))
			if err != nil {
				t.Fatalf("%s: %x: %v", rec.name, msg, err)
			}
			theirs, err := pglogrepl.ParseV2(msg, block)
			if err != nil {
				t.Fatalf("%s: %x: %v", rec.name, msg, err)
			}
			theirs, xid := unwrap(theirs)
			if want != nil && xid != want {
				t.Errorf("%s: %x: number %d, want %d", rec.name, msg, xid, want)
			}
			if a, ok := ours.(StreamAbort); ok {
				ours = StreamAbort{XID: a.XID, SubXID: a.SubXID}
			}
			if diff := cmp.Diff(convert(t, theirs), ours); diff != "" {
				t.Errorf("%s: %x (-pglogrepl +ours):\n%s", rec.name, msg, diff)
			}
		}
	}
}

// unwrap gives the message of version 1 and the number that it carried.
func unwrap(m pglogrepl.Message) (pglogrepl.Message, uint32) {
	switch m := m.(type) {
	case *pglogrepl.RelationMessageV2:
		return &m.RelationMessage, m.Xid
	case *pglogrepl.TypeMessageV2:
		return &m.TypeMessage, m.Xid
	case *pglogrepl.InsertMessageV2:
		return &m.InsertMessage, m.Xid
	case *pglogrepl.UpdateMessageV2:
		return &m.UpdateMessage, m.Xid
	case *pglogrepl.DeleteMessageV2:
		return &m.DeleteMessage, m.Xid
	case *pglogrepl.TruncateMessageV2:
		return &m.TruncateMessage, m.Xid
	case *pglogrepl.LogicalDecodingMessageV2:
		return &m.LogicalDecodingMessage, m.Xid
	}
	return m, 0
}

// convert gives pglogrepl's message as one of ours.
func convert(t *testing.T, m pglogrepl.Message) any {
	switch m := m.(type) {
	case *pglogrepl.BeginMessage:
		return Begin{Commit: millrace.LSN(m.FinalLSN), Time: m.CommitTime.UTC(), XID: m.Xid}
	case *pglogrepl.CommitMessage:
		return Commit{Commit: millrace.LSN(m.CommitLSN), End: millrace.LSN(m.TransactionEndLSN), Time: m.CommitTime.UTC()}
	case *pglogrepl.OriginMessage:
		return Origin{Commit: millrace.LSN(m.CommitLSN), Name: []byte(m.Name)}
	case *pglogrepl.RelationMessage:
		return convertRelation(m)
	case *pglogrepl.TypeMessage:
		return Type{OID: m.DataType, Schema: namespace(m.Namespace), Name: m.Name}
	case *pglogrepl.InsertMessage:
		return Insert{OID: m.RelationID, New: convertRow(m.Tuple)}
	case *pglogrepl.UpdateMessage:
		return Update{OID: m.RelationID, Old: convertRow(m.OldTuple), OldFull: m.OldTupleType == 'O', New: convertRow(m.NewTuple)}
	case *pglogrepl.DeleteMessage:
		return Delete{OID: m.RelationID, Old: convertRow(m.OldTuple), OldFull: m.OldTupleType == 'O'}
	case *pglogrepl.TruncateMessage:
		return Truncate{OIDs: m.RelationIDs, Cascade: m.Option&1 != 0, RestartIdentity: m.Option&2 != 0}
	case *pglogrepl.LogicalDecodingMessage:
		return Message{Transactional: m.Transactional, LSN: millrace.LSN(m.LSN), Prefix: []byte(m.Prefix), Content: m.Content}
	}
	switch m := m.(type) {
	case *pglogrepl.StreamStartMessageV2:
		return StreamStart{XID: m.Xid, First: m.FirstSegment == 1}
	case *pglogrepl.StreamStopMessageV2:
		return streamStop{}
	case *pglogrepl.StreamCommitMessageV2:
		return StreamCommit{XID: m.Xid,
			Commit: Commit{Commit: millrace.LSN(m.CommitLSN), End: millrace.LSN(m.TransactionEndLSN), Time: m.CommitTime.UTC()}}
	case *pglogrepl.StreamAbortMessageV2:
		return StreamAbort{XID: m.Xid, SubXID: m.SubXid}
	}
	t.Fatalf("pglogrepl gave a %T", m)
	return nil
}

func namespace(s string) string {
	if s == "" {
		return "pg_catalog"
	}
	return s
}

func convertRelation(m *pglogrepl.RelationMessage) *millrace.Relation {
	rel := &millrace.Relation{
		OID:      m.RelationID,
		Name:     millrace.TableName{Schema: namespace(m.Namespace), Name: m.RelationName},
		Identity: millrace.Identity(m.ReplicaIdentity),
		Columns:  make([]millrace.Column, 0, len(m.Columns)),
	}
	for i, c := range m.Columns {
		rel.Columns = append(rel.Columns, millrace.Column{Name: c.Name, Type: c.DataType, Mod: c.TypeModifier})
		if c.Flags&1 != 0 {
			rel.Key = append(rel.Key, i)
		}
	}
	return rel
}

func convertRow(t *pglogrepl.TupleData) millrace.Row {
	if t == nil {
		return nil
	}
	row := make(millrace.Row, 0, len(t.Columns))
	for _, c := range t.Columns {
		row = append(row, millrace.Value{Kind: millrace.ValueKind(c.DataType), Raw: c.Data})
	}
	return row
}
