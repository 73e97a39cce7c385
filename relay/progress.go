package relay

import (
	"context"
	"errors"
	"sync"
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
	waiters  [2]waiters // by held, by seen
	xids     xids
	observed observations
	pending  map[uint32][]chan millrace.LSN // waiters for an xid that has not come

	// wake tells the asker that a waiter has come.
	wake chan struct{}
}

// NewProgress makes a Progress at which nothing is held yet.
func NewProgress() *Progress {
	return &Progress{pending: make(map[uint32][]chan millrace.LSN), wake: make(chan struct{}, 1)}
}

// ErrEnded is returned by a wait at a Progress whose run has ended.
var ErrEnded = errors.New("the job has stopped")

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

// Wait blocks until the destination holds at, or with visible shows it, and
// returns the position reached.
func (p *Progress) Wait(ctx context.Context, at millrace.LSN, visible bool) (millrace.LSN, error) {
	p.mu.Lock()
	if reached := p.reached(visible); reached >= at && reached != 0 {
		p.mu.Unlock()
		return reached, nil
	}
	if p.failed != nil {
		defer p.mu.Unlock()
		return 0, p.failed
	}
	w := &waiter{at: at, done: make(chan struct{})}
	line := &p.waiters[index(visible)]
	line.push(w)
	p.mu.Unlock()
	p.tell()

	select {
	case <-w.done:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	line.remove(w)
	reached := p.reached(visible)
	switch {
	case reached >= at && reached != 0:
		return reached, nil
	case p.failed != nil:
		return reached, p.failed
	}
	return reached, ctx.Err()
}

// WaitXID blocks until the transaction with this number has come and gives the
// position that holds it. Numbers are remembered for ten minutes; one that was
// rolled back, changed no published table or is older never comes.
func (p *Progress) WaitXID(ctx context.Context, xid uint32) (millrace.LSN, error) {
	p.mu.Lock()
	if end, ok := p.xids.find(xid, time.Now()); ok {
		p.mu.Unlock()
		return end, nil
	}
	if p.failed != nil {
		defer p.mu.Unlock()
		return 0, p.failed
	}
	come := make(chan millrace.LSN, 1)
	p.pending[xid] = append(p.pending[xid], come)
	p.mu.Unlock()

	select {
	case end := <-come:
		if end == 0 {
			return 0, ErrEnded
		}
		return end, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(xid, come)
	return 0, ctx.Err()
}

func (p *Progress) forget(xid uint32, come chan millrace.LSN) {
	rest := p.pending[xid][:0]
	for _, c := range p.pending[xid] {
		if c != come {
			rest = append(rest, c)
		}
	}
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
		for _, c := range waiting {
			c <- 0
		}
		delete(p.pending, xid)
	}
}

func (p *Progress) reached(visible bool) millrace.LSN {
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
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.From != nil {
		p.history = *t.From
	}
	if t.Chunk != nil {
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
		for _, c := range waiting {
			c <- t.End
		}
		delete(p.pending, t.XID)
	}
}

// durable publishes a position that the sink reported.
func (p *Progress) durable(at millrace.LSN) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at > p.held {
		p.held = at
		p.waiters[0].wakeTo(at)
	}
	p.applied.later(p.queue.done(at))
	p.observed.pass(p.held)
	if p.held > p.seen {
		p.seen = p.held
		p.waiters[1].wakeTo(p.seen)
	}
}

// visible publishes a position that new queries see.
func (p *Progress) visible(at millrace.LSN) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at > p.seen {
		p.seen = at
		p.waiters[1].wakeTo(at)
	}
}
