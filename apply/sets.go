package apply

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/millrace/millrace"
)

// Limits of one statement where nothing else is configured. Beyond some
// thousand rows a statement gains nothing more.
const (
	defaultBatchRows  = 4000
	defaultBatchBytes = 4 << 20
)

// COPY is cheaper for the target than INSERT from so many rows or bytes on; below
// it costs the parsing of two statements more. Measured (BenchmarkInsertForm), the
// target's processor time of COPY in percent of that of INSERT: rows of 60 bytes
// 97 at 2,000 rows, 90 at 4,000, 71 at 8,000; of 450 bytes 132 at 100, 92 at 400;
// of 1.5 kB 92 at 100, 48 at 400; of 7 kB 93 at 25, 60 at 100.
const (
	copyRows  = 4000
	copyBytes = 256 << 10
)

// setRef names a set statement in a flight, for errors.
type setRef struct {
	to *target
	op millrace.Op
}

// sender sends a batch's statements. It stops at the first error, which is one
// of the connection or a *failure.
type sender struct {
	*wire
	batch *batch
	// await reads the answers to what was sent.
	await            func(context.Context) error
	truncateAsDelete bool
	careful          bool // on the row path
	staging          func(oid uint32) millrace.TableName
	maxRows          int
	maxBytes         int
	copyRows         int // how many rows go through COPY
	copyBytes        int // or how many bytes of them
	// atServer: sets are counted at the server, which raises when one has not
	// affected all its rows, so that COMMIT need not wait for their answers.
	atServer bool

	enc                           encoder
	scratch                       millrace.Row
	mask                          columnSet
	deleted, inserted, updatedAll []*entry
	put, removed                  []*entry
	setRows, rowRows              uint64 // sent
	// byName are the tables that a statement of this batch knows by nothing but
	// their name. The others have the row type's OID among their parameters.
	byName map[*target]bool
}

// replacedRef is the reference of the check that a table is still the one that was
// described.
type replacedRef struct{ to *target }

// confirmNames makes the batch fail if a name that was used means another table
// now. By now they are all locked against renaming.
func (s *sender) confirmNames() {
	for t := range s.byName {
		s.command(fmt.Sprintf("SELECT WHERE pg_catalog.to_regclass(%s)::pg_catalog.oid OPERATOR(pg_catalog.=) %d",
			millrace.QuoteLiteral(t.sql), t.OID), 1, replacedRef{t})
	}
	clear(s.byName)
}

func (s *sender) usesName(t *target) {
	if s.byName == nil {
		s.byName = map[*target]bool{}
	}
	s.byName[t] = true
}

