package check

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// checkTargetTables looks at the job's tables on the target.
func (c *checker) checkTargetTables(ctx context.Context) error {
	if c.target == nil || len(c.tables) == 0 {
		return nil
	}
	names := make([]millrace.TableName, len(c.tables))
	for i, t := range c.tables {
		names[i] = t.Name
	}
	var err error
	if c.there, err = catalog.DescribeByName(ctx, c.target, names); err != nil {
		return session.Wrap("read tables", millrace.PeerDestination, err)
	}
	var present []*catalog.Table
	for _, s := range c.tables {
		d := c.there[s.Name]
		switch {
		case d == nil && !c.creates():
			c.problem(s.Name.String(), missingCure(c.SchemaMode), "does not exist on the target")
		case d != nil:
			present = append(present, d)
			c.compare(s, d)
		}
	}
	readable, err := c.checkTargetRights(ctx, present)
	if err != nil {
		return err
	}
	if c.loading() && c.Mode != modeNone {
		if err := c.checkEmpty(ctx, readable); err != nil {
			return err
		}
	}
	return c.checkReferences(ctx, present)
}

// missingCure says how a table comes to the target.
func missingCure(schemaMode string) string {
	if schemaMode == schemaExisting {
		return "create it there with the source's columns, or let millrace do it with destination.postgres.schema: create"
	}
	return "create it there with the source's columns"
}

// compare looks at one table on both sides. Where definitions are copied, an
// existing table must be equal, which checkDefinitions sees to.
func (c *checker) compare(s, d *catalog.Table) {
	if !c.creates() {
		_, found := snapshot.Pair(s, d)
		c.problems(found)
		for i := range s.Columns {
			if col := d.Column(s.Columns[i].Name); col != nil {
				if text := catalog.Narrower(&s.Columns[i], col); text != "" {
					c.warn(s.Name.String(), fmt.Sprintf("give column %s the source's type, unless all values fit", millrace.QuoteIdent(col.Name)), "column %s of the target %s", col.Name, text)
				}
			}
		}
		c.checkMatch(s, d)
		if !c.replica {
			c.checkForeignKeys(d)
		}
	}
	c.checkTriggers(d)
}

// checkMatch finds out whether changed rows can be found by an index.
func (c *checker) checkMatch(s, d *catalog.Table) {
	cols := s.IdentityColumns()
	if len(cols) == 0 {
		return
	}
	name := s.Name.String()
	if s.Identity == millrace.IdentityFull {
		if !slices.ContainsFunc(d.Indexes, func(x catalog.Index) bool {
			return x.Unique && x.Valid && x.Immediate && !x.Partial && d.NotNull(&x) && !slices.Contains(x.Columns, 0)
		}) {
			c.warn(name, "give it a primary key on the target", "has REPLICA IDENTITY FULL and no unique index on the target: each UPDATE and DELETE reads the whole table")
		}
	} else if d.MatchIndex(cols) == nil {
		c.warn(name, fmt.Sprintf("CREATE UNIQUE INDEX ON %s (%s) on the target", d.Name.SQL(), quoteAll(cols)),
			"the target has no unique index on the columns %s, by which changed rows are found: changes go row by row and slowly", strings.Join(cols, ", "))
	}
	for _, x := range d.Indexes {
		if x.Unique && !x.Immediate && c.replica {
			c.warn(name, fmt.Sprintf("make it NOT DEFERRABLE on the target: drop constraint %s and add it again", millrace.QuoteIdent(x.Name)), "constraint %s of the target is deferrable, and such are not checked under session_replication_role = replica: rows that break it are taken in silence", x.Name)
		}
		if x.Exclusion {
			c.warn(name, fmt.Sprintf("drop constraint %s on the target if that is too slow: the source checks it", millrace.QuoteIdent(x.Name)), "has the exclusion constraint %s on the target: changes go row by row", x.Name)
		}
	}
}

func quoteAll(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = millrace.QuoteIdent(n)
	}
	return strings.Join(quoted, ", ")
}

// checkForeignKeys looks at keys that will be checked for every change: they must
// be checkable at the end of a transaction and must not change rows themselves,
// since the stream has those changes as well.
func (c *checker) checkForeignKeys(d *catalog.Table) {
	for _, k := range d.ForeignKeys {
		name := d.Name.String()
		constraint := millrace.QuoteIdent(k.Name)
		grant := fmt.Sprintf("GRANT SET ON PARAMETER session_replication_role TO %s", millrace.QuoteIdent(c.targetServer.Role))
		switch {
		case acts(k.OnDelete) || acts(k.OnUpdate):
			c.problem(name, grant+", or make it NO ACTION DEFERRABLE on the target",
				"foreign key %s of the target changes rows by itself (CASCADE, SET NULL or SET DEFAULT), as the stream does", k.Name)
		case !k.Deferrable || k.OnDelete == 'r' || k.OnUpdate == 'r':
			c.problem(name, fmt.Sprintf("ALTER TABLE %s ALTER CONSTRAINT %s DEFERRABLE (RESTRICT: make it NO ACTION), or %s", d.Name.SQL(), constraint, grant),
				"foreign key %s of the target can't be deferred to the end of a transaction", k.Name)
		}
	}
}

func acts(action byte) bool { return action == 'c' || action == 'n' || action == 'd' }

