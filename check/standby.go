package check

import (
	"context"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// checkStandby looks at a source that is a standby.
func (c *checker) checkStandby(ctx context.Context) error {
	if !c.server.InRecovery {
		return nil
	}
	standby, err := catalog.ReadStandby(ctx, c.source)
	if err != nil {
		return session.Wrap("read the server", millrace.PeerSource, err)
	}
	problems, warnings := snapshot.CheckStandby(c.server, standby, c.loading())
	c.problems(problems)
	for _, f := range warnings {
		c.warn(f.Subject, f.Cure, "%s", f.Text)
	}
	if c.loading() && len(problems) == 0 {
		return c.checkPrimary(ctx)
	}
	return nil
}

// checkPrimary looks whether the primary can be asked for what a new slot on its
// standby waits for.
func (c *checker) checkPrimary(ctx context.Context) error {
	grant := "on the primary: GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO " + millrace.QuoteIdent(c.server.Role)
	const waits = "creating the slot on a standby waits for a record that an idle primary does not write"
	if c.Source.Hosts() < 2 {
		c.warn("source", "name the primary as a further host of the connection string, with target_session_attrs=standby, and "+grant, waits)
		return nil
	}
	conn, err := c.Source.Primary().Connect(ctx, session.Check)
	if err != nil {
		c.warn("source", "let the role connect to the primary, or SELECT pg_log_standby_snapshot() there when it is time", "%s, and the primary could not be asked: %v", waits, err)
		return nil
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var level string
	var may bool
	err = conn.QueryRow(ctx, `SELECT current_setting('wal_level'), has_function_privilege('pg_log_standby_snapshot()', 'EXECUTE')`).Scan(&level, &may)
	if err != nil {
		return session.Wrap("read the primary", millrace.PeerSource, err)
	}
	if level != "logical" {
		c.problem("source", "on the primary: ALTER SYSTEM SET wal_level = logical, and restart it", "wal_level of its primary is %s, not logical", level)
	}
	if !may {
		c.warn("source", grant, "%s, and role %s may not ask for it", waits, c.server.Role)
	}
	return nil
}

// failoverSlots is the first version whose slots can be copied to standbys.
const failoverSlots = 17

// checkFailover looks at what a promotion of a standby of the source would find.
func (c *checker) checkFailover(ctx context.Context) error {
	if c.source == nil || c.server == nil || c.recordUnknown || c.server.InRecovery || !c.Failover {
		return nil
	}
	physical, err := catalog.PhysicalSlots(ctx, c.source)
	if err != nil {
		return session.Wrap("read the slots", millrace.PeerSource, err)
	}
	several := c.Source.Hosts() > 1
	if several && !c.Source.Selective() {
		c.warn("source", "target_session_attrs=read-write in the connection string",
			"the connection string names several hosts and does not say which is wanted: after a failover it may reach a standby")
	}
	switch {
	case len(physical) == 0 && !several: // nobody to take over
		return nil
	case c.server.Major() < failoverSlots:
		c.warn("failover", "upgrade the source to PostgreSQL 17 or newer",
			"PostgreSQL %d does not copy logical slots to standbys: after a promotion the job needs a new first load", c.server.Major())
		return nil
	}
	if err := c.checkHeldBack(ctx, physical); err != nil {
		return err
	}
	if several {
		return c.checkSlotCopy(ctx)
	}
	return nil
}

// checkHeldBack looks whether the job can be ahead of a standby, and at the slot.
func (c *checker) checkHeldBack(ctx context.Context, physical []string) error {
	var synchronized string
	if err := c.source.QueryRow(ctx, `SELECT current_setting('synchronized_standby_slots')`).Scan(&synchronized); err != nil {
		return session.Wrap("read settings", millrace.PeerSource, err)
	}
	if synchronized == "" {
		c.warn("failover", "on the source: ALTER SYSTEM SET synchronized_standby_slots = "+millrace.QuoteLiteral(strings.Join(physical, ", "))+"; SELECT pg_reload_conf()",
			"synchronized_standby_slots is empty: a standby that is promoted may lack what was delivered, and the job then needs a new first load")
	}
	slot, err := catalog.ReadSlot(ctx, c.source, c.Slot)
	if err != nil {
		return session.Wrap("read slot "+c.Slot, millrace.PeerSource, err)
	}
	if slot != nil && !slot.Failover && !c.loading() {
		c.warn("slot "+c.Slot, `on a replication connection (psql "dbname=… replication=database"), while the job is stopped: ALTER_REPLICATION_SLOT `+
			millrace.QuoteIdent(c.Slot)+" (FAILOVER true)", "is not copied to standbys: after a promotion the job needs a new first load")
	}
	return nil
}

// checkSlotCopy asks a standby that the connection string names.
func (c *checker) checkSlotCopy(ctx context.Context) error {
	conn, err := c.Source.Standby().Connect(ctx, session.Check)
	if err != nil {
		c.warn("failover", "start the standby, or correct the hosts of the connection string", "no standby of the connection string could be asked: %v", err)
		return nil
	}
	defer conn.Close(context.WithoutCancel(ctx))
	standby, err := catalog.ReadStandby(ctx, conn)
	if err != nil {
		return session.Wrap("read the standby", millrace.PeerSource, err)
	}
	const reload = "; SELECT pg_reload_conf()"
	if !standby.SyncSlots {
		c.warn("standby", "on the standby, with a dbname in primary_conninfo: ALTER SYSTEM SET sync_replication_slots = on"+reload,
			"sync_replication_slots is off: it keeps no copy of the job's slot, and after its promotion the job needs a new first load")
	}
	if !standby.Feedback {
		c.warn("standby", "on the standby: ALTER SYSTEM SET hot_standby_feedback = on"+reload, "hot_standby_feedback is off: slots are not copied without it")
	}
	if standby.PrimarySlot == "" {
		c.warn("standby", "make a physical slot on the source and name it there in primary_slot_name", "primary_slot_name is not set: slots are not copied without it")
	}
	if c.loading() || !standby.SyncSlots {
		return nil
	}
	slot, err := catalog.ReadSlot(ctx, conn, c.Slot)
	if err != nil {
		return session.Wrap("read slot "+c.Slot, millrace.PeerSource, err)
	}
	const look = "the standby's log says why; it also takes the job to run, and the primary to write"
	switch {
	case slot == nil || !slot.Synced:
		c.warn("standby", look, "has no copy of slot %s yet", c.Slot)
	case slot.InvalidationReason != "":
		c.warn("standby", look, "its copy of slot %s is invalid (%s)", c.Slot, slot.InvalidationReason)
	case slot.Temporary:
		c.warn("standby", look, "its copy of slot %s is not ready yet: a promotion would drop it", c.Slot)
	}
	return nil
}
