// Package bootstrap does the first load of a job: it records the job at the
// target, creates the slot, copies definitions and rows under the snapshot that
// comes with it, and ends once the target is equal to the source at the slot's
// consistent point.
//
// The order is what makes it safe to die at any moment. The record is there
// before the slot, so that no slot is left that nobody knows of; the slot before
// the first row, so that no change is missed; and consistent_from is set after
// everything else, so that nobody takes half a load for a whole one.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/kafka"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/schema"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// The values of Options.SchemaMode.
const (
	SchemaCreate   = "create"
	SchemaExisting = "existing"
)

// The values of Options.Mode.
const (
	ModeConsistent  = "consistent"
	ModeIncremental = "incremental"
	ModeNone        = "none"
)

// Options say what to load and how.
type Options struct {
	Source, Target *session.Endpoint
	// Into is the destination of a job whose set of tables is changed, where that is
	// not Target. Its Facts are read.
	Into              *kafka.Options
	Job               string
	Slot, Publication string
	Patterns          catalog.Patterns
	// CreatePublication allows to create a publication that is missing, beyond
	// loopback only together with AllowRemotePublication.
	CreatePublication      bool
	AllowRemotePublication bool
	Keys                   catalog.Keys // chosen for some tables
	// MinKeyed is the least size of a table that is copied by ranges of its key; 0: that
	// of package snapshot.
	MinKeyed   int64
	SchemaMode string // SchemaCreate or SchemaExisting
	Mode       string // ModeConsistent, ModeIncremental or ModeNone
	Parallel   int
	Rate       int64         // bytes a second; 0: no limit
	Timeout    time.Duration // longest hold of the snapshot; 0: none
	// SlotWait bounds the wait for each transaction that is running when the
	// slot is created; 0: one minute.
	SlotWait time.Duration
	// Failover has the slot copied to standbys, where the source can do that.
	Failover bool
	// OnWait, if not nil, is told what the load waits for, and what may cure it.
	OnWait  func(reason, hint string)
	PGDump  string // path, or "" to look for it
	Restart bool   // start a load over, whatever is left of the last one
	// ByKey: several jobs share the tables, each with some of the rows (FromKafka only).
	ByKey bool
	// DryRun, if not nil, is where the plan and all statements are written,
	// and nothing is done.
	DryRun io.Writer
	// Instance is this process's name in the record, and Heartbeat the
	// interval in which living instances show themselves there.
	Instance  string
	Heartbeat time.Duration
	Progress  snapshot.Reporter // may be nil
	Log       *slog.Logger      // may be nil
}

// load is one run.
type load struct {
	Options
	log     *slog.Logger
	tracker *snapshot.Tracker

	source, target *pgx.Conn
	job            *record.Job // as the record has it
	recorded       bool        // this attempt has written it
	waited         bool        // the record says what was waited for

	server   *catalog.Server
	replica  bool   // the target's role may set session_replication_role
	aside    bool   // it works beside a run: which instance that is does not matter
	keep     keeper // of a change of the set of tables
	set      snapshot.Selection
	pub      *catalog.Publication // nil: to be created
	prepared *definitions
	// definitions is what was or will be done on the target; nil with
	// definitions of its own.
	definitions *schema.Plan
}

// Run does the first load, or whatever of it is left to do before the stream can
// start. On a job whose first load is complete it does nothing. Where tables are
// loaded beside the stream, the record has no consistent_from when Run returns
// nil: whoever streams loads them, and calls Finish then. When ctx ends, the
// record says so before Run returns its cause.
func Run(ctx context.Context, o Options) error {
	l := newRun(o)
	defer l.close()
	var err error
	if l.target, err = l.Target.Connect(ctx, session.Copy); err != nil {
		return err
	}
	if l.job, _, err = record.Read(ctx, l.target, l.Job); err != nil {
		return err
	}
	if l.job != nil && l.job.ConsistentFrom != 0 && !l.Restart {
		l.log.Info("the first load is complete", "consistent_from", l.job.ConsistentFrom)
		return nil
	}
	if Besides(l.job) && !l.Restart {
		l.log.Info("the first load goes on beside the stream")
		return nil
	}
	if err := l.connectSource(ctx); err != nil {
		return err
	}
	if l.DryRun != nil {
		return l.dryRun(ctx)
	}
	if err := l.refuseRival(ctx); err != nil {
		return err
	}
	if half, err := l.half(ctx); err != nil {
		return err
	} else if half {
		return l.goOn(ctx)
	}
	return l.begin(ctx)
}

func newRun(o Options) *load {
	l := &load{Options: o, log: o.Log, tracker: snapshot.NewTracker(o.Progress)}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if l.SlotWait == 0 {
		l.SlotWait = time.Minute
	}
	return l
}

func (l *load) connectSource(ctx context.Context) (err error) {
	if l.source, err = l.Source.Connect(ctx, session.Copy); err != nil {
		return err
	}
	if l.server, err = catalog.ReadServer(ctx, l.source); err != nil {
		return session.Wrap("read the server", millrace.PeerSource, err)
	}
	if l.server.InRecovery {
		return l.identifyStandby(ctx)
	}
	return nil
}

