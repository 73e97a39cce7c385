package relay

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace"
)

// Progress is what the destination holds, for those who ask and those who wait.
// It outlives the sessions of a run and may exist before the run begins: a wait
// then goes on until there is something to hold. All methods may be called from
// any goroutine; thousands may wait, and only those whose position has come are
// woken.
type Progress struct {
	mu       sync.Mutex
	history  millrace.History
	start    millrace.LSN // commit record of the checkpoint at the begin of the session
	applied  Applied
	held     millrace.LSN
	seen     millrace.LSN // visible; never below held
	sent     millrace.LSN // the highest position written in this session
	queue    inflight
	failed   error
	loading  bool       // nothing counts as reached: see Loading
	waiters  [2]waiters // by held, by seen
	xids     xids
	observed observations
	// offered is since when the destination has not taken what it was given, in Unix
	// nanoseconds; 0: it has.
	offered atomic.Int64
	pending map[uint32][]*waiter // for an xid that has not come
	// finishing tells whether the source holds back a transaction that has come, which
	// the destination is still to finish.
	finishing func() bool

	// wake tells the asker that a waiter has come.
	wake chan struct{}
}

// NewProgress makes a Progress at which nothing is held yet.
func NewProgress() *Progress {
	return &Progress{pending: make(map[uint32][]*waiter), wake: make(chan struct{}, 1)}
}

// ErrEnded is returned by a wait at a Progress whose run has ended.
var ErrEnded = errors.New("the job has stopped")

// Finishing takes what tells that a transaction has come, and is given away only when
// the destination has finished with its changes.
func (p *Progress) Finishing(f func() bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finishing = f
}

// Held gives the position up to which everything is durable, or 0 before the
// first session. A position that was held stays held.
func (p *Progress) Held() millrace.LSN {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// Visible gives the position up to which new queries see everything. Part of it
// may not be durable yet: after a crash of the destination it can go back.
func (p *Progress) Visible() millrace.LSN {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// Applied is the last transaction that is durable at the destination: its
// commit record and the end of that. Both are zero when none is known.
type Applied struct {
	Commit, End millrace.LSN
}

func (a *Applied) later(b Applied) {
	if b.End > a.End {
		*a = b
	}
}

// Applied gives the last transaction that is durable.
func (p *Progress) Applied() Applied {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.applied
}

// History names the history that the positions belong to, as the newest
// transaction has it; the zero History before the first session.
func (p *Progress) History() millrace.History {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.history
}

// Need is what somebody waits for: a position that the destination holds, or
// with Visible shows, or with XID that the transaction of that number has come.
type Need struct {
	At      millrace.LSN
	Visible bool
	XID     uint32 // not 0: instead of At
}

// Reached gives the position that is held, or with visible is shown, and the
// error with which the run has ended, if it has.
func (p *Progress) Reached(visible bool) (millrace.LSN, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reached(visible), p.failed
}

// Come gives the end of a transaction that has come. Numbers are remembered for
// ten minutes; one that was rolled back, changed no published table or is older
// never comes.
func (p *Progress) Come(xid uint32) (millrace.LSN, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.xids.find(xid, time.Now())
}

// Notify calls wake once what is needed has come, with its position, or with 0
// when the run has ended. wake may be called before Notify returns; it must not
// block and must not call this Progress. stop takes the wish back; wake can
// still be on its way then. Between the two a wish costs memory and nothing else.
func (p *Progress) Notify(need Need, wake func(millrace.LSN)) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &waiter{at: need.At, wake: wake, place: -1}
	if need.XID != 0 {
		end, ok := p.xids.find(need.XID, time.Now())
		if ok || p.failed != nil {
			wake(end)
			return func() {}
		}
		p.pending[need.XID] = append(p.pending[need.XID], w)
		return func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.forget(need.XID, w)
		}
	}
	if reached := p.reached(need.Visible); reached >= need.At && reached != 0 || p.failed != nil {
		wake(reached)
		return func() {}
	}
	line := &p.waiters[index(need.Visible)]
	line.push(w)
	p.tell()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		line.remove(w)
	}
}

// Wait blocks until the destination holds at, or with visible shows it, and
// returns the position reached.
func (p *Progress) Wait(ctx context.Context, at millrace.LSN, visible bool) (millrace.LSN, error) {
	come := make(chan struct{})
	stop := p.Notify(Need{At: at, Visible: visible}, func(millrace.LSN) { close(come) })
	defer stop()
	select {
	case <-come:
	case <-ctx.Done():
	}
	reached, failed := p.Reached(visible)
	switch {
	case reached >= at && reached != 0:
		return reached, nil
	case failed != nil:
		return reached, failed
	}
	return reached, ctx.Err()
}

