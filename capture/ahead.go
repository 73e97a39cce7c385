package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/pgoutput"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/spool"
)

// ahead has an open transaction applied while it is spooled. It reads behind what
// is written, on a goroutine of its own, so that the stream never waits for it
// before the transaction's commit has come. The spool keeps all of it: whatever
// does not fit, here or at the destination, gives the attempt up, and the
// transaction is played back at its commit.
//
// What is read here was committed by nobody. So nothing of it is judged: it goes
// on only while each relation is as the job's record has it, or passed over.
type ahead struct {
	xid    uint32
	begin  func(context.Context, uint32) (millrace.Ahead, error)
	data   *spool.Follower
	more   chan struct{} // token: there is more to read, or to roll back
	commit chan struct{} // closed when all is there
	begun  chan struct{} // closed when the destination has begun with it
	ended  chan struct{} // closed when the goroutine has ended
	cancel context.CancelFunc
	idle   time.Duration // see Options.AheadIdle

	// after is the end of the last transaction that the stream has given away.
	mu    sync.Mutex
	after millrace.LSN

	// Owned by the goroutine, until ended is closed:
	err       error // why it was given up
	to        millrace.Ahead
	asm       *assembler
	judge     judge
	counted   counted     // before the first savepoint
	saved     []savepoint // of subtransactions, in their order
	current   uint32      // of the part that is open
	described []description
	written   bool
}

// savepoint is where a subtransaction began, and what came behind it.
type savepoint struct {
	sub     uint32
	count   tally // before it
	counted counted
}

// description is a message that describes a relation or a type.
type description struct {
	sub  uint32
	data []byte
}

// errNotAhead is why an attempt is given up.
var errNotAhead = errors.New("the transaction is applied once it is committed")

// mostSavepoints bounds how many subtransactions that are not rolled back it may have
// on the target. Beyond 64 (PGPROC_MAX_CACHED_SUBXIDS) a transaction makes every snapshot
// there look its subtransactions up on their disk pages, for as long as it is open.
const mostSavepoints = 60

// worthAhead are the bytes from which on a transaction is worth sessions of its own.
// Less is played back before they are open.
const worthAhead = 256 << 10

// mostRowAhead bounds a row, and with it what this takes of the memory budget, which
// counts the largest rows once.
const mostRowAhead = 1 << 20

// idleAhead bounds for how long one is held on the target without a change.
const idleAhead = 5 * time.Minute

// A session that ends while one is applied ahead may have ended because of it, for
// want of a connection to the target, say. So that the stream gets on, none is tried
// for restAhead once mostCut sessions in a row have ended so.
const (
	mostCut   = 3
	restAhead = 10 * time.Minute
)

// cuts counts those sessions. It belongs to the goroutine that receives.
type cuts struct {
	inRow int
	until time.Time
}

func (c *cuts) add(now time.Time) (rests bool) {
	if c.inRow++; c.inRow < mostCut {
		return false
	}
	c.inRow, c.until = 0, now.Add(restAhead)
	return true
}

// startAhead begins with a transaction of which a block has come, unless another
// one is being applied.
func (f *feed) startAhead(t *openTxn) {
	if f.src.opt.Ahead == nil || !f.mayAhead || t.tried || t.bytes < worthAhead ||
		f.ahead != nil && !f.ahead.failed() || time.Now().Before(f.src.cuts.until) {
		return
	}
	t.tried = true
	ctx, cancel := context.WithCancel(f.ctx)
	a := &ahead{xid: t.xid, begin: f.src.opt.Ahead, data: t.data.Follow(mostRowAhead), more: make(chan struct{}, 1), commit: make(chan struct{}),
		begun: make(chan struct{}), ended: make(chan struct{}), cancel: cancel, idle: f.src.opt.AheadIdle,
		after: f.asm.given, judge: f.rels.judge()}
	a.asm = newAssembler(&f.src.memory, f.asm.history, 0, func(t *millrace.Txn) bool {
		a.written = true
		a.err = a.to.Write(ctx, t, a.given())
		return true
	})
	t.ahead, f.ahead = a, a
	f.tasks.Go(func() {
		defer close(a.ended)
		a.err = a.run(ctx)
		if a.err != nil && a.to != nil {
			a.to.Drop()
		}
		if a.err != nil && ctx.Err() == nil {
			f.src.log.Info("a transaction is applied once it is committed, not while it is open", "xid", a.xid, "cause", a.err)
		}
	})
}

