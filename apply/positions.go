package apply

import (
	"context"
	"sync"

	"github.com/millrace/millrace"
)

// positions are how far the target has come, and why it goes no further.
type positions struct {
	mu     sync.Mutex
	failed chan struct{} // closed by fail

	visible, durable reached
	err              error
}

// reached is one of the positions. Each has a channel of its own, so that what is
// visible does not wake those who wait for what is durable.
type reached struct {
	at      millrace.LSN
	changed chan struct{} // closed and made anew when it rises
}

func (r *reached) raise(at millrace.LSN) {
	if at > r.at {
		r.at = at
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

func newPositions(at millrace.LSN) *positions {
	return &positions{failed: make(chan struct{}), visible: reached{at, make(chan struct{})}, durable: reached{at, make(chan struct{})}}
}

func (p *positions) heldVisible() *reached { return &p.visible }
func (p *positions) heldDurable() *reached { return &p.durable }

func (p *positions) setVisible(at millrace.LSN) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.visible.raise(at)
}

func (p *positions) setDurable(at millrace.LSN) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.durable.raise(at)
}

// fail keeps the first error.
func (p *positions) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
		close(p.failed)
	}
}

func (p *positions) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// wait blocks until more than after is held and returns how much. What is held
// comes before the error that has ended it.
func (p *positions) wait(ctx context.Context, after millrace.LSN, held func(*positions) *reached) (millrace.LSN, error) {
	for {
		p.mu.Lock()
		r := held(p)
		at, err, changed := r.at, p.err, r.changed
		p.mu.Unlock()
		if at > after {
			return at, nil
		}
		if err != nil {
			return 0, err
		}
		select {
		case <-changed:
		case <-p.failed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (p *positions) read() (visible, durable millrace.LSN) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.visible.at, p.durable.at
}
