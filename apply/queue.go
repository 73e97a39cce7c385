package apply

import (
	"context"
	"sync"
	"time"

	"github.com/millrace/millrace"
)

// queue is where the batch in preparation waits for the executor. The two
// batches change places: while one is executed the other is filled.
type queue struct {
	share  int64 // bytes from which a batch takes no more
	single bool  // every source transaction is a batch of its own

	mu    sync.Mutex
	prep  *batch
	spare *batch // nil while the executor has it
	taken int64  // bytes that the executor holds
	// idle: the executor waits on ready for the next batch.
	idle  bool
	ready chan *batch
	room  chan struct{} // holds a token when the executor has taken prep
	timer *time.Timer   // hands prep over when nothing else does

	flushed bool // nothing more is waiting behind what was added
	// inside: what the executor took last ends inside of a large transaction. A
	// progress row would commit that part of it.
	inside bool

	// Signs of life: the newest position up to which the source has nothing for
	// us, whether somebody waits for it, and what is already written of it.
	idleEnd millrace.LSN
	urgent  bool
	from    *millrace.History
	written millrace.LSN
	wrote   time.Time // when a progress row was written last
	// own is, where source and target are one cluster, the position behind our
	// last write: a move up to there is no reason to write again.
	own millrace.LSN
}

// What makes a batch ready while the executor has nothing to do. A pause in the
// stream does (Flush); while more keeps coming, a batch is worth more when it
// holds more, so it may grow for as long as nobody can notice.
const (
	worthwhile = 512 // changes
	maxAge     = time.Millisecond
)

// idleEvery is how often an idle source's position is written to the target.
const idleEvery = 10 * time.Second

func newQueue(share int64, single bool, written millrace.LSN) *queue {
	q := &queue{share: share, single: single, prep: &batch{slot: 0}, spare: &batch{slot: 1},
		ready: make(chan *batch, 1), room: make(chan struct{}, 1), written: written, wrote: time.Now()}
	q.timer = time.AfterFunc(time.Hour, q.nudge)
	return q
}

// takes tells whether the batch in preparation can take t. Whole transactions
// are grouped; the parts of a large one are a group of their own.
func (q *queue) takes(t *millrace.Txn) bool {
	b := q.prep
	switch {
	case b.empty():
		return true
	case b.held >= q.share:
		return false
	case b.large:
		return b.open && t.Part > 0
	case b.phase != millrace.Committed || t.Phase != millrace.Committed:
		return false
	}
	return t.Part == 0 && t.Last && !q.single
}

// add puts t into the batch in preparation, once that takes it, and gives that
// to the executor if both are ready for it. It gives up when ctx ends or failed
// is closed.
func (q *queue) add(ctx context.Context, t *millrace.Txn, known map[*millrace.Relation]*route, failed <-chan struct{}) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.takes(t) {
		q.flushed = true // nothing more can come behind it
		q.dispatch(time.Now())
		q.mu.Unlock()
		select {
		case <-q.room:
		case <-failed:
		case <-ctx.Done():
		}
		q.mu.Lock()
		select {
		case <-failed:
			return false
		case <-ctx.Done():
			return false
		default:
		}
	}
	now := time.Now()
	q.flushed = false
	q.prep.add(t, known, now)
	q.dispatch(now)
	return true
}

// sign remembers a sign of life; only the newest counts.
func (q *queue) sign(t *millrace.Txn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idleEnd = max(q.idleEnd, t.End)
	q.urgent = q.urgent || t.Urgent
	if t.From != nil {
		q.from = t.From
	}
	q.dispatch(time.Now())
}

// flush says that nothing more is waiting.
func (q *queue) flush() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flushed = true
	q.dispatch(time.Now())
}

// nudge is called when a batch or a sign of life is due.
func (q *queue) nudge() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dispatch(time.Now())
}

// isReady tells whether the executor, having nothing to do, should take prep.
func (q *queue) isReady(now time.Time) bool {
	b := q.prep
	switch {
	case b.empty():
		return !q.inside && q.idleDue(now)
	case b.open: // a part of a large transaction can be executed at once
		return true
	}
	return b.large || b.phase != millrace.Committed || q.flushed || q.single || b.changes >= worthwhile || b.held >= q.share || now.Sub(b.started) >= maxAge
}

