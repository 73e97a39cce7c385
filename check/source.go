package check

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/schema"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// selectTables finds the job's tables: by the patterns before the first load, by
// the record after it.
func (c *checker) selectTables(ctx context.Context) error {
	if c.source == nil {
		return nil
	}
	var err error
	if c.pub, err = catalog.ReadPublication(ctx, c.source, c.Publication); err != nil {
		return session.Wrap("read publication "+c.Publication, millrace.PeerSource, err)
	}
	all, err := catalog.Tables(ctx, c.source)
	if err != nil {
		return session.Wrap("read tables", millrace.PeerSource, err)
	}
	extensions, err := snapshot.ExtensionTables(ctx, c.source)
	if err != nil {
		return session.Wrap("read tables", millrace.PeerSource, err)
	}
	set := snapshot.Select(all, c.Patterns, c.pub, extensions)
	oids := set.OIDs()
	if c.loading() {
		c.problems(set.Problems)
		for _, f := range set.Skipped {
			c.warn(f.Subject, f.Cure, "%s", f.Text)
		}
	} else {
		oids = c.recorded(all, set)
	}
	described, err := catalog.Describe(ctx, c.source, oids)
	if err != nil {
		return session.Wrap("read tables", millrace.PeerSource, err)
	}
	for _, oid := range oids {
		if t := described[oid]; t != nil {
			c.tables = append(c.tables, t)
		}
	}
	if c.pub == nil {
		c.mayCreatePublication(&set)
	}
	return nil
}

// recorded gives the tables of a loaded job, and compares them with what the
// patterns say now.
func (c *checker) recorded(all []*catalog.Table, set snapshot.Selection) []uint32 {
	exists := map[uint32]*catalog.Table{}
	for _, t := range all {
		exists[t.OID] = t
	}
	known := map[uint32]bool{}
	var oids []uint32
	for _, t := range c.job.Tables {
		known[t.OID] = true
		if exists[t.OID] == nil {
			c.warn(t.Name.String(), "nothing, if it was dropped on purpose; drop it on the target as well", "is a table of the job and does not exist on the source any more")
			continue
		}
		oids = append(oids, t.OID)
	}
	for _, t := range set.Tables {
		if !known[t.OID] && (c.pub == nil || c.pub.Table(t.OID) != nil) {
			c.warn(t.Name.String(), fmt.Sprintf("exclude it with the pattern !%s", t.Name),
				"is selected and published, and was not there at the first load: its first change stops the job")
		}
	}
	return oids
}

// mayCreatePublication looks at a publication that does not exist.
func (c *checker) mayCreatePublication(set *snapshot.Selection) {
	sql := set.PublicationSQL(c.Publication)
	c.publicationSQL = sql
	switch {
	case len(set.Tables) == 0: // the selection is the problem
	case c.server != nil && c.server.InRecovery && c.loading():
		c.problem("publication "+c.Publication, "on the primary: "+sql, "does not exist, and can't be created on a standby")
	case !c.loading():
		c.problem("publication "+c.Publication, sql, "does not exist any more: run can't stream without it")
	case !c.CreatePublication:
		c.problem("publication "+c.Publication, sql+"; or let millrace create it: --create-publication", "does not exist")
	case !c.AllowRemotePublication && !session.Loopback(c.source):
		c.problem("publication "+c.Publication, sql+"; or allow it in the configuration file with safety.allow_remote_publication_create: true",
			"does not exist, and millrace may not create it on a remote server")
	}
}

const mayPublish = `
SELECT has_database_privilege(current_database(), 'CREATE'),
       ARRAY(SELECT o::regclass::text FROM unnest($1::oid[]) o JOIN pg_class c ON c.oid = o WHERE NOT pg_has_role(c.relowner, 'USAGE'))`

