package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

const restartHint = "millrace bootstrap --restart-snapshot --yes empties the tables that were copied and starts over"

// againHint is for what has no cure of its own.
const againHint = "cure what the reason says, then start millrace bootstrap again"

// advise gives an error that has no hint one. Those to try again need none.
func advise(err error) {
	var e *millrace.Error
	if !errors.As(err, &e) || e.Kind == millrace.KindRetry || millrace.HintOf(err) != "" {
		return
	}
	e.Hint = againHint
	if strings.HasPrefix(session.SQLState(err), "22") && e.Peer == millrace.PeerDestination {
		e.Hint = "a column of the target can't hold a value of the source: give it the source's type, then start millrace bootstrap again"
	}
}

// half tells whether complete tables of an earlier load are there, or complete ranges
// of some, whose snapshot is gone. Less than that is not worth keeping.
func (l *load) half(ctx context.Context) (bool, error) {
	if l.Restart {
		return false, nil
	}
	copied, err := l.copiedTables(ctx)
	if err != nil {
		return false, err
	}
	kept, err := l.keptRanges(ctx, l.target)
	return complete(copied) > 0 || len(kept) > 0, err
}

// keptRanges gives the marks of those tables that hold complete ranges of their keys:
// they go on there.
func (l *load) keptRanges(ctx context.Context, q record.Querier) (map[uint32]millrace.Mark, error) {
	if l.job == nil || l.job.Mode == ModeNone {
		return nil, nil
	}
	marks, err := record.Marks(ctx, q, l.Job)
	kept := map[uint32]millrace.Mark{}
	for _, m := range marks {
		if m.Rows > 0 {
			kept[m.OID] = m
		}
	}
	return kept, err
}

// complete counts the tables that hold all their rows.
func complete(copied []record.Table) (n int) {
	for _, t := range copied {
		if t.Copied {
			n++
		}
	}
	return n
}

// copiedTables gives those of the recorded job's tables that hold rows of it.
func (l *load) copiedTables(ctx context.Context) ([]record.Table, error) {
	if l.job == nil || l.job.Mode == ModeNone {
		return nil, nil
	}
	parts := map[uint32]bool{}
	marks, err := record.Parts(ctx, l.target, l.Job)
	if err != nil {
		return nil, err
	}
	for _, p := range marks {
		parts[p.OID] = true
	}
	beside, err := record.Marks(ctx, l.target, l.Job)
	if err != nil {
		return nil, err
	}
	for _, m := range beside {
		parts[m.OID] = true
	}
	tables, err := record.Tables(ctx, l.target, l.Job)
	if err != nil {
		return nil, err
	}
	var copied []record.Table
	for _, t := range tables {
		if t.Copied || parts[t.OID] {
			copied = append(copied, t)
		}
	}
	return copied, nil
}

// refuseRival ends when another instance works on the job. A heartbeat that is
// still fresh can be that of a dead one: it lives if the heartbeat moves.
func (l *load) refuseRival(ctx context.Context) error {
	interval := l.Heartbeat
	if interval <= 0 {
		interval = 10 * time.Second
	}
	first, err := record.ReadOther(ctx, l.target, l.Job, l.Instance)
	if err != nil || first == nil {
		return err
	}
	var silent float64
	err = l.target.QueryRow(ctx, `SELECT extract(epoch FROM clock_timestamp() - $1::timestamptz)::float8`, first.HeartbeatAt).Scan(&silent)
	if err != nil {
		return session.Wrap("read the heartbeat", millrace.PeerDestination, err)
	}
	age := time.Duration(silent * float64(time.Second))
	if age > 3*interval {
		return nil
	}
	l.log.Info("another instance was there just now, looking whether it lives", "host", first.Host, "pid", first.PID)
	for deadline := time.Now().Add(interval + interval/2 - min(age, interval)); ; {
		timer := time.NewTimer(min(interval/4, time.Second))
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		now, err := record.ReadOther(ctx, l.target, l.Job, l.Instance)
		if err != nil {
			return err
		}
		if now == nil {
			return nil // it has left
		}
		if now.Instance != first.Instance || !now.HeartbeatAt.Equal(first.HeartbeatAt) {
			return &millrace.Error{Kind: millrace.KindPreflight, Op: "first load",
				Err:  fmt.Errorf("another instance works on job %s: pid %d on %s", l.Job, now.PID, now.Host),
				Hint: "stop it first"}
		}
		if time.Now().After(deadline) {
			return nil
		}
	}
}