// wake tells that there is more, and up to where the stream has come.
func (a *ahead) wake(given millrace.LSN) {
	a.mu.Lock()
	a.after = given
	a.mu.Unlock()
	token(a.more)
}

func (a *ahead) given() millrace.LSN {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.after
}

// failed tells whether the attempt was given up.
func (a *ahead) failed() bool {
	select {
	case <-a.ended:
		return a.err != nil
	default:
		return false
	}
}

// stopAhead ends the attempt, without waiting for its goroutine, which may be in the
// middle of a statement.
func (f *feed) stopAhead(a *ahead) {
	if a == nil {
		return
	}
	a.cancel()
	select {
	case <-a.ended:
		if a.err == nil {
			a.to.Drop()
		}
	default: // it does that itself
	}
	if f.ahead == a {
		f.ahead = nil
	}
}

// finishAhead waits until all of a transaction is applied and tells whether it is.
// Then the destination has it, and the stream goes on with its commit. One that has
// not begun is not waited for: who knows what it waits for itself.
func (f *feed) finishAhead(a *ahead) bool {
	if a == nil {
		return false
	}
	select {
	case <-a.begun:
	default:
		return false
	}
	f.src.stats.add(&f.asm.count)
	f.queue.publish()
	a.wake(f.asm.given)
	close(a.commit)
	f.src.finishing.Store(true)
	defer f.src.finishing.Store(false)
	<-a.ended // its context ends with the feed's
	return a.err == nil
}

