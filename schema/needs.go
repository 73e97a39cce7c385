package schema

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
)

// needed walks from the tables over all that they depend on.
const needed = `
WITH RECURSIVE need(class, oid) AS (
	SELECT 'pg_class'::regclass::oid, o FROM unnest($1::oid[]) AS o
	UNION
	SELECT x.class, x.oid FROM need n, LATERAL (
		SELECT d.refclassid, d.refobjid FROM pg_depend d WHERE d.classid = n.class AND d.objid = n.oid
		UNION ALL SELECT 'pg_attrdef'::regclass, a.oid FROM pg_attrdef a
			WHERE n.class = 'pg_class'::regclass AND a.adrelid = n.oid
		UNION ALL SELECT 'pg_constraint'::regclass, c.oid FROM pg_constraint c
			WHERE n.class = 'pg_class'::regclass AND c.conrelid = n.oid AND c.contype <> 'f'
		UNION ALL SELECT 'pg_constraint'::regclass, c.oid FROM pg_constraint c
			WHERE n.class = 'pg_type'::regclass AND c.contypid = n.oid
		UNION ALL SELECT 'pg_class'::regclass, i.indexrelid FROM pg_index i
			WHERE n.class = 'pg_class'::regclass AND i.indrelid = n.oid
		UNION ALL SELECT 'pg_class'::regclass, t.typrelid FROM pg_type t
			WHERE n.class = 'pg_type'::regclass AND t.oid = n.oid AND t.typrelid <> 0
	) AS x(class, oid)
)`

// neededRelations finds the relations among it: parents, sequences of defaults,
// tables whose row type is used.
const neededRelations = needed + `
SELECT n.nspname::text, c.relname::text, needed.oid IS NOT NULL, c.relkind IN ('r', 'p')
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN (SELECT DISTINCT oid FROM need WHERE class = 'pg_class'::regclass) needed ON needed.oid = c.oid
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S', 'c') AND c.relpersistence <> 't'
   AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
 ORDER BY n.nspname, c.relname`

// maxPatterns bounds the arguments; a kernel takes 2 MiB or more of them.
const maxPatterns = 1 << 20

// unneeded gives patterns for the tables that the dump can do without. pg_dump
// locks every table that it dumps, and the role may have no right to.
func unneeded(ctx context.Context, q Querier, tables []uint32) ([]string, error) {
	rows, err := q.Query(ctx, neededRelations, tables)
	if err != nil {
		return nil, err
	}
	type contents struct {
		others []string
		needed bool
	}
	var order []string
	schemas := map[string]*contents{}
	var name millrace.TableName
	var isNeeded, isTable bool
	_, err = pgx.ForEachRow(rows, []any{&name.Schema, &name.Name, &isNeeded, &isTable}, func() error {
		s := schemas[name.Schema]
		if s == nil {
			s = &contents{}
			schemas[name.Schema] = s
			order = append(order, name.Schema)
		}
		s.needed = s.needed || isNeeded
		if isTable && !isNeeded {
			s.others = append(s.others, name.SQL())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var patterns []string
	size := 0
	for _, name := range order {
		s := schemas[name]
		if !s.needed && len(s.others) > 0 {
			s.others = []string{millrace.QuoteIdent(name) + ".*"}
		}
		for _, p := range s.others {
			if size += len(p) + 32; size > maxPatterns {
				return patterns, nil
			}
			patterns = append(patterns, p)
		}
	}
	return patterns, nil
}

const neededSurroundings = needed + `
SELECT 'schema', n.nspname::text, 0::int8 FROM pg_namespace n
 WHERE n.oid IN (SELECT oid FROM need WHERE class = 'pg_namespace'::regclass) AND n.nspname !~ '^pg_'
UNION ALL
SELECT 'extension', e.extname::text, 0 FROM pg_extension e
 WHERE e.oid IN (SELECT oid FROM need WHERE class = 'pg_extension'::regclass)
UNION ALL
SELECT 'table', '', c.oid::int8 FROM pg_class c
 WHERE c.oid IN (SELECT oid FROM need WHERE class = 'pg_class'::regclass) AND c.relkind IN ('r', 'p')
 ORDER BY 1, 2, 3`

// Surroundings are what the definitions of tables are made in and of.
type Surroundings struct {
	Schemas    []string
	Extensions []string
	Tables     []uint32 // all tables whose definitions pg_dump reads, and so locks
}

// Needs finds the surroundings of tables without a dump.
func Needs(ctx context.Context, source Querier, tables []uint32) (Surroundings, error) {
	var s Surroundings
	rows, err := source.Query(ctx, neededSurroundings, tables)
	if err != nil {
		return s, session.Wrap("find what the tables depend on", millrace.PeerSource, err)
	}
	var kind, name string
	var oid uint32
	_, err = pgx.ForEachRow(rows, []any{&kind, &name, &oid}, func() error {
		switch kind {
		case "schema":
			s.Schemas = append(s.Schemas, name)
		case "extension":
			s.Extensions = append(s.Extensions, name)
		default:
			s.Tables = append(s.Tables, oid)
		}
		return nil
	})
	return s, session.Wrap("find what the tables depend on", millrace.PeerSource, err)
}
