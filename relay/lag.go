package relay

import (
	"time"

	"github.com/millrace/millrace"
)

// Lag is how far the destination is behind. Nil is unknown, which is never the
// same as 0.
type Lag struct {
	Seconds      *float64 `json:"seconds"`
	Bytes        *int64   `json:"bytes"`
	Transactions *int64   `json:"transactions"`
	// WaitsFor tells what holds the destination back; nil when that is unknown.
	// The engine can tell three cases apart; whoever sees the servers can say
	// more.
	WaitsFor *string `json:"waits_for"`
	// WaitsDetail says it in a sentence, and BlockingPID names the session whose
	// lock or transaction is waited for, if there is one.
	WaitsDetail *string `json:"waits_detail"`
	BlockingPID *int32  `json:"blocking_pid"`
}

// What a lag waits for, as far as the engine knows.
const (
	WaitsForApply   = "apply"   // received transactions are not durable
	WaitsForStream  = "stream"  // nothing received is waiting, but for its own rest
	WaitsForNothing = "nothing" // it is caught up
)

// Observe takes note of the source's own position, 0 when it can't be had.
func (p *Progress) Observe(position millrace.LSN, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observed.add(position, p.held, now)
}

// Lag compares what is held with the source's own position as it was observed
// last. Seconds is the age of the oldest transaction that was received and is
// not durable. With none, it is 0 only when the position is held; else it is
// the time since the newest position that is known to be held, which no missing
// transaction can be older than.
func (p *Progress) Lag(now time.Time) Lag {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == 0 {
		return Lag{}
	}
	n := p.queue.len()
	lag := Lag{Transactions: &n}
	position := p.observed.last
	if position != 0 {
		b := int64(0)
		if position > p.held {
			b = int64(position - p.held)
		}
		lag.Bytes = &b
	}
	var waits string
	var age time.Duration
	switch oldest, ok := p.queue.oldest(); {
	case ok && p.queue.partial() && !p.refused(now):
		waits, age = WaitsForStream, oldest.age(now)
	case ok:
		waits, age = WaitsForApply, oldest.age(now)
	case position == 0:
		return lag
	case *lag.Bytes == 0:
		waits = WaitsForNothing
	default:
		waits, age = WaitsForStream, -1
		if at := p.observed.heldAt; !at.IsZero() {
			age = now.Sub(at)
		}
	}
	if waits == WaitsForStream && p.finishing != nil && p.finishing() {
		waits = WaitsForApply
		n++
	}
	lag.WaitsFor = &waits
	if age >= 0 {
		s := age.Seconds()
		lag.Seconds = &s
	}
	return lag
}

// inflight holds the received transactions that are not durable yet, in order.
type inflight struct {
	ring []flight
	from int
	open *flight // a transaction whose last part has not come
}

type flight struct {
	commit    millrace.LSN
	end       millrace.LSN
	committed time.Time // by the source's clock
	received  time.Time // by ours
}

// age is at least the time that the transaction has been here, whatever the
// source's clock says.
func (f flight) age(now time.Time) time.Duration {
	return max(now.Sub(f.committed), now.Sub(f.received))
}

func (q *inflight) part(t *millrace.Txn, now time.Time) {
	f := flight{commit: t.Commit, end: t.End, committed: t.Time, received: now}
	if q.open != nil {
		f.received = q.open.received
	}
	if !t.Last {
		q.open = &f
		return
	}
	q.open = nil
	if q.from > 0 && len(q.ring) == cap(q.ring) {
		q.ring = q.ring[:copy(q.ring, q.ring[q.from:])]
		q.from = 0
	}
	q.ring = append(q.ring, f)
}

// done takes out what ends at or before at and gives the last of it.
func (q *inflight) done(at millrace.LSN) Applied {
	var last Applied
	for q.from < len(q.ring) && q.ring[q.from].end <= at {
		last = Applied{q.ring[q.from].commit, q.ring[q.from].end}
		q.from++
	}
	if q.from == len(q.ring) {
		q.ring, q.from = q.ring[:0], 0
	}
	return last
}

// partial tells whether all that is here is a part of a transaction.
func (q *inflight) partial() bool { return q.from == len(q.ring) && q.open != nil }

func (q *inflight) oldest() (flight, bool) {
	if q.from < len(q.ring) {
		return q.ring[q.from], true
	}
	if q.open != nil {
		return *q.open, true
	}
	return flight{}, false
}

func (q *inflight) len() int64 {
	n := int64(len(q.ring) - q.from)
	if q.open != nil {
		n++
	}
	return n
}

func (q *inflight) clear() { q.ring, q.from, q.open = q.ring[:0], 0, nil }

// observations remembers when the source was at which position.
type observations struct {
	last   millrace.LSN // 0: unknown now
	heldAt time.Time    // when the newest position that is held was seen
	ahead  []observation
}

type observation struct {
	position millrace.LSN
	at       time.Time
}

// maxObservations bounds the memory; above it every second one is dropped.
const maxObservations = 256

func (o *observations) add(position, held millrace.LSN, now time.Time) {
	o.last = position
	if position != 0 {
		if len(o.ahead) == maxObservations {
			for i := range maxObservations / 2 {
				o.ahead[i] = o.ahead[2*i]
			}
			o.ahead = o.ahead[:maxObservations/2]
		}
		o.ahead = append(o.ahead, observation{position, now})
	}
	o.pass(held)
}

// pass takes out the observations that are held.
func (o *observations) pass(held millrace.LSN) {
	n := 0
	for n < len(o.ahead) && o.ahead[n].position <= held {
		o.heldAt = o.ahead[n].at
		n++
	}
	o.ahead = o.ahead[:copy(o.ahead, o.ahead[n:])]
}
