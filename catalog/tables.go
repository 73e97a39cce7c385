package catalog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
)

// tableSQL reads one row per relation, with sizeSQL or another expression as its
// size.
func tableSQL(size string) string {
	return `
WITH locked AS MATERIALIZED (
    SELECT DISTINCT relation FROM pg_catalog.pg_locks
     WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock')
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text, c.relreplident::text,
       COALESCE((SELECT i.indexrelid FROM pg_catalog.pg_index i
                  WHERE i.indrelid = c.oid AND i.indisreplident AND c.relreplident = 'i'), 0)::int8,
       COALESCE(pg_catalog.pg_relation_filenode(c.oid), 0)::int8,
       c.relpages::int8, ` + size + `, c.reltuples::int8,
       c.relrowsecurity, c.relforcerowsecurity, c.relispartition,
       ARRAY(SELECT h.inhparent::int8 FROM pg_catalog.pg_inherits h WHERE h.inhrelid = c.oid ORDER BY h.inhseqno),
       EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhparent = c.oid),
       pg_catalog.pg_get_userbyid(c.relowner)::text,
       COALESCE((SELECT t.typarray FROM pg_catalog.pg_type t WHERE t.oid = c.reltype), 0)::int8
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')`
}

// sizeSQL: pg_table_size waits behind ACCESS EXCLUSIVE locks; of a table that
// has or awaits one, an estimate is read instead, so that a long ALTER TABLE does
// not hold up who only looks.
const sizeSQL = `
       CASE WHEN c.oid IN (SELECT relation FROM locked)
            THEN c.relpages * pg_catalog.current_setting('block_size')::int8
            ELSE COALESCE(pg_catalog.pg_table_size(c.oid), 0) END`

var (
	allTablesSQL = tableSQL(sizeSQL) + `
   AND n.nspname NOT LIKE 'pg\_%' AND n.nspname NOT IN ('information_schema', 'millrace')
 ORDER BY n.nspname, c.relname`
	someTablesSQL = tableSQL(sizeSQL) + someTables
	// Looking at the files of a table and of its TOAST table takes longer than
	// everything else that is read of it.
	unsizedTablesSQL = tableSQL("0::int8") + someTables
)

const someTables = `
   AND c.oid = ANY ($1::pg_catalog.oid[])`

// Tables lists every table, partitioned table, view, materialized view and
// foreign table outside the system's schemas and ours, by name. Columns,
// indexes and all that Describe adds are left out.
func Tables(ctx context.Context, q Querier) ([]*Table, error) {
	return readTables(ctx, q, allTablesSQL)
}

func readTables(ctx context.Context, q Querier, sql string, args ...any) ([]*Table, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read tables: %w", err)
	}
	tables, err := pgx.CollectRows(rows, scanTable)
	if err != nil {
		return nil, fmt.Errorf("read tables: %w", err)
	}
	return tables, nil
}

func scanTable(row pgx.CollectableRow) (*Table, error) {
	var t Table
	var kind, persistence, identity string
	err := row.Scan(&t.OID, &t.Name.Schema, &t.Name.Name, &kind, &persistence, &identity, &t.IdentityIndex,
		&t.Filenode, &t.Pages, &t.Bytes, &t.Rows, &t.RowSecurity, &t.ForceRLS, &t.Partition,
		&t.Parents, &t.HasChildren, &t.Owner, &t.ArrayType)
	if err != nil {
		return nil, err
	}
	t.Kind, t.Persistence, t.Identity = letter(kind), letter(persistence), millrace.Identity(letter(identity))
	return &t, nil
}

// letter takes a value of type "char" as text: empty stands for zero.
func letter(s string) byte {
	if s == "" {
		return 0
	}
	return s[0]
}

const namedTablesSQL = `
SELECT c.oid::int8
  FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[])) AS u (schema, name)
  JOIN pg_catalog.pg_namespace n ON n.nspname = u.schema
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = u.name
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')`

// DescribeByName is Describe by name, without the tables' sizes. Names that do not
// exist are left out.
func DescribeByName(ctx context.Context, q Querier, names []millrace.TableName) (map[millrace.TableName]*Table, error) {
	schemas, tables := make([]string, len(names)), make([]string, len(names))
	for i, n := range names {
		schemas[i], tables[i] = n.Schema, n.Name
	}
	rows, err := q.Query(ctx, namedTablesSQL, schemas, tables)
	if err != nil {
		return nil, fmt.Errorf("look up tables: %w", err)
	}
	oids, err := pgx.CollectRows(rows, pgx.RowTo[uint32])
	if err != nil {
		return nil, fmt.Errorf("look up tables: %w", err)
	}
	described, err := describeTables(ctx, q, unsizedTablesSQL, oids)
	if err != nil {
		return nil, err
	}
	byName := make(map[millrace.TableName]*Table, len(described))
	for _, t := range described {
		byName[t.Name] = t
	}
	return byName, nil
}