// stage sends one stage.
func (s *sender) stage(ctx context.Context, st *stage) error {
	for _, w := range st.works {
		for i := range w.steps {
			step := &w.steps[i]
			var err error
			if step.rows != nil {
				err = s.changes(ctx, step.rows)
			} else {
				err = s.set(ctx, w, step)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// group is the entries of a set that go in one kind of statement.
type group struct {
	stmt    *stmt
	flagged bool
	entries []*entry
	loose   bool // there may be fewer rows
}

// set sends the net effect of a set step: deletes, updates, inserts.
func (s *sender) set(ctx context.Context, w *work, step *step) error {
	r := step.route
	s.deleted, s.inserted, s.updatedAll = s.deleted[:0], s.inserted[:0], s.updatedAll[:0]
	s.put, s.removed = s.put[:0], s.removed[:0]
	var partial []*group
	for i := step.lo; i < step.hi; i++ {
		e := &w.fold.entries[i]
		switch e.state {
		case deleted:
			s.deleted = append(s.deleted, e)
		case replaced:
			s.deleted = append(s.deleted, e)
			s.inserted = append(s.inserted, e)
		case inserted:
			s.inserted = append(s.inserted, e)
		case put:
			s.put = append(s.put, e)
		case removed:
			s.removed = append(s.removed, e)
		case updated:
			switch {
			case len(r.set) == 0: // all columns are the key: nothing changes
			case e.unsent:
				partial = s.group(r, partial, e)
			default:
				s.updatedAll = append(s.updatedAll, e)
			}
		}
	}
	if err := s.deletes(ctx, r, s.deleted, false); err != nil {
		return err
	}
	if err := s.deletes(ctx, r, s.removed, true); err != nil {
		return err
	}
	if len(s.updatedAll) > 0 {
		partial = append(partial, &group{stmt: r.updateSet(nil), entries: s.updatedAll})
	}
	for _, g := range partial {
		if err := s.send(ctx, r, g, millrace.Update, newRow); err != nil {
			return err
		}
	}
	if len(s.put) > 0 {
		if err := s.puts(ctx, r, s.put); err != nil {
			return err
		}
	}
	if s.worthCopy(r, s.inserted) {
		return s.copyIn(ctx, r, s.inserted)
	}
	return s.send(ctx, r, &group{stmt: r.insertSet(), entries: s.inserted}, millrace.Insert, newRow)
}

func newRow(e *entry) millrace.Row { return e.row }

// worthCopy tells whether the rows are many or large enough for COPY.
func (s *sender) worthCopy(r *route, entries []*entry) bool {
	if len(entries) >= s.copyRows {
		return true
	}
	bytes := 0
	for _, e := range entries {
		for _, i := range r.insert {
			bytes += 4 + len(e.row[i].Raw)
		}
		if bytes >= s.copyBytes {
			return true
		}
	}
	return false
}

// group adds an update without all columns to the group with the same ones.
func (s *sender) group(r *route, groups []*group, e *entry) []*group {
	if n := setBytes(len(r.rel.Columns)); len(s.mask) != n {
		s.mask = make(columnSet, n)
	}
	clear(s.mask)
	empty := true
	for _, i := range r.set {
		if e.row[i].Kind != millrace.Unchanged {
			s.mask.add(i)
			empty = false
		}
	}
	if empty {
		return groups
	}
	st := r.updateSet(s.mask)
	flagged := st == nil
	if flagged {
		st = r.updateFlagged()
	}
	for _, g := range groups {
		if g.stmt == st {
			g.entries = append(g.entries, e)
			return groups
		}
	}
	return append(groups, &group{stmt: st, flagged: flagged, entries: []*entry{e}})
}

// learnForm takes the form of values from the first row that has one.
func (s *sender) learnForm(entries []*entry, rowOf func(*entry) millrace.Row) form {
	for _, e := range entries {
		if s.enc.form != 0 {
			break
		}
		s.enc.form = formOf(rowOf(e))
	}
	if s.enc.form == 0 {
		return textForm // all are null
	}
	return s.enc.form
}

func (s *sender) deletes(ctx context.Context, r *route, entries []*entry, loose bool) error {
	if len(entries) == 0 {
		return nil
	}
	if len(s.scratch) < len(r.rel.Columns) {
		s.scratch = make(millrace.Row, len(r.rel.Columns))
	}
	row := s.scratch[:len(r.rel.Columns)]
	return s.send(ctx, r, &group{stmt: r.deleteSet(), entries: entries, loose: loose}, millrace.Delete, func(e *entry) millrace.Row {
		keyRow(row, e.key, r.key)
		return row
	})
}

// send sends entries in statements of limited size.
func (s *sender) send(ctx context.Context, r *route, g *group, op millrace.Op, rowOf func(*entry) millrace.Row) error {
	for from := 0; from < len(g.entries); {
		if err := s.room(ctx); err != nil {
			return err
		}
		// INSERTs as well: a trigger or rule that came since the table was described
		// can suppress rows.
		st, counted := g.stmt, s.atServer && !g.loose
		if counted {
			st = st.counted()
		}
		n := s.statement(r, g, st, from, rowOf)
		switch {
		case counted:
			s.countParam(n)
			s.executeCounted(int64(n), &setRef{to: r.to, op: op})
		case g.loose:
			s.execute(anyCount, &setRef{to: r.to, op: op})
		default:
			s.execute(int64(n), &setRef{to: r.to, op: op})
		}
		s.setRows += uint64(n)
		from += n
		if s.enc.err != nil {
			return s.enc.err
		}
		if err := s.spill(ctx); err != nil {
			return err
		}
	}
	return nil
}

// statement builds the parameters of one statement, but for the number of its
// rows, and returns that.
func (s *sender) statement(r *route, g *group, st *stmt, from int, rowOf func(*entry) millrace.Row) int {
	enc := encoder{form: s.learnForm(g.entries[from:], rowOf)}
	s.bind(st, len(st.types), enc.form == binaryForm)
	s.param()
	rows := rowArray{enc: &enc, r: r}
	s.out = rows.start(s.out)
	at, n := len(s.out), 0
	for _, e := range g.entries[from:] {
		if n > 0 && (n >= s.maxRows || len(s.out)-at >= s.maxBytes) {
			break
		}
		s.out = rows.row(s.out, rowOf(e))
		n++
	}
	s.out = rows.end(s.out)
	s.paramEnd()
	if g.flagged {
		s.flagParam(r, &enc, g.entries[from:from+n])
	}
	s.enc.err = enc.err
	return n
}

// countParam adds the number of a statement's rows.
func (s *sender) countParam(n int) {
	s.param()
	if s.enc.form == textForm || s.enc.form == 0 {
		s.out = strconv.AppendInt(s.out, int64(n), 10)
	} else {
		s.out = binary.BigEndian.AppendUint64(s.out, uint64(n))
	}
	s.paramEnd()
}

func (s *sender) flagParam(r *route, enc *encoder, entries []*entry) {
	flags := make(columnSet, setBytes(len(r.set)))
	s.param()
	array := flagArray{enc: enc}
	s.out = array.start(s.out)
	for _, e := range entries {
		clear(flags)
		for n, i := range r.set {
			if e.row[i].Kind != millrace.Unchanged {
				flags.add(n)
			}
		}
		s.out = array.row(s.out, flags)
	}
	s.out = array.end(s.out)
	s.paramEnd()
}

// copyIn sends many rows with one COPY, in the middle of the flight: if it does
// not get to run, the server skips its data.
func (s *sender) copyIn(ctx context.Context, r *route, entries []*entry) error {
	if err := s.room(ctx); err != nil {
		return err
	}
	enc := encoder{form: s.learnForm(entries, newRow)}
	s.usesName(r.to)
	s.command(r.copySQL(enc.form == binaryForm), int64(len(entries)), &setRef{to: r.to, op: millrace.Insert})
	s.setRows += uint64(len(entries))
	const message = 64 << 10
	for i := 0; i < len(entries); {
		s.begin('d')
		if i == 0 && enc.form == binaryForm {
			s.out = append(s.out, copyHead...)
		}
		for at := len(s.out); i < len(entries) && len(s.out)-at < message; i++ {
			s.out = enc.copyRow(s.out, r, entries[i].row)
		}
		if i == len(entries) {
			s.out = enc.copyTail(s.out)
		}
		s.end()
		if enc.err != nil {
			return enc.err
		}
		if err := s.spill(ctx); err != nil {
			return err
		}
	}
	s.begin('c')
	s.end()
	return nil
}

// room reads the answers so far if too many are outstanding: the server must
// not block on writing them while it is being written to.
func (s *sender) room(ctx context.Context) error {
	if len(s.asked) < maxAsked {
		return nil
	}
	s.sync()
	return s.await(ctx)
}