// checkTriggers names what fires for replicated changes on the target.
func (c *checker) checkTriggers(d *catalog.Table) {
	fires := func(enabled byte) bool {
		if c.replica {
			return enabled == 'R' || enabled == 'A'
		}
		return enabled == 'O' || enabled == 'A'
	}
	for _, t := range d.Triggers {
		if fires(t.Enabled) {
			c.warn(d.Name.String(), fmt.Sprintf("ALTER TABLE %s DISABLE TRIGGER %s, unless it is wanted", d.Name.SQL(), millrace.QuoteIdent(t.Name)),
				"trigger %s of the target fires for replicated changes, which then go row by row", t.Name)
		}
	}
	for _, r := range d.Rules {
		if fires(r.Enabled) {
			c.warn(d.Name.String(), fmt.Sprintf("ALTER TABLE %s DISABLE RULE %s", d.Name.SQL(), millrace.QuoteIdent(r.Name)),
				"rule %s of the target rewrites replicated changes", r.Name)
		}
	}
}

const targetRights = `
SELECT n.nspname::text, c.relname::text, has_schema_privilege(n.oid, 'USAGE'), row_security_active(c.oid),
       array_to_string(ARRAY(SELECT p FROM unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE}'::text[]) p
                              WHERE NOT has_table_privilege(c.oid, p)), ', ')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY($1::oid[])`

// checkTargetRights finds what the role may not do, and gives the tables that it
// may read.
func (c *checker) checkTargetRights(ctx context.Context, present []*catalog.Table) (readable []*catalog.Table, err error) {
	oids := make([]uint32, len(present))
	for i, d := range present {
		oids[i] = d.OID
	}
	rows, err := c.target.Query(ctx, targetRights, oids)
	if err != nil {
		return nil, session.Wrap("read privileges", millrace.PeerDestination, err)
	}
	denied := map[millrace.TableName]bool{}
	role := millrace.QuoteIdent(c.targetServer.Role)
	var name millrace.TableName
	var mayUse, hidden bool
	var missing string
	_, err = pgx.ForEachRow(rows, []any{&name.Schema, &name.Name, &mayUse, &hidden, &missing}, func() error {
		denied[name] = !mayUse || hidden || strings.Contains(missing, "SELECT")
		if !mayUse {
			c.problem("schema "+name.Schema, "GRANT USAGE ON SCHEMA "+millrace.QuoteIdent(name.Schema)+" TO "+role, "role %s may not use it on the target", c.targetServer.Role)
		}
		if missing != "" {
			c.problem(name.String(), "GRANT "+missing+" ON "+name.SQL()+" TO "+role, "role %s lacks %s on the target", c.targetServer.Role, missing)
		}
		if hidden {
			c.problem(name.String(), "ALTER TABLE "+name.SQL()+" DISABLE ROW LEVEL SECURITY, or ALTER ROLE "+role+" BYPASSRLS",
				"row level security of the target applies to role %s", c.targetServer.Role)
		}
		return nil
	})
	readable = slices.DeleteFunc(slices.Clone(present), func(d *catalog.Table) bool { return denied[d.Name] })
	return readable, session.Wrap("read privileges", millrace.PeerDestination, err)
}

// checkEmpty names tables whose rows the first load would be added to.
func (c *checker) checkEmpty(ctx context.Context, present []*catalog.Table) error {
	copied := map[millrace.TableName]bool{}
	if c.job != nil {
		for _, t := range c.job.Tables {
			copied[t.Name] = t.Copied
		}
	}
	var ask []*catalog.Table
	for _, d := range present {
		if d.Kind == 'r' && !copied[d.Name] {
			ask = append(ask, d)
		}
	}
	filled, err := snapshot.Filled(ctx, c.target, ask)
	if err != nil {
		return err
	}
	for _, d := range filled {
		c.problem(d.Name.String(), "TRUNCATE "+d.Name.SQL()+" there, or take the target as it is with snapshot.mode: none", "holds rows on the target")
	}
	return nil
}

const referencesFromOutside = `
SELECT c.conrelid::regclass::text, c.confrelid::regclass::text FROM pg_constraint c
 WHERE c.contype = 'f' AND c.confrelid = ANY($1::oid[]) AND c.conrelid <> ALL($1::oid[])
   AND NOT EXISTS (SELECT FROM pg_partition_tree(c.conrelid) t WHERE t.relid = ANY($1::oid[]))
 ORDER BY 1, 2`

// checkReferences names tables of the target that refer to the job's: a TRUNCATE
// of the source can't be applied without touching them.
func (c *checker) checkReferences(ctx context.Context, present []*catalog.Table) error {
	oids := make([]uint32, len(present))
	for i, d := range present {
		oids[i] = d.OID
	}
	rows, err := c.target.Query(ctx, referencesFromOutside, oids)
	if err != nil {
		return session.Wrap("read foreign keys", millrace.PeerDestination, err)
	}
	var from, to string
	_, err = pgx.ForEachRow(rows, []any{&from, &to}, func() error {
		c.warn(to, "drop the foreign key, or use apply.truncate: delete",
			"table %s of the target, which the job does not replicate, refers to it: a TRUNCATE of the source stops the job", from)
		return nil
	})
	return session.Wrap("read foreign keys", millrace.PeerDestination, err)
}
