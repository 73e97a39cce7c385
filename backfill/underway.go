package backfill

import (
	"context"
	"slices"
)

// What becomes of a chunk between the moment when it was read and that when the
// destination has it.

// offer has the chunk given away and waits until it was, or can't be. Before that
// it waits until the destination has committed the one that the reader gave away before: a
// destination that is slower than the source would else have many of them under way,
// all of which are read again after a kill. So those are two for each reader at most.
func (s *Source) offer(ctx context.Context, p *pending) (used bool, err error) {
	if err := s.narrow(ctx, p); err != nil {
		return false, err
	}
	if p.after != nil {
		select {
		case <-p.after:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	if err := s.decided(ctx, p); err != nil {
		return false, err
	}
	s.mu.Lock()
	s.ready = append(s.ready, p)
	s.wakeLocked()
	s.mu.Unlock()
	select {
	case used = <-p.taken:
		if used {
			p.after = p.stored
		}
		return used, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// end is where a chunk of a range ends that was read, nil: where the range does.
func (p *pending) end() []byte {
	switch {
	case !p.rows.Final && len(p.rows.Keys) > 0:
		return p.rows.Keys[len(p.rows.Keys)-1]
	case p.cut:
		return p.in.Upto
	}
	return nil
}

// narrow cuts the range of a chunk that waits for the stream behind its last row. From
// there on changes of its own rows are held, and not those of all of the range, which would
// soon be too many: what was held of the rest is for the chunks that read that, whose
// snapshots have to see it.
func (s *Source) narrow(ctx context.Context, p *pending) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := p.load
	waits := s.strict(l) || s.limited(l) || !p.view.Plain()
	i, upto := l.find(p), p.end()
	if !waits || i < 0 || p.void || l.emptying || upto == nil || string(upto) == string(l.segments[i].upto) {
		return nil
	}
	if p.view.Plain() { // what the rows show already
		p.held = slices.DeleteFunc(p.held, func(h held) bool { return h.by.in(&p.view) })
	}
	kept, err := s.within(ctx, l, p.held, upto)
	if err != nil {
		return err
	}
	if err := s.trim(ctx, l, i, p, upto); err != nil {
		return err
	}
	p.held, p.size = kept, 0
	for k := range kept {
		p.size += sizeOf(kept[k].change.Old) + sizeOf(kept[k].change.New)
	}
	g := &l.segments[i]
	rest := segment{upto: g.upto, state: unread, cuts: g.cuts}
	g.upto, g.cuts, p.narrowed = upto, nil, true
	l.segments = slices.Insert(l.segments, i+1, rest)
	if s.resting > 0 {
		s.wakeWorkers()
	}
	return nil
}

// widen gives up the chunk that is read of segment i. What was cut off for it belongs
// to it again, unless somebody reads that.
func (l *load) widen(i int) {
	g := &l.segments[i]
	narrowed := g.pending.narrowed
	g.pending = nil
	if !narrowed || i+1 == len(l.segments) {
		return
	}
	if rest := &l.segments[i+1]; rest.state == unread && rest.pending == nil {
		g.upto, g.cuts = rest.upto, rest.cuts
		l.segments = slices.Delete(l.segments, i+1, i+2)
	}
}
