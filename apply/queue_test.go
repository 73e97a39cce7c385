package apply

import (
	"testing"

	"github.com/millrace/millrace"
)

// TestWaitForCalm: Drain waits for nothing but these tokens, so each has to come when
// what it tells is so, and none may be lost.
func TestWaitForCalm(t *testing.T) {
	for range 200 {
		q := newQueue(1<<20, false, 0)
		other, calm, got := make(chan struct{}, 1), make(chan struct{}, 1), make(chan *batch, 1)
		go func() { got <- q.wait(t.Context(), other, calm) }()
		<-calm
		if !q.quiet() {
			t.Fatal("told before it was so")
		}
		notify(other)
		if b := <-got; b != nil {
			t.Fatal("a batch from nowhere")
		}
		q.close()
	}
	for range 200 { // both at once: the batch first, and the other thing is not forgotten
		q := newQueue(1<<20, false, 0)
		other, calm := make(chan struct{}, 1), make(chan struct{}, 1)
		notify(other)
		q.add(t.Context(), &millrace.Txn{Commit: 1, XID: 1}, nil, nil)
		if b := q.wait(t.Context(), other, calm); b == nil || len(b.txns) != 1 {
			t.Fatal("no batch")
		}
		if len(other) != 1 {
			t.Fatal("what else was to be looked at is forgotten")
		}
		q.close()
	}
}
