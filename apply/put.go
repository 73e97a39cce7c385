package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
)

// Put and Remove come from a log of which something is gone: all that is known is the
// last change of each key. So they say what is to be true of a key behind them, and
// not what has happened to a row: nothing is counted, and repeating them does no harm.
// They need a unique index of the destination over the key that the log has. Amend is for what did
// not come with all values, of a row that may not be there.

// putOrRemove tells whether a change is one of these.
func putOrRemove(op millrace.Op) bool {
	return op == millrace.Put || op == millrace.Remove || op == millrace.Amend
}

// acceptsPut tells whether they can be applied at all.
func (r *route) acceptsPut() error {
	switch {
	case r.puts:
		return nil
	case r.index != nil:
		for _, k := range r.key {
			if c := r.column[k]; coarser(&r.rel.Columns[k], c) {
				e := dataError(r.to.Name, fmt.Errorf("rows are put here by their key, and as %s at the destination two keys of the source can be one, so that a row would take another's place", c.Declared),
					"give the column the type that it has at the source, with a deterministic collation"+goesOn)
				e.Column = c.Name
				return e
			}
		}
		r.puts = true
		return nil
	}
	return dataError(r.to.Name, errors.New("rows are put here by their key, and no unique index of the destination tells them apart by "+r.keyNames()),
		fmt.Sprintf("CREATE UNIQUE INDEX ON %s (%s), of columns that are NOT NULL", r.to.sql, r.names(r.key))+goesOn)
}

// coarser tells whether values that differ at the source can be equal in the destination's
// column. What a unique constraint would have refused as an insert, a put takes for the same row.
// Types of users are taken for what they are called.
func coarser(sent *millrace.Column, c *catalog.Column) bool {
	to, mod := c.Type.Resolved().OID, c.Mod
	if c.Type.Base != nil {
		mod = c.Type.BaseMod
	}
	switch {
	case c.Collate == 'n':
		return true
	case mod < 0 && (to == pgtype.TextOID || to == pgtype.VarcharOID), sent.Type >= firstUserOID:
		return false
	case to != sent.Type:
		return !slices.Contains(wider[sent.Type], to) || mod >= 0
	case mod < 0 || mod == sent.Mod:
		return false
	case sent.Mod < 0 || mod < sent.Mod:
		return true
	}
	switch to {
	case pgtype.NumericOID: // precision above, scale below
		return (mod-4)&0xffff != (sent.Mod-4)&0xffff
	case pgtype.VarcharOID, pgtype.TimestampOID, pgtype.TimestamptzOID, pgtype.TimeOID, pgtype.TimetzOID:
		return false
	}
	return true
}

// wider are the types that tell apart what a type does.
var wider = map[uint32][]uint32{
	pgtype.Int2OID:   {pgtype.Int4OID, pgtype.Int8OID, pgtype.NumericOID},
	pgtype.Int4OID:   {pgtype.Int8OID, pgtype.NumericOID},
	pgtype.Int8OID:   {pgtype.NumericOID},
	pgtype.Float4OID: {pgtype.Float8OID},
}

// put folds: the row with row's key is row from here on.
func (f *fold) put(r *route, row millrace.Row) bool {
	h := hashKey(row, r.key)
	e := f.find(r, row, h)
	if e == nil {
		f.add(entry{hash: h, state: put, key: row, row: row})
		return true
	}
	if e.state != put && e.state != removed && e.state != updated {
		return false
	}
	e.state, e.row, e.unsent = put, row, false
	return true
}

// remove folds: there is no row with old's key from here on.
func (f *fold) remove(r *route, old millrace.Row) bool {
	h := hashKey(old, r.key)
	e := f.find(r, old, h)
	if e == nil {
		f.add(entry{hash: h, state: removed, key: old})
		return true
	}
	if e.state != put && e.state != removed && e.state != updated {
		return false
	}
	e.state, e.row, e.unsent = removed, nil, false
	return true
}

// puts sends the rows that are put. Behind the removals of the same set, so that of two keys
// which are equal here, and were two in the log, the one that is left stays.
func (s *sender) puts(ctx context.Context, r *route, entries []*entry) error {
	return s.send(ctx, r, &group{stmt: r.putSet(), entries: entries}, millrace.Put, newRow)
}

// written are the columns that a put writes where there is a row: those of the key as
// well, since keys that are equal can differ in their bytes.
func (r *route) written() []int {
	if r.keyFixed {
		return r.set
	}
	return append(slices.Clone(r.key), r.set...)
}

