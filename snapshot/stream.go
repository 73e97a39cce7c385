package snapshot

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
)

// stream is a pair of sessions that copies one part after the other.
type stream struct {
	src *reader
	dst *pgx.Conn
}

func (s *stream) close() {
	if s.src != nil {
		s.src.close()
	}
	if s.dst != nil {
		closeNow(s.dst)
	}
	s.src, s.dst = nil, nil
}

func (c *copier) openSource(ctx context.Context, s *stream) error {
	if s.src != nil && !s.src.closed() {
		return nil
	}
	conn, err := openReader(ctx, c.Source, c.Holder.ID, c.Holder.lockSQL)
	if err != nil {
		return err
	}
	s.src = newReader(conn)
	return nil
}

func (c *copier) openTarget(ctx context.Context, s *stream) error {
	if s.dst != nil && !s.dst.IsClosed() {
		return nil
	}
	conn, err := c.Target.Connect(ctx, session.Copy)
	if err != nil {
		return err
	}
	if c.Replica {
		if _, err := conn.Exec(ctx, `SET session_replication_role = replica`); err != nil {
			closeNow(conn)
			return session.Wrap("set session_replication_role", millrace.PeerDestination, err)
		}
	}
	s.dst = conn
	return nil
}

// backend names the target's process of a session.
type backend struct {
	pid int64
	app string
}

func (s *stream) backend() backend {
	if s.dst == nil {
		return backend{}
	}
	return backend{int64(s.dst.PgConn().PID()), s.dst.Config().RuntimeParams["application_name"]}
}

const endBackend = `
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE pid = $1 AND application_name = $2 AND pid <> pg_backend_pid() AND usename = current_user`

// awaitEnd ends a backend whose connection is lost, since it may still be about
// to commit, and waits until it is gone.
func (b backend) awaitEnd(ctx context.Context, conn *pgx.Conn) error {
	if b.pid == 0 {
		return nil
	}
	for {
		var left int
		if err := conn.QueryRow(ctx, endBackend, b.pid, b.app).Scan(&left); err != nil {
			return session.Wrap("wait for a lost session", millrace.PeerDestination, err)
		}
		if left == 0 {
			return nil
		}
		timer := time.NewTimer(50 * time.Millisecond)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// transfer moves the rows of a part. What it returns beside an error was counted
// as progress.
func (c *copier) transfer(ctx context.Context, s *stream, p *Part) (Copied, error) {
	if len(p.Table.Columns) == 0 {
		return c.transferCount(ctx, s, p)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	moved := Copied{Part: p}
	name := p.Table.Name()
	pipe := newPipe(ctx, c.limit, func(bytes, rows int64) { c.Tracker.add(name, bytes, rows) })

	var read pgconn.CommandTag
	var readErr error
	done := make(chan struct{})
	go func() {
		defer close(done)
		read, readErr = s.src.copyTo(ctx, pipe, p.readSQL())
		pipe.closeWrite(readErr)
	}()
	written, writeErr := s.dst.PgConn().CopyFrom(ctx, pipe, p.Table.writeSQL())
	pipe.closeRead()
	if writeErr != nil {
		cancel()
	}
	<-done
	moved.Bytes, moved.Rows = pipe.bytes, pipe.rows
	switch {
	case readErr != nil && (writeErr == nil || !errors.Is(readErr, errReaderGone) && !errors.Is(readErr, context.Canceled)):
		return moved, tableError("copy", millrace.PeerSource, p, readErr)
	case writeErr != nil:
		return moved, tableError("copy", millrace.PeerDestination, p, writeErr)
	case read.RowsAffected() != written.RowsAffected():
		return moved, tableError("copy", millrace.PeerDestination, p,
			fmt.Errorf("%d rows were read and %d written", read.RowsAffected(), written.RowsAffected()))
	}
	// The messages that were counted as rows have a header and a trailer among
	// them.
	moved.Rows = written.RowsAffected()
	c.Tracker.add(name, 0, moved.Rows-pipe.rows)
	return moved, nil
}

// transferCount copies a table of which no column travels: what counts is the
// number of its rows.
func (c *copier) transferCount(ctx context.Context, s *stream, p *Part) (Copied, error) {
	moved := Copied{Part: p}
	text, err := s.src.value(ctx, `SELECT count(*) FROM ONLY `+p.Table.Name().SQL())
	if err != nil {
		return moved, tableError("copy", millrace.PeerSource, p, err)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return moved, tableError("copy", millrace.PeerSource, p, err)
	}
	_, err = s.dst.Exec(ctx, `INSERT INTO `+p.Table.Target.Name.SQL()+` SELECT FROM generate_series(1, $1)`, n)
	if err != nil {
		return moved, tableError("copy", millrace.PeerDestination, p, err)
	}
	moved.Rows = n
	c.Tracker.add(p.Table.Name(), 0, n)
	return moved, nil
}

// tableError names the table, and what usually cures the error.
func tableError(op string, peer millrace.Peer, p *Part, err error) error {
	wrapped := session.Wrap(op, peer, err)
	e, ok := wrapped.(*millrace.Error) //nolint:errorlint // otherwise it has its table already
	if !ok || e.Table != (millrace.TableName{}) {
		return wrapped
	}
	e.Table = p.Table.Name()
	if e.Hint != "" {
		return e
	}
	name := p.Table.Name().SQL()
	switch session.SQLState(err) {
	case "42501":
		e.Hint = "the role lacks a right on the table"
		if peer == millrace.PeerSource {
			e.Hint = "GRANT SELECT ON " + name + "; with row level security the role needs BYPASSRLS, " +
				"or to own the table without FORCE ROW LEVEL SECURITY"
		}
	case "23505":
		e.Hint = "the target's table has a unique constraint that the rows of the source break, or holds rows already"
	case "23503":
		e.Hint = "let the target's role set session_replication_role (GRANT SET ON PARAMETER), or drop the foreign key for the time of the load"
	case "23514", "23502":
		e.Hint = "the target's table has a constraint that the rows of the source break"
	case "42883", "42P01":
		e.Hint = "a function of the table's constraints, generated columns or triggers relies on search_path: " +
			"ALTER FUNCTION … SET search_path"
	}
	return e
}
