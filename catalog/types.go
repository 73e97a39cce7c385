package catalog

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
)

// typesSQL reads the given types and all that they are made of: elements, base
// types, subtypes, fields.
const typesSQL = `
WITH RECURSIVE wanted (oid) AS (
    SELECT pg_catalog.unnest($1::pg_catalog.oid[])
     UNION
    SELECT part.oid
      FROM wanted
      JOIN pg_catalog.pg_type t ON t.oid = wanted.oid
     CROSS JOIN LATERAL (
           SELECT t.typbasetype WHERE t.typtype = 'd'
            UNION ALL
           SELECT t.typelem WHERE t.typcategory = 'A' AND t.typelem <> 0
            UNION ALL
           SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
            UNION ALL
           SELECT a.atttypid FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = t.typrelid AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped
     ) part (oid))
SELECT t.oid::int8, n.nspname::text, t.typname::text, t.typtype::text, t.typcategory::text, t.typdelim::text,
       t.typsend <> 0 AND t.typreceive <> 0,
       COALESCE((SELECT e.extname::text
                   FROM pg_catalog.pg_depend d
                   JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
                  WHERE d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.objid = t.oid
                    AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.deptype = 'e'), ''),
       t.typbasetype::int8, t.typtypmod,
       CASE WHEN t.typcategory = 'A' THEN t.typelem ELSE 0 END::int8,
       COALESCE((SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)), 0)::int8,
       ARRAY(SELECT e.enumlabel::text FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder)
  FROM wanted
  JOIN pg_catalog.pg_type t ON t.oid = wanted.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace`

const fieldsSQL = `
SELECT t.oid::int8, a.attnum, a.attname::text, a.atttypid::int8, a.atttypmod,
       pg_catalog.format_type(a.atttypid, a.atttypmod), a.attcollation::int8
  FROM pg_catalog.pg_type t
  JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid
 WHERE t.oid = ANY ($1::pg_catalog.oid[]) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY t.oid, a.attnum`

// ReadTypes describes types by OID. OIDs that do not exist are left out.
func ReadTypes(ctx context.Context, q Querier, oids []uint32) (map[uint32]*Type, error) {
	used := make(map[uint32]bool, len(oids))
	for _, oid := range oids {
		used[oid] = true
	}
	read, err := readTypes(ctx, q, used)
	if err != nil {
		return nil, err
	}
	types := make(map[uint32]*Type, len(oids))
	for oid := range used {
		if read.rows[oid] == nil {
			continue
		}
		if types[oid], err = read.get(oid); err != nil {
			return nil, err
		}
	}
	return types, nil
}

// typeRow is a type as the catalog holds it, with OIDs for what it is made of.
type typeRow struct {
	Type
	base, elem, subtype uint32
	mod                 int32
	fields              []Column
}

// typeSet ties rows together on demand; every type is made once.
type typeSet struct {
	rows map[uint32]*typeRow
	made map[uint32]*Type
}

func readTypes(ctx context.Context, q Querier, used map[uint32]bool) (*typeSet, error) {
	set := &typeSet{rows: map[uint32]*typeRow{}, made: map[uint32]*Type{}}
	rows, err := q.Query(ctx, typesSQL, slices.Sorted(maps.Keys(used)))
	if err != nil {
		return nil, fmt.Errorf("read types: %w", err)
	}
	list, err := pgx.CollectRows(rows, scanType)
	if err != nil {
		return nil, fmt.Errorf("read types: %w", err)
	}
	var composites []uint32
	for _, r := range list {
		set.rows[r.OID] = r
		if r.Kind == 'c' {
			composites = append(composites, r.OID)
		}
	}
	if len(composites) == 0 {
		return set, nil
	}
	return set, set.readFields(ctx, q, composites)
}

func scanType(row pgx.CollectableRow) (*typeRow, error) {
	var r typeRow
	var kind, category, delim string
	err := row.Scan(&r.OID, &r.Schema, &r.Name, &kind, &category, &delim, &r.HasBinary, &r.Extension,
		&r.base, &r.mod, &r.elem, &r.subtype, &r.EnumLabels)
	r.Kind, r.Category, r.Delim = letter(kind), letter(category), letter(delim)
	return &r, err
}

func (s *typeSet) readFields(ctx context.Context, q Querier, composites []uint32) error {
	rows, err := q.Query(ctx, fieldsSQL, composites)
	if err != nil {
		return fmt.Errorf("read fields of types: %w", err)
	}
	var oid uint32
	var c Column
	dest := []any{&oid, &c.AttNum, &c.Name, &c.Type.OID, &c.Mod, &c.Declared, &c.Collation}
	_, err = pgx.ForEachRow(rows, dest, func() error {
		if r := s.rows[oid]; r != nil {
			r.fields = append(r.fields, c)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read fields of types: %w", err)
	}
	return nil
}

// get gives a type with all it is made of. PostgreSQL lets no type contain
// itself.
func (s *typeSet) get(oid uint32) (*Type, error) {
	if t := s.made[oid]; t != nil {
		return t, nil
	}
	r := s.rows[oid]
	if r == nil {
		return nil, &millrace.Error{
			Kind: millrace.KindRetry,
			Op:   "read types",
			Err:  fmt.Errorf("type %d is gone: the catalog changed meanwhile", oid),
		}
	}
	t := r.Type
	var err error
	if r.Kind == 'd' {
		t.Base, t.BaseMod, err = s.baseOf(r)
	}
	if r.elem != 0 && err == nil {
		t.Elem, err = s.get(r.elem)
	}
	if r.subtype != 0 && err == nil {
		t.RangeOver, err = s.get(r.subtype)
	}
	for _, f := range r.fields {
		if err != nil {
			break
		}
		var ft *Type
		if ft, err = s.get(f.Type.OID); err == nil {
			f.Type = *ft
			t.Fields = append(t.Fields, f)
		}
	}
	if err != nil {
		return nil, err
	}
	s.made[oid] = &t
	return &t, nil
}

// baseOf follows domains over domains down to the type that is none. The last
// domain is the one whose typmod belongs to that type.
func (s *typeSet) baseOf(r *typeRow) (*Type, int32, error) {
	for {
		next := s.rows[r.base]
		if next == nil || next.Kind != 'd' {
			base, err := s.get(r.base)
			return base, r.mod, err
		}
		r = next
	}
}
