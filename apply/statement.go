package apply

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
)

// statements are a route's statements, made when they are needed first.
//
// A set has one parameter: an array of the table's row type, whatever the number
// of columns, and arrays, composites and domains among them. The row type's
// input functions apply the columns' typmods, so that a value that is too long
// raises where an explicit cast would cut it.
type statements struct {
	insertSetStmt, deleteSetStmt, updateSetStmt               *stmt
	insertRowStmt, deleteRowStmt, leaveRowStmt, updateRowStmt *stmt
	putSetStmt, putRowStmt                                    *stmt
	flaggedStmt                                               *stmt
	// partialSet holds the updates of some columns, by which.
	partialSet map[string]*stmt
	partialRow map[string]*stmt
}

// maxPartial bounds the statements for updates that leave different columns
// out: n columns with large values would make up to 2ⁿ.
const maxPartial = 8

// counted is the same statement for a set that is counted at the server: it
// raises 22012 (division by zero) unless it affects as many rows as its last
// parameter says.
func (s *stmt) counted() *stmt {
	if s.count == nil {
		const int8 = 20
		s.count = &stmt{types: append(slices.Clone(s.types), int8), sql: fmt.Sprintf(
			"WITH x AS (%s RETURNING 1) SELECT 1 OPERATOR(pg_catalog./) (pg_catalog.count(*) OPERATOR(pg_catalog.=) $%d)::int4 FROM x",
			s.sql, len(s.types)+1)}
	}
	return s.count
}

func (r *route) name(i int) string { return millrace.QuoteIdent(r.rel.Columns[i].Name) }

// list joins f of each column.
func (r *route) list(columns []int, sep string, f func(n, i int) string) string {
	parts := make([]string, len(columns))
	for n, i := range columns {
		parts[n] = f(n, i)
	}
	return strings.Join(parts, sep)
}

func (r *route) names(columns []int) string {
	return r.list(columns, ", ", func(_, i int) string { return r.name(i) })
}

// rows is the FROM item of a set.
func (r *route) rows() string {
	return "pg_catalog.unnest($1::" + r.to.sql + "[]) AS u"
}

// matchSet finds the rows of a set in the table's index.
func (r *route) matchSet() string {
	return r.list(r.key, " AND ", func(n, i int) string {
		return "t." + r.name(i) + " " + r.equal[n] + " u." + r.name(i)
	})
}

func (r *route) setTypes() []uint32 { return []uint32{r.to.ArrayType} }

func (r *route) insertSet() *stmt {
	if r.insertSetStmt == nil {
		r.insertSetStmt = &stmt{types: r.setTypes(), sql: fmt.Sprintf(
			"INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM %s", r.to.sql, r.names(r.insert),
			r.list(r.insert, ", ", func(_, i int) string { return "u." + r.name(i) }), r.rows())}
	}
	return r.insertSetStmt
}

func (r *route) deleteSet() *stmt {
	if r.deleteSetStmt == nil {
		r.deleteSetStmt = &stmt{types: r.setTypes(), sql: fmt.Sprintf(
			"DELETE FROM %s AS t USING %s WHERE %s", r.to.only, r.rows(), r.matchSet())}
	}
	return r.deleteSetStmt
}

// updateSet writes the columns of r.set that are in sent; nil means all.
func (r *route) updateSet(sent columnSet) *stmt {
	if sent == nil {
		if r.updateSetStmt == nil {
			r.updateSetStmt = r.newUpdateSet(r.set)
		}
		return r.updateSetStmt
	}
	if s := r.partialSet[string(sent)]; s != nil {
		return s
	}
	if len(r.partialSet) >= maxPartial {
		return nil // the caller takes updateFlagged
	}
	if r.partialSet == nil {
		r.partialSet = map[string]*stmt{}
	}
	s := r.newUpdateSet(sent.among(r.set))
	r.partialSet[string(sent)] = s
	return s
}

