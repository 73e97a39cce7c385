package backfill

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
)

// On a standby nobody can tell which of the transactions that were running are in
// a snapshot; positions tell it of all but those that were being replayed just
// then (snapshot.View.Shows). A chunk is given away once the stream has passed all
// of those, and given up if one of them has changed its range. So of whatever
// comes after a chunk it is known whether the chunk shows it. If nothing was
// running, the bounds of the snapshot tell all, and there is nothing to wait for.

// decided waits until it is known of everything that was held for a chunk whether
// its snapshot sees it, or that it will not be known.
// A strict chunk waits in the same way until all that its snapshot sees was delivered,
// and so does one of a limited table: the next one would not do better before.
func (s *Source) decided(ctx context.Context, p *pending) error {
	s.mu.Lock()
	upto, began := p.view.Upto, time.Now()
	limited := s.limited(p.load) && p.load.late < mostLate
	if p.view.Plain() {
		if !limited && !s.strict(p.load) {
			s.mu.Unlock()
			return nil
		}
		upto-- // what it sees lies below
	}
	s.deciding++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.deciding--
		if limited {
			p.load.waited(p.void, time.Since(began))
		}
		s.mu.Unlock()
	}()
	for n := 0; ; n++ {
		if n%10 == 0 {
			s.opt.Stream.RequestPosition()
		}
		s.mu.Lock()
		over := s.passed > upto || p.void && !limited || p.unclear()
		s.mu.Unlock()
		if over {
			return nil
		}
		if !sleep(ctx, 5*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// unclear tells whether something was held of which it is not known whether the
// chunk shows it.
func (p *pending) unclear() bool {
	for i := range p.held {
		if _, known := p.view.Shows(p.held[i].by.xid, p.held[i].by.commit); !known {
			return true
		}
	}
	return false
}

// quietPrimary notices that the stream has to go on for a load to be over, and
// does not, because the primary of the standby writes nothing. Then the primary is
// asked for a record, if the connection string names it and the role may.
type quietPrimary struct {
	at    millrace.LSN
	since time.Time
	told  bool
}

const quietFor = 2 * time.Second

func (q *quietPrimary) look(ctx context.Context, s *Source, waits bool, at millrace.LSN) {
	now := time.Now()
	if !s.standby || !waits || at != q.at || q.since.IsZero() {
		q.at, q.since = at, now
		return
	}
	if now.Sub(q.since) < quietFor {
		return
	}
	q.since = now
	if err := s.nudge(ctx); err != nil && ctx.Err() == nil && !q.told {
		q.told = true
		s.log.Warn("the load waits until the primary of the standby writes something", "lsn", at, "cause", err,
			"hint", "SELECT pg_log_standby_snapshot() there; or name the primary as a further host of the source's connection string, and grant its role that function")
	}
}

var errNotNamed = errors.New("the connection string does not name the primary")

func (s *Source) nudge(ctx context.Context) error {
	if s.opt.Endpoint.Hosts() < 2 {
		return errNotNamed
	}
	conn, err := s.opt.Endpoint.Primary().Connect(ctx, session.Watch)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	_, err = conn.Exec(ctx, `SELECT pg_catalog.pg_log_standby_snapshot()`)
	return err
}
