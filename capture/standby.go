package capture

import (
	"context"
	"fmt"
	"time"

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

	// Of the goroutine that calls Next:
	checked millrace.LSN       // up to here all is of the timeline
	asking  chan error         // the answer to a question on its way, nil: none
	asked   millrace.LSN       // what the question is about
	rest    *millrace.Txn      // taken from the queue, and not known to be
	cancel  context.CancelFunc // of the question
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

// next gives the feed's next transaction once it is known to be of the guard's
// timeline. One that was taken when ctx ends comes at the next call.
func (g *timelineGuard) next(ctx context.Context, f *feed) (*millrace.Txn, error) {
	if g.rest == nil {
		t, err := f.queue.next(ctx)
		if err != nil || !t.Last {
			return t, err
		}
		g.rest = t
	}
	for g.rest.End > g.checked {
		if err := g.ask(ctx, max(g.rest.End, f.stream.Received())); err != nil {
			if ctx.Err() == nil {
				g.drop()
			}
			return nil, err
		}
	}
	t := g.rest
	g.rest = nil
	return t, nil
}

// ask asks the server on which timeline it is, unless that was asked already, and
// waits for the answer. received is how far the stream was read: all of it came
// before the question.
func (g *timelineGuard) ask(ctx context.Context, received millrace.LSN) error {
	if g.asking == nil {
		asking, cancel := context.WithTimeout(context.Background(), guardTimeout)
		g.asking, g.asked, g.cancel = make(chan error, 1), received, cancel
		answer := g.asking
		go func() { answer <- g.compare(asking) }()
	}
	select {
	case err := <-g.asking:
		g.cancel()
		g.asking = nil
		if err == nil {
			g.checked = g.asked
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// guardTimeout bounds one question.
const guardTimeout = 30 * time.Second

func (g *timelineGuard) compare(ctx context.Context) error {
	sys, err := g.conn.IdentifySystem(ctx)
	if err != nil {
		return session.Wrap("read the standby's timeline", millrace.PeerSource, err)
	}
	if sys.Timeline != g.timeline {
		return &millrace.Error{Kind: millrace.KindRetry, Op: "stream", Peer: millrace.PeerSource,
			Err: fmt.Errorf("the source has gone over from timeline %d to %d: it was promoted, or follows another primary", g.timeline, sys.Timeline)}
	}
	return nil
}

// queued tells whether next would find a transaction.
func (g *timelineGuard) queued() bool { return g != nil && g.rest != nil }

// drop lets go of what was taken from the queue.
func (g *timelineGuard) drop() {
	if g.rest != nil {
		g.rest.Release()
		g.rest = nil
	}
}

// close ends the guard. Nobody is in next.
func (g *timelineGuard) close() {
	if g == nil {
		return
	}
	g.drop()
	if g.asking != nil {
		g.cancel() // which closes the connection
		<-g.asking //nolint:errcheck // the connection is given up
		g.asking = nil
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
