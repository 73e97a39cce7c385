package airbyte

import (
	"context"
	"sync"

	"github.com/millrace/millrace"
)

// Source is what a Gate stands before.
type Source interface {
	millrace.Source
	Queued() bool
	RequestPosition()
	UseText()
}

// Gate lets no acknowledgement reach the source but what was proved: that a
// record was written does not mean that the platform holds it.
type Gate struct {
	Source
	mu     sync.Mutex
	proved millrace.LSN // the highest position
}

// Start implements millrace.Source. The first position of a run is the one that
// the platform gave back; after a lost connection it may be behind what was written.
// What was proved while there was no connection is said then.
func (g *Gate) Start(ctx context.Context, from millrace.Checkpoint) error {
	g.mu.Lock()
	if g.proved == 0 {
		g.proved = from.Acked
	}
	g.mu.Unlock()
	if err := g.Source.Start(ctx, from); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.Source.Ack(g.proved)
	return nil
}

// Ack implements millrace.Source: what was written proves nothing.
func (g *Gate) Ack(millrace.LSN) {}

// Prove says that the platform holds everything up to the position.
func (g *Gate) Prove(at millrace.LSN) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.proved = max(g.proved, at)
	g.Source.Ack(g.proved)
}
