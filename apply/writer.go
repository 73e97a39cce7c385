package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

// writer is one claimed session of a sink: from Claim to Close or an error.
//
// Three goroutines share it. The caller of Write prepares batches, the executor
// runs them, the syncer makes them durable; queue and positions are where they
// meet.
type writer struct {
	q      *queue
	pos    *positions
	router *router
	exec   *executor
	syncer *syncer
	stale  atomic.Bool // what the router knows of tables may be old
	open   atomic.Bool // the executor has a target transaction that is to go on

	// Owned by the caller of Write:
	history  millrace.History
	prepared *record.Prepared // what the target has of it, by former sessions
	skip     millrace.LSN     // what is committed up to here is on the target
	last     millrace.LSN     // commit of the newest transaction that was written
	gap      bool             // a transaction was given up with the context of its Write

	server    string // see sameServer
	pid       uint32 // of the executor's backend
	ahead     atomic.Pointer[ahead]
	aheadFree chan struct{} // holds a token while there is one, until its backend has ended

	abandon chan struct{} // holds a token when an open transaction is given up
	calm    chan struct{} // holds a token when the executor has nothing to do

	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
	// closing keeps goroutines from being started once close waits for them.
	closing sync.Mutex
	closed  bool
}

func (s *Sink) newWriter(ctx context.Context, conn *pgx.Conn, cp millrace.Checkpoint) (*writer, error) {
	replica, err := setUp(ctx, conn)
	if err != nil {
		return nil, err
	}
	if !replica {
		s.opt.Log.Debug("the role may not set session_replication_role: triggers and foreign keys act")
	}
	origin, err := setUpOrigin(ctx, conn, record.Origin(s.opt.Job))
	if err != nil {
		return nil, err
	}
	if !origin {
		s.opt.Log.Debug("the role may not use replication origins: transactions are not tagged")
	}
	prepared, err := s.claimPrepared(ctx, &cp)
	if err != nil {
		return nil, err
	}
	tables, err := record.Tables(ctx, s.side, s.opt.Job)
	if err != nil {
		return nil, err
	}
	var server string
	if err := conn.QueryRow(ctx, serverSQL).Scan(&server); err != nil {
		return nil, session.Wrap("set up the session", millrace.PeerDestination, err)
	}
	w := &writer{history: cp.History, prepared: prepared, skip: cp.Commit, last: cp.Commit,
		pos: newPositions(cp.Acked), q: newQueue(max(s.opt.MaxHeld/2, 1), s.opt.Group == 1, cp.Acked),
		abandon: make(chan struct{}, 1), calm: make(chan struct{}, 1)}
	w.server, w.pid, w.aheadFree = server, conn.PgConn().PID(), make(chan struct{}, 1)
	w.router = newRouter(s.opt, replica, tables)
	w.syncer = &syncer{conn: s.side, pos: w.pos, wrote: w.q.ownWrite,
		moved: make(chan struct{}, 1), drained: make(chan struct{}, 1),
		trim: func(ctx context.Context, conn *pgx.Conn) error { return record.Trim(ctx, conn, s.opt.Job) }}
	w.syncer.rows.Store(trimEvery) // what former sessions left
	if err := w.syncer.connect(ctx, cp.System); err != nil {
		return nil, err
	}
	wire, err := newWire(conn.PgConn())
	if err != nil {
		return nil, session.Wrap("set up the session", millrace.PeerDestination, err)
	}
	w.exec = s.newExecutor(wire, cp, w)
	w.exec.origin = origin
	w.exec.prepared = prepared
	w.ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
	w.done.Go(w.execute)
	w.done.Go(w.sync)
	return w, nil
}

func (s *Sink) newExecutor(wire *wire, cp millrace.Checkpoint, w *writer) *executor {
	x := newExecutor(wire, cp)
	x.job, x.log, x.stats = s.opt.Job, s.opt.Log, &s.stats
	x.maxRows, x.maxBytes = s.opt.MaxBatchRows, int(s.opt.MaxBatchBytes)
	x.copyRows, x.copyBytes = copyRows, copyBytes
	x.truncateAsDelete = s.opt.TruncateAsDelete
	x.forced = millrace.LSN(s.redo.Load())
	x.redo = func(commit millrace.LSN) { s.redo.Store(uint64(commit)) }
	x.mayClash = func() bool { return s.clashes.Add(1) <= mostClashes }
	x.staging = func(oid uint32) millrace.TableName { return record.StagingTable(s.opt.Job, oid) }
	x.fallback = s.opt.OnFallback
	x.stumbled = func() { w.stale.Store(true) }
	x.ahead = func(xid uint32) *ahead {
		if a := w.ahead.Load(); a != nil && a.xid == xid && a.stand.Load() == aheadReady {
			return a
		}
		return nil
	}
	x.aheadFailed = s.aheadFailed.Store
	x.render = func(ctx context.Context, r *route, row millrace.Row) string {
		return renderKey(ctx, s.opt.Endpoint, r, row)
	}
	x.commits = func(cp millrace.Checkpoint) {
		w.pos.setVisible(cp.Acked)
		w.syncer.rows.Add(1)
		notify(w.syncer.moved)
	}
	return x
}