func (r *route) newUpdateSet(columns []int) *stmt {
	return &stmt{types: r.setTypes(), sql: fmt.Sprintf("UPDATE %s AS t SET %s FROM %s WHERE %s%s", r.to.only,
		r.list(columns, ", ", func(_, i int) string { return r.name(i) + " = u." + r.name(i) }),
		r.rows(), r.matchSet(), r.matchFixed())}
}

// matchFixed makes an update that changes a column which it can't write find no
// row, so that the row path replaces the row. Such columns are integers and
// never null, and are sent with every update.
func (r *route) matchFixed() string {
	return r.list(r.fixed, "", func(_, i int) string {
		return " AND t." + r.name(i) + " OPERATOR(pg_catalog.=) u." + r.name(i)
	})
}

// updateFlagged writes the columns that are flagged row by row: bit n of $2 is
// for r.set[n].
func (r *route) updateFlagged() *stmt {
	if r.flaggedStmt == nil {
		const bytea = 1001 // its array
		r.flaggedStmt = &stmt{types: []uint32{r.to.ArrayType, bytea}, sql: fmt.Sprintf(
			"UPDATE %s AS t SET %s FROM ROWS FROM (pg_catalog.unnest($1::%s[]), pg_catalog.unnest($2)) AS u WHERE %s%s",
			r.to.only, r.list(r.set, ", ", func(n, i int) string {
				return fmt.Sprintf("%[1]s = CASE WHEN pg_catalog.get_bit(u.unnest, %[2]d) OPERATOR(pg_catalog.=) 1 THEN u.%[1]s ELSE t.%[1]s END",
					r.name(i), n)
			}), r.to.sql, r.matchSet(), r.matchFixed())}
	}
	return r.flaggedStmt
}

// copySQL is the COPY of many rows.
func (r *route) copySQL(binaryForm bool) string {
	sql := "COPY " + r.to.sql + " (" + r.names(r.insert) + ") FROM STDIN"
	if binaryForm {
		sql += " (FORMAT binary)"
	}
	return sql
}

// types gives the types of columns as parameters: those of the target, without
// typmods, so that the assignment raises for what does not fit.
func (r *route) types(columns []int) []uint32 {
	types := make([]uint32, len(columns))
	for n, i := range columns {
		types[n] = r.column[i].Type.OID
	}
	return types
}

func (r *route) insertRow() *stmt {
	if r.insertRowStmt == nil {
		sql := "INSERT INTO " + r.to.sql + " DEFAULT VALUES"
		if len(r.insert) > 0 {
			sql = fmt.Sprintf("INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE VALUES (%s)", r.to.sql,
				r.names(r.insert), r.list(r.insert, ", ", func(n, _ int) string { return param(n) }))
		}
		r.insertRowStmt = &stmt{sql: sql, types: r.types(r.insert)}
	}
	return r.insertRowStmt
}

func param(n int) string { return fmt.Sprintf("$%d", n+1) }

// matchRow finds one row; its parameters are the key columns from $from+1 on.
func (r *route) matchRow(from int) string {
	if !r.image {
		return r.list(r.key, " AND ", func(n, i int) string {
			return "t." + r.name(i) + " " + r.equal[n] + " " + param(from+n)
		})
	}
	if !r.one {
		return r.matchImage("t.", from)
	}
	if r.to.Kind == 'p' { // ctid alone names a row in each partition
		return fmt.Sprintf("(t.tableoid, t.ctid) = (SELECT x.tableoid, x.ctid FROM %s AS x WHERE %s LIMIT 1)",
			r.to.only, r.matchImage("x.", from))
	}
	return fmt.Sprintf("t.ctid = (SELECT x.ctid FROM %s AS x WHERE %s LIMIT 1)", r.to.only, r.matchImage("x.", from))
}

