package capture

import (
	"context"
	"sync"

	"github.com/millrace/millrace"
)

// queue holds what was assembled and not taken yet. One goroutine puts, one
// takes. Its limit counts what is in it: what was taken belongs to the share of
// whoever took it. One element is always admitted, whatever its size.
type queue struct {
	mu    sync.Mutex
	items []*millrace.Txn // items[head:] are queued
	head  int
	size  int64
	limit int64
	last  millrace.LSN // the highest End that was ever put
	err   error        // comes after the items
	ended bool         // by close

	filled chan struct{} // token: there may be something to take
	room   chan struct{} // token: there may be room
}

func newQueue(limit int64, from millrace.LSN) *queue {
	return &queue{limit: limit, last: from, filled: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// token leaves a token for whoever waits on the channel, or will.
func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put appends t and blocks while there is no room for it. It reports false if
// the queue was closed, and then t is still the caller's. A taker that waits is
// woken by publish, or when put has to wait.
func (q *queue) put(t *millrace.Txn) bool {
	q.mu.Lock()
	for q.size > 0 && q.size+t.Size > q.limit && !q.ended {
		q.mu.Unlock()
		token(q.filled)
		<-q.room
		q.mu.Lock()
	}
	defer q.mu.Unlock()
	if q.ended {
		return false
	}
	q.push(t)
	return true
}

func (q *queue) push(t *millrace.Txn) {
	if len(q.items) == cap(q.items) && q.head > len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, t)
	q.size += t.Size
	q.last = max(q.last, t.End)
}

// publish wakes the taker if there is something to take.
func (q *queue) publish() {
	if q.queued() {
		token(q.filled)
	}
}

func (q *queue) queued() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.head < len(q.items) || q.err != nil
}

// idle puts a sign of life at the position, or moves the one that is last in
// the queue. One that says nothing new is dropped, unless it is urgent and the
// position is not acknowledged yet: then the one before may rest somewhere.
func (q *queue) idle(from *millrace.History, position, acked millrace.LSN, urgent bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return
	}
	if q.head < len(q.items) {
		t := q.items[len(q.items)-1]
		if t.Idle() {
			t.End = max(t.End, position)
			t.Urgent = t.Urgent || urgent
			q.last = max(q.last, t.End)
			return
		}
		if !t.Last || position <= t.End {
			return
		}
	}
	if position > q.last || urgent && q.last > acked {
		q.push(&millrace.Txn{End: max(position, q.last), From: from, Last: true, Urgent: urgent, Size: txnSize})
	}
}

// next takes the first element, or the error behind the last.
func (q *queue) next(ctx context.Context) (*millrace.Txn, error) {
	for {
		if t, err := q.take(); t != nil || err != nil {
			return t, err
		}
		select {
		case <-q.filled:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (q *queue) take() (*millrace.Txn, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.ended:
		return nil, errNotStarted
	case q.head == len(q.items):
		return nil, q.err
	}
	t := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	q.size -= t.Size
	token(q.room)
	return t, nil
}

// fail makes err come after what is queued. The first one counts.
func (q *queue) fail(err error) {
	q.mu.Lock()
	if q.err == nil {
		q.err = err
	}
	q.mu.Unlock()
	token(q.filled)
}

// close releases what is queued and ends every wait.
func (q *queue) close() {
	q.mu.Lock()
	q.ended = true
	items := q.items[q.head:]
	q.items, q.head, q.size = nil, 0, 0
	q.mu.Unlock()
	for _, t := range items {
		t.Release()
	}
	token(q.filled)
	token(q.room)
}
