package apply

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
)

// syncer makes durable what the executor has committed without waiting for the
// disk: a commit on another connection, with the server's own
// synchronous_commit, covers everything that was committed before it.
//
// That commit must have written WAL. One that was only given a transaction ID is
// not flushed and does not wait for standbys (RecordTransactionCommit), so a
// message is written that nobody reads.
type syncer struct {
	conn *pgx.Conn
	pos  *positions
	// one: source and target are one cluster.
	one   bool
	wrote func(millrace.LSN) // told the position behind the commit, if one
	moved chan struct{}      // holds a token when more is visible
	// drained holds a token when the executor has nothing to do.
	drained chan struct{}
	// trim deletes old progress rows; rows counts those written since.
	trim func(context.Context, *pgx.Conn) error
	rows atomic.Int64
}

// Pauses between two such commits: while the executor is busy and when it has
// nothing to do.
const (
	syncBusy  = 100 * time.Millisecond
	syncQuiet = 10 * time.Millisecond
)

// trimEvery is the number of progress rows after which old ones are deleted.
const trimEvery = 20000

const syncSQL = `SELECT pg_catalog.pg_logical_emit_message(true, 'millrace', '')`

// connect sees to it that a commit of the session waits for at least the local
// disk, and for standbys where the server wants that.
func (s *syncer) connect(ctx context.Context, system string) error {
	_, err := s.conn.Exec(ctx, `SELECT pg_catalog.set_config('synchronous_commit', 'on', false)
		WHERE pg_catalog.current_setting('synchronous_commit') IN ('off', 'local')`)
	if err != nil {
		return session.Wrap("set up the session", millrace.PeerDestination, err)
	}
	var here string
	err = s.conn.QueryRow(ctx, `SELECT system_identifier::text FROM pg_catalog.pg_control_system()`).Scan(&here)
	switch {
	case err == nil:
		s.one = here == system
	case session.SQLState(err) != "42501": // without the right it is taken for another cluster
		return session.Wrap("set up the session", millrace.PeerDestination, err)
	}
	return nil
}

// run keeps what is durable close behind what is visible until ctx ends.
func (s *syncer) run(ctx context.Context) error {
	var last time.Time
	for {
		select {
		case <-s.moved:
		case <-ctx.Done():
			return nil
		}
		if !s.pause(ctx, last) {
			return nil
		}
		if err := s.sync(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		last = time.Now()
	}
}

// pause waits until the next commit is due.
func (s *syncer) pause(ctx context.Context, last time.Time) bool {
	timer := time.NewTimer(time.Until(last.Add(syncBusy)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-s.drained:
	}
	timer.Reset(time.Until(last.Add(syncQuiet)))
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *syncer) sync(ctx context.Context) error {
	visible, durable := s.pos.read()
	if visible == durable {
		return nil
	}
	if _, err := s.conn.Exec(ctx, syncSQL); err != nil {
		return session.Wrap("make durable", millrace.PeerDestination, err)
	}
	s.pos.setDurable(visible)
	if s.rows.Load() >= trimEvery {
		s.rows.Store(0)
		if err := s.trim(ctx, s.conn); err != nil {
			return err
		}
	}
	if !s.one {
		return nil
	}
	var at string
	err := s.conn.QueryRow(ctx, `SELECT pg_catalog.pg_current_wal_insert_lsn()::text`).Scan(&at)
	if err != nil {
		return session.Wrap("make durable", millrace.PeerDestination, err)
	}
	lsn, err := millrace.ParseLSN(at)
	if err != nil {
		return err
	}
	s.wrote(lsn)
	return nil
}

// notify puts a token into a channel that has room for one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
