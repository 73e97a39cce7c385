package capture

import (
	"context"
	"fmt"
	"sync"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/session"
)

// timelineGuard makes sure that what comes from a standby is of the timeline that
// it is recorded under.
//
// A primary never changes its timeline while a connection lives. A standby does:
// when it is promoted, or when it follows a new primary, its walsenders simply go
// on. Recorded under the old timeline, what came behind the switch would look
// like a history that the server does not have, and the next start would ask for
// a new first load.
//
// So a transaction is handed on only if the server was still on the old timeline
// when asked after the transaction had arrived. The server raises its timeline
// before it sends anything of the new one. One answer covers all that was received
// before the question, so that a backlog costs no more than one question a
// queueful, and an idle source one round trip a transaction.
type timelineGuard struct {
	conn     *replication.Conn
	timeline int32

	mu      sync.Mutex
	checked millrace.LSN
}

// guardTimeline opens the guard's connection, which has to reach the server that
// streams.
func (s *Source) guardTimeline(ctx context.Context, stream *replication.Stream, timeline int32) (_ *timelineGuard, err error) {
	pg, err := s.opt.Endpoint.ConnectReplication(ctx, session.Watch)
	if err != nil {
		return nil, err
	}
	g := &timelineGuard{conn: replication.New(pg), timeline: timeline}
	pid, err := g.conn.SlotPID(ctx, s.opt.Slot)
	if err == nil && pid != stream.PID {
		err = differentServers(s.opt.Slot)
	}
	if err != nil {
		g.close()
		return nil, session.Wrap("watch the standby's timeline", millrace.PeerSource, err)
	}
	return g, nil
}

// pass returns once the position is known to be of the guard's timeline. received
// is how far the stream has been read.
func (g *timelineGuard) pass(ctx context.Context, at, received millrace.LSN) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at <= g.checked {
		return nil
	}
	sys, err := g.conn.IdentifySystem(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return session.Wrap("read the standby's timeline", millrace.PeerSource, err)
	}
	if sys.Timeline != g.timeline {
		return &millrace.Error{Kind: millrace.KindRetry, Op: "stream", Peer: millrace.PeerSource,
			Err: fmt.Errorf("the source has gone over from timeline %d to %d: it was promoted, or follows another primary", g.timeline, sys.Timeline)}
	}
	g.checked = max(at, received)
	return nil
}

func (g *timelineGuard) close() {
	if g == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	_ = g.conn.Close(ctx) // nothing depends on it
}

func differentServers(slot string) error {
	return &millrace.Error{Kind: millrace.KindRetry, Op: "start", Peer: millrace.PeerSource,
		Err: fmt.Errorf("two connections do not agree on who has replication slot %q: they may have reached different servers", slot)}
}

const primaryHint = "target_session_attrs=read-write in the connection string finds the primary among several hosts"

// noSlot tells why a server does not have the slot. With several hosts it can be
// on a standby that is away just now, as long as the primary has not changed.
func (s *Source) noSlot(ctx context.Context, server *catalog.Server, from millrace.Checkpoint) error {
	e := &millrace.Error{Kind: millrace.KindPreflight, Op: "start", Peer: millrace.PeerSource,
		Err:  fmt.Errorf("replication slot %q does not exist", s.opt.Slot),
		Hint: "run never creates a slot: `millrace bootstrap` does; if the slot was dropped, " + restartHint}
	switch {
	case server.InRecovery:
		e.Err = fmt.Errorf("the source is a standby, and replication slot %q does not exist there", s.opt.Slot)
		e.Hint = "if the slot is the primary's: " + primaryHint + "; if it was on this standby and was dropped: " + restartHint
	case s.opt.Endpoint.Hosts() > 1 && from.Timeline == server.Timeline:
		if why := s.onStandby(ctx); why != "" {
			e.Kind, e.Condition = millrace.KindRetry, "source_unreachable"
			e.Err = fmt.Errorf("replication slot %q does not exist on the primary: %s", s.opt.Slot, why)
			e.Hint = "start the standby that has the slot; if there is none, " + restartHint
		}
	}
	return e
}

// onStandby tells why a standby of the connection string may have the slot, or
// gives "" if it does not.
func (s *Source) onStandby(ctx context.Context) string {
	conn, err := s.opt.Endpoint.Standby().Connect(ctx, session.Watch)
	if err != nil {
		return fmt.Sprintf("it may be on a standby that can't be reached (%v)", err)
	}
	defer closeConn(conn)
	slot, err := catalog.ReadSlot(ctx, conn, s.opt.Slot)
	switch {
	case err != nil:
		return err.Error()
	case slot != nil:
		return "it is on a standby"
	}
	return ""
}