// write implements Sink.Write.
func (w *writer) write(ctx context.Context, t *millrace.Txn) error {
	err := w.pos.failure()
	switch {
	case err != nil:
	case w.gap:
		err = errNotClaimed
	default:
		err = w.check(t)
	}
	if t.Chunk != nil {
		asInserts(t)
	}
	if err != nil {
		t.Release()
		return err
	}
	if t.Idle() {
		w.q.sign(t)
		t.Release()
		return nil
	}
	if t.Chunk == nil && t.Commit <= w.skip && w.ordered(t) || !w.meet(t) { // redelivered
		t.Release()
		return nil
	}
	if t.Part == 0 && w.stale.Swap(false) {
		w.router.forget()
	}
	if err := w.router.prepare(ctx, t); err != nil {
		t.Release()
		return w.refuse(ctx, t, err)
	}
	if !w.q.add(ctx, t, w.router.routes, w.pos.failed) {
		t.Release()
		if err := w.pos.failure(); err != nil {
			return err
		}
		w.gap = true
		return ctx.Err()
	}
	if w.ordered(t) {
		w.last = max(w.last, t.Commit)
	}
	return nil
}

// ordered tells whether a transaction has a place among the commits. One that is
// prepared, or rolled back, has none.
func (w *writer) ordered(t *millrace.Txn) bool {
	return t.Phase == millrace.Committed || t.Phase == millrace.CommitPrepared || t.Phase == millrace.AppliedAhead
}

// asInserts takes the rows of a chunk for inserts: there is no row with their
// keys here.
func asInserts(t *millrace.Txn) {
	for i := range t.Changes {
		if c := &t.Changes[i]; c.Op == millrace.Read {
			c.Op = millrace.Insert
		}
	}
}

// check finds what must not come from a source that keeps to its contract.
func (w *writer) check(t *millrace.Txn) error {
	if f := t.From; f != nil && (f.System != w.history.System || f.Generation != w.history.Generation) {
		return &millrace.Error{Kind: millrace.KindResync, Op: "apply", Peer: millrace.PeerDestination, LSN: t.Commit,
			Err: fmt.Errorf("the transaction is of system %s generation %d, the destination follows system %s generation %d",
				f.System, f.Generation, w.history.System, w.history.Generation),
			Hint: "take the first load anew: bootstrap --restart-snapshot"}
	}
	if t.Chunk == nil && w.ordered(t) && t.Commit > w.skip && (t.Commit < w.last || t.Commit == w.last && t.Part == 0) {
		return &millrace.Error{Kind: millrace.KindData, Op: "apply", Peer: millrace.PeerDestination, LSN: t.Commit,
			Err: fmt.Errorf("the transaction comes after that at %s", w.last)}
	}
	return nil
}

// refuse ends the session because of a transaction that can't be applied, once
// everything before it is.
func (w *writer) refuse(ctx context.Context, t *millrace.Txn, err error) error {
	if ctx.Err() != nil { // a stop: what is held can still be applied
		w.gap = true
		return ctx.Err()
	}
	var known *millrace.Error
	if errors.As(err, &known) && known.Kind == millrace.KindData {
		known.LSN = t.Commit
		if _, err := w.drain(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	w.fail(err)
	return err
}

func (w *writer) fail(err error) {
	w.pos.fail(err)
	w.cancel()
}

// execute is the executor's goroutine.
func (w *writer) execute() {
	var done *batch
	for {
		b := w.q.next(done)
		if done = nil; b == nil {
			if err := w.exec.commit(w.ctx); err != nil {
				w.stop(err)
				return
			}
			notify(w.syncer.drained)
			b = w.q.wait(w.ctx, w.abandon, w.calm)
		}
		switch {
		case w.ctx.Err() != nil:
			if b != nil {
				b.release()
			}
			return
		case b == nil: // an open transaction was given up
			if err := w.exec.rollback(w.ctx); err != nil {
				w.stop(w.exec.wrap(nil, err))
				return
			}
			w.open.Store(false)
			w.q.outside()
			continue
		}
		err := w.exec.execute(w.ctx, b)
		w.open.Store(b.open)
		b.release()
		if err == nil {
			err = w.exec.publish()
		}
		if err != nil {
			w.stop(err)
			return
		}
		done = b
	}
}

// stop ends the session with an error of the executor. What it has committed is
// made durable first, so that it can be acknowledged.
func (w *writer) stop(err error) {
	if millrace.KindOf(err) != millrace.KindRetry {
		ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
		defer cancel()
		_, _ = w.secure(ctx) // a courtesy
	}
	w.fail(err)
}

// sync is the syncer's goroutine.
func (w *writer) sync() {
	if err := w.syncer.run(w.ctx); err != nil {
		w.fail(err)
	}
}

// drain implements Sink.Drain.
func (w *writer) drain(ctx context.Context) (millrace.LSN, error) {
	w.q.dropOpen()
	w.q.urge()
	notify(w.abandon)
	for !w.q.quiet() || w.open.Load() {
		select {
		case <-w.calm:
		case <-w.pos.failed:
			return 0, w.pos.failure()
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return w.secure(ctx)
}

// secure waits until all that is visible is durable.
func (w *writer) secure(ctx context.Context) (millrace.LSN, error) {
	visible, durable := w.pos.read()
	if visible == durable {
		return durable, nil
	}
	notify(w.syncer.moved)
	notify(w.syncer.drained)
	return w.pos.wait(ctx, visible-1, (*positions).heldDurable)
}

// beside runs f on a goroutine that close waits for. False: it is closed.
func (w *writer) beside(f func()) bool {
	w.closing.Lock()
	defer w.closing.Unlock()
	if !w.closed {
		w.done.Go(f)
	}
	return !w.closed
}

// close ends the goroutines and disconnects. An open target transaction is
// rolled back by the server.
func (w *writer) close() error {
	w.fail(errNotClaimed)
	w.closing.Lock()
	w.closed = true
	w.closing.Unlock()
	if a := w.ahead.Load(); a != nil {
		a.cut()
	}
	w.done.Wait()
	w.q.close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	w.router.close(ctx)
	w.syncer.conn.Close(ctx)
	return w.exec.wire.close()
}
