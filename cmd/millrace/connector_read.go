package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/airbyte"
	"github.com/millrace/millrace/backfill"
	"github.com/millrace/millrace/capture"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/check"
	"github.com/millrace/millrace/relay"
	"github.com/millrace/millrace/session"
)

func (a *app) connectorRead() *cobra.Command {
	var catalogPath, statePath string
	c := &cobra.Command{
		Use:   "read",
		Short: "Read the streams of a catalog",
		Long: `Read writes the rows of the catalog's streams and then their changes, with a STATE at the
end of transactions and of chunks. It goes on at the state that is given back with --state.

In mode poll it ends at the position that the source had at the start; in mode continuous
it runs until it is stopped. With ack: stdin it reads one line for each STATE that is
committed, {"ack":n}, and so lets the source's log go.`,
		Example: `  millrace connector read --config config.json --catalog catalog.json --state state.json`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := withSignals(c.Context())
			defer stop()
			w := airbyte.NewWriter(a.stdout)
			err := a.readStreams(ctx, w, catalogPath, statePath)
			if interrupted(ctx) {
				err = nil // all behind the last state is read again
			}
			return a.fail(w, err)
		},
	}
	c.Flags().StringVar(&catalogPath, "catalog", "", "`FILE` with the configured catalog")
	c.Flags().StringVar(&statePath, "state", "", "`FILE` with the state that was given back")
	return c
}

// reading is one run of read.
type reading struct {
	*connector
	catalog *airbyte.ConfiguredCatalog
	state   *airbyte.State
	found   *check.Source
	tables  map[millrace.TableName]*catalog.Table
	stdin   io.Reader
	flow    *airbyte.FlowCodec // nil: Airbyte's protocol

	selected []airbyte.Selected
	keys     catalog.Keys // those that are not the tables' own
	complete map[airbyte.Descriptor]bool
	missing  map[airbyte.Descriptor]bool // their tables are
	start    millrace.LSN
	rows     *rowReader
}

func newReading(k *connector) *reading {
	return &reading{connector: k, tables: map[millrace.TableName]*catalog.Table{}, keys: catalog.Keys{}, complete: map[airbyte.Descriptor]bool{}, missing: map[airbyte.Descriptor]bool{}}
}

func (a *app) readStreams(ctx context.Context, w *airbyte.Writer, catalogPath, statePath string) error {
	k, err := a.connectorOfFile(w)
	if err != nil {
		return err
	}
	r := newReading(k)
	r.stdin = os.Stdin
	if r.catalog, err = fromFile("--catalog", catalogPath, airbyte.ParseCatalog); err != nil {
		return err
	}
	r.state, _ = airbyte.ParseState(nil)
	if statePath != "" {
		if r.state, err = fromFile("--state", statePath, airbyte.ParseState); err != nil {
			return err
		}
		if err := r.state.Keep(r.catalog); err != nil {
			return err
		}
	}
	for i := range r.catalog.Streams {
		if err := w.Status(r.catalog.Streams[i].Stream.Descriptor(), "STARTED"); err != nil {
			return err
		}
	}
	err = r.run(ctx)
	for i := range r.catalog.Streams {
		d := r.catalog.Streams[i].Stream.Descriptor()
		status := "INCOMPLETE"
		if r.complete[d] || err == nil && !r.missing[d] && !interrupted(ctx) {
			status = "COMPLETE"
		}
		if e := w.Status(d, status); e != nil {
			return errors.Join(err, e)
		}
	}
	return err
}

func fromFile[T any](flag, path string, parse func([]byte) (T, error)) (T, error) {
	var none T
	if path == "" {
		return none, &millrace.Error{Kind: millrace.KindConfig, Op: flag, Err: errors.New("missing"), Hint: "give the file"}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return none, &millrace.Error{Kind: millrace.KindConfig, Op: flag, Err: err, Hint: "correct the path"}
	}
	return parse(data)
}