// checkPublication looks at the publication, or at the rights to create it.
func (c *checker) checkPublication(ctx context.Context) error {
	if c.source == nil || len(c.tables) == 0 {
		return nil
	}
	if c.pub != nil {
		c.problems(snapshot.CheckPublication(c.pub, c.tables))
		return nil
	}
	if !c.CreatePublication || !c.loading() || c.server.InRecovery {
		return nil // told already
	}
	var create bool
	var others []string
	if err := c.source.QueryRow(ctx, mayPublish, c.oids()).Scan(&create, &others); err != nil {
		return session.Wrap("read privileges", millrace.PeerSource, err)
	}
	role := millrace.QuoteIdent(c.server.Role)
	if !create {
		c.problem("publication "+c.Publication, fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s, or create it as another role",
			millrace.QuoteIdent(c.server.Database), role), "does not exist, and role %s may not create one", c.server.Role)
	}
	if len(others) > 0 {
		c.problem("publication "+c.Publication, "create it as the tables' owner",
			"does not exist, and role %s does not own %s", c.server.Role, strings.Join(others, ", "))
	}
	return nil
}

func (c *checker) oids() []uint32 {
	oids := make([]uint32, len(c.tables))
	for i, t := range c.tables {
		oids[i] = t.OID
	}
	return oids
}

// checkSlot looks for the slot: before the first load it must not be there,
// after it it must.
func (c *checker) checkSlot(ctx context.Context) error {
	if c.source == nil || c.server == nil || c.recordUnknown {
		return nil
	}
	slot, err := catalog.ReadSlot(ctx, c.source, c.Slot)
	if err != nil {
		return session.Wrap("read slot "+c.Slot, millrace.PeerSource, err)
	}
	subject := "slot " + c.Slot
	if !c.loading() {
		return c.checkOurSlot(ctx, subject, slot)
	}
	switch {
	case slot == nil && c.server.SlotsUsed >= c.server.MaxReplicationSlots:
		c.problem("source", "raise max_replication_slots and restart the server, or drop a slot that nobody uses",
			"all %d replication slots (max_replication_slots) are in use", c.server.MaxReplicationSlots)
	case slot == nil:
	case c.job == nil || !c.job.OwnsSlot:
		c.problem(subject, fmt.Sprintf("name another one, or SELECT pg_drop_replication_slot(%s)", millrace.QuoteLiteral(c.Slot)),
			"exists already, and this job did not make it")
	}
	if c.job != nil {
		for _, t := range c.job.Tables {
			if t.Copied {
				c.problem("job "+c.Job, "millrace bootstrap --restart-snapshot --yes", "its first load was interrupted")
				break
			}
		}
	}
	return nil
}

// checkOurSlot looks at the slot of a job that streams.
func (c *checker) checkOurSlot(ctx context.Context, subject string, slot *catalog.Slot) error {
	const again = "millrace bootstrap --restart-snapshot --yes"
	position, err := catalog.Position(ctx, c.source)
	if err != nil {
		return session.Wrap("read the position", millrace.PeerSource, err)
	}
	switch {
	case c.server.SystemID != c.job.SystemID:
		c.problem("source", "connect to the server that the job was loaded from, or: "+again,
			"it is not the server that the job was loaded from (system %s, not %s)", c.server.SystemID, c.job.SystemID)
	case slot == nil:
		c.problem(subject, again, "is gone, and with it the changes since")
	case slot.Plugin != "pgoutput" || slot.Database != c.server.Database:
		c.problem(subject, again, "is one of plugin %s in database %s", slot.Plugin, slot.Database)
	case slot.WALStatus == "lost" || slot.InvalidationReason != "":
		c.problem(subject, again, "is lost (%s)", strings.TrimSpace(slot.WALStatus+" "+slot.InvalidationReason))
	case slot.ConfirmedFlush > c.held.Acked:
		c.problem(subject, again, "is at %s, beyond what the target holds (%s): something else has read from it", slot.ConfirmedFlush, c.held.Acked)
	case position < c.held.Acked:
		c.problem("source", again, "its position %s is behind what the target holds (%s): it was restored from a backup", position, c.held.Acked)
	case slot.WALStatus == "unreserved":
		c.warn(subject, "raise max_slot_wal_keep_size on the source, and let the job run", "is about to be lost: WAL that it needs may be removed")
	}
	return nil
}

const tableRights = `
SELECT c.oid::int8, has_table_privilege(c.oid, 'SELECT'), has_schema_privilege(c.relnamespace, 'USAGE'), row_security_active(c.oid),
       n.nspname::text, c.relname::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY($1::oid[])`

