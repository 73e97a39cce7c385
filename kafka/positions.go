package kafka

import (
	"context"
	"sync"

	"github.com/millrace/millrace"
)

// positions is what is durable, for those who wait for more, and the error that
// ended the work.
type positions struct {
	mu      sync.Mutex
	durable millrace.LSN
	err     error
	moved   chan struct{} // closed and replaced by every change
	failed  chan struct{} // closed by fail
}

func newPositions(at millrace.LSN) *positions {
	return &positions{durable: at, moved: make(chan struct{}), failed: make(chan struct{})}
}

func (p *positions) advance(to millrace.LSN) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if to > p.durable {
		p.durable = to
	}
	close(p.moved)
	p.moved = make(chan struct{})
}

func (p *positions) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
		close(p.failed)
		close(p.moved)
		p.moved = make(chan struct{})
	}
}

func (p *positions) get() (millrace.LSN, <-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.durable, p.moved, p.err
}

// wait blocks until more than after is durable. What was reached before an
// error is told before it.
func (p *positions) wait(ctx context.Context, after millrace.LSN) (millrace.LSN, error) {
	for {
		at, moved, err := p.get()
		switch {
		case at > after:
			return at, nil
		case err != nil:
			return at, err
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return at, ctx.Err()
		}
	}
}
