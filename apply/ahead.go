package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

// ahead is the target transaction of a source transaction that is still open. It
// has a connection of its own, beside the executor's, and goes in sets only.
//
// Rows that both would change are locked at the source as well, by the transaction
// that is open: nobody else's change of them can come before its commit. What makes
// the executor wait for it all the same, such as a unique index that only the target
// has, a guard finds and ends it: the stream goes before.
type ahead struct {
	w      *writer
	xid    uint32
	x      *executor
	router *router // until it is ready
	batch  batch
	after  millrace.LSN // of what is in it

	began      bool
	deferrable bool
	saved      []aheadSave
	changes    uint64

	stand   atomic.Int32 // aheadOpen and what follows it
	once    sync.Once
	unguard context.CancelFunc
}

// aheadSave is a savepoint, and how many changes were made before it.
type aheadSave struct {
	sub     uint32
	changes uint64
}

// Where it stands. Only one that is open can be given up for somebody who waits for
// it: of one that is ready the stream has been told, and its commit is the next thing
// that the executor does.
const (
	aheadOpen int32 = iota
	aheadReady
	aheadGone
)

// errNotInSets is why a transaction is not applied ahead.
var errNotInSets = errors.New("it has changes that go row by row")

// Ahead begins to apply a transaction that is open at the source, once what was
// begun before is committed or given up.
func (s *Sink) Ahead(ctx context.Context, xid uint32) (millrace.Ahead, error) {
	if s.aheadFailed.Load() == xid {
		return nil, errAheadFailed
	}
	w, err := s.claimed(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case w.aheadFree <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.pos.failed:
		return nil, w.pos.failure()
	}
	a, err := s.newAhead(ctx, w, xid)
	if err != nil {
		<-w.aheadFree
		return nil, err
	}
	return a, nil
}

// errAheadFailed: see executor.adopt.
var errAheadFailed = errors.New("it was applied ahead before, and could not be committed")

// claimed waits until the job is claimed, which comes behind the start of the stream:
// what is open may have come again by then.
func (s *Sink) claimed(ctx context.Context) (*writer, error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if w := s.w.Load(); w != nil {
			return w, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *Sink) newAhead(ctx context.Context, w *writer, xid uint32) (_ *ahead, err error) {
	conn, err := s.opt.Endpoint.Connect(ctx, session.Apply)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			conn.Close(context.WithoutCancel(ctx))
		}
	}()
	if err := w.sameServer(ctx, conn); err != nil {
		return nil, err
	}
	replica, err := setUp(ctx, conn)
	if err != nil {
		return nil, err
	}
	if w.exec.origin {
		if tags, err := setUpOrigin(ctx, conn, record.OriginAhead(s.opt.Job)); err != nil || !tags {
			return nil, errors.Join(errors.New("its transaction could not be tagged with an origin"), err)
		}
	}
	guard, err := s.opt.Endpoint.Connect(ctx, session.Watch)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			guard.Close(context.WithoutCancel(ctx))
		}
	}()
	if err := w.sameServer(ctx, guard); err != nil {
		return nil, err
	}
	tables, err := record.Tables(ctx, guard, s.opt.Job)
	if err != nil {
		return nil, err
	}
	pid := conn.PgConn().PID()
	wire, err := newWire(conn.PgConn())
	if err != nil {
		return nil, session.Wrap("set up the session", millrace.PeerDestination, err)
	}
	a := &ahead{w: w, xid: xid, router: newRouter(s.opt, replica, tables), x: s.newExecutor(wire, millrace.Checkpoint{}, w)}
	a.x.origin = w.exec.origin
	var guarded context.Context
	guarded, a.unguard = context.WithCancel(w.ctx)
	w.ahead.Store(a)
	if !w.beside(func() { a.guard(guarded, guard, pid) }) {
		a.cut()
		return nil, errNotClaimed
	}
	return a, nil
}

// cut ends the connection, from any goroutine.
func (a *ahead) cut() {
	a.once.Do(func() {
		a.w.ahead.CompareAndSwap(a, nil)
		a.unguard()
		_ = a.x.conn.Close() // the guard ends the backend
	})
}

// Drop implements millrace.Ahead.
func (a *ahead) Drop() {
	a.cut()
	a.batch.release()
	a.closeRouter()
}

func (a *ahead) closeRouter() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	a.router.close(ctx)
}

// behind waits until the stream is applied up to a position.
func (a *ahead) behind(ctx context.Context, after millrace.LSN) error {
	if after == 0 {
		return nil
	}
	_, err := a.w.pos.wait(ctx, after-1, (*positions).heldVisible)
	return err
}