// empty takes the rows of the job's copied tables away, and no others. What
// refers to them from outside of the job would lose its rows with a cascade or
// stand in the way: it is named.
func (l *load) empty(ctx context.Context, tx pgx.Tx, copied []record.Table) error {
	var names []string
	var oids []uint32
	for _, t := range copied {
		var oid *uint32
		if err := tx.QueryRow(ctx, `SELECT to_regclass($1)::oid`, t.Name.SQL()).Scan(&oid); err != nil {
			return session.Wrap("empty the copied tables", millrace.PeerDestination, err)
		}
		switch {
		case oid == nil: // somebody has dropped it
		case t.TargetOID != 0 && *oid != t.TargetOID:
			return &millrace.Error{Kind: millrace.KindPreflight, Op: "empty the copied tables", Peer: millrace.PeerDestination,
				Table: t.Name, Err: fmt.Errorf("it is not the table that was copied"), Hint: "TRUNCATE or DROP it yourself if its rows may go"}
		default:
			names = append(names, "ONLY "+t.Name.SQL())
			oids = append(oids, *oid)
		}
	}
	if len(names) == 0 {
		return nil
	}
	if err := l.refuseReferences(ctx, tx, oids); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `SAVEPOINT truncation`); err != nil {
		return session.Wrap("empty the copied tables", millrace.PeerDestination, err)
	}
	_, err := tx.Exec(ctx, "TRUNCATE "+strings.Join(names, ", "))
	if state := session.SQLState(err); state == "0A000" || state == "42501" {
		// Keys between partitioned tables stand in the way of TRUNCATE, however
		// complete the list; and the role may have DELETE only.
		if _, err = tx.Exec(ctx, `ROLLBACK TO truncation`); err == nil {
			err = l.deleteRows(ctx, tx, oids)
		}
	}
	return session.Wrap("empty the copied tables", millrace.PeerDestination, err)
}

const referencesFromOutside = `
SELECT c.conrelid::regclass::text FROM pg_constraint c
 WHERE c.contype = 'f' AND c.confrelid = ANY($1::oid[])
   AND c.conrelid <> ALL($1::oid[])
   AND NOT EXISTS (SELECT FROM pg_partition_tree(c.conrelid) t WHERE t.relid = ANY($1::oid[]))
 ORDER BY 1 LIMIT 1`

func (l *load) refuseReferences(ctx context.Context, tx pgx.Tx, oids []uint32) error {
	rows, err := tx.Query(ctx, referencesFromOutside, oids)
	if err != nil {
		return session.Wrap("empty the copied tables", millrace.PeerDestination, err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return session.Wrap("empty the copied tables", millrace.PeerDestination, err)
	}
	for _, name := range names {
		var filled bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+name+`)`).Scan(&filled); err != nil {
			return session.Wrap("empty the copied tables", millrace.PeerDestination, err)
		}
		if filled {
			return &millrace.Error{Kind: millrace.KindPreflight, Op: "empty the copied tables", Peer: millrace.PeerDestination,
				Err:  fmt.Errorf("table %s, which the job does not copy, refers to them", name),
				Hint: "drop its foreign key, or take its rows away"}
		}
	}
	return nil
}

// deleteRows empties the tables from those that refer to others on.
func (l *load) deleteRows(ctx context.Context, tx pgx.Tx, oids []uint32) error {
	levels, circle, err := snapshot.ForeignKeyLevels(ctx, tx, oids)
	if err != nil {
		return err
	}
	if replica, err := snapshot.ReplicaAllowed(ctx, tx); err != nil {
		return err
	} else if replica {
		if _, err := tx.Exec(ctx, `SET LOCAL session_replication_role = replica`); err != nil {
			return err
		}
	}
	order := circle
	for i := len(levels) - 1; i >= 0; i-- {
		order = append(order, levels[i]...)
	}
	for _, oid := range order {
		if _, err := tx.Exec(ctx, fmt.Sprintf(`DO $do$ BEGIN EXECUTE 'DELETE FROM ONLY ' || %d::regclass; END $do$`, oid)); err != nil {
			return err
		}
	}
	return nil
}

