package airbyte

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"github.com/millrace/millrace"
)

// The protocols have no word for a TRUNCATE. Of a table that no state speaks of,
// the platform holds nothing but what this run has written, since it has cleared
// the stream or never had it. What comes of such a table from before the run is
// followed by its rows as they are behind that: a TRUNCATE among it is the deletion
// of the keys that were written, which are remembered for that. Any other TRUNCATE
// ends the run.

// mostEarly bounds the keys that are remembered for one table.
const mostEarly = 200_000

// early are the keys that this run has written of a table that no state speaks of.
type early struct {
	keys map[string]millrace.Row // the key's columns
	full bool                    // there are more
}

// remember notes the key that a change leaves at the platform.
func (s *Sink) remember(st *stream, c *millrace.Change) {
	e := st.early
	if len(st.key) == 0 || e.full {
		return
	}
	if c.Old != nil {
		text, _ := st.keyOf(c.Old)
		delete(e.keys, text)
	}
	if c.New == nil {
		return
	}
	if len(e.keys) >= mostEarly {
		e.full, e.keys = true, nil
		return
	}
	text, key := st.keyOf(c.New)
	e.keys[text] = key
}

// keyOf copies the key out of a row, also as text that is the same for the same key.
func (st *stream) keyOf(row millrace.Row) (string, millrace.Row) {
	var text []byte
	key := make(millrace.Row, len(st.key))
	for n, i := range st.key {
		v := row[i]
		text = binary.AppendUvarint(append(text, byte(v.Kind)), uint64(len(v.Raw)))
		text = append(text, v.Raw...)
		key[n] = millrace.Value{Kind: v.Kind, Raw: slices.Clone(v.Raw)}
	}
	return string(text), key
}

// forgetEarly ends the remembering: what comes now is not from before the run.
func (s *Sink) forgetEarly() {
	for _, st := range s.order {
		st.early = nil
	}
}

// truncated judges a TRUNCATE.
func (s *Sink) truncated(ctx context.Context, t *millrace.Txn, c *millrace.Change) error {
	if t.Chunk != nil {
		return nil // the table is about to be read again, all of it
	}
	for _, rel := range c.Truncated.Rels {
		st := s.streams[rel.Name]
		if st == nil || st.has(t) || s.opt.Config.Truncate == TruncateIgnore {
			continue
		}
		e := &millrace.Error{Kind: millrace.KindResync, Op: "write records", Peer: millrace.PeerSource, Table: rel.Name, LSN: t.Commit,
			Err:  errors.New("was truncated, which the platform has no message for"),
			Hint: "clear the stream's data and state at the platform, so that it is read again; or set truncate: ignore, and the platform keeps the rows"}
		switch {
		case st.early == nil:
			return e
		case st.early.full:
			e.Hint = "clear the stream's data and state, sync once without it, and add it again; or set truncate: ignore, and the platform keeps the rows"
			return e
		}
		if err := s.unwrite(ctx, st, c.Seq); err != nil {
			return err
		}
	}
	return nil
}

// unwrite deletes what was written of a table.
func (s *Sink) unwrite(ctx context.Context, st *stream, seq uint64) error {
	written := st.early.keys
	st.early = nil // not to be remembered
	for _, text := range slices.Sorted(maps.Keys(written)) {
		del := millrace.Change{Op: millrace.Delete, Seq: seq, Rel: st.enc.rel, Old: make(millrace.Row, len(st.enc.rel.Columns))}
		for i := range del.Old {
			del.Old[i].Kind = millrace.Null
		}
		for n, i := range st.key {
			del.Old[i] = written[text][n]
		}
		if err := s.change(ctx, st, &del); err != nil {
			return err
		}
	}
	st.early = &early{keys: map[string]millrace.Row{}}
	return nil
}
