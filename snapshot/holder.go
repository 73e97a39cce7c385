package snapshot

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/session"
)

// ErrChanged says that a table was altered after the snapshot was taken and
// before it was locked: what the snapshot shows of it is not to be trusted. A
// new snapshot cures it.
var ErrChanged = errors.New("a table was changed while the snapshot was taken")

// Holder keeps a snapshot and all tables as they are for the time of the load.
type Holder struct {
	conn    *pgx.Conn
	readers []*pgx.Conn // for the streams of Copy
	// ID names the snapshot, for those who import it.
	ID        string
	tables    []*catalog.Table
	lockSQL   string
	filenodes map[uint32]uint32
}

// lockWait bounds the wait for locks of tables that somebody else has locked.
// It is short: behind a session that waits for an exclusive lock, everybody who
// uses the table queues.
const lockWait = 30 * time.Second

// Hold imports the snapshot, locks the tables and proves that none was rewritten
// in between. It opens the sessions for the streams of a Copy as well, since
// each has to take its locks before somebody else waits for an exclusive one: it
// would wait behind that session, and that session for the holder. The caller
// keeps the exporting session idle until Hold returns and needs it no longer
// then.
func Hold(ctx context.Context, source *session.Endpoint, exported string, tables []*catalog.Table, streams int) (*Holder, error) {
	h := &Holder{tables: tables, lockSQL: lockSQL(tables), filenodes: map[uint32]uint32{}}
	var err error
	if h.conn, err = openReader(ctx, source, exported, h.lockSQL); err != nil {
		return nil, err
	}
	for range streams {
		conn, err := openReader(ctx, source, exported, h.lockSQL)
		if err != nil {
			h.Release()
			return nil, err
		}
		h.readers = append(h.readers, conn)
	}
	if err := h.inspect(ctx); err != nil {
		h.Release()
		return nil, session.Wrap("lock the tables", millrace.PeerSource, err)
	}
	if err := h.conn.QueryRow(ctx, `SELECT pg_catalog.pg_export_snapshot()`).Scan(&h.ID); err != nil {
		h.Release()
		return nil, session.Wrap("export the snapshot", millrace.PeerSource, err)
	}
	return h, nil
}

// openReader opens a session whose transaction has the snapshot and the locks of
// all tables.
func openReader(ctx context.Context, source *session.Endpoint, snapshot, lock string) (_ *pgx.Conn, err error) {
	conn, err := source.Connect(ctx, session.Copy)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			closeNow(conn)
		}
	}()
	for _, sql := range []string{
		`BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`,
		`SET TRANSACTION SNAPSHOT ` + millrace.QuoteLiteral(snapshot),
		fmt.Sprintf(`SET LOCAL lock_timeout = %d`, lockWait.Milliseconds()),
		lock,
		`SET LOCAL lock_timeout = 0`,
		`SET LOCAL enable_seqscan = off`, // a range of pages is read by a TID range scan
	} {
		if sql == "" {
			continue
		}
		if _, err = conn.Exec(ctx, sql); err != nil {
			return nil, explainReader(err)
		}
	}
	return conn, nil
}

// explainReader tells what the errors of opening a reader mean.
func explainReader(err error) error {
	wrapped := session.Wrap("lock the tables", millrace.PeerSource, err)
	e, ok := wrapped.(*millrace.Error) //nolint:errorlint // Wrap gives nothing else for an error of the server
	if !ok {
		return wrapped
	}
	switch session.SQLState(err) {
	case "55P03":
		e.Hint = "another session alters one of the tables or waits to: let it finish or end it, and start again"
	case "53200":
		e.Kind = millrace.KindPreflight
		e.Hint = "raise max_locks_per_transaction on the source, or select fewer tables"
	case "42501":
		e.Kind = millrace.KindPreflight
		e.Hint = "GRANT SELECT on the table, and USAGE on its schema, to the source's role"
	case "42P01", "3F000":
		return fmt.Errorf("%w: %w", ErrChanged, wrapped)
	}
	return wrapped
}

// lockSQL is one statement, so that no other can come between the tables.
func lockSQL(tables []*catalog.Table) string {
	if len(tables) == 0 {
		return ""
	}
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = "ONLY " + t.Name.SQL()
	}
	return "LOCK TABLE " + strings.Join(names, ", ") + " IN ACCESS SHARE MODE"
}

// inspectSQL compares what the snapshot shows with what is there now: the
// catalog's rows are read through the snapshot, the functions see the present.
const inspectSQL = `
SELECT o.oid::int8, coalesce(c.relfilenode, 0)::int8, coalesce(pg_relation_filenode(o.oid::regclass), 0)::int8,
       coalesce(n.nspname = o.schema AND c.relname = o.name
                AND to_regclass(quote_ident(o.schema) || '.' || quote_ident(o.name))::oid = o.oid, false)
  FROM ROWS FROM (unnest($1::oid[]), unnest($2::text[]), unnest($3::text[])) AS o(oid, schema, name)
  LEFT JOIN pg_class c ON c.oid = o.oid
  LEFT JOIN pg_namespace n ON n.oid = c.relnamespace`