func (r *reading) run(ctx context.Context) error {
	var err error
	if r.found, err = r.look(ctx); err != nil {
		return err
	}
	if err := problemsOf(r.found.Report); err != nil {
		return err
	}
	for _, t := range r.found.Tables {
		r.tables[t.Name] = t
	}
	conn, err := r.source.Connect(ctx, session.Watch)
	if err != nil {
		return err
	}
	r.start, err = catalog.Position(ctx, conn)
	_ = conn.Close(context.WithoutCancel(ctx)) // it was only asked
	if err != nil {
		return session.Wrap("read the source's position", millrace.PeerSource, err)
	}
	r.rows = newRowReader(r.source, r.keys)
	defer r.rows.close()
	if err := r.sort(); err != nil {
		return err
	}
	incremental := slices.ContainsFunc(r.selected, func(s airbyte.Selected) bool { return !s.Full })
	var from millrace.Checkpoint
	if incremental {
		if from, err = r.from(ctx); err != nil {
			return err
		}
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	sink := r.sink(from, stop)
	for i := range r.selected {
		if s := &r.selected[i]; s.Full {
			if err := r.rows.refresh(ctx, sink, s); err != nil {
				return err
			}
			r.complete[s.Stream.Stream.Descriptor()] = true
		}
	}
	if !incremental {
		return nil
	}
	if here := r.found.Server; from.System == here.SystemID && from.Timeline == here.Timeline {
		if done, err := sink.Finish(); done || err != nil {
			return err
		}
	}
	return r.stream(running, stop, sink)
}

func (r *reading) sink(from millrace.Checkpoint, stop func()) *airbyte.Sink {
	opt := airbyte.Options{Writer: r.out, Flow: r.flow, Config: r.cfg, Tables: r.selected, State: r.state, From: from, Start: r.start,
		OnReached: stop, Type: r.rows.typeOf, Fetch: r.rows.fetch, Log: r.log}
	if r.cfg.Mode == airbyte.ModePoll {
		opt.Until = max(r.start, from.End)
	}
	return airbyte.NewSink(opt)
}

// sort parts the streams by how they are read.
func (r *reading) sort() error {
	for i := range r.catalog.Streams {
		s := &r.catalog.Streams[i]
		t := r.tables[s.Stream.Table()]
		if t == nil {
			if err := r.withoutTable(s); err != nil {
				return err
			}
			continue
		}
		key, err := r.keyOf(s, t)
		if err != nil {
			return err
		}
		if r.flow != nil {
			s.Stream.JSONSchema = r.cfg.FlowSchemaOf(t, &key)
		} else if err := r.out.Estimate(s.Stream.Descriptor(), max(t.Rows, 0), t.Bytes); err != nil {
			return err
		}
		if key.Chosen && key.Named {
			r.keys[t.Name] = key.Columns
		}
		r.selected = append(r.selected, airbyte.Selected{Stream: s, OID: t.OID, Filenode: t.Filenode,
			Shape: airbyte.ShapeHash(catalog.ShapeOf(t)), Key: key.Columns, Number: i,
			Full: s.Full(), Skip: r.state.SkipOf(t.Name)})
	}
	return nil
}

// withoutTable tells that the table of a stream is not there. What the platforms expect is what
// their own connectors do: with Airbyte the stream is incomplete and has an error of
// its own, and the others are read all the same; a capture of Estuary fails.
func (r *reading) withoutTable(s *airbyte.ConfiguredStream) error {
	err := &millrace.Error{Kind: millrace.KindConfig, Op: "read", Table: s.Stream.Table(), Err: errors.New("is not there, or not selected"),
		Hint: "take the stream out, by a new discover; or correct schemas and tables of the configuration, or the role's right to USAGE of the schema"}
	if r.flow != nil {
		return err
	}
	d := s.Stream.Descriptor()
	r.missing[d] = true
	trace := traceOf(err)
	trace.Stream = &d
	return r.out.Error(trace)
}

// keyOf finds the key that a stream is read by and its changes are told apart by.
func (r *reading) keyOf(s *airbyte.ConfiguredStream, t *catalog.Table) (airbyte.Key, error) {
	chosen, err := s.Chosen()
	if err != nil {
		return airbyte.Key{}, err
	}
	if r.flow != nil {
		return r.cfg.FlowKeyOf(t, chosen)
	}
	key, err := r.cfg.KeyOf(t, chosen)
	if err == nil && !s.Full() {
		err = key.CanFollow(t)
	}
	return key, err
}

// stream reads what is incremental.
func (r *reading) stream(ctx context.Context, stop func(), sink *airbyte.Sink) error {
	gate := &airbyte.Gate{Source: backfill.New(backfill.Options{
		Stream: capture.New(capture.Options{
			Endpoint: r.source, Slot: r.slot(), Publication: r.publication(), Log: r.log,
			Match: func(n millrace.TableName) bool {
				return slices.ContainsFunc(r.selected, func(s airbyte.Selected) bool { return s.Stream.Stream.Table() == n })
			},
			Tables: func(context.Context) ([]capture.Table, error) { return r.captured(), nil },
		}),
		Endpoint: r.source, Early: true, Keys: r.keys, Log: r.log,
	})}
	gate.UseText() // JSON is text: what is sent as text needs no decoding, and has no form that is not known
	failed := make(chan error, 1)
	if r.cfg.Ack == airbyte.AckStdin || r.flow != nil {
		go func() {
			if err := r.acknowledgements(sink, gate, stop); err != nil {
				failed <- err
				stop()
			}
		}()
	}
	progress := relay.NewProgress()
	go func() { _, _ = progress.Wait(ctx, r.start, false) }() // has the source asked where it is
	err := relay.New(relay.Options{Source: gate, Sink: sink, Progress: progress, Log: r.log}).Run(ctx)
	select {
	case e := <-failed:
		return e
	default:
	}
	return err
}

// captured is the set of tables, as they are now.
func (r *reading) captured() []capture.Table {
	var tables []capture.Table
	for i := range r.selected {
		if t := r.tables[r.selected[i].Stream.Stream.Table()]; !r.selected[i].Full {
			tables = append(tables, capture.Table{OID: t.OID, Name: t.Name, Filenode: t.Filenode, Shape: catalog.ShapeOf(t)})
		}
	}
	return tables
}

// from gives the position to go on at: the state's, or the slot's where there is
// no state. Slot and publication are made if they may be and are not there.
func (r *reading) from(ctx context.Context) (millrace.Checkpoint, error) {
	var cp millrace.Checkpoint
	if p := r.state.Position; p != nil {
		if err := r.stateHolds(); err != nil {
			return cp, err
		}
		cp.System, cp.Timeline, cp.End, cp.Acked = p.System, p.Timeline, p.LSN, p.LSN
		return cp, nil
	}
	conn, err := r.source.Connect(ctx, session.Watch)
	if err != nil {
		return cp, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if r.found.Publication == nil {
		if err := r.publish(ctx, conn); err != nil {
			return cp, err
		}
	}
	var at millrace.LSN
	if r.found.Slot != nil {
		at = r.found.Slot.ConfirmedFlush
	} else {
		var text string
		if err := conn.QueryRow(ctx, `SELECT lsn::text FROM pg_catalog.pg_create_logical_replication_slot($1, 'pgoutput')`, r.slot()).Scan(&text); err != nil {
			return cp, session.Wrap("create slot "+r.slot(), millrace.PeerSource, err)
		}
		if at, err = millrace.ParseLSN(text); err != nil {
			return cp, err
		}
		r.log.Info("created the slot", "slot", r.slot(), "consistent_point", at)
	}
	cp.System, cp.Timeline, cp.End, cp.Acked = r.found.Server.SystemID, r.found.Server.Timeline, at, at
	return cp, nil
}

// stateHolds tells whether the source still has what came after the state. Whoever reads
// from the slot otherwise is told of it by the stream, at its start.
func (r *reading) stateHolds() error {
	p, slot := r.state.Position, r.found.Slot
	e := &millrace.Error{Kind: millrace.KindResync, Op: "read", Peer: millrace.PeerSource, Hint: resetWords}
	switch {
	case p.System != r.found.Server.SystemID: // whose positions say nothing about this one's
		e.Err = fmt.Errorf("the state is of system %s, and the source is system %s", p.System, r.found.Server.SystemID)
		e.Hint = "correct host and port, or " + resetWords
	case slot == nil:
		e.Err = errors.New("the slot is gone, and with it the changes since the state")
	case slot.ConfirmedFlush > p.LSN:
		e.Err = fmt.Errorf("the state is of %v, and the slot is at %v since a newer one was given back: the changes in between are gone", p.LSN, slot.ConfirmedFlush)
		if old := r.state.Behind(r.catalog, slot.ConfirmedFlush); len(old) > 0 {
			e.Hint = "clear data and state of these streams at the platform, so that they are read again: " + strings.Join(old, ", ")
		}
	default:
		return nil
	}
	return e
}

func (r *reading) publish(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, r.found.PublicationSQL); err != nil {
		return session.Wrap("create publication "+r.publication(), millrace.PeerSource, err)
	}
	r.log.Info("created the publication", "publication", r.publication(), "tables", len(r.found.Tables))
	return nil
}

// acknowledgements lets the source's log go as the platform says that it holds
// what came from it.
func (r *reading) acknowledgements(sink *airbyte.Sink, gate *airbyte.Gate, stop func()) error {
	if r.flow != nil {
		return acknowledgeFlow(r.flow, sink, gate, stop)
	}
	return acknowledge(r.stdin, sink, gate)
}

// acknowledge reads the lines {"ack":n} until the end of stdin, which means that
// no more come.
func acknowledge(in io.Reader, sink *airbyte.Sink, gate *airbyte.Gate) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var line struct {
			Ack *int64 `json:"ack"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Ack == nil {
			return &millrace.Error{Kind: millrace.KindConfig, Op: "ack", Err: errors.New("a line on stdin is no acknowledgement"), Hint: `write {"ack":n} and a newline`}
		}
		if err := prove(sink, gate, *line.Ack); err != nil {
			return err
		}
	}
	return lines.Err()
}

func prove(sink *airbyte.Sink, gate *airbyte.Gate, n int64) error {
	at, err := sink.Acknowledged(n)
	if err == nil && at != 0 {
		gate.Prove(at)
	}
	return err
}
