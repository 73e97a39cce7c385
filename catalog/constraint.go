package catalog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Constraint is a primary key, unique or foreign key constraint as SQL.
type Constraint struct {
	Name string
	Kind byte // pg_constraint.contype: p, u, f
	// Definition is what stands behind CONSTRAINT name, names in it qualified.
	Definition string
}

// constraintsSQL leaves out the foreign keys that stand for parts of another
// one, which partitioned tables have.
const constraintsSQL = `
SELECT c.conrelid::int8, c.conname::text, c.contype::text, pg_catalog.pg_get_constraintdef(c.oid)
  FROM pg_catalog.pg_constraint c
 WHERE c.conrelid = ANY ($1::pg_catalog.oid[]) AND c.contype IN ('p', 'u', 'f') AND c.conparentid = 0
 ORDER BY c.conrelid, pg_catalog.strpos('puf', c.contype::text), c.conname`

// Constraints reads the constraints of tables by OID: primary keys first,
// foreign keys last.
func Constraints(ctx context.Context, q Querier, oids []uint32) (map[uint32][]Constraint, error) {
	rows, err := q.Query(ctx, constraintsSQL, oids)
	if err != nil {
		return nil, fmt.Errorf("read constraints: %w", err)
	}
	all := map[uint32][]Constraint{}
	var oid uint32
	var c Constraint
	var kind string
	_, err = pgx.ForEachRow(rows, []any{&oid, &c.Name, &kind, &c.Definition}, func() error {
		c.Kind = letter(kind)
		all[oid] = append(all[oid], c)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read constraints: %w", err)
	}
	return all, nil
}
