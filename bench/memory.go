package main

import (
	"context"
	"fmt"
)

// memory follows the resident memory of Millrace through work that does not fit
// into it: one run each, and no other contender.
func (b *bench) memory(ctx context.Context) ([]set, error) {
	var out []set
	for _, w := range []struct {
		name, sql, title string
		full, rows, txs  int // txs and rows of one unit of n
	}{
		{"memory-transaction", "insert", "one transaction, %s inserts", 5_000_000, 1, 0},
		{"memory-backlog", "small", "backlog of %s transactions × 3 rows", 200_000, 3, 1},
	} {
		n := b.size(w.full)
		s := set{Name: w.name, Kind: kindMemory, Title: fmt.Sprintf(w.title, thousands(n)), Rows: n * w.rows, Transactions: max(1, n*w.txs)}
		if err := b.drain(ctx, &s, workloadSQL(w.sql), n, 1, []contender{drain{&millraceApplier{}}}); err != nil {
			return out, fmt.Errorf("%s: %w", w.name, err)
		}
		out = append(out, s)
	}
	// A row of this table takes about 1,020 bytes.
	n := b.size(int(b.tableBytes / 1020))
	s := set{Name: "memory-load", Kind: kindMemory, Title: "first load of a table of " + thousands(n) + " rows", Rows: n}
	err := b.loads(ctx, &s, "large", n, 1, []loader{millraceLoad(2)})
	if err != nil {
		return out, fmt.Errorf("memory-load: %w", err)
	}
	return append(out, s), nil
}
