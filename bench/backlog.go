package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// backlog measures how long the contenders take for a workload that is
// complete before they start.
func (b *bench) backlog(ctx context.Context, w workload) (set, error) {
	n := w.quick
	if b.full {
		n = w.full
	}
	n = b.size(n)
	out := set{Name: w.name, Kind: kindBacklog, Title: w.describe(n), Rows: w.rows(n), Transactions: w.txs(n)}
	err := b.drain(ctx, &out, workloadSQL(w.name), n, b.rounds, b.backlogContenders(b.readers || slices.Contains(withReaders, w.name), w.txs(n) == 1))
	return out, err
}

// backlogContenders are those of one set; large is one of a large transaction.
func (b *bench) backlogContenders(readers, large bool) []contender {
	var list []contender
	for _, c := range []struct {
		word string
		contender
	}{
		{"recv", recvReader()},
		{"decode", decodeReader()},
		{"native", drain{&nativeApplier{}}},
		{"millrace", drain{&millraceApplier{}}},
		{"noteager", drain{&millraceApplier{notEager: true}}},
	} {
		if b.has(c.word) && (readers || c.delivers()) && (c.word != "noteager" || large) {
			list = append(list, c.contender)
		}
	}
	return list
}

// drain sets up a stage, makes the backlog and lets the contenders take turns.
func (b *bench) drain(ctx context.Context, out *set, sql string, n, rounds int, contenders []contender) (err error) {
	s := b.newStage(n)
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.open(ctx, sql); err != nil {
		return err
	}
	for _, c := range contenders {
		if err := c.prepare(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
	}
	if err := s.generate(ctx); err != nil {
		return err
	}
	return b.turns(ctx, s, out, rounds, contenders)
}

// turns lets the contenders take turns with a backlog that is there.
func (b *bench) turns(ctx context.Context, s *stage, out *set, rounds int, contenders []contender) error {
	for round := range rounds {
		for _, c := range contenders {
			m, err := c.run(ctx, s)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name(), err)
			}
			out.add(c.name(), m)
			if !c.delivers() || b.verify == "none" || b.verify == "first" && round > 0 {
				continue
			}
			if err := s.verify(ctx); err != nil {
				return fmt.Errorf("%s: %w", c.name(), err)
			}
		}
	}
	return nil
}