// idleDue tells whether a sign of life is to be written.
func (q *queue) idleDue(now time.Time) bool {
	if q.idleEnd <= q.written {
		q.urgent = false
		return false
	}
	return q.urgent || q.idleEnd > q.own && now.Sub(q.wrote) >= idleEvery
}

// dispatch gives prep to an idle executor if it is ready, or sees to it that
// this is looked at again in time.
func (q *queue) dispatch(now time.Time) {
	if !q.idle {
		return
	}
	if q.isReady(now) {
		q.idle = false
		q.ready <- q.take(now)
		return
	}
	switch {
	case !q.prep.empty():
		q.timer.Reset(maxAge)
	case !q.inside && q.idleEnd > q.written && q.idleEnd > q.own:
		q.timer.Reset(max(q.wrote.Add(idleEvery).Sub(now), maxAge))
	}
}

// take hands out prep with the sign of life behind it.
func (q *queue) take(now time.Time) *batch {
	b := q.prep
	// One that is only prepared, or was rolled back, has no progress row.
	if !b.open && b.hasProgress() && q.idleEnd > q.written {
		b.idle, q.urgent = max(b.idle, q.idleEnd), false
		if b.history == nil {
			b.history = q.from
		}
	}
	if end := b.end(); end > q.written {
		q.written, q.wrote = end, now
	}
	q.inside = b.open
	q.prep, q.spare, q.taken = q.spare, nil, b.held
	select {
	case q.room <- struct{}{}:
	default:
	}
	return b
}

// hasProgress tells whether a progress row is written behind the batch.
func (b *batch) hasProgress() bool {
	return b.phase != millrace.Prepared && b.phase != millrace.RollbackPrepared
}

// end gives the position that the batch's progress row will acknowledge, or 0
// when it writes none.
func (b *batch) end() millrace.LSN {
	if t := b.source(); t != nil && !b.open && b.hasProgress() {
		return max(b.idle, t.End)
	}
	return b.idle
}

// next gives the executor the next batch at once, or nil if none is ready. done
// is the batch that it has finished with, emptied.
func (q *queue) next(done *batch) *batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	if done != nil {
		q.spare, q.taken = done, 0
	}
	if now := time.Now(); q.isReady(now) {
		return q.take(now)
	}
	return nil
}

// wait gives the executor the next batch once there is one; nil means that ctx
// has ended, or that the executor is to look at other things. calm gets a token once
// the executor counts as idle, so that whoever it wakes finds it so.
func (q *queue) wait(ctx context.Context, other, calm chan struct{}) *batch {
	q.mu.Lock()
	q.idle = true
	q.dispatch(time.Now())
	q.mu.Unlock()
	notify(calm)
	select {
	case b := <-q.ready:
		return b
	case <-ctx.Done():
	case <-other:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idle = false
	select {
	case b := <-q.ready: // handed over meanwhile
		notify(other) // to be looked at behind it
		return b
	default:
		return nil
	}
}

// dropOpen empties the batch in preparation if it ends inside a transaction.
func (q *queue) dropOpen() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.prep.open {
		q.prep.release()
	}
}

// outside tells that the executor has given up an open transaction.
func (q *queue) outside() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inside = false
}

// urge has everything that is held written as soon as possible.
func (q *queue) urge() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flushed, q.urgent = true, true
	q.dispatch(time.Now())
}

// quiet tells whether there is nothing to do and nothing being done.
func (q *queue) quiet() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.idle && q.prep.empty() && !(q.urgent && q.idleEnd > q.written)
}

// ownWrite tells the position behind our last write, where source and target are
// one cluster.
func (q *queue) ownWrite(at millrace.LSN) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.own = at
}

// close ends the timer and gives up what is in preparation.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.timer.Stop()
	q.idle = false
	q.prep.release()
	select {
	case b := <-q.ready:
		b.release()
	default:
	}
}

// hold gives the memory that transactions hold here.
func (q *queue) hold() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.prep.held + q.taken
}
