package apply

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
)

// serverSQL tells one server from another, also from its own copy.
const serverSQL = `SELECT pg_catalog.pg_postmaster_start_time()::text`

// sameServer makes sure that a session is on the server that the executor writes to.
// While the target fails over, a new connection can find another one than those that
// are still open: a transaction that was committed there would move a checkpoint past
// others which that server does not have.
func (w *writer) sameServer(ctx context.Context, conn *pgx.Conn) error {
	var server string
	err := conn.QueryRow(ctx, serverSQL).Scan(&server)
	if err == nil && server != w.server {
		err = errors.New("a new connection has reached another server than that which is written to")
	}
	return session.Wrap("set up the session", millrace.PeerDestination, err)
}

// Who waits for it is looked for every guardEvery; those who are not ours, and have
// waited for othersWait, at each othersEvery-th look.
const (
	guardEvery  = 100 * time.Millisecond
	othersEvery = 3
	othersWait  = "100 ms"
)

// waitsSQL gives what a session of ours waits for that a backend holds up, be it behind
// others: who waits for a table to be free of the one keeps all others off it.
const waitsSQL = `
WITH RECURSIVE b(pid, lock) AS (
	SELECT s.pid, s.wait_event FROM pg_catalog.pg_stat_activity s
	 WHERE s.wait_event_type = 'Lock' AND s.wait_event <> ALL (` + momentary + `) AND s.pid <> $1::int AND (s.pid = $2::int OR s.application_name IN
	       (pg_catalog.current_setting('application_name'), pg_catalog.replace(pg_catalog.current_setting('application_name'), ':watch', ':apply')))
	UNION
	SELECT x.pid, b.lock FROM b CROSS JOIN LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(b.pid)) AS x(pid))
SELECT COALESCE(pg_catalog.min(lock), '') FROM b WHERE pid = $1::int`

// othersSQL gives what anybody waits for. What sessions of other roles wait for is in
// pg_locks only.
const othersSQL = `
SELECT COALESCE(pg_catalog.min(l.locktype), '') FROM pg_catalog.pg_locks l
 WHERE NOT l.granted AND l.locktype <> ALL (` + momentary + `) AND l.pid <> $1::int AND l.waitstart < pg_catalog.clock_timestamp() - '` + othersWait + `'::interval
   AND $1::int = ANY (pg_catalog.pg_blocking_pids(l.pid))`

// momentary are the locks that no transaction holds until its end: two that write into
// one table wait for each other's extension of it all the time
// (https://www.postgresql.org/docs/18/monitoring-stats.html#WAIT-EVENT-LOCK-TABLE).
const momentary = `ARRAY['extend', 'page', 'frozenid', 'spectoken', 'speculative token']`

// Why it is given up.
var errGaveWay = errors.New("others were waiting for it")

// guard ends the transaction's backend when somebody waits for it, and when it is over:
// then the next one may begin. The stream goes first, and so does whoever else works on
// the target: an ALTER TABLE that waited until the source's transaction ends would keep
// all readers off the table.
func (a *ahead) guard(ctx context.Context, conn *pgx.Conn, pid uint32) {
	defer func() { <-a.w.aheadFree }()
	tick := time.NewTicker(guardEvery)
	defer tick.Stop()
	for look, over := 1, false; !over; look++ {
		select {
		case <-tick.C:
			over = a.inTheWay(ctx, conn, pid, look%othersEvery == 0)
		case <-ctx.Done():
			over = true
		}
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	a.cut()
	// Its locks and its origin are free when this has returned.
	_, err := conn.Exec(closing, `SELECT pg_catalog.pg_terminate_backend(pid, 1000) FROM pg_catalog.pg_stat_activity
		WHERE pid = $1 AND application_name = pg_catalog.replace(pg_catalog.current_setting('application_name'), ':watch', ':apply')`, pid)
	if err != nil {
		a.x.log.Debug("end a session of the destination", "cause", err)
	}
	conn.Close(closing)
}

// inTheWay tells whether it is to be given up, since somebody waits for it or nobody
// can tell.
func (a *ahead) inTheWay(ctx context.Context, conn *pgx.Conn, pid uint32, others bool) bool {
	if a.stand.Load() == aheadReady {
		return false
	}
	var lock string // what somebody waits for
	err := conn.QueryRow(ctx, waitsSQL, pid, a.w.pid).Scan(&lock)
	if err == nil && lock == "" && others {
		err = conn.QueryRow(ctx, othersSQL, pid).Scan(&lock)
	}
	if err == nil && lock == "" || !a.stand.CompareAndSwap(aheadOpen, aheadGone) {
		return false
	}
	if lock != "" {
		a.x.log.Info("a transaction that was applied while it is open stood in the way, and is applied once it is committed", "xid", a.xid, "lock", lock)
	}
	return true
}
