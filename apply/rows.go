package apply

import (
	"context"
	"slices"

	"github.com/millrace/millrace"
)

// changes sends changes one by one, in their order. Each must affect one row.
func (s *sender) changes(ctx context.Context, changes []*millrace.Change) error {
	for _, c := range changes {
		if err := s.change(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// txn sends a whole transaction or part change by change.
func (s *sender) txn(ctx context.Context, t *millrace.Txn) error {
	for i := range t.Changes {
		if err := s.change(ctx, &t.Changes[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *sender) change(ctx context.Context, c *millrace.Change) error {
	if err := s.room(ctx); err != nil {
		return err
	}
	switch c.Op {
	case millrace.Truncate:
		s.truncate(c)
	case millrace.Insert:
		r := s.batch.route(c.Rel)
		s.one(r, r.insertRow(), c, c.New, r.insert, nil, nil)
	case millrace.Delete:
		r := s.batch.route(c.Rel)
		s.one(r, r.deleteRow(), c, nil, nil, c.Old, r.key)
	case millrace.Update:
		s.update(s.batch.route(c.Rel), c, 1)
	case millrace.Merge:
		s.merge(s.batch.route(c.Rel), c)
	case millrace.Put:
		s.putOne(s.batch.route(c.Rel), c)
	case millrace.Amend:
		s.amend(s.batch.route(c.Rel), c)
	case millrace.Remove:
		r := s.batch.route(c.Rel)
		s.oneOf(r, r.deleteRow(), c, nil, nil, c.Old, r.key, anyCount)
	}
	if s.enc.err != nil {
		return s.enc.err
	}
	return s.spill(ctx)
}

// update sends one update, of so many rows. Which columns it writes depends on which were
// sent, and on whether the key changes.
func (s *sender) update(r *route, c *millrace.Change, want int64) {
	old := c.Old
	if old == nil {
		old = c.New
	}
	moved := !r.image && c.Old != nil && keyMoved(r, c)
	replace := len(r.fixed) > 0 || moved && r.keyFixed
	columns := r.set
	if moved || replace {
		columns = r.insert
	}
	written := sentOf(columns, c.New)
	if len(written) == 0 {
		return // all columns are the key, or were not sent
	}
	s.oneOf(r, r.updateRow(written, replace), c, c.New, written, old, r.key, want)
}

// sentOf gives those of the columns whose values were sent with a row.
func sentOf(columns []int, row millrace.Row) []int {
	unsent := func(i int) bool { return row[i].Kind == millrace.Unchanged }
	if !slices.ContainsFunc(columns, unsent) {
		return columns
	}
	return slices.DeleteFunc(slices.Clone(columns), unsent)
}

// keyMoved tells whether an update with an old key changes it. What was not
// sent again is as it was.
func keyMoved(r *route, c *millrace.Change) bool {
	for _, k := range r.key {
		if c.New[k].Kind != millrace.Unchanged && !sameValue(&c.Old[k], &c.New[k]) {
			return true
		}
	}
	return false
}

// one sends one statement for one change, which must affect one row.
func (s *sender) one(r *route, st *stmt, c *millrace.Change, row millrace.Row, columns []int, old millrace.Row, key []int) {
	s.oneOf(r, st, c, row, columns, old, key, 1)
}

// oneOf sends one statement for one change: values of row, then of old.
func (s *sender) oneOf(r *route, st *stmt, c *millrace.Change, row millrace.Row, columns []int, old millrace.Row, key []int, want int64) {
	f := s.enc.form
	if f == 0 {
		if f = formOf(row); f == 0 {
			f = formOf(old)
		}
		s.enc.form = f
	}
	s.bind(st, len(columns)+len(key), f == binaryForm)
	for _, i := range columns {
		s.rowValue(r, i, &row[i])
	}
	for _, i := range key {
		s.rowValue(r, i, &old[i])
	}
	s.execute(want, c)
	s.usesName(r.to)
	s.rowRows++
}

func (s *sender) rowValue(r *route, i int, v *millrace.Value) {
	if !s.enc.use(r, i, v) {
		s.value(nil)
		return
	}
	s.int32(len(v.Raw))
	s.out = append(s.out, v.Raw...)
}

// truncate empties the tables of one TRUNCATE, all in one statement.
func (s *sender) truncate(c *millrace.Change) {
	tables := make([]*target, len(c.Truncated.Rels))
	for i, rel := range c.Truncated.Rels {
		tables[i] = s.batch.route(rel).to
		s.usesName(tables[i])
	}
	if !s.truncateAsDelete && !c.Truncated.AsDelete {
		s.command(truncateSQL(tables, c.Truncated.RestartIdentity), anyCount, c)
		return
	}
	for _, t := range tables {
		s.command("DELETE FROM "+t.only, anyCount, c)
	}
}