// matchImage compares rows byte by byte. = would take different rows for equal,
// and many types have none.
func (r *route) matchImage(alias string, from int) string {
	if len(r.key) == 0 {
		return "true" // a table without columns
	}
	// Without the cast to record the parser would take *= for an operator of
	// the columns.
	same := fmt.Sprintf("ROW(%s)::record OPERATOR(pg_catalog.*=) ROW(%s)::record",
		r.list(r.key, ", ", func(_, i int) string { return alias + r.name(i) }),
		r.list(r.key, ", ", func(n, _ int) string { return param(from + n) }))
	for n, i := range r.prefer {
		same += " AND " + alias + r.name(i) + " " + r.preferEq[n] + " " + param(from+slices.Index(r.key, i))
	}
	return same
}

func (r *route) deleteRow() *stmt {
	if r.deleteRowStmt == nil {
		r.deleteRowStmt = &stmt{types: r.types(r.key),
			sql: fmt.Sprintf("DELETE FROM %s AS t WHERE %s", r.to.only, r.matchRow(0))}
	}
	return r.deleteRowStmt
}

// updateRow writes given columns of one row: those of written come first among
// the parameters, then the key. An update that writes what an UPDATE can't, a
// GENERATED ALWAYS identity, replaces the row by itself with other values.
func (r *route) updateRow(written []int, replace bool) *stmt {
	all := len(written) == len(r.insert)
	if all && r.updateRowStmt != nil {
		return r.updateRowStmt
	}
	id := ""
	if !all {
		set := make(columnSet, setBytes(len(r.rel.Columns)))
		for _, i := range written {
			set.add(i)
		}
		id = string(set)
		if s := r.partialRow[id]; s != nil {
			return s
		}
	}
	s := &stmt{types: append(r.types(written), r.types(r.key)...)}
	if where := r.matchRow(len(written)); replace {
		s.sql = r.replaceSQL(written, where)
	} else {
		s.sql = r.updateSQL(written, where)
	}
	switch {
	case all:
		r.updateRowStmt = s
	case len(r.partialRow) < maxPartial:
		if r.partialRow == nil {
			r.partialRow = map[string]*stmt{}
		}
		r.partialRow[id] = s
	default:
		s.once = true
	}
	return s
}

func (r *route) updateSQL(written []int, where string) string {
	return fmt.Sprintf("UPDATE %s AS t SET %s WHERE %s", r.to.only,
		r.list(written, ", ", func(n, i int) string { return r.name(i) + " = " + param(n) }), where)
}

func (r *route) replaceSQL(written []int, where string) string {
	var names, values []string
	for at := range r.to.Columns {
		c := &r.to.Columns[at]
		if c.Generated != 0 {
			continue
		}
		name := millrace.QuoteIdent(c.Name)
		names = append(names, name)
		if n := slices.Index(written, r.source[at]); r.source[at] >= 0 && n >= 0 {
			values = append(values, param(n))
		} else {
			values = append(values, "d."+name)
		}
	}
	return fmt.Sprintf("WITH d AS (DELETE FROM %s AS t WHERE %s RETURNING t.*) "+
		"INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM d",
		r.to.only, where, r.to.sql, strings.Join(names, ", "), strings.Join(values, ", "))
}

// truncateSQL empties exactly the given tables, in one statement.
func truncateSQL(tables []*target, restart bool) string {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = t.only
	}
	sql := "TRUNCATE TABLE " + strings.Join(names, ", ")
	if restart {
		sql += " RESTART IDENTITY"
	}
	return sql + " RESTRICT"
}

// columnSet is a set of columns of a relation.
type columnSet []byte

func setBytes(columns int) int { return (columns + 7) / 8 }

func (s columnSet) add(i int)      { s[i/8] |= 1 << (i % 8) }
func (s columnSet) has(i int) bool { return s[i/8]&(1<<(i%8)) != 0 }

func (s columnSet) among(columns []int) []int {
	var in []int
	for _, i := range columns {
		if s.has(i) {
			in = append(in, i)
		}
	}
	return in
}
