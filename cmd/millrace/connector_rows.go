package main

import (
	"context"
	"errors"

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
	reader *snapshot.ChunkReader
	tables map[uint32]*snapshot.ChunkTable
	types  map[uint32]*datum.Type
}

func newRowReader(ctx context.Context, source *session.Endpoint) (*rowReader, error) {
	reader, err := snapshot.NewChunkReader(ctx, source, snapshot.NewLimiter(0))
	if err != nil {
		return nil, err
	}
	return &rowReader{reader: reader, tables: map[uint32]*snapshot.ChunkTable{}, types: map[uint32]*datum.Type{}}, nil
}

func (r *rowReader) close() { r.reader.Close() }

// typeOf describes a column's type. One that is gone is text.
func (r *rowReader) typeOf(ctx context.Context, c *millrace.Column) (*datum.Type, error) {
	if t := datum.Builtin(c.Type); t != nil {
		return t, nil
	}
	if t := r.types[c.Type]; t != nil {
		return t, nil
	}
	types, err := catalog.ReadTypes(ctx, r.reader.Conn(), []uint32{c.Type})
	if err != nil {
		return nil, session.Wrap("read a type", millrace.PeerSource, err)
	}
	t := types[c.Type].Datum()
	if t == nil {
		t = datum.Unknown(c.Type, c.TypeName)
	}
	r.types[c.Type] = t
	return t, nil
}

func (r *rowReader) describe(ctx context.Context, oid uint32) (*snapshot.ChunkTable, error) {
	if t := r.tables[oid]; t != nil {
		return t, nil
	}
	t, err := snapshot.DescribeChunks(ctx, r.reader.Conn(), oid, false, nil)
	if err == nil {
		r.tables[oid] = t
	}
	return t, err
}

// fetch implements airbyte.Options.Fetch.
func (r *rowReader) fetch(ctx context.Context, c *millrace.Change) (millrace.Row, error) {
	t, key, err := r.begin(ctx, c)
	if errors.Is(err, snapshot.ErrRewritten) { // it was altered since it was described
		if err = r.reader.Abandon(ctx); err == nil {
			t, key, err = r.begin(ctx, c)
		}
	}
	if err != nil || key == nil {
		return nil, err
	}
	rows, err := r.reader.One(ctx, t, key)
	if err == nil {
		err = r.reader.Abandon(ctx)
	}
	if err != nil || len(rows.Changes) == 0 {
		return nil, err
	}
	return translate(rows.Changes[0].New, t.Rel, c.Rel), nil
}

// begin begins to read the row of a change; without a key there is nothing to read.
func (r *rowReader) begin(ctx context.Context, c *millrace.Change) (*snapshot.ChunkTable, []byte, error) {
	t, err := r.describe(ctx, c.Rel.OID)
	if err != nil || t.Key == nil {
		return nil, nil, err
	}
	key, err := t.Key.EncodeKey(translate(c.New, c.Rel, t.Rel))
	if err != nil {
		return nil, nil, err
	}
	if _, err := r.reader.Begin(ctx, t); err != nil {
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
	name := s.Stream.Stream.Table()
	t, err := r.describe(ctx, s.OID)
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
	view, err := r.reader.Begin(ctx, t)
	if err != nil {
		return err
	}
	if err := snapshot.AwaitFlushed(ctx, r.reader.Conn(), view.Upto); err != nil {
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
		err = r.reader.All(ctx, t, refreshBytes, give)
	}
	for final := t.Key == nil; !final && err == nil; {
		var rows *snapshot.Rows
		if rows, err = r.reader.Range(ctx, t, snapshot.Range{After: after}, refreshRows, refreshBytes); err == nil {
			final = rows.Final
			err = give(rows)
		}
	}
	if err != nil {
		return err
	}
	return r.reader.Abandon(ctx)
}
