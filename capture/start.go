package capture

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/session"
)

const restartHint = "start over with `millrace bootstrap --restart-snapshot --yes`"

// acquire takes the slot and makes sure that what will come from it continues
// the checkpoint. What another instance can still change is checked only once
// the slot is ours.
func (s *Source) acquire(ctx context.Context, from millrace.Checkpoint) (_ *feed, err error) {
	tables, err := s.tables(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := s.opt.Endpoint.Connect(ctx, session.Watch)
	if err != nil {
		return nil, err
	}
	defer closeConn(conn)
	standby, err := s.checkBefore(ctx, conn, tables, from)
	if err != nil {
		return nil, session.Wrap("check the source", millrace.PeerSource, err)
	}
	stream, history, err := s.openStream(ctx, from)
	if err != nil {
		return nil, err
	}
	var guard *timelineGuard
	defer func() {
		if err != nil {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
			defer cancel()
			_ = stream.Close(closing) // the first error is the one that matters
			guard.close()
		}
	}()
	if standby {
		if guard, err = s.guardTimeline(ctx, stream, history.Timeline); err != nil {
			return nil, err
		}
	}
	if err := s.checkAfter(ctx, conn, stream, history, from); err != nil {
		return nil, session.Wrap("check the slot", millrace.PeerSource, err)
	}
	f := s.newFeed(stream, history, from, tables)
	f.guard = guard
	if err = f.rels.prepare(ctx, conn); err == nil {
		f.sighting, err = look(ctx, conn, f.seen)
	}
	if err != nil {
		f.cancel()
		return nil, session.Wrap("look at the tables of the source", millrace.PeerSource, err)
	}
	return f, nil
}

func (s *Source) tables(ctx context.Context) ([]Table, error) {
	if s.opt.Tables == nil {
		return nil, nil
	}
	tables, err := s.opt.Tables(ctx)
	return slices.DeleteFunc(tables, func(t Table) bool { return t.Adding }), err
}

// openStream identifies the server and starts the stream.
func (s *Source) openStream(ctx context.Context, from millrace.Checkpoint) (*replication.Stream, *millrace.History, error) {
	pg, err := s.opt.Endpoint.ConnectReplication(ctx, session.Stream)
	if err != nil {
		return nil, nil, err
	}
	c := replication.New(pg)
	sys, err := c.IdentifySystem(ctx)
	var left millrace.LSN
	if err == nil {
		left, err = checkSystem(ctx, c, sys, from)
		s.left.Store(uint64(left))
	}
	if err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		_ = c.Close(closing) // the first error is the one that matters
		return nil, nil, session.Wrap("identify the source", millrace.PeerSource, err)
	}
	stream, err := c.Start(ctx, replication.Options{
		Slot:         s.opt.Slot,
		Start:        from.End,
		Publications: []string{s.opt.Publication},
		Binary:       !s.text.Load(),
		Streaming:    s.opt.Spool != nil && !s.whole.Load(),
		Parallel:     s.opt.Parallel,
		TwoPhase:     s.twoPhase,
		LocalOnly:    s.opt.LocalOnly,
		MaxMessage:   s.opt.MaxMessage,
		BufferSize:   s.opt.BufferSize,
		Log:          s.log,
	})
	if err != nil {
		return nil, nil, session.Wrap("start replication from slot "+s.opt.Slot, millrace.PeerSource, err)
	}
	return stream, &millrace.History{System: sys.ID, Timeline: sys.Timeline, Generation: from.Generation}, nil
}

func resync(format string, args ...any) error {
	return &millrace.Error{
		Kind: millrace.KindResync,
		Op:   "start",
		Peer: millrace.PeerSource,
		Err:  fmt.Errorf(format, args...),
		Hint: restartHint,
	}
}