// checkSourceTables looks at rights and at what the stream can tell of changes.
func (c *checker) checkSourceTables(ctx context.Context) error {
	if c.source == nil || len(c.tables) == 0 {
		return nil
	}
	for _, t := range c.tables {
		c.checkIdentity(t)
	}
	if c.loading() && c.Mode != modeNone {
		if err := c.checkSourceRights(ctx); err != nil {
			return err
		}
	}
	return c.checkSequences(ctx)
}

// checkSourceRights finds tables that can't be read, or not all of whose rows.
// pg_dump reads more of them than are copied.
func (c *checker) checkSourceRights(ctx context.Context) error {
	oids := c.oids()
	if c.creates() {
		needs, err := schema.Needs(ctx, c.source, oids)
		if err != nil {
			return err
		}
		oids = append(oids, needs.Tables...)
	}
	rows, err := c.source.Query(ctx, tableRights, oids)
	if err != nil {
		return session.Wrap("read privileges", millrace.PeerSource, err)
	}
	role := millrace.QuoteIdent(c.server.Role)
	var oid uint32
	var mayRead, mayUse, hidden bool
	var name millrace.TableName
	_, err = pgx.ForEachRow(rows, []any{&oid, &mayRead, &mayUse, &hidden, &name.Schema, &name.Name}, func() error {
		c.denied = c.denied || !mayUse || !mayRead
		if !mayUse {
			c.problem("schema "+name.Schema, "GRANT USAGE ON SCHEMA "+millrace.QuoteIdent(name.Schema)+" TO "+role, "role %s may not use it on the source", c.server.Role)
		}
		if !mayRead {
			c.problem(name.String(), "GRANT SELECT ON "+name.SQL()+" TO "+role, "role %s may not read it on the source", c.server.Role)
		}
		if hidden {
			c.problem(name.String(), "ALTER ROLE "+role+" BYPASSRLS", "row level security hides rows of it from role %s", c.server.Role)
		}
		return nil
	})
	return session.Wrap("read privileges", millrace.PeerSource, err)
}

// checkIdentity finds tables whose updates and deletes the stream can't tell.
func (c *checker) checkIdentity(t *catalog.Table) {
	name := t.Name.String()
	full := "ALTER TABLE " + t.Name.SQL() + " REPLICA IDENTITY FULL, or give it a primary key"
	if pk := t.PrimaryKey(); t.Identity == millrace.IdentityDefault && pk != nil && !pk.Immediate {
		c.warn(name, full, "its primary key is deferrable and no replica identity: the source refuses UPDATE and DELETE of it as soon as it is published")
		return
	}
	switch cols := t.IdentityColumns(); {
	case len(cols) == 0 && t.Identity == millrace.IdentityNothing:
		c.warn(name, full, "has REPLICA IDENTITY NOTHING: inserts are replicated; the source refuses UPDATE and DELETE of it as soon as it is published")
	case len(cols) == 0 && len(t.Columns) > 0:
		c.warn(name, full, "has no replica identity: inserts are replicated; the source refuses UPDATE and DELETE of it as soon as it is published")
	}
}

const sequencesOf = `
SELECT count(DISTINCT s.oid) FROM pg_class s
  JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = s.oid AND d.refclassid = 'pg_class'::regclass
 WHERE s.relkind = 'S' AND d.refobjid = ANY($1::oid[]) AND d.deptype IN ('a', 'i')`

// SequencesSQL prints, on the source, the statements that set the target's
// sequences at a cut-over.
const SequencesSQL = `SELECT format('SELECT setval(%L, %s);', format('%I.%I', schemaname, sequencename), last_value) ` +
	`FROM pg_sequences WHERE last_value IS NOT NULL`

func (c *checker) checkSequences(ctx context.Context) error {
	var n int
	if err := c.source.QueryRow(ctx, sequencesOf, c.oids()).Scan(&n); err != nil {
		return session.Wrap("read sequences", millrace.PeerSource, err)
	}
	if n > 0 {
		c.warn("sequences", "at a cut-over, when nothing writes any more, run on the target what this prints on the source: "+SequencesSQL,
			"the values of %d sequences are not replicated", n)
	}
	return nil
}
