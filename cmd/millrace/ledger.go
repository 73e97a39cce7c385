package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

// ledger is a connection to the job's record, which is where the job's
// destination is: the schema millrace of a target, or a topic.
type ledger interface {
	// Read gives the record and the checkpoint; nil if there is none.
	Read(ctx context.Context) (*record.Job, millrace.Checkpoint, error)
	// Newest gives the instance with the newest heartbeat that is not called
	// except, and how old that is; nil if there is none.
	Newest(ctx context.Context, except string) (*record.Runtime, time.Duration, error)
	SetState(ctx context.Context, state record.State, reason, hint string) error
	// Ready tells whether there is a place for heartbeats. Before the first load
	// there may be none.
	Ready(ctx context.Context) (bool, error)
	Beat(ctx context.Context, rt *record.Runtime) error
	Leave(ctx context.Context, instance string) error
	// HeldOn tells whether a position of an earlier timeline was held before the
	// stream left that timeline.
	HeldOn(ctx context.Context, timeline int32, at millrace.LSN) (bool, error)
	// Settle makes durable what Read gave last.
	Settle(ctx context.Context) error
	// Delete removes all that is recorded of the job.
	Delete(ctx context.Context) error
	Closed() bool
	Close(ctx context.Context) error
}

// openLedger connects to the job's record.
func (s *settings) openLedger(ctx context.Context) (ledger, error) {
	if s.kafka != nil {
		ctl, err := s.kafka.OpenControl()
		if err != nil {
			return nil, err
		}
		return &kafkaLedger{Control: ctl}, nil
	}
	conn, err := s.target.Connect(ctx, session.Watch)
	if err != nil {
		return nil, err
	}
	return &pgLedger{conn: conn, job: s.Job}, nil
}

// readLedger reads the record once.
func (s *settings) readLedger(ctx context.Context) (*record.Job, millrace.Checkpoint, error) {
	book, err := s.openLedger(ctx)
	if err != nil {
		return nil, millrace.Checkpoint{}, err
	}
	defer book.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it was only read
	return book.Read(ctx)
}

// pgLedger is a record on a PostgreSQL target.
type pgLedger struct {
	conn *pgx.Conn
	job  string
}

func (l *pgLedger) Read(ctx context.Context) (*record.Job, millrace.Checkpoint, error) {
	return record.Read(ctx, l.conn, l.job)
}

// Newest judges the heartbeat by the target's clock, which wrote it.
func (l *pgLedger) Newest(ctx context.Context, except string) (*record.Runtime, time.Duration, error) {
	rt, err := record.ReadOther(ctx, l.conn, l.job, except)
	if err != nil || rt == nil {
		return nil, 0, err
	}
	var now time.Time
	if err := l.conn.QueryRow(ctx, "SELECT pg_catalog.clock_timestamp()").Scan(&now); err != nil {
		return nil, 0, session.Wrap("read the destination's clock", millrace.PeerDestination, err)
	}
	return rt, now.Sub(rt.HeartbeatAt), nil
}

// fencedLedger is one in which a former instance could still write, unless it is
// told under which epoch it works.
type fencedLedger interface {
	SetStateAs(ctx context.Context, f record.Fence, state record.State, reason, hint string) error
}

func (l *pgLedger) SetStateAs(ctx context.Context, f record.Fence, state record.State, reason, hint string) error {
	return record.SetStateAs(ctx, l.conn, f, state, reason, hint)
}

func (l *pgLedger) SetState(ctx context.Context, state record.State, reason, hint string) error {
	return record.SetState(ctx, l.conn, l.job, state, reason, hint)
}

// Ready looks for the table: a try without it would be an error in the server's
// log.
func (l *pgLedger) Ready(ctx context.Context) (bool, error) {
	var there bool
	err := l.conn.QueryRow(ctx, `SELECT pg_catalog.to_regclass('millrace.runtime') IS NOT NULL`).Scan(&there)
	return there, session.Wrap("look for the record", millrace.PeerDestination, err)
}

func (l *pgLedger) Beat(ctx context.Context, rt *record.Runtime) error {
	return record.Beat(ctx, l.conn, rt)
}

func (l *pgLedger) Leave(ctx context.Context, instance string) error {
	return record.Leave(ctx, l.conn, l.job, instance)
}

func (l *pgLedger) HeldOn(ctx context.Context, timeline int32, at millrace.LSN) (bool, error) {
	return heldOn(ctx, l.conn, l.job, timeline, at)
}

// Settle: the checkpoint that a query sees may not be flushed yet, or not be at
// a synchronous standby; a commit behind it at the server's own
// synchronous_commit is.
func (l *pgLedger) Settle(ctx context.Context) error {
	return session.Wrap("commit behind the checkpoint", millrace.PeerDestination, durableCommit(ctx, l.conn))
}

func (l *pgLedger) Delete(ctx context.Context) error { return record.Delete(ctx, l.conn, l.job) }

func (l *pgLedger) Closed() bool { return l.conn.IsClosed() }

func (l *pgLedger) Close(ctx context.Context) error {
	return session.Wrap("close the record", millrace.PeerDestination, l.conn.Close(ctx))
}
