package main

import (
	"context"
	"errors"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/apply"
	"github.com/millrace/millrace/backfill"
	"github.com/millrace/millrace/capture"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/kafka"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/relay"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/spool"
	"github.com/millrace/millrace/web"
)

// engine is a source, a sink and the relay between them.
type engine struct {
	source   *capture.Source  // nil if that is from
	backfill *backfill.Source // around it
	from     *unbottled
	sink     *apply.Sink // nil if that is kafka
	kafka    *kafka.Sink
	relay    *relay.Relay
	spool    *spool.Spool  // nil if nothing is spooled
	loaded   chan struct{} // see tellLoaded
	meter    meter         // of loads beside the stream
}

func newEngine(ctx context.Context, r *runner, j *record.Job) (*engine, error) {
	if r.prefix != nil {
		return r.unbottle(), nil
	}
	e := &engine{loaded: make(chan struct{}, 1)}
	if r.Source.Postgres.Streaming != config.StreamingOff || r.kafka != nil {
		s, err := spool.Open(spool.Options{Dir: r.Resources.Spool.Dir, Job: r.Job, Limit: int64(r.Resources.Spool.Limit)})
		switch {
		case err == nil:
			e.spool = s
		case r.Resources.Spool.Dir != "" || r.kafka != nil:
			return nil, err
		default: // nobody has asked for it
			r.log.Warn("large transactions are taken once they are committed", "cause", err, "hint", millrace.HintOf(err))
		}
	}
	e.source = capture.New(capture.Options{
		Endpoint: r.source, Slot: j.Slot, Publication: j.Publication, Match: r.patterns.Match,
		MaxInflight: int64(r.Resources.MaxInflight), MaxMessage: int64(r.Resources.MaxMessage),
		BufferSize: int(r.Resources.BufferSize), Log: r.log, Tables: r.tableSet, Recorded: r.recorded, OnShape: r.newShape,
		Spool: e.captureSpool(r), TwoPhase: func() bool { return e.sink != nil && e.sink.TwoPhase() },
		Parallel: r.Source.Postgres.Streaming == config.StreamingParallel,
		Ahead:    e.ahead(r), LocalOnly: r.Source.Postgres.Origin == config.OriginNone,
	})
	o, loads := r.relayOptions(), backfill.Options{Stream: e.source, Endpoint: r.source, Parallel: r.Snapshot.Parallel,
		Rate: int64(r.Snapshot.Rate), Keys: r.keys, OnDone: e.tellLoaded, Log: r.log}
	if r.kafka != nil {
		sink, err := r.newKafkaSink(ctx, e.spool)
		if err != nil {
			return nil, errors.Join(err, e.spool.Close())
		}
		e.kafka, o.Sink, loads.Early = sink, sink, true
	} else {
		e.sink = apply.New(r.applyOptions())
		o.Sink = e.sink
		loads.Staging = func(oid uint32) millrace.TableName { return record.StagingTable(r.Job, oid) }
	}
	e.backfill = backfill.New(loads)
	o.Source = e.backfill
	onSession := o.OnSession
	o.OnSession = func(cp millrace.Checkpoint) {
		onSession(cp)
		if !e.loads(cp.Tables) {
			e.backfill.StartAnew() // a mark came while the stream was acquired
		}
		if len(cp.Tables) == 0 && !r.loaded() {
			e.tellLoaded()
		}
	}
	e.relay = relay.New(o)
	r.progress.Finishing(e.source.Finishing)
	return e, nil
}

// ahead applies transactions while they are open, unless that is switched off.
func (e *engine) ahead(r *runner) func(context.Context, uint32) (millrace.Ahead, error) {
	if !r.Eager() || r.kafka != nil {
		return nil
	}
	return func(ctx context.Context, xid uint32) (millrace.Ahead, error) { return e.sink.Ahead(ctx, xid) }
}

// applyOptions are those of a PostgreSQL target.
func (r *runner) applyOptions() apply.Options {
	return apply.Options{
		Endpoint: r.target, Job: r.Job, Instance: r.keeper.instance(), Group: r.Apply.Group,
		MaxBatchRows: r.Apply.MaxBatchRows, MaxBatchBytes: int64(r.Apply.MaxBatchBytes),
		MaxHeld:          int64(r.Resources.MaxInflight) / 2, // the source queues the other half
		TruncateAsDelete: r.Apply.Truncate == config.TruncateAsDelete, Log: r.log,
		TwoPhase: r.Source.Postgres.TwoPhase, OnClaim: func(cp millrace.Checkpoint) { r.keeper.know(cp.Generation, cp.Epoch) },
	}
}

