package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/airbyte"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/datum"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// rowReader reads rows of the source outside of the stream: whole tables, and
// single rows whose large values the stream left out. It serves one goroutine.
type rowReader struct {
	source *session.Endpoint
	keys   catalog.Keys // of whole tables
	tables map[uint32]*snapshot.ChunkTable
	types  map[uint32]*datum.Type

	mu      sync.Mutex
	reader  *snapshot.ChunkReader // of single rows; nil: not connected
	resting *time.Timer
}

// restAfter is how long the session of single rows is kept that nobody uses. A
// continuous run may not need it for weeks.
const restAfter = 30 * time.Second

func newRowReader(source *session.Endpoint, keys catalog.Keys) *rowReader {
	return &rowReader{source: source, keys: keys, tables: map[uint32]*snapshot.ChunkTable{}, types: map[uint32]*datum.Type{}}
}

func (r *rowReader) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leave()
}

// leave closes the session. mu is held.
func (r *rowReader) leave() {
	if r.resting != nil {
		r.resting.Stop()
		r.resting = nil
	}
	if r.reader != nil {
		r.reader.Close()
		r.reader = nil
	}
}

// with does something on the session of single rows, and once more on a new one
// where the old one turns out to be lost.
func (r *rowReader) with(ctx context.Context, do func(*snapshot.ChunkReader) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for again := r.reader != nil; ; again = false {
		if r.reader == nil {
			reader, err := snapshot.NewChunkReader(ctx, r.source, snapshot.NewLimiter(0))
			if err != nil {
				return err
			}
			r.reader = reader
		}
		err := do(r.reader)
		if err == nil {
			r.rest()
			return nil
		}
		r.leave()
		if !again || !session.Retryable(err) || ctx.Err() != nil {
			return err
		}
	}
}

// rest has the session closed if nobody uses it for a while. mu is held.
func (r *rowReader) rest() {
	if r.resting != nil {
		r.resting.Stop()
	}
	var t *time.Timer
	t = time.AfterFunc(restAfter, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.resting == t {
			r.leave()
		}
	})
	r.resting = t
}

// typeOf describes a column's type. One that is gone is text.
func (r *rowReader) typeOf(ctx context.Context, c *millrace.Column) (*datum.Type, error) {
	if t := datum.Builtin(c.Type); t != nil {
		return t, nil
	}
	if t := r.types[c.Type]; t != nil {
		return t, nil
	}
	var types map[uint32]*catalog.Type
	err := r.with(ctx, func(reader *snapshot.ChunkReader) (err error) {
		types, err = catalog.ReadTypes(ctx, reader.Conn(), []uint32{c.Type})
		return session.Wrap("read a type", millrace.PeerSource, err)
	})
	if err != nil {
		return nil, err
	}
	t := types[c.Type].Datum()
	if t == nil {
		t = datum.Unknown(c.Type, c.TypeName)
	}
	r.types[c.Type] = t
	return t, nil
}

// fetch implements airbyte.Options.Fetch.
func (r *rowReader) fetch(ctx context.Context, c *millrace.Change) (row millrace.Row, err error) {
	err = r.with(ctx, func(reader *snapshot.ChunkReader) error {
		row = nil
		t, key, err := r.begin(ctx, reader, c)
		if errors.Is(err, snapshot.ErrRewritten) { // it was altered since it was described
			if err = reader.Abandon(ctx); err == nil {
				t, key, err = r.begin(ctx, reader, c)
			}
		}
		if err != nil || key == nil {
			return err
		}
		rows, err := reader.One(ctx, t, key)
		if err == nil {
			err = reader.Abandon(ctx)
		}
		if err == nil && len(rows.Changes) > 0 {
			row = translate(rows.Changes[0].New, t.Rel, c.Rel)
		}
		return err
	})
	return row, err
}

// begin begins to read the row of a change, which is found by the table's own key;
// without a key there is nothing to read.
func (r *rowReader) begin(ctx context.Context, reader *snapshot.ChunkReader, c *millrace.Change) (*snapshot.ChunkTable, []byte, error) {
	t := r.tables[c.Rel.OID]
	if t == nil {
		var err error
		if t, err = snapshot.DescribeChunks(ctx, reader.Conn(), c.Rel.OID, false, nil); err != nil {
			return nil, nil, err
		}
		r.tables[c.Rel.OID] = t
	}
	if t.Key == nil {
		return nil, nil, nil
	}
	key, err := t.Key.EncodeKey(translate(c.New, c.Rel, t.Rel))
	if err != nil {
		return nil, nil, err
	}
	if _, err := reader.Begin(ctx, t); err != nil {
		delete(r.tables, c.Rel.OID)
		return nil, nil, err
	}
	return t, key, nil
}

// translate puts a row's values where another description of the table has the
// columns of the same names.
func translate(row millrace.Row, from, to *millrace.Relation) millrace.Row {
	out := make(millrace.Row, len(to.Columns))
	for i := range out {
		out[i].Kind = millrace.Null
		for j := range from.Columns {
			if from.Columns[j].Name == to.Columns[i].Name {
				out[i] = row[j]
			}
		}
	}
	return out
}

const (
	refreshRows  = 10_000
	refreshBytes = 4 << 20
)

// refresh reads a whole table in one snapshot, a piece at a time.
func (r *rowReader) refresh(ctx context.Context, sink *airbyte.Sink, s *airbyte.Selected) error {
	reader, err := snapshot.NewChunkReader(ctx, r.source, snapshot.NewLimiter(0))
	if err != nil {
		return err
	}
	defer reader.Close()
	name := s.Stream.Stream.Table()
	t, err := snapshot.DescribeChunks(ctx, reader.Conn(), s.OID, false, r.keys)
	if err != nil {
		return err
	}
	var key []string
	if t.Key != nil {
		for i := range t.Key.Columns {
			key = append(key, t.Key.Columns[i].Name)
		}
	}
	after, done := sink.Refresh(name, key)
	if done {
		return nil
	}
	view, err := reader.Begin(ctx, t)
	if err != nil {
		return err
	}
	if err := snapshot.AwaitFlushed(ctx, reader.Conn(), view.Upto); err != nil {
		return err
	}
	give := func(rows *snapshot.Rows) error {
		var last []byte
		if n := len(rows.Keys); n > 0 {
			last = rows.Keys[n-1]
		}
		after = last
		return sink.Refreshed(ctx, name, rows.Changes, view.Upto, last, rows.Final)
	}
	if t.Key == nil {
		err = reader.All(ctx, t, refreshBytes, give)
	}
	for final := t.Key == nil; !final && err == nil; {
		var rows *snapshot.Rows
		if rows, err = reader.Range(ctx, t, snapshot.Range{After: after}, refreshRows, refreshBytes); err == nil {
			final = rows.Final
			err = give(rows)
		}
	}
	if err != nil {
		return err
	}
	return reader.Abandon(ctx)
}
