package backfill

import (
	"context"
	"slices"

	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// Several readers share a table by its ranges. A table is looked for keys at which
// it can be cut only when a reader has nothing else to read, and a range is cut in two
// when a reader is free for the second half: so there is one unread range for each
// reader, however large the table is, and the mark stays small. A chunk ends at the
// next such key at the latest; therefore what lies behind that can be given to
// somebody else while the chunk is read. The keys are not stored: after a restart the
// table is looked at anew.

// mostCuts is into how many ranges a table is cut at most. At the end of a load one
// reader may be alone with one of them.
const mostCuts = 256

// toCut finds a table that is worth to be shared and was not looked at yet.
func (s *Source) toCut() *load {
	if s.paused || s.err != nil || s.opt.Parallel < 2 {
		return nil
	}
	for _, l := range s.order {
		if !l.sampled && !l.emptying && l.table != nil && l.table.Key != nil && l.table.Bytes >= 2*s.opt.CutBytes {
			l.sampled = true
			return l
		}
	}
	return nil
}

// cut looks where a table can be cut.
func (s *Source) cut(ctx context.Context, r **snapshot.ChunkReader, l *load) (err error) {
	if *r == nil {
		if *r, err = snapshot.NewChunkReader(ctx, s.opt.Endpoint, s.limit); err != nil {
			return err
		}
	}
	s.mu.Lock()
	table := l.table
	s.mu.Unlock()
	found, err := table.Cuts(ctx, (*r).Conn(), int(min(mostCuts, table.Bytes/s.opt.CutBytes)))
	if err != nil {
		return s.uncut(ctx, l, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.table != table || l.emptying || len(found) == 0 {
		return nil
	}
	cuts := make([][]byte, len(found))
	for i := range found {
		cuts[i] = found[i].Key
	}
	conn, err := s.comparer(ctx, l)
	if err != nil {
		return err
	}
	ranks, err := table.Key.Rank(ctx, conn, cuts, l.bounds())
	if err != nil {
		return err
	}
	for i := range l.segments {
		if g := &l.segments[i]; g.state == unread {
			g.cuts = nil
			for k := range cuts {
				if ranks[k] == i {
					g.cuts = append(g.cuts, cuts[k])
				}
			}
		}
	}
	s.wakeWorkers()
	return nil
}

// uncut has a table looked at again after a lost connection, and does without where
// it can't be done: then one reader reads it.
func (s *Source) uncut(ctx context.Context, l *load, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil || session.Retryable(err) {
		l.sampled = false
		return err
	}
	s.log.Warn("the table is read by one reader", "table", l.name, "cause", err)
	return nil
}

// share cuts the unread range that has the most left, behind what is being read of it,
// and begins with the second half.
func (s *Source) share() *pending {
	var of *load
	at, most := 0, 0
	for _, l := range s.order {
		if l.emptying || l.activeRanges() >= mostActive {
			continue
		}
		for i := range l.segments {
			g := &l.segments[i]
			if g.state == unread && g.pending != nil && g.pending.cut && len(g.cuts) > most {
				of, at, most = l, i, len(g.cuts)
			}
		}
	}
	if of == nil {
		return nil
	}
	g := &of.segments[at]
	half := len(g.cuts) / 2
	rest := segment{upto: g.upto, state: unread, cuts: g.cuts[half+1:]}
	g.upto, g.cuts = g.cuts[half], g.cuts[:half:half]
	of.segments = slices.Insert(of.segments, at+1, rest)
	return s.beginRange(of, at+1)
}

// trim takes those cuts away that lie in what a chunk has shown, up to upto, of the
// range's beginning.
func (s *Source) trim(ctx context.Context, l *load, i int, p *pending, upto []byte) error {
	g := &l.segments[i]
	switch {
	case len(g.cuts) == 0 || upto == nil:
		return nil
	case p.cut:
		if string(g.cuts[0]) == string(upto) {
			g.cuts = g.cuts[1:]
		}
		return nil
	}
	// The range had no cuts yet when the chunk was begun.
	conn, err := s.comparer(ctx, l)
	if err != nil {
		return err
	}
	ranks, err := l.table.Key.Rank(ctx, conn, g.cuts, [][]byte{upto})
	if err != nil {
		return err
	}
	behind := slices.Index(ranks, 1)
	if behind < 0 {
		behind = len(ranks)
	}
	g.cuts = g.cuts[behind:]
	return nil
}
