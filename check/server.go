package check

import (
	"cmp"
	"context"
	"fmt"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// The major versions that are supported and tested.
const (
	oldestSource = 15
	oldestTarget = 16
	newestServer = 18
)

// checkSource looks at the source's server and role.
func (c *checker) checkSource(ctx context.Context) (err error) {
	if c.source == nil {
		return nil
	}
	if c.server, err = catalog.ReadServer(ctx, c.source); err != nil {
		return session.Wrap("read the server", millrace.PeerSource, err)
	}
	s := c.server
	c.checkVersion("source", s.Major(), oldestSource)
	if err := c.checkStandby(ctx); err != nil {
		return err
	}
	if s.WALLevel != "logical" {
		c.problem("source", "ALTER SYSTEM SET wal_level = logical, and restart the server", "wal_level is %s, not logical", s.WALLevel)
	}
	if s.Encoding == "SQL_ASCII" {
		c.problem("source", "move it into a database with a real encoding: pg_dump -E, then restore", "the database's encoding is SQL_ASCII: what its text means is not known, and can't be converted")
	}
	if err := c.checkTimeouts(ctx); err != nil {
		return err
	}
	return c.checkWalsender(ctx)
}

func (c *checker) checkVersion(side string, major, oldest int) {
	switch {
	case major < oldest:
		c.problem(side, fmt.Sprintf("upgrade the server to PostgreSQL %d or newer", oldest), "PostgreSQL %d is too old: %d is needed", major, oldest)
	case major > newestServer:
		c.warn(side, "use a newer version of millrace, or try it on a copy first", "PostgreSQL %d is newer than what this version was tested with (%d)", major, newestServer)
	}
}

// checkWalsender opens the kind of connection that streaming needs. That is the
// proof; attributes and settings only say what the cure is.
func (c *checker) checkWalsender(ctx context.Context) error {
	s := c.server
	pg, err := c.Source.ConnectReplication(ctx, session.Check)
	if err == nil {
		conn := replication.New(pg)
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // its work is done
		_, err = conn.IdentifySystem(ctx)
		return session.Wrap("open a replication connection", millrace.PeerSource, err)
	}
	switch {
	case !s.Replication:
		c.problem("source", fmt.Sprintf("ALTER ROLE %s REPLICATION (Amazon RDS: GRANT rds_replication TO %[1]s)", millrace.QuoteIdent(s.Role)),
			"role %s may not replicate", s.Role)
	case s.WalSendersUsed >= s.MaxWalSenders:
		c.problem("source", "raise max_wal_senders and restart the server, or end a replication connection",
			"all %d replication connections (max_wal_senders) are in use", s.MaxWalSenders)
	default:
		c.problem("source", cmp.Or(millrace.HintOf(err), failedCure), "replication connection: %v", err)
	}
	return nil
}

// checkTimeouts looks at settings that end a slot which nobody reads from: while
// rows are copied, nobody does.
func (c *checker) checkTimeouts(ctx context.Context) error {
	var idle *string
	err := c.source.QueryRow(ctx, `SELECT current_setting('idle_replication_slot_timeout', true)`).Scan(&idle)
	if err != nil {
		return session.Wrap("read settings", millrace.PeerSource, err)
	}
	if idle != nil && *idle != "0" && *idle != "0s" {
		c.warn("source", "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()",
			"idle_replication_slot_timeout is %s: the slot is lost when the first load, or a stop of the job, takes longer", *idle)
	}
	return nil
}

// checkTarget looks at the target's server, and whether the record can be kept
// there.
func (c *checker) checkTarget(ctx context.Context) (err error) {
	if c.target == nil {
		return nil
	}
	if c.targetServer, err = catalog.ReadServer(ctx, c.target); err != nil {
		return session.Wrap("read the server", millrace.PeerDestination, err)
	}
	s := c.targetServer
	c.checkVersion("destination", s.Major(), oldestTarget)
	if s.Encoding == "SQL_ASCII" {
		c.problem("destination", "create the database with ENCODING 'UTF8'", "the database's encoding is SQL_ASCII: it takes bytes of any kind for text")
	}
	if s.InRecovery {
		c.problem("destination", "connect to the primary", "it is a standby and can't be written to")
		return nil
	}
	if c.replica, err = snapshot.ReplicaAllowed(ctx, c.target); err != nil {
		return err
	}
	if !c.replica {
		c.warn("destination", fmt.Sprintf("GRANT SET ON PARAMETER session_replication_role TO %s, as a superuser of the target", millrace.QuoteIdent(s.Role)),
			"role %s may not set session_replication_role: triggers fire and foreign keys are checked for every change, which costs time", s.Role)
	}
	return c.checkRecordRights(ctx)
}

const recordRights = `
SELECT n.oid IS NOT NULL,
       CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege(n.oid, 'CREATE') END,
       EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r'),
       NOT EXISTS (SELECT FROM pg_class c
                    WHERE c.relnamespace = n.oid AND c.relkind = 'r' AND c.relname <> 'format'
                      AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
                           AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE')
                           AND has_table_privilege(c.oid, 'DELETE')))
  FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = 'millrace'`

// checkRecordRights finds out whether the role can make or write the schema
// millrace.
func (c *checker) checkRecordRights(ctx context.Context) error {
	var exists, mayCreate, filled, mayWrite bool
	if err := c.target.QueryRow(ctx, recordRights).Scan(&exists, &mayCreate, &filled, &mayWrite); err != nil {
		return session.Wrap("read privileges", millrace.PeerDestination, err)
	}
	role := millrace.QuoteIdent(c.targetServer.Role)
	switch {
	case !exists && !mayCreate:
		c.problem("schema millrace", fmt.Sprintf("CREATE SCHEMA millrace AUTHORIZATION %s (or: GRANT CREATE ON DATABASE %s TO %[1]s)",
			role, millrace.QuoteIdent(c.targetServer.Database)), "does not exist on the target, and role %s may not create it", c.targetServer.Role)
	case exists && !filled && !mayCreate:
		c.problem("schema millrace", "ALTER SCHEMA millrace OWNER TO "+role, "role %s may not create tables in it", c.targetServer.Role)
	case filled && !mayWrite:
		c.problem("schema millrace", fmt.Sprintf("GRANT USAGE ON SCHEMA millrace TO %s; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA millrace TO %[1]s", role),
			"role %s may not write its tables", c.targetServer.Role)
	}
	return nil
}

// checkSameDatabase compares the two servers.
func (c *checker) checkSameDatabase(context.Context) error {
	if c.server == nil || c.targetServer == nil {
		return nil
	}
	s, d := c.server, c.targetServer
	if s.SystemID == d.SystemID && s.Timeline == d.Timeline && s.Database == d.Database {
		c.problem("destination", "name another database in the destination's URL", "it is the same database as the source")
	}
	switch {
	case s.Encoding == d.Encoding:
	case d.Encoding == "UTF8":
		c.warn("destination", "nothing, if the source holds only text that its encoding knows", "its encoding is UTF8 and the source's %s: text is converted, and what can't be stops the job", s.Encoding)
	default:
		c.problem("destination", "create the database with ENCODING "+millrace.QuoteLiteral(s.Encoding)+" or 'UTF8'",
			"its encoding is %s and the source's %s", d.Encoding, s.Encoding)
	}
	return nil
}