// identifyStandby asks on which timeline a standby is, which SQL does not tell: its
// control file follows with the next restart point only.
func (l *load) identifyStandby(ctx context.Context) error {
	pg, err := l.Source.ConnectReplication(ctx, session.Watch)
	if err != nil {
		return err
	}
	defer pg.Close(context.WithoutCancel(ctx))
	sys, err := replication.New(pg).IdentifySystem(ctx)
	if err != nil {
		return session.Wrap("identify the source", millrace.PeerSource, err)
	}
	l.server.Timeline = sys.Timeline
	return nil
}

// reopen makes sessions anew that may be in any state.
func (l *load) reopen(ctx context.Context) (err error) {
	l.close()
	if l.target, err = l.Target.Connect(ctx, session.Copy); err != nil {
		return err
	}
	return l.connectSource(ctx)
}

func (l *load) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, conn := range []*pgx.Conn{l.source, l.target} {
		if conn != nil {
			_ = conn.Close(ctx) // nothing depends on it
		}
	}
}

// mostStarts is how often a load begins anew when a table is altered in the
// moment between the snapshot and the lock.
const mostStarts = 3

// begin starts the load, again if a table was changed under its hands.
func (l *load) begin(ctx context.Context) error {
	for start := 1; ; start++ {
		err := l.attempt(ctx)
		if err == nil {
			return nil
		}
		advise(err)
		if errors.Is(err, errTimeout) && l.recorded {
			if l.job.ConsistentPoint != 0 {
				l.log.Warn("the snapshot is given up, and the load goes on without it", "cause", err)
				if err := l.reopen(ctx); err != nil {
					return err
				}
				return l.goOn(ctx)
			}
		}
		l.undo(ctx, err)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !errors.Is(err, snapshot.ErrChanged) || start == mostStarts {
			return err
		}
		l.log.Warn("starting again", "cause", err)
		if l.job, _, err = record.Read(ctx, l.target, l.Job); err != nil {
			return err
		}
	}
}

// attempt is one try of the whole load.
func (l *load) attempt(ctx context.Context) error {
	if err := l.prepare(ctx); err != nil {
		return err
	}
	if err := l.recordJob(ctx); err != nil {
		return err
	}
	if l.Mode == ModeIncremental {
		return l.fillBeside(ctx)
	}
	tables, err := l.fill(ctx)
	if err != nil {
		return err
	}
	if l.Mode != ModeNone {
		if err := l.persist(ctx, func() error { return l.complete(ctx) }); err != nil {
			return err
		}
	}
	if err := l.persist(ctx, func() error { return l.finish(ctx) }); err != nil {
		return err
	}
	if l.Mode != ModeNone {
		l.analyze(ctx, tables)
	}
	l.done(l.job.ConsistentFrom, len(tables))
	return nil
}

// fill makes the slot and copies everything under its snapshot. When it returns
// the snapshot is given up.
func (l *load) fill(ctx context.Context) (_ []*snapshot.Table, err error) {
	ctx, cancel := l.limitHold(ctx)
	defer cancel()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // and not the lost connection that it has caused
		}
	}()
	h, err := l.createSlot(ctx)
	if err != nil {
		return nil, err
	}
	defer h.Release()
	if err := l.makeDefinitions(ctx, h); err != nil {
		return nil, err
	}
	tables, err := l.pairTables(ctx, h)
	if err != nil {
		return nil, err
	}
	if err := l.recordTables(ctx, h, tables); err != nil {
		return nil, err
	}
	if l.Mode == ModeNone {
		return tables, nil
	}
	return tables, l.copyRows(ctx, h, tables)
}

// limitHold bounds the time for which the source keeps old row versions.
func (l *load) limitHold(ctx context.Context) (context.Context, context.CancelFunc) {
	if l.Timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, l.Timeout, &millrace.Error{
		Kind: millrace.KindData,
		Op:   "first load",
		Err:  fmt.Errorf("%w (%v)", errTimeout, l.Timeout),
		Hint: "raise snapshot.timeout; the source keeps old row versions and log for as long",
	})
}

// finish says that the target is equal to the source at the consistent point.
func (l *load) finish(ctx context.Context) error {
	point := l.job.ConsistentPoint
	err := l.inRecord(ctx, "finish the load", func(tx pgx.Tx) error {
		if err := record.SetConsistentFrom(ctx, tx, l.Job, point); err != nil {
			return err
		}
		return record.SetState(ctx, tx, l.Job, record.Stopped, "the first load is complete", "millrace run streams from here")
	})
	if err != nil {
		return err
	}
	l.job.ConsistentFrom = point
	return nil
}

// done tells that nothing of the load is left to do.
func (l *load) done(from millrace.LSN, tables int) {
	l.tracker.Enter(snapshot.PhaseDone, 0)
	l.log.Info("the first load is complete", "consistent_from", from, "tables", tables)
}

// inRecord does one step on the target's record, all of it or nothing, and only
// while this load has not been replaced by a newer one: that one's slot, rows and
// marks are not ours to touch.
func (l *load) inRecord(ctx context.Context, op string, do func(pgx.Tx) error) error {
	tx, err := l.target.Begin(ctx)
	if err != nil {
		return session.Wrap(op, millrace.PeerDestination, err)
	}
	defer tx.Rollback(ctx)
	f := l.job.Fence()
	if l.aside {
		f.Epoch = 0
	}
	if err := record.Hold(ctx, tx, f); err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return err
	}
	return session.Wrap(op, millrace.PeerDestination, tx.Commit(ctx))
}
