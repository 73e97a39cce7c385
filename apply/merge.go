package apply

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
)

// joinSettings are those of planSettings that a merge is better off without: it joins
// two whole tables.
var joinSettings = []string{"enable_hashjoin", "enable_mergejoin", "enable_seqscan", "enable_bitmapscan", "enable_material"}

// merge makes a table's rows those that were staged for it. Rows that are the same on
// both sides, byte by byte, are not touched, so that readers see the old rows or the
// new ones and nothing is written without need. On the row path, where unique values
// may have moved between rows, those that differ are deleted before any is inserted.
// Without a key of the destination all rows are replaced.
func (s *sender) merge(r *route, c *millrace.Change) {
	staged := s.staging(r.rel.OID).SQL()
	s.setJoins(c, "on")
	s.command("ANALYZE "+staged, anyCount, c)
	for _, sql := range r.mergeSQL(staged, s.careful) {
		s.command(sql, anyCount, c)
	}
	s.setJoins(c, "off")
	s.command("DROP TABLE "+staged, anyCount, c)
	s.usesName(r.to)
}

// setJoins changes the settings until the transaction ends, or they are set again.
func (s *sender) setJoins(c *millrace.Change, to string) {
	list := make([]string, len(joinSettings))
	for i, name := range joinSettings {
		list[i] = fmt.Sprintf("pg_catalog.set_config('%s', '%s', true)", name, to)
	}
	s.command("SELECT "+strings.Join(list, ", "), anyCount, c)
}

// mergeSQL are the statements of a merge: t is the table, s what is staged.
func (r *route) mergeSQL(staged string, careful bool) []string {
	from := func(alias string) string {
		return r.list(r.insert, ", ", func(_, i int) string { return alias + r.name(i) })
	}
	insert := fmt.Sprintf("INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM %s AS s", r.to.sql, r.names(r.insert), from("s."), staged)
	if r.index == nil || len(r.insert) == 0 {
		return []string{"DELETE FROM " + r.to.only, insert}
	}
	match := r.list(r.key, " AND ", func(n, i int) string { return "t." + r.name(i) + " " + r.equal[n] + " s." + r.name(i) })
	same := fmt.Sprintf("ROW(%s)::record OPERATOR(pg_catalog.*=) ROW(%s)::record", from("t."), from("s."))
	insert += fmt.Sprintf(" WHERE NOT EXISTS (SELECT FROM %s AS t WHERE %s)", r.to.only, match)
	gone := fmt.Sprintf("DELETE FROM %s AS t WHERE NOT EXISTS (SELECT FROM %s AS s WHERE %s", r.to.only, staged, match)
	write := slices.Clone(r.set)
	if !r.keyFixed {
		write = append(write, r.key...) // equal keys can differ in their bytes
	}
	if careful || len(r.fixed) > 0 || len(write) == 0 {
		return []string{gone + " AND " + same + ")", insert}
	}
	return []string{gone + ")",
		fmt.Sprintf("UPDATE %s AS t SET %s FROM %s AS s WHERE %s AND NOT (%s)", r.to.only,
			r.list(write, ", ", func(_, i int) string { return r.name(i) + " = s." + r.name(i) }), staged, match, same),
		insert}
}
