package apply

import (
	"context"
	"sync"

	"github.com/millrace/millrace"
)

// positions are how far the target has come, and why it goes no further.
type positions struct {
	mu      sync.Mutex
	changed chan struct{} // closed and made anew by every change
	failed  chan struct{} // closed by fail

	visible, durable millrace.LSN
	err              error
}

func newPositions(at millrace.LSN) *positions {
	return &positions{changed: make(chan struct{}), failed: make(chan struct{}), visible: at, durable: at}
}

func (p *positions) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *positions) heldVisible() millrace.LSN { return p.visible }
func (p *positions) heldDurable() millrace.LSN { return p.durable }

func (p *positions) setVisible(at millrace.LSN) { p.change(func() { p.visible = max(p.visible, at) }) }
func (p *positions) setDurable(at millrace.LSN) { p.change(func() { p.durable = max(p.durable, at) }) }

// fail keeps the first error.
func (p *positions) fail(err error) {
	p.change(func() {
		if p.err == nil {
			p.err = err
			close(p.failed)
		}
	})
}

func (p *positions) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// wait blocks until more than after is held and returns how much. What is held
// comes before the error that has ended it.
func (p *positions) wait(ctx context.Context, after millrace.LSN, held func(*positions) millrace.LSN) (millrace.LSN, error) {
	for {
		p.mu.Lock()
		at, err, changed := held(p), p.err, p.changed
		p.mu.Unlock()
		if at > after {
			return at, nil
		}
		if err != nil {
			return 0, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (p *positions) read() (visible, durable millrace.LSN) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.visible, p.durable
}
