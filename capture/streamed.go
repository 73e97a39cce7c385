package capture

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/pgoutput"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/spool"
)

// streamed holds the transactions that the server sends while they are open:
// those that outgrow its logical_decoding_work_mem. They come in blocks, of one
// transaction each; the blocks of several take turns, and whole transactions may
// come in between.
//
// Nothing of them is looked at before their commit has come. Their messages go
// to the spool as they are, each under the number of its subtransaction, and
// are played back behind the commit, like those of any other transaction. So a
// description of a relation in one that is rolled back is never judged, and
// never known: what comes after a rollback is described anew by the server.
type streamed struct {
	spool *spool.Spool
	open  map[uint32]*openTxn // by the number of the top-level transaction
	block *openTxn            // whose block is open; nil outside of blocks
}

type openTxn struct {
	xid    uint32
	origin string
	data   *spool.Txn
	names  map[uint32]millrace.TableName // of the relations that were described in it
	// refused are rows beyond the limit, by their subtransaction. One that is
	// rolled back is no reason to stop.
	refused map[uint32]error
	bytes   int64  // of its messages
	ahead   *ahead // applies it already; may be nil
	tried   bool
}

func newStreamed(s *spool.Spool) streamed {
	return streamed{spool: s, open: map[uint32]*openTxn{}}
}

// drop forgets a transaction.
func (s *streamed) drop(t *openTxn) error {
	delete(s.open, t.xid)
	return t.data.Drop()
}

// close forgets all: after a restart the server sends them from their start.
func (s *streamed) close() error {
	var errs []error
	for _, t := range s.open {
		errs = append(errs, s.drop(t))
	}
	s.block = nil
	return errors.Join(errs...)
}

func (f *feed) onStreamStart(msg []byte) error {
	s := &f.streamed
	m, err := pgoutput.ParseStreamStart(msg)
	if err != nil {
		return err
	}
	if s.spool == nil {
		return misplaced("block of transaction %d, which nobody asked for", m.XID)
	}
	t := s.open[m.XID]
	if m.First != (t == nil) {
		return misplaced("block of transaction %d, first %t", m.XID, m.First)
	}
	if t == nil {
		t = &openTxn{xid: m.XID, data: s.spool.Begin(), names: map[uint32]millrace.TableName{}, refused: map[uint32]error{}}
		s.open[m.XID] = t
		f.asm.count.streamed++
	}
	s.block = t
	if t.ahead != nil { // before anything of the block can be read
		t.ahead.wake(f.asm.given)
	}
	f.stream.Expect(pgoutput.StreamedExtra)
	return nil
}

// spare decides about a row beyond the limit: outside of a block it stops the
// job, inside the commit of its transaction does.
func (f *feed) spare(err error) error {
	var large *replication.TooLarge
	var known *millrace.Error
	t := f.streamed.block
	if t == nil || !errors.As(err, &large) || !errors.As(err, &known) {
		return err
	}
	xid, plain, bad := pgoutput.Unstream(bytes.Clone(large.Head))
	if bad != nil {
		return err
	}
	large.Head = plain
	known.Table = t.names[pgoutput.ChangedOID(plain)]
	if t.refused[xid] == nil {
		t.refused[xid] = err
	}
	f.src.log.Warn("a row is too large, and stops the job if its transaction is committed", "xid", t.xid, "table", known.Table, "bytes", large.Size)
	return f.stream.Skip()
}

// refusal is why a transaction can't be taken now that it is to be, or nil.
func (t *openTxn) refusal() error {
	for _, err := range t.refused {
		return err
	}
	return nil
}

