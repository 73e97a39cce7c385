package relay

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace"
)

// world is a source's history and a destination that keeps what it was given.
// Both ends can be cut, and both keep to the contracts of Source and Sink.
type world struct {
	mu      sync.Mutex
	changed chan struct{} // closed and made anew by every change

	history  []millrace.Txn // committed at the source
	position millrace.LSN   // of the source
	flushed  millrace.LSN   // what was acknowledged
	owner    *fakeSource

	applied []uint32 // xids, in order
	cp      millrace.Checkpoint
	sinkErr error // what the sink's calls fail with
	srcErr  error
}

func newWorld() *world {
	w := &world{changed: make(chan struct{}), position: 100, flushed: 100}
	w.cp = millrace.Checkpoint{Commit: 100, End: 100, Acked: 100}
	w.cp.System, w.cp.Timeline, w.cp.Generation = "7", 1, 1
	return w
}

func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

// commit adds a transaction of n parts.
func (w *world) commit(xid uint32, parts int) millrace.LSN {
	var end millrace.LSN
	w.change(func() {
		at := w.position + 8
		for i := range parts {
			w.history = append(w.history, millrace.Txn{XID: xid, Commit: at, End: at + 8, Time: time.Now(),
				Part: i, Last: i == parts-1, Changes: []millrace.Change{{Op: millrace.Insert, Rel: rel}}})
		}
		w.position = at + 8
		end = w.position
	})
	return end
}

var rel = &millrace.Relation{OID: 1, Name: millrace.TableName{Schema: "public", Name: "t"}}

// until blocks until f, called under the lock, gives true or an error.
func (w *world) until(ctx context.Context, f func() (bool, error)) error {
	for {
		w.mu.Lock()
		ok, err := f()
		changed := w.changed
		w.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type fakeSource struct {
	w         *world
	next      int
	sent      millrace.LSN
	requested bool
	keepalive bool
	requests  int
	text      bool
	refuse    func(millrace.Checkpoint) error
	starts    int
}

func (s *fakeSource) Start(_ context.Context, cp millrace.Checkpoint) error {
	s.starts++
	if s.refuse != nil {
		if err := s.refuse(cp); err != nil {
			return err
		}
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.w.srcErr != nil {
		return s.w.srcErr
	}
	if s.w.flushed > cp.Acked {
		return &millrace.Error{Kind: millrace.KindResync, Op: "start", Err: errors.New("the slot is ahead")}
	}
	s.w.owner = s
	s.next, s.sent = 0, cp.Acked
	for s.next < len(s.w.history) && s.w.history[s.next].Commit <= cp.Commit {
		s.next++
	}
	return nil
}

func (s *fakeSource) Next(ctx context.Context) (*millrace.Txn, error) {
	var t *millrace.Txn
	err := s.w.until(ctx, func() (bool, error) {
		switch {
		case s.w.srcErr != nil:
			return false, s.w.srcErr
		case s.next < len(s.w.history):
			c := s.w.history[s.next]
			s.next++
			s.sent = c.End
			t = &c
		case s.requested:
			s.requested = false
			t = &millrace.Txn{End: s.w.position, Last: true, Urgent: true}
		case s.keepalive:
			s.keepalive = false
			t = &millrace.Txn{End: s.w.position, Last: true}
		}
		return t != nil, nil
	})
	return t, err
}

func (s *fakeSource) Queued() bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.next < len(s.w.history)
}

func (s *fakeSource) Ack(at millrace.LSN) {
	s.w.change(func() { s.w.flushed = max(s.w.flushed, at) })
}
func (s *fakeSource) RequestPosition() { s.w.change(func() { s.requested = true; s.requests++ }) }
func (s *fakeSource) UseText()         { s.text = true }
func (s *fakeSource) Close() error     { s.w.change(func() { s.w.owner = nil }); return nil }

// fakeSink applies what it was given when it is flushed, and a flush takes a
// millisecond.
type fakeSink struct {
	w     *world
	held  []*millrace.Txn
	flush bool
	stuck bool
	text  func() bool
	claim func()
	// undecided: the checkpoint may be older than what was confirmed; nil: never.
	undecided func() bool
}

func (s *fakeSink) Undecided() bool { return s.undecided != nil && s.undecided() }

func (s *fakeSink) Open(context.Context) (millrace.Checkpoint, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.held = nil
	return s.w.cp, s.w.sinkErr
}

func (s *fakeSink) Claim(context.Context) (millrace.Checkpoint, error) {
	if s.claim != nil {
		s.claim()
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.cp.Epoch++
	return s.w.cp, s.w.sinkErr
}

func (s *fakeSink) Write(_ context.Context, t *millrace.Txn) error {
	if s.text != nil && !s.text() {
		return millrace.ErrNeedText
	}
	var err error
	s.w.change(func() {
		s.held = append(s.held, t)
		err = s.w.sinkErr
	})
	return err
}

func (s *fakeSink) Flush() { s.w.change(func() { s.flush = true }) }

func (s *fakeSink) Durable(ctx context.Context, after millrace.LSN) (millrace.LSN, error) {
	err := s.w.until(ctx, func() (bool, error) {
		if s.w.sinkErr != nil {
			return false, s.w.sinkErr
		}
		if s.flush && !s.stuck {
			s.flush = false
			s.apply(false)
		}
		return s.w.cp.Acked > after, nil
	})
	return s.w.cp.Acked, err
}

// apply applies the complete transactions.
func (s *fakeSink) apply(drain bool) {
	for len(s.held) > 0 {
		n := 0
		for n < len(s.held) && !s.held[n].Last {
			n++
		}
		if n == len(s.held) {
			return
		}
		t := s.held[n]
		if t.Idle() && !t.Urgent && !drain && n == len(s.held)-1 {
			return // it rests until something comes behind it
		}
		s.held = s.held[n+1:]
		s.w.cp.Acked = max(s.w.cp.Acked, t.End)
		if !t.Idle() {
			s.w.applied = append(s.w.applied, t.XID)
			s.w.cp.Commit, s.w.cp.End = t.Commit, t.End
		}
	}
}

func (s *fakeSink) Drain(ctx context.Context) (millrace.LSN, error) {
	if s.stuck {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.apply(true)
	return s.w.cp.Acked, s.w.sinkErr
}

func (s *fakeSink) Close() error { return nil }
