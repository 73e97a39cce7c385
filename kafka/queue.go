package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/millrace/millrace"
)

// queue is where the batch in preparation waits for the executor: while one
// batch is committed the other is filled.
type queue struct {
	share  int64 // bytes from which a batch takes no more
	single bool  // one source transaction a batch

	mu      sync.Mutex
	prep    *batch
	spare   *batch // nil while the executor has it
	inside  bool   // prep ends inside of a source transaction, and is its writer's
	size    int64  // of prep, without that transaction
	flushed bool   // nothing more is waiting behind prep
	changed chan struct{}
	room    chan struct{}

	// Signs of life: the newest position up to which the source has nothing for
	// us, whether somebody waits for it, and what is written of it.
	idleEnd millrace.LSN
	urgent  bool
	from    *millrace.History
	written millrace.LSN
	wrote   time.Time
	busy    bool // the executor works on a batch
	noted   bool // something is to be recorded that no transaction brings
}

const (
	// maxAge is how long a transaction waits for more while the executor has
	// nothing to do and the source does not pause.
	maxAge = 2 * time.Millisecond
	// idleEvery is how often an idle source's position is written.
	idleEvery = 10 * time.Second
)

func newQueue(share int64, single bool, cp *millrace.Checkpoint) *queue {
	return &queue{share: share, single: single, prep: &batch{}, spare: &batch{}, written: cp.Acked, wrote: time.Now(),
		changed: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// await blocks until the batch in preparation can take another source
// transaction, and gives it. It is the caller's until done, with the executor
// kept away from it.
func (q *queue) await(ctx context.Context, large bool, failed <-chan struct{}) (*batch, error) {
	for {
		q.mu.Lock()
		b := q.prep
		full := b.size >= q.share || b.large != nil || (q.single || large) && (len(b.records) > 0 || b.filled())
		if !full {
			q.inside = true
			q.mu.Unlock()
			return b, nil
		}
		q.flushed = true // nothing more can come behind it
		q.mu.Unlock()
		poke(q.changed)
		select {
		case <-q.room:
		case <-failed:
			return nil, errFailed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// done gives the batch back after a source transaction was added to it, or
// taken out again.
func (q *queue) done() {
	q.mu.Lock()
	q.inside, q.flushed, q.size = false, false, q.prep.size
	if q.prep.started.IsZero() {
		q.prep.started = time.Now()
	}
	q.mu.Unlock()
	poke(q.changed)
}

func (q *queue) sign(t *millrace.Txn) {
	q.mu.Lock()
	q.idleEnd = max(q.idleEnd, t.End)
	q.urgent = q.urgent || t.Urgent
	if t.From != nil {
		q.from = t.From
	}
	q.mu.Unlock()
	poke(q.changed)
}

func (q *queue) flush() {
	q.mu.Lock()
	q.flushed = true
	q.mu.Unlock()
	poke(q.changed)
}

// note has something recorded as soon as possible.
func (q *queue) note() {
	q.mu.Lock()
	q.noted = true
	q.mu.Unlock()
	poke(q.changed)
}

// filled tells whether the batch has a whole transaction, or a chunk.
func (b *batch) filled() bool { return b.commit != 0 || b.chunks > 0 }

// urge has everything that is held written as soon as possible.
func (q *queue) urge() {
	q.mu.Lock()
	q.flushed, q.urgent = true, true
	q.mu.Unlock()
	poke(q.changed)
}

// due tells whether the executor should take prep now, or how long it may wait.
func (q *queue) due(now time.Time) (bool, time.Duration) {
	b := q.prep
	switch {
	case q.inside:
		return false, 0
	case q.noted:
		return true, 0
	case b.filled():
		age := now.Sub(b.started)
		return q.flushed || q.single || b.large != nil || b.size >= q.share/2 || age >= maxAge, maxAge - age
	case q.idleEnd <= q.written:
		q.urgent = false
		return false, 0
	}
	rest := idleEvery - now.Sub(q.wrote)
	return q.urgent || rest <= 0, rest
}

// next gives the executor the next batch; done is the one it is finished with.
// Nil means that ctx has ended.
func (q *queue) next(ctx context.Context, done *batch) *batch {
	if done != nil {
		done.reset()
		q.mu.Lock()
		q.spare, q.busy = done, false
		q.mu.Unlock()
	}
	for {
		q.mu.Lock()
		now := time.Now()
		ready, rest := q.due(now)
		if ready {
			b := q.take(now)
			q.mu.Unlock()
			poke(q.room)
			return b
		}
		q.mu.Unlock()
		var timer <-chan time.Time
		if rest > 0 {
			timer = time.After(rest)
		}
		select {
		case <-q.changed:
		case <-timer:
		case <-ctx.Done():
			return nil
		}
	}
}

func (q *queue) take(now time.Time) *batch {
	b := q.prep
	if q.idleEnd > q.written {
		b.idle, q.urgent = max(b.idle, q.idleEnd), false
		if b.history == nil {
			b.history = q.from
		}
	}
	q.written, q.wrote, q.busy, q.noted = max(q.written, b.end, b.idle), now, true, false
	q.prep, q.spare, q.size = q.spare, nil, 0
	return b
}

// quiet tells whether there is nothing to do and nothing being done.
func (q *queue) quiet() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.busy && !q.prep.filled() && !q.noted && !(q.urgent && q.idleEnd > q.written)
}

// hold gives the memory of the whole transactions in preparation.
func (q *queue) hold() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size
}
