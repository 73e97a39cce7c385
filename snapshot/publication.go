package snapshot

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
)

// CheckPublication finds what of an existing publication this version can't
// follow, and which of the tables it lacks.
func CheckPublication(pub *catalog.Publication, tables []*catalog.Table) []Finding {
	var found []Finding
	name := millrace.QuoteIdent(pub.Name)
	add := func(cure, format string, args ...any) {
		found = append(found, Finding{"publication " + pub.Name, fmt.Sprintf(format, args...), cure})
	}
	if !pub.Insert || !pub.Update || !pub.Delete || !pub.Truncate {
		add("ALTER PUBLICATION "+name+" SET (publish = 'insert, update, delete, truncate')", "publishes only some kinds of changes")
	}
	if pub.ViaRoot {
		add("ALTER PUBLICATION "+name+" SET (publish_via_partition_root = false)", "publishes partitions under the name of their root")
	}
	if pub.GenCols == 's' {
		add("ALTER PUBLICATION "+name+" SET (publish_generated_columns = none)", "publishes generated columns, which the target computes itself")
	}
	var missing []string
	for _, t := range tables {
		p := pub.Table(t.OID)
		switch {
		case p == nil && !pub.ViaRoot:
			missing = append(missing, t.Name.SQL())
		case p == nil:
		case p.Filter != "":
			add("ALTER PUBLICATION "+name+" DROP TABLE "+t.Name.SQL()+", then ADD it without WHERE", "has a row filter for table %s", t.Name)
		case p.Columns != nil:
			add("ALTER PUBLICATION "+name+" DROP TABLE "+t.Name.SQL()+", then ADD it without columns", "has a column list for table %s", t.Name)
		}
	}
	if len(missing) > 0 {
		add("ALTER PUBLICATION "+name+" ADD TABLE "+strings.Join(missing, ", "), "lacks %s", strings.Join(missing, ", "))
	}
	return found
}

// PublicationSQL creates the publication of the selected tables. A partitioned
// table that the patterns match stands for its partitions, so that a partition
// that is added later is noticed.
func (s *Selection) PublicationSQL(name string) string {
	covered := map[uint32]bool{}
	var names []string
	for _, root := range s.Partitioned {
		if !slices.ContainsFunc(root.Parents, func(p uint32) bool { return covered[p] }) {
			names = append(names, root.Name.SQL())
		}
		covered[root.OID] = true
	}
	for _, t := range s.Tables {
		if !t.Partition || !slices.ContainsFunc(t.Parents, func(p uint32) bool { return covered[p] }) {
			names = append(names, "ONLY "+t.Name.SQL())
		}
	}
	return "CREATE PUBLICATION " + millrace.QuoteIdent(name) + " FOR TABLE " + strings.Join(names, ", ")
}
