package snapshot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/session"
)

// oldestStandby is the first version that decodes on a standby.
const oldestStandby = 16

// CheckStandby finds what is in the way of reading from a standby.
//
// Feedback is what makes a first load from a standby exact. The slot's snapshot
// is made of transaction numbers, so that it does not depend on how far replay
// is; but between the record at which it becomes consistent and the moment when
// the server protects it, row versions that it sees could be removed. They are
// not, since from the creation of the slot on the standby tells the primary that
// they are needed, and had told it an older number before.
func CheckStandby(server *catalog.Server, s *catalog.Standby, loading bool) (problems, warnings []Finding) {
	if server.Major() < oldestStandby {
		return []Finding{{Subject: "source", Text: fmt.Sprintf("it is a standby, from which PostgreSQL %d can't be decoded", server.Major()),
			Cure: "connect to the primary, or upgrade to PostgreSQL 16 or newer"}}, nil
	}
	if !s.Feedback {
		problems = append(problems, Finding{Subject: "source",
			Text: "it is a standby with hot_standby_feedback = off: the primary removes rows that the slot and the first load still need",
			Cure: "on the standby: ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf()"})
	}
	if !s.Receiving {
		problems = append(problems, Finding{Subject: "source",
			Text: "it is a standby that does not stream from a primary, which then does not know what is needed here",
			Cure: "let it stream: primary_conninfo, and a primary that is reachable"})
	}
	if s.PrimarySlot == "" {
		warnings = append(warnings, Finding{Subject: "source",
			Text: "it is a standby without primary_slot_name: when its connection is lost, the primary may remove what the slot needs, and the slot is invalidated",
			Cure: "make a physical slot on the primary and name it in primary_slot_name on the standby"})
	}
	if loading && s.StreamingDelay >= 0 {
		warnings = append(warnings, Finding{Subject: "source",
			Text: fmt.Sprintf("max_standby_streaming_delay is %v: a first load that is in the way of replay for longer, such as of an ALTER TABLE, is cancelled",
				time.Duration(s.StreamingDelay)*time.Millisecond),
			Cure: "on the standby, for the time of the load: ALTER SYSTEM SET max_standby_streaming_delay = -1; SELECT pg_reload_conf()"})
	}
	return problems, warnings
}

// inReplay is how far behind the position of replay the record can begin that is
// being replayed: behind the header of a page.
const inReplay millrace.LSN = 64

// Shows tells whether the view's snapshot sees a committed transaction, and
// whether that can be told.
//
// A standby's snapshot has a list of what is running that nobody can read. Below
// and beyond its bounds there is nothing to list. In between the order of the
// log decides, which is the one in which a standby makes commits visible: what
// was replayed before the snapshot was taken is seen, and what was not begun to be
// replayed afterwards is not. A commit becomes visible shortly before the
// position of replay moves behind its record, so that the record which begins at
// the position is not told from those before it. Of what lies in this window
// nothing is known.
func (v View) Shows(xid uint32, commit millrace.LSN) (sees, known bool) {
	if v.From == 0 {
		return v.Sees(xid), true
	}
	switch x := v.wide(xid); {
	case x < v.Xmin:
		return true, true
	case x >= v.Xmax:
		return false, true
	case commit < v.From:
		return true, true
	case commit > v.Upto:
		return false, true
	}
	return false, false
}

// Plain tells whether the snapshot had nothing running in it, so that Shows always
// knows.
func (v View) Plain() bool { return v.From == 0 || v.Xmin == v.Xmax }

// replayed reads the position of replay. A server that was promoted meanwhile is
// not what the view was begun on.
func replayed(ctx context.Context, conn *pgx.Conn) (millrace.LSN, error) {
	const op = "read the position of replay"
	var at *string
	err := conn.QueryRow(ctx, `SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()::text END`).Scan(&at)
	if err != nil {
		return 0, session.Wrap(op, millrace.PeerSource, err)
	}
	if at == nil {
		return 0, errPromoted
	}
	return millrace.ParseLSN(*at)
}

// errPromoted ends a session with a server that was a standby when it began.
var errPromoted = &millrace.Error{Kind: millrace.KindRetry, Op: "read a chunk", Peer: millrace.PeerSource, Err: errors.New("the standby was promoted")}
