package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// createSlot makes the slot and takes hold of its snapshot.
func (l *load) createSlot(ctx context.Context) (*snapshot.Holder, error) {
	l.tracker.Enter(snapshot.PhaseSlot, 0)
	pg, err := l.Source.ConnectReplication(ctx, session.Stream)
	if err != nil {
		return nil, err
	}
	// The exported snapshot lives until the next command on this session.
	defer pg.Close(context.WithoutCancel(ctx))
	slot, err := l.awaitSlot(ctx, pg)
	if err != nil {
		return nil, err
	}
	l.tracker.Hold(time.Now())
	l.waitsNoMore(ctx)
	l.job.ConsistentPoint = slot.ConsistentPoint
	l.log.Info("created the slot", "slot", slot.Name, "consistent_point", slot.ConsistentPoint)
	if err := l.recordSlot(ctx); err != nil {
		return nil, err
	}
	streams := 0
	if l.Mode == ModeConsistent {
		streams = max(1, l.Parallel)
	}
	h, err := snapshot.Hold(ctx, l.Source, slot.Snapshot, l.set.Tables, streams)
	if err != nil {
		return nil, err
	}
	if err := l.sameSet(ctx, h); err != nil {
		h.Release()
		return nil, err
	}
	return h, nil
}

// recordSlot writes down that the slot exists, and the position that a stream
// starts from.
func (l *load) recordSlot(ctx context.Context) error {
	return l.inRecord(ctx, "record the slot", func(tx pgx.Tx) error {
		if err := record.SetSlot(ctx, tx, l.Job, l.job.ConsistentPoint, true, l.job.OwnsPublication); err != nil {
			return err
		}
		if err := record.FirstProgress(ctx, tx, l.job.Fence(), l.server.Timeline, l.job.ConsistentPoint); err != nil {
			return err
		}
		if l.Mode != ModeConsistent {
			return nil
		}
		return record.SetLoadStarted(ctx, tx, l.Job)
	})
}

// sameSet proves that the snapshot shows the tables that were selected before
// it: one created in between would be neither copied nor missed.
func (l *load) sameSet(ctx context.Context, h *snapshot.Holder) error {
	now, err := l.selectTables(ctx, h.Conn())
	if err != nil {
		return err
	}
	if !slices.Equal(now.OIDs(), l.set.OIDs()) {
		return &millrace.Error{Kind: millrace.KindRetry, Op: "select tables", Peer: millrace.PeerSource,
			Err: fmt.Errorf("%w: the set of tables is another one now", snapshot.ErrChanged), Hint: "start again"}
	}
	return nil
}

// awaitSlot creates the slot, which waits for every transaction that is writing
// at the time, in any database of the server. lock_timeout bounds the wait for
// each of them, on a primary; statement_timeout does nothing here.
func (l *load) awaitSlot(ctx context.Context, pg *pgconn.PgConn) (replication.Slot, error) {
	op := "create slot " + l.Slot
	if _, err := pg.Exec(ctx, fmt.Sprintf("SET lock_timeout = %d", l.SlotWait.Milliseconds())).ReadAll(); err != nil {
		return replication.Slot{}, session.Wrap(op, millrace.PeerSource, err)
	}
	watch, stop := context.WithCancel(ctx)
	seen := make(chan string, 1)
	creating := ctx
	if l.server.InRecovery {
		var cancel context.CancelFunc
		creating, cancel = l.limitStandbySlot(ctx)
		defer cancel()
		go func() { seen <- l.helpStandbySlot(watch) }()
	} else {
		go func() { seen <- l.watchBlockers(watch, pg.PID()) }()
	}
	slot, err := replication.New(pg).CreateSlot(creating, l.Slot, l.failoverSlot())
	stop()
	blockers := <-seen
	if err == nil {
		return slot, nil
	}
	if creating.Err() != nil && ctx.Err() == nil {
		return slot, l.standbySlotError(op, blockers)
	}
	return slot, l.explainSlot(ctx, op, blockers, err)
}

// failoverSlots is the first version whose slots can be copied to standbys.
const failoverSlots = 17

func (l *load) failoverSlot() bool {
	return l.Failover && !l.server.InRecovery && l.server.Major() >= failoverSlots
}

// explainSlot tells what the server's answer means.
func (l *load) explainSlot(ctx context.Context, op, blockers string, err error) error {
	refused := func(err error, hint string) error {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: op, Peer: millrace.PeerSource, Err: err, Hint: hint}
	}
	switch code := session.SQLState(err); {
	case code == "55P03":
		return refused(fmt.Errorf("a transaction did not end within %v: %s", l.SlotWait, orUnknown(blockers)),
			"a slot waits for all transactions that are writing when it is created: let them end, or end them with "+
				"SELECT pg_terminate_backend(PID), or ROLLBACK PREPARED, and start again")
	case code == "42710":
		l.job.OwnsSlot = false // somebody made it just now
		if e := l.disownSlot(ctx); e != nil {
			return e
		}
	case code == "42501":
		return refused(err, "ALTER ROLE "+millrace.QuoteIdent(l.server.Role)+" REPLICATION")
	case code == "53400":
		return refused(err, "drop a slot that nobody uses, or raise max_replication_slots and restart the server")
	case code == "55000" && l.server.InRecovery:
		return refused(err, "on the primary: ALTER SYSTEM SET wal_level = logical, and restart it")
	}
	return session.Wrap(op, millrace.PeerSource, err)
}

// disownSlot takes back what the record says of a slot that turned out to be
// somebody else's.
func (l *load) disownSlot(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	if l.target == nil {
		return nil // a destination where the slot is recorded once it is ours
	}
	return l.inRecord(ctx, "record the slot", func(tx pgx.Tx) error {
		return record.SetSlot(ctx, tx, l.Job, 0, false, l.job.OwnsPublication)
	})
}

func orUnknown(s string) string {
	if s == "" {
		return "it is not known which"
	}
	return s
}

// blockersSQL names who holds up a backend. Prepared transactions have no
// backend: their pid is 0.
const blockersSQL = `
SELECT string_agg(CASE WHEN b.pid = 0
		THEN 'prepared transactions ' || coalesce((SELECT string_agg(p.gid, ', ') FROM pg_prepared_xacts p), '')
		ELSE format('pid %s (user %s, database %s, application %s%s)', b.pid, coalesce(a.usename, '?'), coalesce(a.datname, '?'),
			coalesce(nullif(a.application_name, ''), '?'), coalesce(', since ' || date_trunc('second', a.xact_start)::text, ''))
		END, '; ')
  FROM (SELECT DISTINCT unnest(pg_blocking_pids($1)) AS pid) b
  LEFT JOIN pg_stat_activity a ON a.pid = b.pid`

// watchBlockers says in the log who holds up the slot, and returns who did last.
// It has the source's session to itself meanwhile.
func (l *load) watchBlockers(ctx context.Context, pid uint32) string {
	last := ""
	for pause := 200 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return last
		case <-timer.C:
		}
		var now *string
		// A query under way is not interrupted: that would cost the session.
		query, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		err := l.source.QueryRow(query, blockersSQL, pid).Scan(&now)
		cancel()
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return last
		}
		if now != nil && *now != last {
			last = strings.Join(strings.Fields(*now), " ")
			l.log.Warn("the slot waits for a transaction to end", "slot", l.Slot, "blocked_by", last)
			l.waits(ctx, fmt.Sprintf("slot %s waits for a transaction to end: %s", l.Slot, last),
				"let it end, or end it on the source: SELECT pg_terminate_backend(PID), or ROLLBACK PREPARED")
		}
	}
}