// run applies until the transaction is committed.
func (a *ahead) run(ctx context.Context) (err error) {
	defer func() {
		a.asm.close()
		err = errors.Join(err, a.data.Close())
	}()
	if a.to, err = a.begin(ctx, a.xid); err != nil {
		return err
	}
	close(a.begun)
	if err := a.asm.start(pgoutput.Begin{XID: a.xid}); err != nil {
		return err
	}
	idle := time.NewTimer(a.idle)
	defer idle.Stop()
	for all := false; ; {
		switch err := a.step(ctx, all); {
		case err == nil:
			continue
		case !errors.Is(err, io.EOF):
			return err
		}
		if all {
			break
		}
		idle.Reset(a.idle)
		select {
		case <-a.more:
		case <-a.commit:
			all = true
		case <-idle.C: // what it holds on the target is not held for a source that rests
			return fmt.Errorf("%w: no change of it has come for %v", errNotAhead, a.idle)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if !a.written {
		return fmt.Errorf("%w: nothing of it is left", errNotAhead)
	}
	return a.to.Ready(ctx, a.given())
}

// step applies what one frame of the spool holds. io.EOF says that there is none.
func (a *ahead) step(ctx context.Context, all bool) error {
	records, dropped, err := a.data.Next(all)
	// What was rolled back is not among the records; what is applied of it goes.
	if len(dropped) > 0 {
		if err := a.flush(ctx); err != nil {
			return err
		}
	}
	for _, sub := range dropped {
		if err := a.rollBack(ctx, sub); err != nil {
			return err
		}
	}
	if errors.Is(err, io.EOF) {
		if err := a.flush(ctx); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	for _, r := range records {
		if err := a.record(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// flush applies the part that is open.
func (a *ahead) flush(ctx context.Context) error {
	if a.asm.txn != nil {
		if err := a.asm.finish(); err != nil {
			return err
		}
	}
	if a.err != nil {
		return a.err
	}
	return a.to.Flush(ctx)
}

func (a *ahead) record(ctx context.Context, r spool.Record) error {
	if r.Sub != a.current {
		if err := a.enter(ctx, r.Sub); err != nil {
			return err
		}
	}
	switch tag := pgoutput.TagOf(r.Data); tag {
	case pgoutput.TagInsert, pgoutput.TagUpdate, pgoutput.TagDelete:
		rel, known := a.judge.known[pgoutput.ChangedOID(r.Data)]
		if !known {
			return misplaced("change of relation %d, which was not described", pgoutput.ChangedOID(r.Data))
		}
		return a.row(r, tag, rel)
	case pgoutput.TagRelation:
		rel, err := pgoutput.ParseRelation(r.Data)
		if err != nil {
			return err
		}
		a.described = append(a.described, description{r.Sub, slices.Clone(r.Data)})
		return a.judge.add(rel)
	case pgoutput.TagType:
		a.described = append(a.described, description{r.Sub, slices.Clone(r.Data)})
		return nil
	case pgoutput.TagMessage:
		return nil
	default: // a TRUNCATE: its lock would be held for as long as the source pleases
		return fmt.Errorf("%w: it has a message %q", errNotAhead, byte(tag))
	}
}

func (a *ahead) row(r spool.Record, tag pgoutput.Tag, rel *millrace.Relation) error {
	part, before := a.asm.part, a.asm.size()
	if err := a.asm.row(replication.Message{Data: r.Data, Owned: r.Owned}, rel); err != nil {
		return err
	}
	if a.asm.part != part {
		before = 0
	}
	if rel != nil {
		a.segment().add(rel, tag, a.asm.size()-before)
	}
	return a.err // of a part that was full
}

// segment is what is counted since the last savepoint.
func (a *ahead) segment() *counted {
	if n := len(a.saved); n > 0 {
		return &a.saved[n-1].counted
	}
	return &a.counted
}

// enter begins with the changes of another subtransaction.
func (a *ahead) enter(ctx context.Context, sub uint32) error {
	if err := a.flush(ctx); err != nil {
		return err
	}
	a.current = sub
	if sub == a.xid || slices.ContainsFunc(a.saved, func(s savepoint) bool { return s.sub == sub }) {
		return nil
	}
	if len(a.saved) == mostSavepoints {
		return fmt.Errorf("%w: it has more than %d subtransactions", errNotAhead, mostSavepoints)
	}
	a.saved = append(a.saved, savepoint{sub: sub, count: a.asm.count})
	return a.to.Savepoint(ctx, sub)
}

// rollBack takes back what is there of a subtransaction. What came behind its
// beginning was nested in it, or belongs to the one that contained it and is rolled
// back with it: nothing else can come before its end.
func (a *ahead) rollBack(ctx context.Context, sub uint32) error {
	a.described = slices.DeleteFunc(a.described, func(d description) bool { return d.sub == sub })
	n := slices.IndexFunc(a.saved, func(s savepoint) bool { return s.sub == sub })
	if n < 0 {
		return nil
	}
	a.asm.count = a.saved[n].count
	a.saved, a.current = a.saved[:n], 0
	return a.to.RollBack(ctx, sub)
}

// commitAhead gives the commit of a transaction that is applied away. The relations
// that it described are judged first, and known from there on.
func (f *feed) commitAhead(a *ahead, c pgoutput.Commit) error {
	for _, d := range a.described {
		if err := f.onMessage(replication.Message{Data: d.data}); err != nil {
			return err
		}
	}
	to, n := &f.asm.count, &a.asm.count
	to.inserts += n.inserts
	to.updates += n.updates
	to.deletes += n.deletes
	to.passedOver += n.passedOver
	f.ahead, f.src.cuts.inRow = nil, 0
	all := a.counted
	for i := range a.saved {
		all.take(&a.saved[i].counted)
	}
	return f.asm.endAhead(c, all.tallies())
}

// endAhead ends a transaction whose changes went another way.
func (a *assembler) endAhead(c pgoutput.Commit, changes []millrace.Tally) error {
	if err := a.makeRoom(); err != nil {
		return err
	}
	a.open = false
	a.count.transactions++
	a.count.lastCommit, a.count.lastEnd = c.Time, c.End
	a.txn.End, a.txn.Last, a.txn.Phase, a.txn.Tally = c.End, true, millrace.AppliedAhead, changes
	return a.finish()
}