func (p *Progress) forget(xid uint32, w *waiter) {
	rest := slices.DeleteFunc(p.pending[xid], func(x *waiter) bool { return x == w })
	if len(rest) == 0 {
		delete(p.pending, xid)
		return
	}
	p.pending[xid] = rest
}

// Waiting counts those who wait for a position.
func (p *Progress) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiters[0].Len() + p.waiters[1].Len()
}

// End wakes all who wait; they and all who come later get err, or ErrEnded when
// it is nil, unless what they wait for is held.
func (p *Progress) End(err error) {
	if err == nil {
		err = ErrEnded
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = err
	for i := range p.waiters {
		p.waiters[i].wakeAll()
	}
	for xid, waiting := range p.pending {
		for _, w := range waiting {
			w.wake(0)
		}
		delete(p.pending, xid)
	}
}

// Loading says that rows are still loaded beside the stream: the destination is no
// state that the source ever had, so no position counts as reached until that is
// over.
func (p *Progress) Loading(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loading = on
	if !on {
		p.waiters[0].wakeTo(p.held)
		p.waiters[1].wakeTo(p.seen)
	}
}

func (p *Progress) reached(visible bool) millrace.LSN {
	if p.loading {
		return 0
	}
	if visible {
		return p.seen
	}
	return p.held
}

func index(visible bool) int {
	if visible {
		return 1
	}
	return 0
}

// tell wakes the asker; one token is enough, however many have come.
func (p *Progress) tell() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// wanted tells whether somebody waits for a position beyond all that was
// written: only the server's own position can satisfy that.
func (p *Progress) wanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.waiters {
		if p.waiters[i].last() > p.sent {
			return true
		}
	}
	return false
}

// begin takes up the checkpoint of a session. What a former session had written
// and not made durable comes again.
func (p *Progress) begin(cp millrace.Checkpoint) {
	p.mu.Lock()
	p.history = cp.History
	p.start = cp.Commit
	p.applied.later(Applied{Commit: cp.Commit, End: cp.End})
	p.sent = cp.Acked
	p.queue.clear()
	p.mu.Unlock()
	p.durable(cp.Acked)
}

// written takes note of a transaction on its way to the sink, and marks a sign
// of life as urgent if somebody waits for it.
func (p *Progress) written(t *millrace.Txn) {
	now := time.Now()
	p.offered.Store(now.UnixNano())
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.From != nil {
		p.history = *t.From
	}
	if t.Chunk != nil || t.Phase == millrace.Prepared || t.Phase == millrace.RollbackPrepared {
		return // moves no position
	}
	if t.Idle() {
		// A sign of life that nobody waits for may rest in the sink for a while.
		t.Urgent = t.Urgent || p.waiters[0].any(t.End) || p.waiters[1].any(t.End)
		if t.Urgent {
			p.sent = max(p.sent, t.End)
		}
		return
	}
	if t.Commit <= p.start {
		return // redelivered; the sink skips it
	}
	p.queue.part(t, now)
	if !t.Last {
		return
	}
	p.sent = max(p.sent, t.End)
	p.xids.add(t.XID, t.End, now)
	if waiting, ok := p.pending[t.XID]; ok {
		for _, w := range waiting {
			w.wake(t.End)
		}
		delete(p.pending, t.XID)
	}
}

// taken notes that the destination has taken what was written.
func (p *Progress) taken() { p.offered.Store(0) }

// refused tells whether the destination has taken nothing for a while: it is full.
func (p *Progress) refused(now time.Time) bool {
	since := p.offered.Load()
	return since != 0 && now.Sub(time.Unix(0, since)) > time.Second
}

// durable publishes a position that the sink reported.
func (p *Progress) durable(at millrace.LSN) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at > p.held {
		p.held = at
		p.wakeTo(false, at)
	}
	p.applied.later(p.queue.done(at))
	p.observed.pass(p.held)
	if p.held > p.seen {
		p.seen = p.held
		p.wakeTo(true, p.seen)
	}
}

// visible publishes a position that new queries see.
func (p *Progress) visible(at millrace.LSN) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at > p.seen {
		p.seen = at
		p.wakeTo(true, at)
	}
}

// wakeTo wakes those who wait for a position up to at.
func (p *Progress) wakeTo(visible bool, at millrace.LSN) {
	if !p.loading {
		p.waiters[index(visible)].wakeTo(at)
	}
}
