package check

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/schema"
	"github.com/millrace/millrace/session"
)

// checkDefinitions looks at what copying definitions needs: pg_dump, schemas and
// extensions of the target, and nothing there that is different. For the latter
// it reads the definitions as a load would.
func (c *checker) checkDefinitions(ctx context.Context) error {
	if !c.creates() || c.server == nil || len(c.tables) == 0 {
		return nil
	}
	program, err := schema.Find(ctx, c.PGDump, c.server.Major())
	if err != nil {
		c.problem("pg_dump", millrace.HintOf(err), "%v", err)
	}
	if c.target == nil || c.targetServer == nil {
		return nil
	}
	needs, e := schema.Needs(ctx, c.source, c.oids())
	if e != nil {
		return e
	}
	before := len(c.report.Problems)
	if err := c.checkSchemas(ctx, needs.Schemas); err != nil {
		return err
	}
	if err := c.checkExtensions(ctx, needs.Extensions); err != nil {
		return err
	}
	if err != nil || len(c.report.Problems) > before || c.denied {
		return nil // the definitions could not be read or made anyway
	}
	return c.compareDefinitions(ctx, program)
}

const mayCreateIn = `
SELECT s, n.oid IS NOT NULL, CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
                                  ELSE has_schema_privilege(n.oid, 'CREATE') END
  FROM unnest($1::text[]) s LEFT JOIN pg_namespace n ON n.nspname = s`

func (c *checker) checkSchemas(ctx context.Context, schemas []string) error {
	rows, err := c.target.Query(ctx, mayCreateIn, schemas)
	if err != nil {
		return session.Wrap("read privileges", millrace.PeerDestination, err)
	}
	role := millrace.QuoteIdent(c.targetServer.Role)
	var name string
	var exists, may bool
	_, err = pgx.ForEachRow(rows, []any{&name, &exists, &may}, func() error {
		switch {
		case may:
		case exists && c.allThere(name):
			// Nothing has to be created in it.
		case exists:
			c.problem("schema "+name, "GRANT CREATE ON SCHEMA "+millrace.QuoteIdent(name)+" TO "+role, "role %s may not create tables in it on the target", c.targetServer.Role)
		default:
			c.problem("schema "+name, fmt.Sprintf("CREATE SCHEMA %s AUTHORIZATION %s on the target", millrace.QuoteIdent(name), role),
				"does not exist on the target, and role %s may not create it", c.targetServer.Role)
		}
		return nil
	})
	return session.Wrap("read privileges", millrace.PeerDestination, err)
}

// allThere tells whether the target has all of the job's tables in a schema.
func (c *checker) allThere(schema string) bool {
	return !slices.ContainsFunc(c.tables, func(t *catalog.Table) bool { return t.Name.Schema == schema && c.there[t.Name] == nil })
}

const extensionsThere = `
SELECT x, EXISTS (SELECT FROM pg_extension e WHERE e.extname = x),
       EXISTS (SELECT FROM pg_available_extensions a WHERE a.name = x),
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
       OR coalesce((SELECT bool_or(v.trusted) FROM pg_available_extension_versions v WHERE v.name = x), false)
          AND has_database_privilege(current_database(), 'CREATE')
  FROM unnest($1::text[]) x`

func (c *checker) checkExtensions(ctx context.Context, extensions []string) error {
	rows, err := c.target.Query(ctx, extensionsThere, extensions)
	if err != nil {
		return session.Wrap("read extensions", millrace.PeerDestination, err)
	}
	var name string
	var installed, available, may bool
	_, err = pgx.ForEachRow(rows, []any{&name, &installed, &available, &may}, func() error {
		switch {
		case installed:
		case !available:
			c.problem("extension "+name, "install its package on the target's server", "the tables need it, and the target's server does not have it")
		case !may:
			c.problem("extension "+name, "CREATE EXTENSION "+millrace.QuoteIdent(name)+" on the target, as a superuser",
				"the tables need it, and role %s may not create it", c.targetServer.Role)
		}
		return nil
	})
	return session.Wrap("read extensions", millrace.PeerDestination, err)
}

