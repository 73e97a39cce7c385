package snapshot

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/session"
)

// A key on or to a partitioned table concerns the rows of all its partitions.
const referencesSQL = `
SELECT DISTINCT coalesce(f.relid, c.conrelid)::int8, coalesce(t.relid, c.confrelid)::int8
  FROM pg_constraint c
  LEFT JOIN LATERAL (SELECT p.relid::oid FROM pg_partition_tree(c.conrelid) p WHERE p.isleaf) f ON true
  LEFT JOIN LATERAL (SELECT p.relid::oid FROM pg_partition_tree(c.confrelid) p WHERE p.isleaf) t ON true
 WHERE c.contype = 'f'`

// ForeignKeyLevels sorts the target's tables so that each follows those that its
// foreign keys refer to. Tables whose keys go in a circle are given apart, since
// no order will do for them; a table that refers to itself alone is no circle.
func ForeignKeyLevels(ctx context.Context, target catalog.Querier, oids []uint32) (levels [][]uint32, circle []uint32, err error) {
	rows, err := target.Query(ctx, referencesSQL)
	if err != nil {
		return nil, nil, session.Wrap("read foreign keys", millrace.PeerDestination, err)
	}
	refers := map[uint32][]uint32{}
	var from, to uint32
	_, err = pgx.ForEachRow(rows, []any{&from, &to}, func() error {
		if from != to {
			refers[from] = append(refers[from], to)
		}
		return nil
	})
	if err != nil {
		return nil, nil, session.Wrap("read foreign keys", millrace.PeerDestination, err)
	}
	levels, circle = order(oids, refers)
	return levels, circle, nil
}

// order takes away, level by level, what refers to nothing that is left.
func order(oids []uint32, refers map[uint32][]uint32) (levels [][]uint32, circle []uint32) {
	left := map[uint32]bool{}
	for _, oid := range oids {
		left[oid] = true
	}
	for len(left) > 0 {
		var level []uint32
		for oid := range left {
			if !slices.ContainsFunc(refers[oid], func(to uint32) bool { return left[to] }) {
				level = append(level, oid)
			}
		}
		if len(level) == 0 {
			for oid := range left {
				circle = append(circle, oid)
			}
			slices.Sort(circle)
			return levels, circle
		}
		slices.Sort(level)
		levels = append(levels, level)
		for _, oid := range level {
			delete(left, oid)
		}
	}
	return levels, nil
}

// ReplicaAllowed tells whether the target's role may set
// session_replication_role, so that triggers and foreign keys do not fire.
func ReplicaAllowed(ctx context.Context, target catalog.Querier) (allowed bool, err error) {
	err = target.QueryRow(ctx, `SELECT pg_catalog.has_parameter_privilege('session_replication_role', 'SET')`).Scan(&allowed)
	return allowed, session.Wrap("read privileges", millrace.PeerDestination, err)
}

// Filled gives those of the target's tables that hold rows.
func Filled(ctx context.Context, target catalog.Querier, tables []*catalog.Table) ([]*catalog.Table, error) {
	var filled []*catalog.Table
	for _, t := range tables {
		var rows bool
		err := target.QueryRow(ctx, `SELECT EXISTS (SELECT FROM ONLY `+t.Name.SQL()+`)`).Scan(&rows)
		if err != nil {
			return nil, tableError("look for rows", millrace.PeerDestination, &Part{Table: &Table{Source: t}}, err)
		}
		if rows {
			filled = append(filled, t)
		}
	}
	return filled, nil
}
