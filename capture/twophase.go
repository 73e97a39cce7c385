package capture

import (
	"github.com/millrace/millrace"
	"github.com/millrace/millrace/pgoutput"
)

// A prepared transaction comes when it is prepared, like one that is committed
// but for its phase, and later its fate. It has no position among the commits:
// what comes again after a restart is told by the destination, which knows what
// it has prepared, and not by positions. One that was prepared before two-phase
// commit was asked for even comes behind transactions that were committed later.

func (f *feed) onBeginPrepare(msg []byte) error {
	m, err := pgoutput.ParseBeginPrepare(msg)
	if err != nil {
		return err
	}
	return f.asm.startPrepared(m)
}

func (f *feed) onPrepare(msg []byte) error {
	m, err := pgoutput.ParsePrepare(msg)
	if err != nil {
		return err
	}
	return f.endPrepared(m)
}

func (f *feed) onStreamPrepare(msg []byte) error {
	m, err := pgoutput.ParseStreamPrepare(msg)
	if err != nil {
		return err
	}
	t := f.streamed.open[m.XID]
	if t == nil {
		return misplaced("transaction %d is prepared, of which no block came", m.XID)
	}
	if err := f.asm.startPrepared(m); err != nil {
		return err
	}
	f.asm.origin = t.origin
	if err := t.refusal(); err != nil {
		return err
	}
	if err := f.playBack(t); err != nil {
		return err
	}
	if err := f.endPrepared(m); err != nil {
		return err
	}
	return t.explain(f.streamed.drop(t))
}

// endPrepared gives away a prepared transaction, and behind it the position,
// which the destination's checkpoint can't have in the same step.
func (f *feed) endPrepared(m pgoutput.Prepare) error {
	if err := f.asm.endPrepared(m); err != nil {
		return err
	}
	f.queue.idle(f.asm.history, m.End, millrace.LSN(f.src.acked.Load()), false)
	return nil
}

func (f *feed) onCommitPrepared(msg []byte) error {
	m, err := pgoutput.ParseCommitPrepared(msg)
	if err != nil {
		return err
	}
	return f.asm.decide(pgoutput.Begin{Commit: m.Commit.Commit, Time: m.Time, XID: m.XID}, millrace.CommitPrepared, m.End)
}

func (f *feed) onRollbackPrepared(msg []byte) error {
	m, err := pgoutput.ParseRollbackPrepared(msg)
	if err != nil {
		return err
	}
	if err := f.asm.decide(pgoutput.Begin{Time: m.Time, XID: m.XID}, millrace.RollbackPrepared, 0); err != nil {
		return err
	}
	f.queue.idle(f.asm.history, m.End, millrace.LSN(f.src.acked.Load()), false)
	return nil
}

func (a *assembler) startPrepared(m pgoutput.Prepare) error {
	if err := a.start(pgoutput.Begin{Commit: m.Prepare, Time: m.Time, XID: m.XID}); err != nil {
		return err
	}
	a.phase, a.skip = millrace.Prepared, false
	return nil
}

// endPrepared ends a prepared transaction. An empty one is given away as well:
// its fate will come.
func (a *assembler) endPrepared(m pgoutput.Prepare) error {
	if !a.open || a.phase != millrace.Prepared || m.Prepare != a.begin.Commit {
		return misplaced("end at %v of a prepared transaction that did not begin", m.Prepare)
	}
	if a.txn == nil {
		if err := a.makeRoom(); err != nil {
			return err
		}
	}
	a.open = false
	a.txn.Last = true
	return a.finish()
}

// decide gives away what has become of a prepared transaction.
func (a *assembler) decide(b pgoutput.Begin, phase millrace.Phase, end millrace.LSN) error {
	if err := a.start(b); err != nil {
		return err
	}
	a.open = false
	if phase == millrace.CommitPrepared {
		if a.skip {
			a.count.redelivered++
			return nil
		}
		a.count.transactions++
		a.count.lastCommit, a.count.lastEnd = b.Time, end
	}
	a.phase = phase
	if err := a.makeRoom(); err != nil {
		return err
	}
	a.txn.End, a.txn.Last = end, true
	return a.finish()
}
