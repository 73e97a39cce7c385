package apply

import (
	"sync/atomic"
	"time"
)

// Stats are the counters of a sink since it was made.
type Stats struct {
	Transactions uint64 // of the source, applied
	// FallbackTransactions are those of them that have a change which went row
	// by row.
	FallbackTransactions uint64
	Fallbacks            uint64 // batches whose sets failed
	Groups               uint64 // transactions of the target
	Ahead                uint64 // transactions that were applied while they were open
	SetRows              uint64 // net changes applied in sets
	RowRows              uint64 // changes applied row by row
	// Changes are those of the source that were applied; folding makes fewer
	// of them.
	Changes uint64
	Busy    time.Duration // spent on executing
	Held    int64         // bytes of transactions that are held now
}

type counters struct {
	transactions, fallbackTransactions, fallbacks, groups, setRows, rowRows, changes, ahead atomic.Uint64

	busy atomic.Int64
}

func (c *counters) read() Stats {
	return Stats{
		Transactions:         c.transactions.Load(),
		FallbackTransactions: c.fallbackTransactions.Load(),
		Fallbacks:            c.fallbacks.Load(),
		Groups:               c.groups.Load(),
		Ahead:                c.ahead.Load(),
		SetRows:              c.setRows.Load(),
		RowRows:              c.rowRows.Load(),
		Changes:              c.changes.Load(),
		Busy:                 time.Duration(c.busy.Load()),
	}
}