// inBlock takes a message of the block that is open.
func (f *feed) inBlock(msg []byte) error {
	t := f.streamed.block
	switch tag := pgoutput.TagOf(msg); tag {
	case pgoutput.TagStreamStop:
		f.streamed.block = nil
		f.stream.Expect(0)
		if f.startAhead(t); t.ahead != nil {
			t.ahead.wake(f.asm.given)
		}
		return pgoutput.ParseStreamStop(msg)
	case pgoutput.TagOrigin: // the one message that is the same as outside
		m, err := pgoutput.ParseOrigin(msg)
		t.origin = f.asm.originName(m.Name)
		return err
	case pgoutput.TagInsert, pgoutput.TagUpdate, pgoutput.TagDelete, pgoutput.TagTruncate,
		pgoutput.TagRelation, pgoutput.TagType, pgoutput.TagMessage:
		xid, plain, err := pgoutput.Unstream(msg)
		if err != nil {
			return err
		}
		if tag == pgoutput.TagRelation {
			rel, err := pgoutput.ParseRelation(plain)
			if err != nil {
				return err
			}
			t.names[rel.OID] = rel.Name
		}
		t.bytes += int64(len(plain))
		return t.explain(t.data.Append(xid, plain))
	default:
		return misplaced("message %q in a block of transaction %d", byte(tag), t.xid)
	}
}

// spoolError is one of the spool. The stream starts anew then, without blocks:
// the server keeps what is open, as it does for those who can't take it.
type spoolError struct {
	xid uint32
	err error
}

func (e *spoolError) Error() string {
	return fmt.Sprintf("transaction %d, which came before it was committed: %v", e.xid, e.err)
}

func (e *spoolError) Unwrap() error { return e.err }

func (t *openTxn) explain(err error) error {
	if err == nil {
		return nil
	}
	return &spoolError{t.xid, err}
}

// onStreamAbort forgets a subtransaction, or the whole.
func (f *feed) onStreamAbort(msg []byte) error {
	m, err := pgoutput.ParseStreamAbort(msg)
	if err != nil {
		return err
	}
	t := f.streamed.open[m.XID]
	switch {
	case t == nil: // nothing of it has come, so nothing is to be forgotten
		return nil
	case m.XID == m.SubXID:
		f.stopAhead(t.ahead)
		return t.explain(f.streamed.drop(t))
	}
	delete(t.refused, m.SubXID)
	err = t.explain(t.data.DropSub(m.SubXID))
	if t.ahead != nil {
		t.ahead.wake(f.asm.given) // also the locks of what is dropped have to go
	}
	return err
}

func (f *feed) onStreamCommit(msg []byte) error {
	m, err := pgoutput.ParseStreamCommit(msg)
	if err != nil {
		return err
	}
	t := f.streamed.open[m.XID]
	if t == nil {
		return misplaced("commit of transaction %d, of which no block came", m.XID)
	}
	err = f.asm.start(pgoutput.Begin{Commit: m.Commit.Commit, Time: m.Time, XID: m.XID})
	if err != nil {
		return err
	}
	f.asm.origin = t.origin
	if err := t.refusal(); err != nil && !f.asm.skip {
		return err
	}
	if !f.asm.skip && f.finishAhead(t.ahead) {
		if err := f.commitAhead(t.ahead, m.Commit); err != nil {
			return err
		}
		return t.explain(f.streamed.drop(t))
	}
	f.stopAhead(t.ahead)
	if err := f.playBack(t); err != nil {
		return err
	}
	if err := f.end(m.Commit); err != nil {
		return err
	}
	return t.explain(f.streamed.drop(t))
}

// wakeEvery is after how many messages that are played back the taker is told.
const wakeEvery = maxChanges

// playBack lets the messages of a transaction come as if they came now.
func (f *feed) playBack(t *openTxn) (err error) {
	r, err := t.data.Read()
	if err != nil {
		return t.explain(err)
	}
	defer func() { err = errors.Join(err, t.explain(r.Close())) }()
	for n := 1; ; n++ {
		rec, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return t.explain(err)
		}
		if err := f.onMessage(replication.Message{Data: rec.Data, Owned: rec.Owned}); err != nil {
			return err
		}
		if n%wakeEvery == 0 {
			f.queue.publish()
		}
	}
}
