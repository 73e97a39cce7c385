package airbyte

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
)

// changes writes the records of a transaction, a part of one, or a chunk.
func (s *Sink) changes(ctx context.Context, t *millrace.Txn) error {
	at, lsn := t.Time, t.End
	if t.Chunk != nil {
		// Not the position at which it was read: a change that its snapshot does not
		// see can lie below that, and comes later.
		at, lsn = time.Now(), s.position
	}
	s.stamp.set(lsn, at, time.Now())
	s.stamp.before, s.stamp.commit, s.stamp.xid = s.position, t.Commit, t.XID
	if t.Chunk == nil && t.Commit >= s.opt.Start {
		s.forgetEarly()
	}
	for i := range t.Changes {
		c := &t.Changes[i]
		if c.Op == millrace.Truncate {
			if err := s.truncated(ctx, t, c); err != nil {
				return err
			}
			continue
		}
		if c.Rel == nil {
			continue
		}
		st := s.streams[c.Rel.Name]
		if st == nil || t.Chunk == nil && st.has(t) {
			continue
		}
		if err := s.change(ctx, st, c); err != nil {
			var e *millrace.Error
			if errors.As(err, &e) && e.LSN == 0 {
				e.LSN = t.Commit
			}
			return err
		}
	}
	return nil
}

// has tells whether the destination has the changes of a transaction.
func (st *stream) has(t *millrace.Txn) bool { return t.Commit < st.Skip }

func (s *Sink) change(ctx context.Context, st *stream, c *millrace.Change) error {
	if st.enc == nil || st.enc.rel != c.Rel {
		if err := s.describe(ctx, st, c.Rel); err != nil {
			return err
		}
	}
	if !st.running {
		st.running = true
		if err := s.dialect.begin(st); err != nil {
			return writeError(err)
		}
	}
	if c.Op == millrace.Update && c.Old != nil {
		for _, i := range st.key { // sent with the old row only, being large
			if c.New[i].Kind == millrace.Unchanged {
				c.New[i] = c.Old[i]
			}
		}
	}
	if s.stamp.commit != 0 && !st.state.done() {
		st.state.Begun, st.dirty = true, true
		if st.early != nil {
			s.remember(st, c)
		}
	}
	b, n, err := s.dialect.append(ctx, s.lines, st, &s.stamp, c)
	s.lines = b
	if err != nil {
		return err
	}
	s.records += n
	st.records += n
	if len(s.lines) >= linesKept {
		return s.put()
	}
	return nil
}

// keyChanged compares the columns of the stream's key.
func (st *stream) keyChanged(c *millrace.Change) bool {
	for _, i := range st.key {
		a, b := c.Old[i], c.New[i]
		if b.Kind != millrace.Unchanged && (a.Kind != b.Kind || string(a.Raw) != string(b.Raw)) {
			return true
		}
	}
	return false
}

// describe makes the encoder of a relation's shape.
func (s *Sink) describe(ctx context.Context, st *stream, rel *millrace.Relation) error {
	types := make(map[string]*datum.Type, len(rel.Columns))
	for i := range rel.Columns {
		t, err := s.opt.Type(ctx, &rel.Columns[i])
		if err != nil {
			return err
		}
		types[rel.Columns[i].Name] = t
	}
	st.key = st.key[:0]
	for _, name := range st.Key {
		if i := slices.IndexFunc(rel.Columns, func(c millrace.Column) bool { return c.Name == name }); i >= 0 {
			st.key = append(st.key, i)
		}
	}
	lookUp := func(c *millrace.Column) *datum.Type { return types[c.Name] }
	st.enc = newEncoder(st.Stream.Stream.Descriptor(), rel, lookUp, st.only, s.opt.Config.Style(), s.opt.Config.Decimal == DecimalNumber)
	st.enc.native = s.opt.Flow != nil
	return nil
}