// undoWithin bounds what is cleaned up after a signal: the process has ten
// seconds in all.
const undoWithin = 5 * time.Second

// undo leaves things as they should be found after an attempt that failed with
// cause. As long as no table is complete, the slot goes and the load can simply
// begin again; it would hold up the source's log for nothing. Otherwise the slot
// stays.
func (l *load) undo(ctx context.Context, cause error) {
	if !l.recorded {
		return
	}
	l.recorded = false
	stopped := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()
	l.close() // they may be in any state
	remains, err := l.takeBack(ctx)
	switch {
	case errors.Is(err, record.ErrFenced):
		l.log.Warn("another instance has started the load anew; what is there is its own", "job", l.Job)
		return
	case err != nil:
		l.log.Warn("the interrupted load could not be cleaned up", "cause", err)
	}
	state, reason, hint := endState(cause, stopped, remains)
	err = l.inRecord(ctx, "write the job's state", func(tx pgx.Tx) error {
		return record.SetState(ctx, tx, l.Job, state, reason, hint)
	})
	if err != nil {
		l.log.Warn("the state could not be written", "cause", err)
	}
}

// endState is what the record says of a load that cause has ended.
func endState(cause error, stopped, remains bool) (state record.State, reason, hint string) {
	switch {
	case stopped && remains:
		return record.Stopped, "the first load was interrupted", "millrace bootstrap, or run, goes on with what is left"
	case stopped:
		return record.Stopped, "the first load was interrupted", "millrace bootstrap starts it again"
	case session.Retryable(cause):
		state = record.Bootstrapping // somebody will try again
	default:
		state = record.Failed
	}
	return state, cause.Error(), cmp.Or(millrace.HintOf(cause), againHint)
}

// takeBack removes the slot and what was copied, unless a table is complete, and
// tells whether rows remain.
func (l *load) takeBack(ctx context.Context) (remains bool, err error) {
	conn, err := l.Target.Connect(ctx, session.Copy)
	if err != nil {
		return false, err
	}
	l.target = conn
	copied, err := l.copiedTables(ctx)
	if err != nil {
		return false, err
	}
	remains = len(copied) > 0
	kept, err := l.keptRanges(ctx, l.target)
	if err != nil || complete(copied) > 0 || len(kept) > 0 {
		return remains, err
	}
	if err := l.connectSource(ctx); err != nil {
		return remains, err
	}
	err = l.inRecord(ctx, "take the load back", func(tx pgx.Tx) error {
		if err := l.dropSlot(ctx); err != nil {
			return err
		}
		if err := l.empty(ctx, tx, copied); err != nil {
			return err
		}
		for _, t := range copied {
			if err := record.ClearParts(ctx, tx, l.Job, t.OID); err != nil {
				return err
			}
		}
		return nil
	})
	return remains && err != nil, err
}

// dropSlot drops the recorded job's slot, if it is ours and there.
func (l *load) dropSlot(ctx context.Context) error {
	if l.job == nil || !l.job.OwnsSlot {
		return nil
	}
	var exists bool
	err := l.source.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)`, l.job.Slot).Scan(&exists)
	if err != nil {
		return session.Wrap("look for the slot", millrace.PeerSource, err)
	}
	if !exists {
		return nil
	}
	pg, err := l.Source.ConnectReplication(ctx, session.Stream)
	if err != nil {
		return err
	}
	conn := replication.New(pg)
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // its work is done
	if err := conn.DropSlot(ctx, l.job.Slot, false); err != nil {
		return session.Wrap("drop slot "+l.job.Slot, millrace.PeerSource, err)
	}
	l.log.Info("dropped the slot", "slot", l.job.Slot)
	return nil
}
