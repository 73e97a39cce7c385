package airbyte

import (
	"context"
	"slices"

	"github.com/millrace/millrace"
)

// records is Airbyte's dialect.
type records struct{ opt *Options }

func (r *records) begin(st *stream) error {
	return r.opt.Writer.Status(st.Stream.Stream.Descriptor(), "RUNNING")
}

// append implements dialect. A changed key is a deletion of the old one and a
// record of the new one.
func (r *records) append(ctx context.Context, b []byte, st *stream, s *stamp, c *millrace.Change) (_ []byte, n int64, err error) {
	if c.Op == millrace.Delete {
		b, err = st.enc.appendRecord(b, c.Old, s, true, !c.OldFull)
		return b, 1, err
	}
	if c.Op == millrace.Update && c.Old != nil && st.keyChanged(c) {
		if b, err = st.enc.appendRecord(b, c.Old, s, true, !c.OldFull); err != nil {
			return b, 0, err
		}
		n++
	}
	row := c.New
	if unsent(row) {
		if row, err = r.opt.complete(ctx, c); err != nil {
			return b, n, err
		}
	}
	b, err = st.enc.appendRecord(b, row, s, false, false)
	return b, n + 1, err
}

func unsent(row millrace.Row) bool {
	return slices.ContainsFunc(row, func(v millrace.Value) bool { return v.Kind == millrace.Unchanged })
}

// complete gives the new row with the large values that were not sent: those of
// the old row where that came whole, else as they are at the source now.
func (o *Options) complete(ctx context.Context, c *millrace.Change) (millrace.Row, error) {
	row, now := slices.Clone(c.New), c.Old
	if !c.OldFull {
		var err error
		if now, err = o.Fetch(ctx, c); err != nil || now == nil {
			return row, err
		}
	}
	for i := range row {
		if row[i].Kind == millrace.Unchanged && i < len(now) {
			row[i] = now[i]
		}
	}
	return row, nil
}

// state implements dialect.
func (r *records) state(at *Shared, streams []*stream, n int64) (int64, error) {
	if at != nil && r.opt.Config.StateType == StateGlobal {
		g := &GlobalState{Shared: at, Streams: []StreamState{}}
		for _, st := range streams {
			g.Streams = append(g.Streams, StreamState{st.Stream.Stream.Descriptor(), st.state})
		}
		return 1, r.opt.Writer.Send(&Message{Type: "STATE", State: &StateMessage{Type: "GLOBAL", Global: g, Stats: &Stats{count(n)}}})
	}
	for _, st := range streams {
		own := *st.state
		own.Shared = at
		m := &StateMessage{Type: "STREAM", Stream: &StreamState{st.Stream.Stream.Descriptor(), &own}, Stats: &Stats{count(st.records)}}
		if err := r.opt.Writer.Send(&Message{Type: "STATE", State: m}); err != nil {
			return 0, err
		}
	}
	return int64(len(streams)), nil
}
