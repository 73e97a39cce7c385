package relay

import (
	"container/heap"

	"github.com/millrace/millrace"
)

// waiter is one who waits for a position, or for a transaction; wake is called
// once, with the position that has come, or with 0 at the end of the run. It
// must not block.
type waiter struct {
	at    millrace.LSN
	wake  func(millrace.LSN)
	place int // in the heap, -1 once out of it
}

// waiters is a heap with the lowest position first, so that progress costs
// nothing but the wake-up of those whose position has come.
type waiters struct {
	heap []*waiter
	high millrace.LSN // at least the highest position in the heap
}

func (w *waiters) push(x *waiter) {
	w.high = max(w.high, x.at)
	heap.Push(w, x)
}

// remove takes x out, if it is still in.
func (w *waiters) remove(x *waiter) {
	if x.place >= 0 {
		heap.Remove(w, x.place)
	}
	if len(w.heap) == 0 {
		w.high = 0
	}
}

// wakeTo wakes all whose position is at or below at.
func (w *waiters) wakeTo(at millrace.LSN) {
	for len(w.heap) > 0 && w.heap[0].at <= at {
		heap.Pop(w).(*waiter).wake(at)
	}
}

func (w *waiters) wakeAll() {
	for len(w.heap) > 0 {
		heap.Pop(w).(*waiter).wake(0)
	}
}

// any tells whether somebody waits for a position at or below at.
func (w *waiters) any(at millrace.LSN) bool { return len(w.heap) > 0 && w.heap[0].at <= at }

// last gives an upper bound of the positions waited for, 0 when nobody waits.
func (w *waiters) last() millrace.LSN {
	if len(w.heap) == 0 {
		return 0
	}
	return w.high
}

// Len, Less, Swap, Push and Pop are container/heap's.
func (w *waiters) Len() int           { return len(w.heap) }
func (w *waiters) Less(i, j int) bool { return w.heap[i].at < w.heap[j].at }

func (w *waiters) Swap(i, j int) {
	w.heap[i], w.heap[j] = w.heap[j], w.heap[i]
	w.heap[i].place, w.heap[j].place = i, j
}

// Push appends x.
func (w *waiters) Push(x any) {
	e := x.(*waiter)
	e.place = len(w.heap)
	w.heap = append(w.heap, e)
}

// Pop takes the last one.
func (w *waiters) Pop() any {
	n := len(w.heap) - 1
	e := w.heap[n]
	w.heap[n] = nil
	w.heap = w.heap[:n]
	e.place = -1
	return e
}
