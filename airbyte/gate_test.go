package airbyte

import (
	"context"
	"testing"

	"github.com/millrace/millrace"
)

// acks is a source that forgets at each start what was acknowledged before.
type acks struct {
	Source
	at millrace.LSN
}

func (a *acks) Start(context.Context, millrace.Checkpoint) error {
	a.at = 0
	return nil
}

func (a *acks) Ack(at millrace.LSN) { a.at = max(a.at, at) }

// TestProvedWhileAway: what was proved while there was no connection reaches the
// source at the next start, and what was only written never does.
func TestProvedWhileAway(t *testing.T) {
	source := &acks{}
	g := &Gate{Source: source}
	for _, step := range []struct{ written, prove, want millrace.LSN }{{10, 0, 10}, {30, 20, 20}, {40, 0, 20}, {50, 15, 20}} {
		if step.prove > 0 {
			g.Prove(step.prove)
		}
		if err := g.Start(t.Context(), millrace.Checkpoint{Acked: step.written}); err != nil {
			t.Fatal(err)
		}
		g.Ack(step.written)
		if source.at != step.want {
			t.Errorf("started at %v: acknowledged %v, want %v", step.written, source.at, step.want)
		}
	}
}
