package capture

import (
	"sync/atomic"
	"time"

	"github.com/millrace/millrace"
)

// Stats say what the source has received since the process started.
type Stats struct {
	Transactions int64 // complete ones, empty ones too
	Inserts      int64
	Updates      int64
	Deletes      int64
	Truncates    int64
	Bytes        int64 // of the plugin's messages
	PassedOver   int64 // changes of tables that the patterns exclude
	Messages     int64 // of pg_logical_emit_message(), which are passed over
	Redelivered  int64 // transactions that were applied before
	Streamed     int64 // transactions that began to come before they were committed
	Reconnects   int64
	Held         int64 // bytes of memory in transactions that are not released

	LastCommit time.Time    // commit time of the last transaction received; zero before one
	Received   millrace.LSN // end of the last transaction received
	Position   millrace.LSN // the server's own position, as far as it told
	Acked      millrace.LSN // the highest Ack
}

// tally counts in the goroutine that receives. It is added to the counters once
// per gulp: an atomic operation per row would be felt.
type tally struct {
	transactions, inserts, updates, deletes, truncates, bytes, passedOver, messages, redelivered, streamed int64

	lastCommit time.Time
	lastEnd    millrace.LSN
}

type counters struct {
	transactions, inserts, updates, deletes, truncates, bytes, passedOver, messages, redelivered, streamed, reconnects atomic.Int64

	lastCommit         atomic.Int64 // microseconds since 1970, 0 before the first
	received, position atomic.Uint64
}

func (c *counters) add(t *tally) {
	add := func(to *atomic.Int64, n *int64) {
		if *n != 0 {
			to.Add(*n)
			*n = 0
		}
	}
	add(&c.transactions, &t.transactions)
	add(&c.inserts, &t.inserts)
	add(&c.updates, &t.updates)
	add(&c.deletes, &t.deletes)
	add(&c.truncates, &t.truncates)
	add(&c.bytes, &t.bytes)
	add(&c.passedOver, &t.passedOver)
	add(&c.messages, &t.messages)
	add(&c.redelivered, &t.redelivered)
	add(&c.streamed, &t.streamed)
	if t.lastEnd != 0 {
		c.lastCommit.Store(t.lastCommit.UnixMicro())
		c.received.Store(uint64(t.lastEnd))
		t.lastEnd = 0
	}
}

// Stats can be called at any time. The numbers are of about the same moment.
func (s *Source) Stats() Stats {
	c := &s.stats
	st := Stats{
		Transactions: c.transactions.Load(),
		Inserts:      c.inserts.Load(),
		Updates:      c.updates.Load(),
		Deletes:      c.deletes.Load(),
		Truncates:    c.truncates.Load(),
		Bytes:        c.bytes.Load(),
		PassedOver:   c.passedOver.Load(),
		Messages:     c.messages.Load(),
		Redelivered:  c.redelivered.Load(),
		Streamed:     c.streamed.Load(),
		Reconnects:   c.reconnects.Load(),
		Held:         s.memory.held.Load(),
		Received:     millrace.LSN(c.received.Load()),
		Position:     millrace.LSN(c.position.Load()),
		Acked:        millrace.LSN(s.acked.Load()),
	}
	if us := c.lastCommit.Load(); us != 0 {
		st.LastCommit = time.UnixMicro(us).UTC()
	}
	return st
}
