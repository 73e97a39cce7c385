package web

import (
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/millrace/millrace"
)

const (
	// lookEvery is how often a running job's numbers are read.
	lookEvery = time.Second
	// sampleLooks is how many looks make a sample of the history.
	sampleLooks = 5
	// samples bounds the history to an hour.
	samples = 3600 / sampleLooks
	// rateLooks is over how many seconds the rates of the status are taken.
	rateLooks = 10
)

// The columns of the history. Rates are averages over a sample, the rest is the
// highest value in it.
const (
	colLagSeconds = iota
	colLagBytes
	colTransactions
	colChanges
	colBytes
	colRetained
	columns
)

var columnNames = [columns]string{"lag_seconds", "lag_bytes", "transactions", "changes", "bytes", "retained"}

// Rates are what passes per second now, an average over the last ten seconds.
type Rates struct {
	Transactions *float64 `json:"source_transactions_per_second"`
	Changes      *float64 `json:"source_changes_per_second"`
	Bytes        *float64 `json:"source_bytes_per_second"`
	Applied      *float64 `json:"applied_transactions_per_second"`
	WAL          *float64 `json:"wal_bytes_per_second"`
	Held         *float64 `json:"held_bytes_per_second"`
}

// look is what was counted at one moment; -1 is unknown.
type look struct {
	at                                    time.Time
	transactions, changes, bytes, applied int64
	position, held                        millrace.LSN
}

// history remembers an hour of a job, in a fixed amount of memory: 720 samples
// of 6 numbers.
type history struct {
	mu     sync.Mutex
	recent []look // the newest last, at most rateLooks+1
	looks  int
	begin  look // of the sample that is being made
	peak   [columns]float64

	at     [samples]int64 // seconds since 1970
	values [samples][columns]float32
	next   int
	full   bool
}

// add takes up a look, and tells whether it completed a sample.
func (h *history) add(now time.Time, st *Status, n Numbers) bool {
	l := look{at: now, transactions: -1, changes: -1, bytes: -1, applied: -1}
	if n.Relay != nil {
		l.transactions, l.bytes, l.changes = n.Relay.Transactions(), n.Relay.Bytes(), 0
		for _, v := range n.Relay.Changes() {
			l.changes += v
		}
	}
	if n.Applied != nil {
		l.applied = 0
		for _, v := range n.Applied {
			l.applied += v
		}
	}
	known(st.Source.CurrentLSN, func(v millrace.LSN) { l.position = v })
	known(st.Destination.AckedLSN, func(v millrace.LSN) { l.held = v })

	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.recent) > rateLooks {
		h.recent = h.recent[:copy(h.recent, h.recent[1:])]
	}
	h.recent = append(h.recent, l)
	if h.looks == 0 {
		h.begin = h.recent[max(0, len(h.recent)-2)]
		for i := range h.peak {
			h.peak[i] = math.NaN()
		}
	}
	h.high(colLagSeconds, st.Lag.Seconds)
	h.high(colLagBytes, float(st.Lag.Bytes))
	h.high(colRetained, float(st.Source.RetainedWALBytes))
	if h.looks++; h.looks < sampleLooks {
		return false
	}
	h.sample(l)
	return true
}

func float(v *int64) *float64 {
	if v == nil {
		return nil
	}
	return Known(float64(*v))
}

func (h *history) high(column int, v *float64) {
	if v != nil && !(h.peak[column] >= *v) {
		h.peak[column] = *v
	}
}

func (h *history) sample(l look) {
	h.looks = 0
	h.peak[colTransactions] = rate(h.begin, l, l.transactions, h.begin.transactions)
	h.peak[colChanges] = rate(h.begin, l, l.changes, h.begin.changes)
	h.peak[colBytes] = rate(h.begin, l, l.bytes, h.begin.bytes)
	h.at[h.next] = l.at.Unix()
	for i, v := range h.peak {
		h.values[h.next][i] = float32(v)
	}
	if h.next++; h.next == samples {
		h.next, h.full = 0, true
	}
}

// rate is NaN where one of the counts is unknown or has begun anew.
func rate(from, to look, now, before int64) float64 {
	seconds := to.at.Sub(from.at).Seconds()
	if now < 0 || before < 0 || now < before || seconds <= 0 {
		return math.NaN()
	}
	return float64(now-before) / seconds
}

// rates compares the newest look with one ten seconds older.
func (h *history) rates() Rates {
	h.mu.Lock()
	defer h.mu.Unlock()
	var r Rates
	if len(h.recent) < 2 {
		return r
	}
	from, to := h.recent[0], h.recent[len(h.recent)-1]
	set := func(p **float64, now, before int64) {
		if v := rate(from, to, now, before); !math.IsNaN(v) {
			*p = Known(math.Round(v*10) / 10)
		}
	}
	set(&r.Transactions, to.transactions, from.transactions)
	set(&r.Changes, to.changes, from.changes)
	set(&r.Bytes, to.bytes, from.bytes)
	set(&r.Applied, to.applied, from.applied)
	set(&r.WAL, position(to.position), position(from.position))
	set(&r.Held, position(to.held), position(from.held))
	return r
}

func position(l millrace.LSN) int64 {
	if l == 0 {
		return -1
	}
	return int64(l)
}

// json gives the whole history as one object of columns, oldest first; last
// gives the newest sample only. Unknown is null.
func (h *history) json(last bool) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	var order []int
	if h.full {
		for i := h.next; i < samples; i++ {
			order = append(order, i)
		}
	}
	for i := range h.next {
		order = append(order, i)
	}
	if last && len(order) > 1 {
		order = order[len(order)-1:]
	}
	b := []byte(`{"t":[`)
	for n, i := range order {
		b = comma(b, n)
		b = strconv.AppendInt(b, h.at[i], 10)
	}
	for c, name := range columnNames {
		b = append(b, `],"`+name+`":[`...)
		for n, i := range order {
			b = comma(b, n)
			if v := float64(h.values[i][c]); math.IsNaN(v) {
				b = append(b, "null"...)
			} else {
				b = strconv.AppendFloat(b, v, 'g', 6, 32)
			}
		}
	}
	return append(b, "]}"...)
}

func comma(b []byte, n int) []byte {
	if n > 0 {
		return append(b, ',')
	}
	return b
}
