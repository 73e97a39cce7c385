package airbyte

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
)

// A state is written at the end of a transaction once so much was written since
// the last one, and in a continuous run whenever nothing more is waiting.
const (
	stateRecords = 10_000
	stateEvery   = 5 * time.Second
	idleEvery    = 10 * time.Second // of a position that moves without records
	linesKept    = 256 << 10        // bytes of records that are gathered
)

// Selected is a table that is read: its stream, and the table as it is now.
type Selected struct {
	Stream   *ConfiguredStream
	OID      uint32
	Filenode uint32
	Shape    string // ShapeHash
	Key      []string
	Number   int  // of the stream in the catalog
	Full     bool // a full refresh
	// Skip: transactions whose commit record lies below it are in the
	// destination already.
	Skip millrace.LSN
}

// dialect is what one platform's protocol makes of changes and states.
type dialect interface {
	// begin is called before the first record of a stream.
	begin(st *stream) error
	// append appends what a change is, and tells how many records that is.
	append(ctx context.Context, b []byte, st *stream, s *stamp, c *millrace.Change) ([]byte, int64, error)
	// state writes a state, and tells how many messages it was.
	state(at *Shared, streams []*stream, records int64) (int64, error)
}

// Options say what a Sink writes.
type Options struct {
	Writer *Writer
	// Flow is set if the platform speaks Estuary's protocol, nil for Airbyte's.
	Flow   *FlowCodec
	Config *Config
	Tables []Selected
	State  *State
	// From is the position that is proved: that of the state, or the slot's.
	From millrace.Checkpoint
	// Start is the source's position now.
	Start millrace.LSN
	// Until ends the run once all that was committed before it is written and
	// all tables are read; zero: never.
	Until millrace.LSN
	// OnReached is called then.
	OnReached func()
	// Type describes a column's type.
	Type func(context.Context, *millrace.Column) (*datum.Type, error)
	// Fetch reads the row of a change as it is now, since unchanged large values
	// of it were not sent. Nil and no error: it is gone, and a later change says so.
	Fetch func(context.Context, *millrace.Change) (millrace.Row, error)
	Log   *slog.Logger
}

// Sink implements millrace.Sink: transactions become records and states.
type Sink struct {
	opt     Options
	dialect dialect
	streams map[millrace.TableName]*stream
	order   []*stream // as in the catalog

	// Of the goroutine that writes:
	lines    []byte
	stamp    stamp
	position millrace.LSN // all before it was written
	stated   millrace.LSN // the position of the last state
	records  int64        // since the last state
	dirty    bool         // a mark changed since
	open     bool         // inside a transaction
	last     time.Time    // of the last state
	reached  bool

	mu      sync.Mutex
	history millrace.History
	written millrace.LSN // position, for Durable
	moved   chan struct{}
	sent    int64   // STATE messages
	acked   int64   // of them
	pending []proof // those behind
}

// proof says which position a STATE message proves.
type proof struct {
	n  int64
	at millrace.LSN
}

// stream is a table that is read.
type stream struct {
	Selected
	name    millrace.TableName
	only    map[string]bool
	state   *tableState
	enc     *encoder
	readBy  []string // the columns that a full refresh goes by
	key     []int    // the key's columns in the relation of enc
	running bool     // RUNNING was said
	records int64    // since the last state
	dirty   bool     // its mark changed since
	early   *early   // set while it is remembered what was written
}