// onConflict is the end of an INSERT that takes the place of the row that is there.
func (r *route) onConflict() string {
	sql := " ON CONFLICT (" + r.names(r.key) + ") DO "
	written := r.written()
	if len(written) == 0 {
		return sql + "NOTHING"
	}
	return sql + "UPDATE SET " + r.list(written, ", ", func(_, i int) string { return r.name(i) + " = excluded." + r.name(i) })
}

// putsInSets tells whether rows can be put in sets: columns that an UPDATE can't write
// have to be deleted and inserted again, and of an INSERT that does nothing no row is counted.
func (r *route) putsInSets() bool { return r.sets && len(r.fixed) == 0 && len(r.written()) > 0 }

func (r *route) putSet() *stmt {
	if r.putSetStmt == nil {
		r.putSetStmt = &stmt{types: r.setTypes(), sql: fmt.Sprintf(
			"INSERT INTO %s AS t (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM %s%s", r.to.sql, r.names(r.insert),
			r.list(r.insert, ", ", func(_, i int) string { return "u." + r.name(i) }), r.rows(), r.onConflict())}
	}
	return r.putSetStmt
}

func (r *route) putRow() *stmt {
	if r.putRowStmt == nil {
		r.putRowStmt = &stmt{types: r.types(r.insert), sql: fmt.Sprintf(
			"INSERT INTO %s AS t (%s) OVERRIDING SYSTEM VALUE VALUES (%s)%s", r.to.sql,
			r.names(r.insert), r.list(r.insert, ", ", func(n, _ int) string { return param(n) }), r.onConflict())}
	}
	return r.putRowStmt
}

// putOne puts one row.
func (s *sender) putOne(r *route, c *millrace.Change) {
	if c.Old != nil && keyMoved(r, c) {
		s.oneOf(r, r.deleteRow(), c, nil, nil, c.Old, r.key, anyCount)
	}
	if len(r.fixed) > 0 {
		s.oneOf(r, r.deleteRow(), c, nil, nil, c.New, r.key, anyCount)
	}
	want := int64(1)
	if len(r.written()) == 0 {
		want = anyCount
	}
	s.oneOf(r, r.putRow(), c, c.New, r.insert, nil, nil, want)
}

// amend writes what was sent of a row, if it is there. To another key the row moves unless
// one is there: that was read later, and has the values that were not sent. Then they are
// the same row, and one of them is too many.
func (s *sender) amend(r *route, c *millrace.Change) {
	if c.Old == nil || !keyMoved(r, c) {
		s.update(r, c, anyCount)
		return
	}
	row := c.New
	for _, k := range r.key {
		if row[k].Kind == millrace.Unchanged {
			row = slices.Clone(row)
			row[k] = c.Old[k]
		}
	}
	written := sentOf(r.insert, row)
	s.oneOf(r, r.moveRow(written), c, row, written, c.Old, r.key, anyCount)
	s.oneOf(r, r.leaveRow(), c, row, r.key, c.Old, r.key, anyCount)
	s.update(r, &millrace.Change{Op: c.Op, Rel: c.Rel, New: row}, anyCount)
}

// moveRow is updateRow with another key, all columns of which are written, unless another row
// has that key. Keys that are equal can differ in their bytes.
func (r *route) moveRow(written []int) *stmt {
	where := fmt.Sprintf("%s AND NOT EXISTS (SELECT FROM %s AS o WHERE %s AND (o.tableoid, o.ctid) <> (t.tableoid, t.ctid))",
		r.matchRow(len(written)), r.to.only, r.matchKey("o.", func(n int) int { return slices.Index(written, r.key[n]) }))
	st := &stmt{types: append(r.types(written), r.types(r.key)...), once: true}
	if len(r.fixed) > 0 || r.keyFixed {
		st.sql = r.replaceSQL(written, where)
	} else {
		st.sql = r.updateSQL(written, where)
	}
	return st
}

// leaveRow deletes the row with an old key, the second of its parameters, unless that is equal to the new one.
func (r *route) leaveRow() *stmt {
	if r.leaveRowStmt == nil {
		r.leaveRowStmt = &stmt{types: append(r.types(r.key), r.types(r.key)...), sql: fmt.Sprintf("DELETE FROM %s AS t WHERE %s AND NOT (%s)",
			r.to.only, r.matchRow(len(r.key)), r.matchKey("t.", func(n int) int { return n }))}
	}
	return r.leaveRowStmt
}

// matchKey compares the key columns of a row with parameters.
func (r *route) matchKey(alias string, at func(n int) int) string {
	return r.list(r.key, " AND ", func(n, i int) string { return alias + r.name(i) + " " + r.equal[n] + " " + param(at(n)) })
}