// captureSpool is where the source keeps open transactions, if it takes them.
func (e *engine) captureSpool(r *runner) *spool.Spool {
	if r.Source.Postgres.Streaming != config.StreamingOff {
		return e.spool
	}
	return nil
}

// run streams until something ends it.
func (e *engine) run(ctx context.Context) error {
	err := e.relay.Run(ctx)
	if e.spool != nil {
		err = errors.Join(err, e.spool.Close())
	}
	if e.from != nil {
		e.from.tables.Close()
	}
	return err
}

// tableSet reads the job's set of tables, at every start of the stream.
func (r *runner) tableSet(ctx context.Context) ([]capture.Table, error) {
	j, _, err := r.readLedger(ctx)
	if err != nil {
		return nil, err
	}
	if j == nil {
		return nil, noJob(r.settings)
	}
	if err := r.readFacts(ctx, j); err != nil {
		return nil, err
	}
	r.mu.Lock()
	if r.record != nil && r.record.Set != j.Set {
		r.record = j
	}
	r.mu.Unlock()
	r.taken.Store(j.Set)
	return tablesOf(j), nil
}

// recorded reads it while the stream runs, which takes up nothing of it.
func (r *runner) recorded(ctx context.Context) ([]capture.Table, error) {
	j, _, err := r.readLedger(ctx)
	if err != nil || j == nil {
		return nil, err
	}
	return tablesOf(j), nil
}

func tablesOf(j *record.Job) []capture.Table {
	tables := make([]capture.Table, len(j.Tables))
	for i := range j.Tables {
		t := &j.Tables[i]
		tables[i] = capture.Table{OID: t.OID, Name: t.Name, Filenode: t.Filenode, Shape: t.Shape, Adding: t.Adding}
	}
	return tables
}

// newShape records what the stream has found out about a table of the set.
func (r *runner) newShape(ctx context.Context, t capture.Table) error {
	r.log.Info("the schema of a table has changed", "table", t.Name)
	changed := record.Table{OID: t.OID, Name: t.Name, Filenode: t.Filenode, Shape: t.Shape}
	r.mu.Lock()
	e := r.engine
	r.mu.Unlock()
	if e != nil && e.kafka != nil {
		e.kafka.UpdateTable(changed)
		return nil
	}
	conn, err := r.target.Connect(ctx, session.Watch)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return record.UpdateTable(ctx, conn, r.Job, changed)
}

// fallbacks counts the source transactions that took the row path.
func (e *engine) fallbacks() int64 {
	if e.sink == nil {
		return 0
	}
	return int64(e.sink.Stats().FallbackTransactions)
}

// numbers adds the counters of both ends.
func (e *engine) numbers(n *web.Numbers) {
	var spooled int64
	if e.spool != nil {
		spooled = e.spool.Bytes()
	}
	n.SpoolBytes = web.Known(spooled)
	if e.kafka != nil {
		s := e.kafka.Stats()
		n.Applied = map[string]int64{"set": s.Transactions}
		n.Executions, n.ExecSeconds = web.Known(uint64(s.Commits)), s.Busy.Seconds()
		n.InflightBytes = web.Known(s.Held)
		return
	}
	s := e.sink.Stats()
	n.Applied = map[string]int64{
		"set":   int64(s.Transactions - s.FallbackTransactions - s.Ahead),
		"row":   int64(s.FallbackTransactions),
		"ahead": int64(s.Ahead),
	}
	n.Executions, n.ExecSeconds = web.Known(s.Groups), s.Busy.Seconds()
	n.InflightBytes = web.Known(s.Held)
}

// loads tells whether the marks are those that the stream was started with.
func (e *engine) loads(marks map[millrace.TableName]millrace.Mark) bool {
	if e.backfill == nil {
		return true
	}
	under := e.backfill.Progress()
	n := 0
	for _, p := range under {
		if marks[p.Name].OID == p.OID {
			n++
		}
	}
	return n == len(under) && n == len(marks)
}