// inspect finds tables that were rewritten, renamed or replaced between the
// snapshot and the lock. A rewrite is not in the stream, and under the old
// snapshot the new file looks empty.
func (h *Holder) inspect(ctx context.Context) error {
	var oids []uint32
	var schemas, names []string
	byOID := map[uint32]millrace.TableName{}
	for _, t := range h.tables {
		oids, schemas, names = append(oids, t.OID), append(schemas, t.Name.Schema), append(names, t.Name.Name)
		byOID[t.OID] = t.Name
	}
	rows, err := h.conn.Query(ctx, inspectSQL, oids, schemas, names)
	if err != nil {
		return err
	}
	var oid, shown, now uint32
	var same bool
	_, err = pgx.ForEachRow(rows, []any{&oid, &shown, &now, &same}, func() error {
		if !same || shown != now {
			return changed(byOID[oid])
		}
		h.filenodes[oid] = now
		return nil
	})
	return err
}

func changed(name millrace.TableName) error {
	return &millrace.Error{Kind: millrace.KindRetry, Op: "lock the tables", Peer: millrace.PeerSource, Table: name,
		Err: ErrChanged, Hint: "start again once the change is done"}
}

// Conn is the holder's session, for queries under the snapshot. It must not be
// used while a copy is running.
func (h *Holder) Conn() *pgx.Conn { return h.conn }

// Filenode gives a table's file when the snapshot was taken.
func (h *Holder) Filenode(oid uint32) uint32 { return h.filenodes[oid] }

// Alive proves that the snapshot is still held.
func (h *Holder) Alive(ctx context.Context) error {
	_, err := h.conn.Exec(ctx, `SELECT 1`)
	return session.Wrap("hold the snapshot", millrace.PeerSource, err)
}

// Release gives the snapshot and the locks up.
func (h *Holder) Release() {
	for _, conn := range append(h.readers, h.conn) {
		closeNow(conn)
	}
}

// closeNow ends a session whose transaction is given up, without waiting for a
// server that may be gone.
func closeNow(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = conn.Close(ctx) // there is nothing to save
}

// flushedSQL: a standby replays only what is flushed, there and at its primary.
const flushedSQL = `SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END >= $1::text::pg_lsn`

// AwaitFlushed waits until the source's log is flushed up to the position. What
// a snapshot shows of asynchronous commits could vanish in a crash of the
// source, and no log would ever take it back from the target.
//
// On an idle source what is not a commit, such as hints that reading has set,
// can stay in memory for 15 seconds. Where the role may, it makes the server
// write a list of running transactions, as that does by itself then, which is
// flushed soon.
func AwaitFlushed(ctx context.Context, q catalog.Querier, point millrace.LSN) error {
	waited := time.Duration(0)
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		if before := waited; before < nudgeAfter && before+pause >= nudgeAfter {
			if err := nudge(ctx, q); err != nil {
				return err
			}
		}
		waited += pause
		var flushed bool
		if err := q.QueryRow(ctx, flushedSQL, point.String()).Scan(&flushed); err != nil {
			return session.Wrap("read the flush position", millrace.PeerSource, err)
		}
		if flushed {
			return nil
		}
		select {
		case <-ctx.Done():
			return session.Wrap("wait until the source has flushed "+point.String(), millrace.PeerSource, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

const nudgeAfter = 50 * time.Millisecond

// nudge has the server write a list of running transactions, if there is a
// function for that (16 and later) and the role may call it.
func nudge(ctx context.Context, q catalog.Querier) error {
	const op = "read the flush position"
	var allowed bool
	err := q.QueryRow(ctx, `SELECT NOT pg_catalog.pg_is_in_recovery() AND COALESCE(pg_catalog.has_function_privilege(
		pg_catalog.to_regprocedure('pg_catalog.pg_log_standby_snapshot()')::pg_catalog.oid, 'EXECUTE'), false)`).Scan(&allowed)
	if err != nil || !allowed {
		return session.Wrap(op, millrace.PeerSource, err)
	}
	var at string
	return session.Wrap(op, millrace.PeerSource, q.QueryRow(ctx, `SELECT pg_catalog.pg_log_standby_snapshot()::text`).Scan(&at))
}

const pagesSQL = `
SELECT o::int8, coalesce(pg_relation_size(o::regclass, 'main'), 0) / current_setting('block_size')::int8
  FROM unnest($1::oid[]) AS o`

// pages reads how long the tables are now, in pages of their main fork.
func (h *Holder) pages(ctx context.Context) (map[uint32]int64, error) {
	oids := make([]uint32, len(h.tables))
	for i, t := range h.tables {
		oids[i] = t.OID
	}
	rows, err := h.conn.Query(ctx, pagesSQL, oids)
	if err != nil {
		return nil, session.Wrap("read table sizes", millrace.PeerSource, err)
	}
	all := map[uint32]int64{}
	var oid uint32
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&oid, &n}, func() error { all[oid] = n; return nil })
	return all, session.Wrap("read table sizes", millrace.PeerSource, err)
}
