package snapshot

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
)

// Finding is something about a table that stands in the way, or that somebody
// should know.
type Finding struct {
	Subject string // a table, mostly
	Text    string
	Cure    string // what to do, or ""
}

// Selection is the set of tables of a job.
type Selection struct {
	Tables []*catalog.Table // in the order of their names
	// Partitioned are the partitioned tables that the patterns match, parents
	// before their children. Their rows are in their partitions.
	Partitioned []*catalog.Table
	Problems    []Finding
	Skipped     []Finding // tables that a pattern matches and that are left out
}

// OIDs gives those of the selected tables.
func (s *Selection) OIDs() []uint32 {
	oids := make([]uint32, len(s.Tables))
	for i, t := range s.Tables {
		oids[i] = t.OID
	}
	return oids
}

// Select chooses the tables that the patterns match among all relations of the
// source. A publication, where there is one, limits an empty list of patterns.
// Tables of extensions, by OID with the extension's name, are made and filled by
// the extension.
func Select(all []*catalog.Table, patterns catalog.Patterns, pub *catalog.Publication, extensions map[uint32]string) Selection {
	var s Selection
	names := make([]millrace.TableName, len(all))
	children := map[uint32][]*catalog.Table{}
	for i, t := range all {
		names[i] = t.Name
		for _, parent := range t.Parents {
			children[parent] = append(children[parent], t)
		}
	}
	for _, pattern := range patterns.Unmatched(names) {
		f := Finding{Subject: "table pattern " + pattern, Text: "matches no table of the source",
			Cure: "correct it; patterns are written as for pg_dump -t, with a schema"}
		if strings.HasPrefix(strings.TrimSpace(pattern), "!") {
			s.Skipped = append(s.Skipped, f)
		} else {
			s.Problems = append(s.Problems, f)
		}
	}
	for _, t := range all {
		if !patterns.Match(t.Name) || patterns.Empty() && pub != nil && pub.Table(t.OID) == nil {
			continue
		}
		switch why := unfit(t, extensions); {
		case why != "" && patterns.Explicit(t.Name):
			s.Problems = append(s.Problems, Finding{t.Name.String(), why + " and can't be replicated", "take it out of the list of tables"})
		case why != "":
			s.Skipped = append(s.Skipped, Finding{t.Name.String(), "left out: it " + why, ""})
		case t.Kind == 'p':
			s.Partitioned = append(s.Partitioned, t)
			if patterns.Explicit(t.Name) {
				s.checkPartitions(t, children, patterns)
			}
		default:
			s.Tables = append(s.Tables, t)
		}
	}
	s.Partitioned = parentsFirst(s.Partitioned)
	if len(s.Tables) == 0 && len(s.Problems) == 0 {
		s.Problems = append(s.Problems, Finding{"tables", "none is selected", "name tables with --table, or source.postgres.tables in the configuration"})
	}
	return s
}

// parentsFirst sorts tables so that each follows its parents among them.
func parentsFirst(tables []*catalog.Table) []*catalog.Table {
	byOID := map[uint32]*catalog.Table{}
	for _, t := range tables {
		byOID[t.OID] = t
	}
	var sorted []*catalog.Table
	done := map[uint32]bool{}
	var visit func(*catalog.Table)
	visit = func(t *catalog.Table) {
		if done[t.OID] {
			return
		}
		done[t.OID] = true
		for _, p := range t.Parents {
			if parent := byOID[p]; parent != nil {
				visit(parent)
			}
		}
		sorted = append(sorted, t)
	}
	for _, t := range tables {
		visit(t)
	}
	return sorted
}

// unfit says why a relation can't be replicated.
func unfit(t *catalog.Table, extensions map[uint32]string) string {
	switch t.Kind {
	case 'v':
		return "is a view"
	case 'm':
		return "is a materialized view"
	case 'f':
		return "is a foreign table"
	}
	switch t.Persistence {
	case 'u':
		return "is unlogged"
	case 't':
		return "is temporary"
	}
	if name := extensions[t.OID]; name != "" {
		return "belongs to the extension " + name
	}
	return ""
}

// checkPartitions looks at a partitioned table that is named: the stream has its
// rows under the partitions' names, so the name alone would replicate nothing.
func (s *Selection) checkPartitions(root *catalog.Table, children map[uint32][]*catalog.Table, patterns catalog.Patterns) {
	var missing []string
	var walk func(*catalog.Table)
	walk = func(t *catalog.Table) {
		for _, c := range children[t.OID] {
			walk(c)
		}
		if t.Kind == 'r' && !patterns.Match(t.Name) {
			missing = append(missing, t.Name.String())
		}
	}
	walk(root)
	if len(missing) == 0 {
		return
	}
	slices.Sort(missing)
	s.Problems = append(s.Problems, Finding{root.Name.String(),
		fmt.Sprintf("is partitioned, and the list of tables lacks its partitions %s", strings.Join(missing, ", ")),
		fmt.Sprintf("add a pattern that matches them, such as %s*", root.Name)})
}

const extensionTables = `
SELECT d.objid, e.extname::text FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
 WHERE d.deptype = 'e' AND d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_extension'::regclass`

// ExtensionTables gives the relations that belong to extensions.
func ExtensionTables(ctx context.Context, q catalog.Querier) (map[uint32]string, error) {
	rows, err := q.Query(ctx, extensionTables)
	if err != nil {
		return nil, fmt.Errorf("read tables of extensions: %w", err)
	}
	all := map[uint32]string{}
	var oid uint32
	var name string
	if _, err := pgx.ForEachRow(rows, []any{&oid, &name}, func() error { all[oid] = name; return nil }); err != nil {
		return nil, fmt.Errorf("read tables of extensions: %w", err)
	}
	return all, nil
}