// checkSystem holds the server against the history that the checkpoint belongs
// to: the same system, and on a timeline that contains the checkpoint. If that is another
// one, it tells where the checkpoint's was left.
func checkSystem(ctx context.Context, c *replication.Conn, sys replication.System, from millrace.Checkpoint) (left millrace.LSN, err error) {
	if from.System != "" && from.System != sys.ID {
		return 0, resync("the source is system %s, but the destination holds the history of system %s", sys.ID, from.System)
	}
	if from.Timeline == 0 || from.Timeline == sys.Timeline {
		return 0, nil
	}
	if from.Timeline > sys.Timeline {
		return 0, resync("the source is on timeline %d, but the destination holds timeline %d", sys.Timeline, from.Timeline)
	}
	switches, err := c.TimelineHistory(ctx, sys.Timeline)
	if err != nil {
		return 0, err
	}
	return checkTimeline(switches, sys.Timeline, from)
}

// checkTimeline finds the checkpoint's timeline among the ancestors of the
// server's, left at or behind what the destination holds, and so every later
// one. Up to left the server's history has all that they had.
func checkTimeline(switches []replication.Switch, timeline int32, from millrace.Checkpoint) (left millrace.LSN, err error) {
	found := false
	for _, sw := range switches {
		found = found || sw.Timeline == from.Timeline
		if sw.Timeline < from.Timeline {
			continue
		}
		if left == 0 || sw.End < left {
			left = sw.End
		}
		if sw.End < from.Acked {
			return 0, resync("the source left timeline %d at %v, but the destination holds what came after that, up to %v",
				sw.Timeline, sw.End, from.Acked)
		}
	}
	if !found {
		return 0, resync("timeline %d of the source does not come from timeline %d, which the destination holds", timeline, from.Timeline)
	}
	return left, nil
}

// checkBefore finds what no owner of the slot can cure, and tells whether the
// source is a standby.
func (s *Source) checkBefore(ctx context.Context, conn *pgx.Conn, tables []Table, from millrace.Checkpoint) (standby bool, err error) {
	server, err := catalog.ReadServer(ctx, conn)
	if err != nil {
		return false, err
	}
	slot, err := catalog.ReadSlot(ctx, conn, s.opt.Slot)
	if err != nil {
		return false, err
	}
	switch {
	case slot == nil:
		return false, s.noSlot(ctx, server, from)
	case server.InRecovery && slot.Synced:
		return false, &millrace.Error{Kind: millrace.KindRetry, Op: "start", Peer: millrace.PeerSource, Condition: "source_unreachable",
			Err:  fmt.Errorf("the source is a standby that has a copy of replication slot %q, from which nobody can read before a promotion", s.opt.Slot),
			Hint: "finish the failover, or name the primary: " + primaryHint}
	}
	if err := checkSlot(slot, server.Database); err != nil {
		return false, err
	}
	if err := s.checkAbilities(server, slot, from); err != nil {
		return false, err
	}
	return server.InRecovery, s.checkSet(ctx, conn, tables)
}

// checkSet holds the publication against the job's set of tables.
func (s *Source) checkSet(ctx context.Context, conn *pgx.Conn, tables []Table) error {
	pub, err := catalog.ReadPublication(ctx, conn, s.opt.Publication)
	if err != nil {
		return err
	}
	if err := checkPublication(pub, s.opt.Publication); err != nil {
		return err
	}
	gone, err := s.gone(ctx, conn, tables)
	if err != nil {
		return err
	}
	if err := s.checkTables(pub, tables, gone); err != nil {
		return s.changed(ctx, tables, err)
	}
	return nil
}

// changed looks whether a publication is refused for a set of tables that is another
// one by now: whoever drops tables records that before they leave the publication.
func (s *Source) changed(ctx context.Context, tables []Table, refused error) error {
	if s.opt.Recorded == nil {
		return refused
	}
	now, err := s.opt.Recorded(ctx)
	if err != nil {
		return err
	}
	oids := map[uint32]bool{}
	for _, t := range now {
		oids[t.OID] = !t.Adding
	}
	if !slices.ContainsFunc(tables, func(t Table) bool { return !oids[t.OID] }) {
		return refused
	}
	return &millrace.Error{Kind: millrace.KindRetry, Op: "start", Peer: millrace.PeerSource,
		Err: fmt.Errorf("the set of tables was changed just now: %w", millrace.ErrStartAnew)}
}

