package catalog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
)

// Describe reads everything about the given tables, in a fixed number of
// queries however many they are. OIDs that do not exist are left out.
//
// The queries see one state of the catalog only in a REPEATABLE READ
// transaction. Elsewhere a table that is altered meanwhile can be described
// half before and half after.
func Describe(ctx context.Context, q Querier, oids []uint32) (map[uint32]*Table, error) {
	return describeTables(ctx, q, someTablesSQL, oids)
}

func describeTables(ctx context.Context, q Querier, tables string, oids []uint32) (map[uint32]*Table, error) {
	found, err := readTables(ctx, q, tables, oids)
	if err != nil {
		return nil, err
	}
	d := describer{q: q, oids: oids, tables: make(map[uint32]*Table, len(found))}
	for _, t := range found {
		d.tables[t.OID] = t
	}
	for _, read := range []func(context.Context) error{
		d.columns, d.indexes, d.foreignKeys, d.triggers, d.rules,
	} {
		if err := read(ctx); err != nil {
			return nil, err
		}
	}
	return d.tables, nil
}

// describer adds to tables what each of its methods reads.
type describer struct {
	q      Querier
	oids   []uint32
	tables map[uint32]*Table
}

// each runs a query whose first column is a table's OID, scans the others into
// dest and calls add with the table.
func (d *describer) each(ctx context.Context, what, sql string, dest []any, add func(*Table)) error {
	rows, err := d.q.Query(ctx, sql, d.oids)
	if err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	var oid uint32
	_, err = pgx.ForEachRow(rows, append([]any{&oid}, dest...), func() error {
		if t := d.tables[oid]; t != nil {
			add(t)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	return nil
}

// columnsSQL: the providers b (builtin) and c (libc) with locale C order by
// bytes, which in UTF-8 is the order of code points.
const columnsSQL = `
SELECT a.attrelid::int8, a.attnum, a.attname::text, a.atttypid::int8, a.atttypmod,
       pg_catalog.format_type(a.atttypid, a.atttypmod), a.attcollation::int8,
       COALESCE((SELECT CASE WHEN NOT co.collisdeterministic THEN 'n'
                             WHEN co.collprovider::text = 'b' OR co.collprovider::text = 'c' AND co.collcollate IN ('C', 'POSIX')
                               OR co.collprovider::text = 'd' AND EXISTS (SELECT FROM pg_catalog.pg_database d
                                     WHERE d.datname = pg_catalog.current_database() AND (d.datlocprovider::text = 'b'
                                        OR d.datlocprovider::text = 'c' AND d.datcollate IN ('C', 'POSIX')))
                             THEN 'c' ELSE 'd' END
                   FROM pg_catalog.pg_collation co WHERE co.oid = a.attcollation), ''),
       a.attnotnull,
       a.atthasdef AND a.attgenerated = '', a.attgenerated::text, a.attidentity::text
  FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = ANY ($1::pg_catalog.oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attrelid, a.attnum`

func (d *describer) columns(ctx context.Context) error {
	var c Column
	var collate, generated, identity string
	dest := []any{
		&c.AttNum, &c.Name, &c.Type.OID, &c.Mod, &c.Declared, &c.Collation, &collate, &c.NotNull,
		&c.Default, &generated, &identity,
	}
	used := map[uint32]bool{}
	err := d.each(ctx, "columns", columnsSQL, dest, func(t *Table) {
		c.Collate, c.Generated, c.Identity = letter(collate), letter(generated), letter(identity)
		t.Columns = append(t.Columns, c)
		used[c.Type.OID] = true
	})
	if err != nil {
		return err
	}
	types, err := readTypes(ctx, d.q, used)
	if err != nil {
		return err
	}
	for _, t := range d.tables {
		for i := range t.Columns {
			ty, err := types.get(t.Columns[i].Type.OID)
			if err != nil {
				return fmt.Errorf("table %s column %s: %w", t.Name, t.Columns[i].Name, err)
			}
			t.Columns[i].Type = *ty
		}
	}
	return nil
}

// indexesSQL: the equality operator is the one of the operator family for the
// type that the operator class takes, under the method's number of equality.
const indexesSQL = `
SELECT i.indrelid::int8, i.indexrelid::int8, c.relname::text,
       ARRAY(SELECT k.attnum FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, n)
              WHERE k.n <= i.indnkeyatts ORDER BY k.n),
       i.indisunique, i.indisprimary, i.indisexclusion, i.indisvalid AND i.indisready AND i.indislive,
       i.indimmediate, i.indpred IS NOT NULL, i.indnullsnotdistinct, am.amname::text,
       ARRAY(SELECT k.c::int8 FROM pg_catalog.unnest(i.indcollation::oid[]) WITH ORDINALITY k (c, n)
              WHERE k.n <= i.indnkeyatts ORDER BY k.n),
       ops.schemas, ops.names
  FROM pg_catalog.pg_index i
  JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
  JOIN pg_catalog.pg_am am ON am.oid = c.relam
 CROSS JOIN LATERAL (
       SELECT pg_catalog.array_agg(COALESCE(n.nspname::text, '') ORDER BY k.n) AS schemas,
              pg_catalog.array_agg(COALESCE(o.oprname::text, '') ORDER BY k.n) AS names
         FROM pg_catalog.unnest(i.indclass::oid[]) WITH ORDINALITY k (opclass, n)
         JOIN pg_catalog.pg_opclass oc ON oc.oid = k.opclass
         LEFT JOIN pg_catalog.pg_amop p ON p.amopfamily = oc.opcfamily AND p.amoppurpose = 's'
              AND p.amoplefttype = oc.opcintype AND p.amoprighttype = oc.opcintype
              AND p.amopstrategy = CASE am.amname WHEN 'btree' THEN 3 WHEN 'hash' THEN 1 END
         LEFT JOIN pg_catalog.pg_operator o ON o.oid = p.amopopr
         LEFT JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
        WHERE k.n <= i.indnkeyatts) ops
 WHERE i.indrelid = ANY ($1::pg_catalog.oid[])
 ORDER BY i.indrelid, NOT i.indisprimary, c.relname`

func (d *describer) indexes(ctx context.Context) error {
	var x Index
	var schemas, names []string
	dest := []any{
		&x.OID, &x.Name, &x.Columns, &x.Unique, &x.Primary, &x.Exclusion, &x.Valid,
		&x.Immediate, &x.Partial, &x.NullsEqual, &x.Method, &x.Collations, &schemas, &names,
	}
	return d.each(ctx, "indexes", indexesSQL, dest, func(t *Table) {
		x.Operators = make([]Operator, len(names))
		for i := range names {
			x.Operators[i] = Operator{Schema: schemas[i], Name: names[i]}
		}
		t.Indexes = append(t.Indexes, x)
		x.Columns, x.Collations, schemas, names = nil, nil, nil, nil // the next row's are its own
	})
}

// foreignKeysSQL: a key that references a partitioned table has a row more for
// each of its partitions, with the same conrelid; only the first counts.
const foreignKeysSQL = `
SELECT k.conrelid::int8, k.conname::text, k.confrelid::int8, n.nspname::text, c.relname::text,
       k.confdeltype::text, k.confupdtype::text, k.condeferrable, k.convalidated
  FROM pg_catalog.pg_constraint k
  JOIN pg_catalog.pg_class c ON c.oid = k.confrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE k.contype = 'f' AND k.conrelid = ANY ($1::pg_catalog.oid[])
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint p
                    WHERE p.oid = k.conparentid AND p.conrelid = k.conrelid)
 ORDER BY k.conrelid, k.conname`

func (d *describer) foreignKeys(ctx context.Context) error {
	var k ForeignKey
	var onDelete, onUpdate string
	dest := []any{
		&k.Name, &k.References, &k.Target.Schema, &k.Target.Name, &onDelete, &onUpdate,
		&k.Deferrable, &k.Validated,
	}
	return d.each(ctx, "foreign keys", foreignKeysSQL, dest, func(t *Table) {
		k.OnDelete, k.OnUpdate = letter(onDelete), letter(onUpdate)
		t.ForeignKeys = append(t.ForeignKeys, k)
	})
}

const triggersSQL = `
SELECT t.tgrelid::int8, t.tgname::text, t.tgenabled::text, t.tgtype & 1 <> 0
  FROM pg_catalog.pg_trigger t
 WHERE t.tgrelid = ANY ($1::pg_catalog.oid[]) AND NOT t.tgisinternal
 ORDER BY t.tgrelid, t.tgname`

func (d *describer) triggers(ctx context.Context) error {
	var g Trigger
	var enabled string
	return d.each(ctx, "triggers", triggersSQL, []any{&g.Name, &enabled, &g.Row}, func(t *Table) {
		g.Enabled = letter(enabled)
		t.Triggers = append(t.Triggers, g)
	})
}

const rulesSQL = `
SELECT r.ev_class::int8, r.rulename::text, r.ev_enabled::text
  FROM pg_catalog.pg_rewrite r
 WHERE r.ev_class = ANY ($1::pg_catalog.oid[]) AND r.rulename <> '_RETURN'
 ORDER BY r.ev_class, r.rulename`

func (d *describer) rules(ctx context.Context) error {
	var r Rule
	var enabled string
	return d.each(ctx, "rules", rulesSQL, []any{&r.Name, &enabled}, func(t *Table) {
		r.Enabled = letter(enabled)
		t.Rules = append(t.Rules, r)
	})
}

// MatchIndex finds the index that can tell rows apart by exactly the given
// columns, in any order: unique, valid, immediate, without predicate or
// expressions. The primary key is preferred. Whether columns may be null is
// for the caller to judge, with NotNull.
func (t *Table) MatchIndex(columns []string) *Index {
	if len(columns) == 0 {
		return nil
	}
	want := make(map[int16]bool, len(columns))
	for _, name := range columns {
		c := t.Column(name)
		if c == nil {
			return nil
		}
		want[c.AttNum] = true
	}
	for i := range t.Indexes { // the primary key comes first
		x := &t.Indexes[i]
		if x.tellsApart() && x.covers(want) {
			return x
		}
	}
	return nil
}

func (x *Index) tellsApart() bool {
	return x.Unique && x.Valid && x.Immediate && !x.Partial && x.Method == "btree"
}

// covers tells whether the key columns are exactly those wanted.
func (x *Index) covers(want map[int16]bool) bool {
	seen := make(map[int16]bool, len(x.Columns))
	for _, n := range x.Columns {
		if !want[n] {
			return false // also of an expression, whose number is 0
		}
		seen[n] = true
	}
	return len(seen) == len(want)
}

// NotNull tells whether all key columns of an index are declared NOT NULL.
func (t *Table) NotNull(x *Index) bool {
	for _, n := range x.Columns {
		if c := t.ByNum(n); c == nil || !c.NotNull {
			return false
		}
	}
	return true
}

// PrimaryKey finds the primary key's index, or nil.
func (t *Table) PrimaryKey() *Index {
	for i := range t.Indexes {
		if t.Indexes[i].Primary {
			return &t.Indexes[i]
		}
	}
	return nil
}

// IdentityColumns names the columns that the replica identity sends with the
// old row: those of its index, all under FULL, none if there is no identity.
func (t *Table) IdentityColumns() []string {
	var x *Index
	switch t.Identity {
	case millrace.IdentityFull:
		return t.sentColumns()
	case millrace.IdentityDefault:
		x = t.PrimaryKey()
		if x != nil && !x.Immediate {
			return nil // PostgreSQL does not use a deferrable key
		}
	case millrace.IdentityIndex:
		for i := range t.Indexes {
			if t.Indexes[i].OID == t.IdentityIndex {
				x = &t.Indexes[i]
			}
		}
	}
	if x == nil {
		return nil
	}
	names := make([]string, 0, len(x.Columns))
	for _, n := range x.Columns {
		if c := t.ByNum(n); c != nil {
			names = append(names, c.Name)
		}
	}
	return names
}

func (t *Table) sentColumns() []string {
	var names []string
	for i := range t.Columns {
		if t.Columns[i].Generated == 0 {
			names = append(names, t.Columns[i].Name)
		}
	}
	return names
}