// mostAhead is the memory from which on what was written is applied: enough for COPY
// to be worth its while.
const mostAhead = 2 << 20

// Write implements millrace.Ahead.
func (a *ahead) Write(ctx context.Context, t *millrace.Txn, after millrace.LSN) error {
	if err := a.router.prepare(ctx, t); err != nil {
		t.Release()
		return err
	}
	a.after = max(a.after, after)
	a.batch.add(t, a.router.routes, time.Now())
	if a.batch.held < mostAhead {
		return nil
	}
	return a.Flush(ctx)
}

// Flush implements millrace.Ahead.
func (a *ahead) Flush(ctx context.Context) error {
	b, x := &a.batch, a.x
	if b.empty() {
		return nil
	}
	defer b.release()
	if err := a.behind(ctx, a.after); err != nil {
		return err
	}
	if b.unfoldable || b.byRow > 0 {
		return errNotInSets
	}
	a.begin()
	x.batch = b
	clear(x.byName)
	x.deferConstraints(b)
	a.deferrable = a.deferrable || b.deferrable
	for i := range b.stages {
		if b.stages[i].works == nil {
			return errNotInSets // a TRUNCATE
		}
		if err := x.stage(ctx, &b.stages[i]); err != nil {
			return err
		}
	}
	x.confirmNames()
	a.changes += uint64(b.changes)
	return a.flight(ctx)
}

func (a *ahead) begin() {
	if !a.began {
		a.began = true
		a.x.open()
	}
}

func (a *ahead) flight(ctx context.Context) error {
	a.x.sync()
	return a.x.await(ctx)
}

// Savepoint implements millrace.Ahead. It goes out with what follows it.
func (a *ahead) Savepoint(_ context.Context, sub uint32) error {
	a.begin()
	a.x.command(fmt.Sprintf("SAVEPOINT s%d", sub), anyCount, markOther)
	a.saved = append(a.saved, aheadSave{sub, a.changes})
	return nil
}

// RollBack implements millrace.Ahead.
func (a *ahead) RollBack(ctx context.Context, sub uint32) error {
	for i, s := range a.saved {
		if s.sub == sub {
			a.changes, a.saved = s.changes, a.saved[:i]
			break
		}
	}
	a.x.deferred = false // that is undone as well
	a.x.command(fmt.Sprintf("ROLLBACK TO SAVEPOINT s%d", sub), anyCount, markOther)
	a.x.command(fmt.Sprintf("RELEASE SAVEPOINT s%d", sub), anyCount, markOther)
	return a.flight(ctx)
}

// Ready implements millrace.Ahead.
func (a *ahead) Ready(ctx context.Context, after millrace.LSN) error {
	if a.deferrable {
		a.x.command("SET CONSTRAINTS ALL IMMEDIATE", anyCount, markConstraints)
	}
	if err := a.flight(ctx); err != nil {
		return err
	}
	if err := a.behind(ctx, after); err != nil {
		return err
	}
	a.closeRouter()
	if !a.stand.CompareAndSwap(aheadOpen, aheadReady) {
		return errGaveWay
	}
	return nil
}

// commit commits with the progress row that makes it count.
func (a *ahead) commit(ctx context.Context, cp millrace.Checkpoint) error {
	a.x.writeProgress(cp)
	a.x.askCommit(cp)
	err := a.flight(ctx)
	if err == nil && a.x.status != 'I' {
		err = fmt.Errorf("the session is in state %q after COMMIT", a.x.status)
	}
	return err
}

// adopt commits a transaction that was applied ahead, in its place.
func (x *executor) adopt(ctx context.Context, b *batch) error {
	if err := x.commit(ctx); err != nil {
		return err
	}
	t, cp := b.last(), x.after(b)
	a := x.ahead(t.XID)
	err := errors.New("what was applied while the transaction was open is gone")
	if a != nil {
		err = a.commit(ctx, cp)
		defer a.cut()
	}
	if err != nil {
		x.aheadFailed(t.XID) // when it comes again it is not tried: this must come to an end
		return &millrace.Error{Kind: millrace.KindRetry, Op: "commit what was applied ahead", Peer: millrace.PeerDestination, LSN: t.Commit, Err: err}
	}
	x.cp = cp
	x.stats.transactions.Add(1)
	x.stats.changes.Add(a.changes)
	x.stats.ahead.Add(1)
	x.stats.setRows.Add(a.x.setRows)
	x.stats.groups.Add(1)
	x.commits(cp)
	return nil
}