// gone tells which tables of the set do not exist any more.
func (s *Source) gone(ctx context.Context, q catalog.Querier, tables []Table) (map[uint32]bool, error) {
	gone := map[uint32]bool{}
	oids := make([]uint32, len(tables))
	for i, t := range tables {
		oids[i] = t.OID
	}
	rows, err := q.Query(ctx, `SELECT wanted.oid::int8 FROM pg_catalog.unnest($1::pg_catalog.oid[]) wanted (oid)
		WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = wanted.oid)`, oids)
	if err != nil {
		return nil, err
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[uint32])
	for _, oid := range missing {
		gone[oid] = true
	}
	return gone, err
}

// The first versions that can leave out what has an origin, and that know
// streaming = parallel.
const (
	originSince   = 16
	parallelSince = 16
)

// checkAbilities refuses what was asked for and the source can't do.
//
// A slot with two-phase commit keeps it, whatever is asked for later.
func (s *Source) checkAbilities(server *catalog.Server, slot *catalog.Slot, from millrace.Checkpoint) error {
	asked := s.opt.TwoPhase != nil && s.opt.TwoPhase()
	s.twoPhase = asked || slot.TwoPhase
	if slot.TwoPhase && !asked {
		s.log.Info("the slot has two-phase commit, and keeps it until a new first load makes another one", "slot", slot.Name)
	}
	e := &millrace.Error{Kind: millrace.KindPreflight, Op: "start", Peer: millrace.PeerSource}
	switch {
	case s.opt.LocalOnly && server.Major() < originSince:
		e.Err = fmt.Errorf("source.postgres.origin: none needs PostgreSQL %d, the source is %d", originSince, server.Major())
		e.Hint = "take it out, or upgrade the source"
	case s.opt.Parallel && server.Major() < parallelSince:
		e.Err = fmt.Errorf("source.postgres.streaming: parallel needs PostgreSQL %d, the source is %d", parallelSince, server.Major())
		e.Hint = "set it to on, or upgrade the source"
	case slot.TwoPhase && len(from.Tables) > 0:
		e.Err = fmt.Errorf("tables are loaded beside the stream, which is not available in this version while replication slot %q has two-phase commit", slot.Name)
		e.Hint = restartHint
	case asked && !slot.TwoPhase && slot.Failover:
		e.Err = fmt.Errorf("replication slot %q is copied to standbys, which PostgreSQL does not allow together with two-phase commit", slot.Name)
		e.Hint = "set source.postgres.two_phase: off; or give up the copies: " +
			`psql "dbname=… replication=database" -c 'ALTER_REPLICATION_SLOT ` + millrace.QuoteIdent(slot.Name) + ` (FAILOVER false)'`
	default:
		return nil
	}
	return e
}

// checkSlot finds a slot that is not the job's, or of no use any more.
func checkSlot(slot *catalog.Slot, database string) error {
	if slot.Plugin != "pgoutput" || slot.Database != database {
		kind := fmt.Sprintf("is of plugin %q in database %q", slot.Plugin, slot.Database)
		if slot.Plugin == "" {
			kind = "is a physical one"
		}
		return resync("replication slot %q %s, not of pgoutput in %q", slot.Name, kind, database)
	}
	if slot.WALStatus == "lost" || slot.InvalidationReason != "" {
		why := slot.InvalidationReason
		if why == "" {
			why = "the log that it needs was removed"
		}
		return resync("replication slot %q is lost: %s", slot.Name, why)
	}
	return nil
}

