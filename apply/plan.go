package apply

import (
	"context"
	"fmt"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
)

// A table that has next to no rows, or had none when its statistics were taken,
// is read by the planner as a whole: its estimate for that is the lower one. As
// long as the table is small this costs nothing, so that sets are used all the
// same. But a prepared statement keeps its plan until the next ANALYZE, and the
// table may grow meanwhile: then each set would read all of it. So the planner is
// asked again after some changes, and the statements are made anew.
const (
	smallTable   = 4 * 8192 // bytes
	askFirst     = 100      // changes
	askMost      = 6400
	askLockLimit = "200ms" // the table may be locked by our own open transaction
)

// judge decides what to do with a plan that does not search the index.
func (x *router) judge(ctx context.Context, r *route) error {
	if r.to.searched[r.index.OID] {
		return nil
	}
	r.askAfter = askFirst
	var size int64
	err := x.conn.QueryRow(ctx, "SELECT pg_catalog.pg_relation_size($1::pg_catalog.oid)", r.to.OID).Scan(&size)
	if err != nil {
		return session.Wrap("apply", millrace.PeerDestination, fmt.Errorf("read the size of table %s: %w", r.to.Name, err))
	}
	if size > smallTable || r.to.Kind != 'r' {
		r.sets, r.why = false, "the destination's planner does not use the index on "+r.keyNames()
	}
	return nil
}

// askAgain makes the route anew if the planner has changed its mind, or the table
// is not small any more.
func (x *router) askAgain(ctx context.Context, r *route) (*route, error) {
	if err := x.connect(ctx); err != nil {
		return nil, err
	}
	r.since = 0
	now, err := newRoute(r.rel, r.to)
	if err != nil {
		return nil, err
	}
	searched := r.to.searched
	r.to.searched = nil
	locked, err := x.ask(ctx, now)
	if err != nil {
		return nil, err
	}
	if locked {
		r.to.searched = searched
		r.askAfter = min(2*r.askAfter, askMost)
		return r, nil
	}
	if now.askAfter > 0 && now.sets == r.sets {
		r.askAfter = min(2*r.askAfter, askMost)
		return r, nil
	}
	x.log.Debug("the planner was asked again", "table", r.to.Name, "sets", now.sets)
	x.routes[r.rel] = now
	return now, nil
}

// ask asks the planner about a route with sets, unless it is known to search the
// index, and decides. It does not wait long for a table that is locked: the
// transaction that has the lock may be our own, which goes on only once we are back.
func (x *router) ask(ctx context.Context, r *route) (locked bool, err error) {
	if r.to.searched[r.index.OID] {
		return false, nil
	}
	if _, err := x.conn.Exec(ctx, "SET lock_timeout = '"+askLockLimit+"'"); err != nil {
		return false, session.Wrap("apply", millrace.PeerDestination, err)
	}
	if err = x.explain(ctx, []probe{{r.to, r.index}}); err == nil {
		err = x.judge(ctx, r)
	}
	if _, also := x.conn.Exec(ctx, "SET lock_timeout = 0"); also != nil {
		return false, session.Wrap("apply", millrace.PeerDestination, also)
	}
	if session.SQLState(err) == lockNotAvailable {
		r.askAfter = askFirst
		return true, nil
	}
	return false, err
}

const lockNotAvailable = "55P03"