// NewSink makes a Sink.
func NewSink(opt Options) *Sink {
	s := &Sink{opt: opt, streams: map[millrace.TableName]*stream{}, moved: make(chan struct{}),
		position: opt.From.End, stated: opt.From.End, written: opt.From.End, history: opt.From.History, last: time.Now()}
	if s.dialect = (&records{opt: &s.opt}); opt.Flow != nil {
		s.dialect = &documents{opt: &s.opt, gone: gone(opt)}
	}
	if p := opt.State.Position; p != nil {
		s.stamp.cursor = p.Cursor
	}
	for _, t := range opt.Tables {
		st := &stream{Selected: t, name: t.Stream.Stream.Table()}
		if opt.Flow == nil {
			st.only = t.Stream.properties()
		}
		st.state = opt.State.Tables[st.name]
		if st.state == nil && !t.Full {
			st.early = &early{keys: map[string]millrace.Row{}}
		}
		if st.state == nil || st.state.OID != t.OID || st.state.Shape != t.Shape && st.state.Filenode != t.Filenode {
			st.state = &tableState{} // new, made anew, or rewritten: read it from its beginning
		}
		if t.Full && !sameRefresh(st.state, t.Stream) || !t.Full && st.state.Full {
			st.state = &tableState{}
		}
		st.state.Generation, st.state.Full = nil, t.Full
		if t.Full {
			st.state.Generation = t.Stream.GenerationID
		}
		st.state.OID, st.state.Filenode, st.state.Shape = t.OID, t.Filenode, t.Shape
		s.streams[st.name] = st
		s.order = append(s.order, st)
	}
	return s
}

// gone gives the bindings of Estuary's that the state speaks of and that are not
// captured now, or whose table is away. They must be read from their beginning
// should they come back: their changes are passed over.
func gone(opt Options) []string {
	return slices.DeleteFunc(slices.Clone(opt.State.bindings), func(key string) bool {
		return slices.ContainsFunc(opt.Tables, func(t Selected) bool { return t.Stream.stateKey == key })
	})
}

// Open implements millrace.Sink. It gives what was written: after a lost
// connection the stream goes on there.
func (s *Sink) Open(context.Context) (millrace.Checkpoint, error) {
	cp := s.opt.From
	cp.End, cp.Acked = s.position, s.position
	if cp.End > 0 {
		cp.Commit = cp.End - 1 // all commit records before it were seen
	}
	cp.Tables = map[millrace.TableName]millrace.Mark{}
	for _, st := range s.order {
		if !st.Full && !st.state.done() {
			cp.Tables[st.name] = millrace.Mark{OID: st.OID, State: st.state.Load, Rows: st.state.Rows}
		}
	}
	if s.open { // its records can't be taken back, and would stand twice before the next state
		return cp, &millrace.Error{Kind: millrace.KindData, Op: "stream", Peer: millrace.PeerSource,
			Err: errors.New("the connection was lost inside of a transaction"), Hint: "start the connector again: it goes on at the last state"}
	}
	return cp, nil
}

// Write implements millrace.Sink.
func (s *Sink) Write(ctx context.Context, t *millrace.Txn) error {
	defer t.Release()
	if t.From != nil {
		s.mu.Lock()
		s.history = *t.From
		s.mu.Unlock()
	}
	if t.Idle() {
		s.position = max(s.position, t.End)
		return s.advance(time.Since(s.last) >= idleEvery || t.Urgent && s.dirty)
	}
	s.open = true
	if err := s.changes(ctx, t); err != nil {
		return err
	}
	if !t.Last {
		return nil
	}
	s.open = false
	for name, m := range t.Marks {
		s.mark(name, m)
	}
	if t.Chunk == nil {
		s.position = max(s.position, t.End)
	}
	return s.advance(t.Chunk != nil || s.records >= stateRecords || time.Since(s.last) >= stateEvery)
}

// advance publishes the position, with a state if one is due, and ends the run
// where that is wanted.
func (s *Sink) advance(due bool) error {
	done := s.opt.Until != 0 && !s.reached && s.position >= s.opt.Until && s.loaded()
	if (due || done) && (s.records > 0 || s.dirty || s.position != s.stated) {
		if err := s.state(); err != nil {
			return err
		}
	}
	s.mu.Lock()
	if s.position > s.written {
		s.written = s.position
		close(s.moved)
		s.moved = make(chan struct{})
	}
	s.mu.Unlock()
	if done {
		s.reached = true
		s.opt.OnReached()
	}
	return nil
}