// compareDefinitions plans the copy of the definitions.
func (c *checker) compareDefinitions(ctx context.Context, program schema.Program) error {
	tx, err := c.source.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return session.Wrap("read definitions", millrace.PeerSource, err)
	}
	defer tx.Rollback(ctx)
	var id string
	if err := tx.QueryRow(ctx, `SELECT pg_export_snapshot()`).Scan(&id); err != nil {
		return session.Wrap("read definitions", millrace.PeerSource, err)
	}
	d, err := schema.Read(ctx, schema.Request{Program: program, Source: c.Source, Snapshot: id, Tables: c.oids(), Catalog: tx, Log: c.Log})
	if err != nil {
		return err
	}
	p, err := d.Plan(ctx, tx, schema.Target{Major: c.targetServer.Major(), Replica: c.replica, Catalog: c.target})
	if err != nil {
		return err
	}
	for _, f := range p.Problems {
		c.problem(f.Object, "make it equal or drop it on the target; with destination.postgres.schema: existing the target's own definitions are used", "%s", f.Text)
	}
	for _, f := range p.Notes {
		c.warn(f.Object, "", "%s", f.Text)
	}
	return nil
}

const loadSettings = `
SELECT current_setting('max_locks_per_transaction')::int8
         * (current_setting('max_connections')::int8 + current_setting('max_prepared_transactions')::int8),
       coalesce((SELECT (w.wal_bytes / greatest(extract(epoch FROM now() - w.stats_reset), 1))::float8 FROM pg_stat_wal w), 0)`

const (
	// assumedRate is what a load is expected to copy in a second; it is only
	// used to say how long the source will have to keep its log.
	assumedRate = 30 << 20
	// manyBytes is from what size on the consequences of a load are pointed out.
	manyBytes = 50 << 30
)

// checkLoad estimates what a first load asks of the source.
func (c *checker) checkLoad(ctx context.Context) error {
	if c.source == nil || c.server == nil || !c.loading() || c.Mode == modeNone || len(c.tables) == 0 {
		return nil
	}
	var locks int64
	var walRate float64
	if err := c.source.QueryRow(ctx, loadSettings).Scan(&locks, &walRate); err != nil {
		return session.Wrap("read settings", millrace.PeerSource, err)
	}
	// The holder, each stream and pg_dump lock all tables.
	if sessions := int64(max(1, c.Parallel)) + 2; int64(len(c.tables))*sessions > locks {
		c.problem("source", "raise max_locks_per_transaction and restart the server, or lower snapshot.parallel",
			"%d sessions of the load lock %d tables each, and the server has room for %d locks", sessions, len(c.tables), locks)
	}
	var bytes int64
	for _, t := range c.tables {
		bytes += t.Bytes
	}
	seconds := float64(bytes) / assumedRate
	wal := int64(walRate * seconds)
	if keep := c.server.MaxSlotWALKeep; keep >= 0 && wal > keep {
		c.warn("source", "raise max_slot_wal_keep_size for the time of the load",
			"max_slot_wal_keep_size is %s, and about %s of log will be written while %s are copied: the slot may be lost", size(keep), size(wal), size(bytes))
	}
	if bytes > manyBytes {
		c.warn("source", "watch its disk while it lasts, or take snapshot.mode: incremental, which holds neither back",
			"about %s are to be copied: for as long, the source keeps its log (about %s at the rate so far) and all row versions", size(bytes), size(wal))
	}
	return nil
}

// size writes bytes for people.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	f, i := float64(n)/(1<<10), 0
	for f >= 1<<10 && i < len(units)-1 {
		f /= 1 << 10
		i++
	}
	return fmt.Sprintf("%.1f %ciB", f, units[i])
}
