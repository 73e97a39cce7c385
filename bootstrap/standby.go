package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

// A slot on a standby becomes consistent at a record that only the primary can
// write: which transactions are running. A busy primary writes one every 15 s,
// an idle one none at all; pg_log_standby_snapshot() writes one at once. It is
// called where the connection string names the primary as well (ADR 0014).

// limitStandbySlot bounds the creation of the slot, which lock_timeout does not
// on a standby: twice the wait for a transaction, since the slot also waits for
// two records of a busy primary.
func (l *load) limitStandbySlot(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 2*l.SlotWait)
}

const (
	standbySnapshotSQL = `SELECT pg_catalog.pg_log_standby_snapshot()`
	askHint            = "an idle primary writes no such record: SELECT pg_log_standby_snapshot() there, as a superuser; or name the primary " +
		"in the source's connection string as a further host with target_session_attrs=standby, and there: " +
		"GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO "
)

// helpStandbySlot says in the log and in the record what the slot waits for,
// asks the primary for it where that is allowed, and returns what was last waited
// for.
func (l *load) helpStandbySlot(ctx context.Context) (last string) {
	say := func(reason, hint string) {
		if reason != last {
			last = reason
			l.log.Warn("creating a slot on a standby", "slot", l.Slot, "cause", reason, "hint", hint)
			l.waits(ctx, "creating slot "+l.Slot+": "+reason, hint)
		}
	}
	hint := askHint + millrace.QuoteIdent(l.server.Role)
	primary, err := l.connectPrimary(ctx)
	if primary != nil {
		defer primary.Close(context.WithoutCancel(ctx))
	}
	began := time.Now()
	for pause := 200 * time.Millisecond; ; pause = min(2*pause, 3*time.Second) {
		if primary != nil { // what was refused may have been granted meanwhile
			_, err = primary.Exec(ctx, standbySnapshotSQL)
		}
		if err != nil && ctx.Err() == nil {
			say(fmt.Sprintf("it waits until the primary logs which transactions are running (%v)", err), hint)
		} else if now := l.writers(ctx, primary, began); now != "" {
			say("it waits for transactions of the primary: "+now, "let them end, or end them on the primary: SELECT pg_terminate_backend(PID), or ROLLBACK PREPARED")
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return last
		case <-timer.C:
		}
	}
}

var errNotNamed = errors.New("the connection string does not name the primary")

// connectPrimary connects to the primary if the connection string names it.
func (l *load) connectPrimary(ctx context.Context) (*pgx.Conn, error) {
	if l.Source.Hosts() < 2 {
		return nil, errNotNamed
	}
	return l.Source.Primary().Connect(ctx, session.Watch)
}

// writersSQL names who was writing on the primary before the slot's creation
// began, as far as the role may see.
const writersSQL = `
SELECT string_agg(w, '; ') FROM (
	SELECT format('pid %s (user %s, database %s, since %s)', pid, coalesce(usename, '?'), coalesce(datname, '?'),
			coalesce(date_trunc('second', xact_start)::text, '?')) AS w
	  FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND xact_start < now() - $1::float8 * interval '1 s'
	UNION ALL SELECT format('prepared transaction %s', gid) FROM pg_prepared_xacts WHERE prepared < now() - $1::float8 * interval '1 s') x`

// writers gives who holds up the slot; "" if nobody is known.
func (l *load) writers(ctx context.Context, primary *pgx.Conn, since time.Time) string {
	var who *string
	if primary == nil || primary.QueryRow(ctx, writersSQL, time.Since(since).Seconds()).Scan(&who) != nil || who == nil {
		return "" // it is only for those who watch
	}
	return strings.Join(strings.Fields(*who), " ")
}

// standbySlotError is the end of a creation that took too long.
func (l *load) standbySlotError(op, waited string) error {
	return &millrace.Error{Kind: millrace.KindPreflight, Op: op, Peer: millrace.PeerSource,
		Err:  fmt.Errorf("not done on the standby within %v: %s", 2*l.SlotWait, orUnknown(waited)),
		Hint: askHint + millrace.QuoteIdent(l.server.Role) + "; and let transactions on the primary end"}
}

// waits tells everybody what the load waits for. Nothing depends on it.
func (l *load) waits(ctx context.Context, reason, hint string) {
	l.waited = true
	if l.OnWait != nil {
		l.OnWait(reason, hint)
	}
	if l.target == nil {
		return // Kafka: whoever takes OnWait keeps the record
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := l.inRecord(ctx, "write the job's state", func(tx pgx.Tx) error {
		return record.SetState(ctx, tx, l.Job, record.Bootstrapping, reason, hint)
	})
	if err != nil {
		l.log.Debug("write what the load waits for", "cause", err)
	}
}

// waitsNoMore takes that back.
func (l *load) waitsNoMore(ctx context.Context) {
	if l.waited {
		l.waits(ctx, "the first load begins", "wait: the source keeps its log and old row versions until the first load is complete")
		l.waited = false
	}
}
