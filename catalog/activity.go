package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
)

// Sender is what the walsender of a slot is doing. It runs as the role of the
// job, which may therefore see it; what it may not see stays zero.
type Sender struct {
	PID        int32
	Visible    bool   // WaitType and Wait mean something
	WaitType   string // "" while it computes
	Wait       string // such as WalSenderMain
	Sent       millrace.LSN
	SpillBytes int64 // written to disk by decoding since the slot's statistics began
	BlockedBy  int32 // the session whose transaction it waits for; 0: none
}

// senderSQL asks who blocks only where the process waits for a lock:
// pg_blocking_pids stops the whole lock manager for a moment.
const senderSQL = `
SELECT a.pid, a.backend_type IS NOT NULL, COALESCE(a.wait_event_type, ''), COALESCE(a.wait_event, ''),
       r.sent_lsn::text, COALESCE(t.spill_bytes, 0),
       CASE WHEN a.wait_event_type = 'Lock' THEN COALESCE((pg_catalog.pg_blocking_pids(a.pid))[1], 0) ELSE 0 END
  FROM pg_catalog.pg_replication_slots s
  JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
  LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = a.pid
  LEFT JOIN pg_catalog.pg_stat_replication_slots t ON t.slot_name = s.slot_name
 WHERE s.slot_name = $1`

// ReadSender looks at the walsender that uses a slot; nil if none does. It needs
// no privileges beyond those of the role that streams.
func ReadSender(ctx context.Context, q Querier, slot string) (*Sender, error) {
	var s Sender
	var sent *string
	err := q.QueryRow(ctx, senderSQL, slot).Scan(&s.PID, &s.Visible, &s.WaitType, &s.Wait, &sent, &s.SpillBytes, &s.BlockedBy)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err == nil && sent != nil {
		s.Sent, err = millrace.ParseLSN(*sent)
	}
	if err != nil {
		return nil, fmt.Errorf("read the walsender of slot %s: %w", slot, err)
	}
	return &s, nil
}

// Backend is a session of a server. What only a member of pg_read_all_stats may
// see of another role's session is zero without that.
type Backend struct {
	PID         int32 // 0: a prepared transaction, which has no session
	User        string
	Application string
	State       string        // such as idle in transaction
	Open        time.Duration // age of its transaction; 0: unknown
}

const oldestSQL = `
SELECT COALESCE(l.pid, 0), COALESCE(a.usename, p.owner, '')::text, COALESCE(a.application_name, ''), COALESCE(a.state, ''),
       COALESCE(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - COALESCE(a.xact_start, p.prepared)), 0)
  FROM pg_catalog.pg_locks l
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
  LEFT JOIN pg_catalog.pg_prepared_xacts p ON l.pid IS NULL AND p.transaction = l.transactionid
 WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
 ORDER BY pg_catalog.age(l.transactionid) DESC
 LIMIT 1`

// OldestTransaction gives the oldest transaction of the server, in any database,
// that has written: slots keep WAL back to where it began. Nil: there is none.
// Which session it is can be seen by any role.
func OldestTransaction(ctx context.Context, q Querier) (*Backend, error) {
	return readBackend(q.QueryRow(ctx, oldestSQL), "read the oldest transaction")
}

func readBackend(row pgx.Row, op string) (*Backend, error) {
	var b Backend
	var seconds float64
	err := row.Scan(&b.PID, &b.User, &b.Application, &b.State, &seconds)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	b.Open = time.Duration(seconds * float64(time.Second))
	return &b, nil
}

// Applier is what a session that applies is doing at the destination.
type Applier struct {
	PID      int32
	State    string // active, idle in transaction, idle
	WaitType string
	Wait     string
	Blocker  *Backend // who holds the lock that it waits for; nil: it waits for none
	Table    string   // where that lock is, as far as it can be told
}

// applierSQL: any session of the job may be what waits for a lock, since tables
// are described on another one than they are written on. A session that waits for
// a row waits for its transaction, and holds the lock on the tuple meanwhile,
// which names the table.
const applierSQL = `
SELECT a.pid, COALESCE(a.state, ''), COALESCE(a.wait_event_type, ''), COALESCE(a.wait_event, ''),
       CASE WHEN a.wait_event_type = 'Lock' THEN (pg_catalog.pg_blocking_pids(a.pid))[1] END,
       COALESCE((SELECT l.relation::regclass::text FROM pg_catalog.pg_locks l
                  WHERE l.pid = a.pid AND l.relation IS NOT NULL AND (NOT l.granted OR l.locktype = 'tuple')
                  ORDER BY l.granted LIMIT 1), '')
  FROM pg_catalog.pg_stat_activity a
 WHERE pg_catalog.starts_with(a.application_name, $1) AND a.datname = pg_catalog.current_database()
   AND a.usename = current_user AND a.pid <> pg_catalog.pg_backend_pid()
   AND (a.wait_event_type = 'Lock' OR a.application_name = $2)
 ORDER BY a.wait_event_type IS DISTINCT FROM 'Lock', a.state IS DISTINCT FROM 'active'
 LIMIT 1`

const backendSQL = `
SELECT a.pid, COALESCE(a.usename, '')::text, COALESCE(a.application_name, ''), COALESCE(a.state, ''),
       COALESCE(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - a.xact_start), 0)
  FROM pg_catalog.pg_stat_activity a WHERE a.pid = $1`

// ReadApplier looks at the session whose application_name is prefix + apply, or
// at one that begins with prefix and waits for a lock if there is one; nil if
// there is none. It needs no privileges.
func ReadApplier(ctx context.Context, q Querier, prefix, apply string) (*Applier, error) {
	var a Applier
	var blocker *int32
	err := q.QueryRow(ctx, applierSQL, prefix, prefix+apply).Scan(&a.PID, &a.State, &a.WaitType, &a.Wait, &blocker, &a.Table)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the session that applies: %w", err)
	}
	if blocker == nil {
		return &a, nil
	}
	a.Blocker, err = readBackend(q.QueryRow(ctx, backendSQL, *blocker), "read the session that blocks")
	if err == nil && a.Blocker == nil { // prepared, or gone by now
		a.Blocker = &Backend{PID: *blocker}
	}
	return &a, err
}