// Finish ends a run, with a state, whose position is the source's own: a source
// that writes nothing would say so only after many seconds. It tells whether it did.
func (s *Sink) Finish() (bool, error) {
	if s.opt.Until == 0 || s.position != s.opt.Start || !s.loaded() {
		return false, nil
	}
	return true, s.state()
}

// loaded tells whether all tables are read.
func (s *Sink) loaded() bool {
	return !slices.ContainsFunc(s.order, func(st *stream) bool { return !st.Full && !st.state.done() })
}

func (s *Sink) mark(name millrace.TableName, m millrace.Mark) {
	st := s.streams[name]
	if st == nil {
		return
	}
	s.dirty, st.dirty = true, true
	st.state.Load, st.state.Rows = json.RawMessage(m.State), m.Rows
	if m.Done {
		st.state.Load, st.state.Rows, st.state.Begun = loadDone, 0, false
	}
}

// Flush implements millrace.Sink: nothing more is waiting.
func (s *Sink) Flush() {
	if s.open || s.opt.Config.Mode != ModeContinuous || s.records == 0 && !s.dirty {
		_ = s.opt.Writer.Flush() // comes again at the next Write
		return
	}
	_ = s.state() // likewise
}

// state writes the STATE of everything so far.
func (s *Sink) state() error {
	if err := s.put(); err != nil {
		return err
	}
	s.mu.Lock() // until it is known which number it has: whoever acknowledges it is fast
	defer s.mu.Unlock()
	var at *Shared
	if s.history.System != "" {
		at = &Shared{Format: formatVersion, System: s.history.System, Timeline: s.history.Timeline, LSN: s.position, Cursor: s.stamp.cursor}
	}
	n, err := s.dialect.state(at, s.order, s.records)
	if err != nil {
		return writeError(err)
	}
	s.sent += n
	if s.opt.Flow != nil || s.opt.Config.Ack == AckStdin { // else nobody takes them away
		s.pending = append(s.pending, proof{s.sent, s.position})
	}
	for _, st := range s.order {
		st.records, st.dirty = 0, false
	}
	s.records, s.dirty, s.stated, s.last = 0, false, s.position, time.Now()
	return nil
}

func writeError(err error) error {
	return &millrace.Error{Kind: millrace.KindData, Op: "write to stdout", Peer: millrace.PeerDestination, Err: err,
		Hint: "whoever reads the connector's output has ended: look at its log"}
}

// put gives the gathered lines to the writer.
func (s *Sink) put() error {
	if len(s.lines) == 0 {
		return nil
	}
	err := s.opt.Writer.Lines(s.lines)
	s.lines = s.lines[:0]
	if err != nil {
		return writeError(err)
	}
	return nil
}

// Durable implements millrace.Sink: it gives what was written. Whether the
// platform holds it is another question, which Prove answers to the source.
func (s *Sink) Durable(ctx context.Context, after millrace.LSN) (millrace.LSN, error) {
	for {
		s.mu.Lock()
		written, moved := s.written, s.moved
		s.mu.Unlock()
		if written > after {
			return written, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return after, ctx.Err()
		}
	}
}

// Close implements millrace.Sink.
func (s *Sink) Close() error { return nil }

// Acknowledged takes the platform's word that it holds the first n STATE messages
// of this run, and gives the position that proves.
func (s *Sink) Acknowledged(n int64) (millrace.LSN, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bad := func(what string) error {
		return configError("ack", errors.New(what), `acknowledge STATE messages of this process, counted from 1, in the order they were written: {"ack":n}`)
	}
	switch {
	case n > s.sent:
		return 0, bad("a STATE message that was not written yet")
	case n < s.acked || n < 1:
		return 0, bad("a number below the last one")
	}
	s.acked = n
	var at millrace.LSN
	for len(s.pending) > 0 && s.pending[0].n <= n {
		at = s.pending[0].at
		s.pending = s.pending[1:]
	}
	return at, nil
}