// checkAfter runs once the slot is ours, when nobody else can move it.
func (s *Source) checkAfter(ctx context.Context, conn *pgx.Conn, stream *replication.Stream, history *millrace.History, from millrace.Checkpoint) error {
	server, err := catalog.ReadServer(ctx, conn)
	if err != nil {
		return err
	}
	slot, err := catalog.ReadSlot(ctx, conn, s.opt.Slot)
	if err != nil {
		return err
	}
	position, err := catalog.Position(ctx, conn)
	if err != nil {
		return err
	}
	if slot == nil || uint32(slot.ActivePID) != stream.PID || server.SystemID != history.System ||
		server.Timeline != history.Timeline && !server.InRecovery { // SQL does not tell a standby's
		return differentServers(s.opt.Slot)
	}
	if err := checkSlot(slot, server.Database); err != nil {
		return err
	}
	if slot.ConfirmedFlush > from.Acked {
		return resync("replication slot %q is at %v, but the destination holds the history only up to %v", s.opt.Slot, slot.ConfirmedFlush, from.Acked)
	}
	switch {
	case position < from.Acked && server.InRecovery:
		return &millrace.Error{Kind: millrace.KindRetry, Op: "start", Peer: millrace.PeerSource, Condition: "source_unreachable",
			Err:  fmt.Errorf("the standby has replayed up to %v, and the destination holds the history up to %v", position, from.Acked),
			Hint: "wait until the standby has replayed what it knew before, or connect to one that has"}
	case position < from.Acked:
		return resync("the source is at %v, but the destination holds its history up to %v: it was restored or replaced", position, from.Acked)
	}
	return nil
}

func problem(table millrace.TableName, hint, format string, args ...any) error {
	return &millrace.Error{
		Kind:  millrace.KindData,
		Op:    "start",
		Peer:  millrace.PeerSource,
		Table: table,
		Err:   fmt.Errorf(format, args...),
		Hint:  hint,
	}
}

// checkPublication refuses a publication that does not send every change of a
// table under the table's own name.
func checkPublication(pub *catalog.Publication, name string) error {
	var none millrace.TableName
	ident := millrace.QuoteIdent(name)
	switch {
	case pub == nil:
		return problem(none, "run never creates a publication: `millrace bootstrap --create-publication` does; if it was dropped while the job existed, changes may be missing: "+restartHint,
			"publication %q does not exist", name)
	case !pub.Insert || !pub.Update || !pub.Delete || !pub.Truncate:
		return problem(none, fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert, update, delete, truncate')", ident),
			"publication %q publishes only some operations, which is not available in this version", name)
	case pub.ViaRoot:
		return problem(none, fmt.Sprintf("ALTER PUBLICATION %s SET (publish_via_partition_root = false)", ident),
			"publication %q has publish_via_partition_root, which is not available in this version", name)
	}
	return nil
}

// checkTables refuses a publication that lacks tables of the set, or parts of
// them. One that was dropped may be excluded by the patterns: no change of it
// can come any more.
func (s *Source) checkTables(pub *catalog.Publication, tables []Table, gone map[uint32]bool) error {
	ident := millrace.QuoteIdent(pub.Name)
	for _, t := range tables {
		p := pub.Table(t.OID)
		switch {
		case p == nil && gone[t.OID] && !included(s.opt.Match, t.Name, true):
		case p == nil && gone[t.OID]:
			return problem(t.Name, fmt.Sprintf("exclude it with the pattern '!%v', or %s", t.Name, restartHint), "was dropped at the source")
		case p == nil:
			return problem(t.Name, fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s; changes made while it was not published are missing: if there were any, %s", ident, t.Name.SQL(), restartHint),
				"is not in publication %q", pub.Name)
		case p.Filter != "":
			return problem(p.Name, fmt.Sprintf("ALTER PUBLICATION %s DROP TABLE %s, and ADD it without WHERE", ident, p.Name.SQL()),
				"has a row filter in publication %q, which is not available in this version", pub.Name)
		case p.Columns != nil:
			return problem(p.Name, fmt.Sprintf("ALTER PUBLICATION %s DROP TABLE %s, and ADD it without a column list", ident, p.Name.SQL()),
				"has a column list in publication %q, which is not available in this version", pub.Name)
		}
	}
	return nil
}
