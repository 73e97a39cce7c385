package apply

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/millrace/millrace"
)

// form is the form in which the source sends values: it is one for all of a
// session.
type form byte

const (
	textForm   = form(millrace.Text)
	binaryForm = form(millrace.Binary)
)

// formOf gives the form of a row's values, or 0 when all are null.
func formOf(row millrace.Row) form {
	for i := range row {
		if k := row[i].Kind; k == millrace.Text || k == millrace.Binary {
			return form(k)
		}
	}
	return 0
}

// encoder writes rows into a send buffer in one form. An unexpected kind of
// value is kept as an error, since it can only be a mistake of the source.
type encoder struct {
	form form
	err  error
}

// use tells whether a value is there, in the right form.
func (e *encoder) use(r *route, i int, v *millrace.Value) bool {
	switch v.Kind {
	case millrace.Null, millrace.Unchanged:
		return false
	case millrace.ValueKind(e.form):
		return true
	}
	if e.err == nil {
		e.err = fmt.Errorf("column %s of %s came in form %q and not %q",
			r.name(i), r.rel.Name, byte(v.Kind), byte(e.form))
	}
	return false
}

// rowArray builds an array of the target's row type: start, rows, end. In
// binary its head holds the number of rows, which is known at the end.
type rowArray struct {
	enc  *encoder
	r    *route
	at   int // of the head in the buffer
	rows int
}

// arrayHead is the size of the head of a one-dimensional array in binary:
// dimensions, flags, element type, length, lower bound.
const arrayHead = 20

func (a *rowArray) start(out []byte) []byte {
	a.at, a.rows = len(out), 0
	if a.enc.form == textForm {
		return append(out, '{')
	}
	out = binary.BigEndian.AppendUint32(out, 1)
	out = binary.BigEndian.AppendUint32(out, 0)
	out = binary.BigEndian.AppendUint32(out, a.r.to.rowType)
	out = binary.BigEndian.AppendUint32(out, 0)
	return binary.BigEndian.AppendUint32(out, 1)
}

func (a *rowArray) end(out []byte) []byte {
	if a.enc.form == textForm {
		return append(out, '}')
	}
	binary.BigEndian.PutUint32(out[a.at+arrayHead-8:], uint32(a.rows))
	return out
}

// row adds one row: the given columns of the target, NULL in the others. Which
// are given is told by the row itself: what was not sent is NULL.
func (a *rowArray) row(out []byte, row millrace.Row) []byte {
	a.rows++
	if a.enc.form == textForm {
		return a.textRow(out, row)
	}
	at := len(out)
	out = binary.BigEndian.AppendUint32(out, 0)
	out = binary.BigEndian.AppendUint32(out, uint32(len(a.r.source)))
	for n, i := range a.r.source {
		out = binary.BigEndian.AppendUint32(out, a.r.to.Columns[n].Type.OID)
		if i < 0 || !a.enc.use(a.r, i, &row[i]) {
			out = binary.BigEndian.AppendUint32(out, 0xffffffff)
			continue
		}
		out = binary.BigEndian.AppendUint32(out, uint32(len(row[i].Raw)))
		out = append(out, row[i].Raw...)
	}
	binary.BigEndian.PutUint32(out[at:], uint32(len(out)-at-4))
	return out
}

// textRow writes a row literal as an array element: what the row's quoting has
// doubled, the array's escapes.
func (a *rowArray) textRow(out []byte, row millrace.Row) []byte {
	if a.rows > 1 {
		out = append(out, ',')
	}
	out = append(out, `"(`...)
	for n, i := range a.r.source {
		if n > 0 {
			out = append(out, ',')
		}
		if i < 0 || !a.enc.use(a.r, i, &row[i]) {
			continue
		}
		out = append(out, `\"`...)
		raw := row[i].Raw
		from := 0
		for at, c := range raw {
			switch c {
			case '"':
				out = append(append(out, raw[from:at]...), `\"\"`...)
				from = at + 1
			case '\\':
				out = append(append(out, raw[from:at]...), `\\\\`...)
				from = at + 1
			}
		}
		out = append(append(out, raw[from:]...), `\"`...)
	}
	return append(out, `)"`...)
}

// keyRow makes a row with nothing but its key, for a DELETE.
func keyRow(to, from millrace.Row, key []int) {
	for i := range to {
		to[i] = millrace.Value{Kind: millrace.Null}
	}
	for _, k := range key {
		to[k] = from[k]
	}
}

// flagArray builds the array of bytea that flags sent columns row by row.
type flagArray struct {
	enc  *encoder
	at   int
	rows int
}

func (a *flagArray) start(out []byte) []byte {
	a.at, a.rows = len(out), 0
	if a.enc.form == textForm {
		return append(out, '{')
	}
	const bytea = 17
	out = binary.BigEndian.AppendUint32(out, 1)
	out = binary.BigEndian.AppendUint32(out, 0)
	out = binary.BigEndian.AppendUint32(out, bytea)
	out = binary.BigEndian.AppendUint32(out, 0)
	return binary.BigEndian.AppendUint32(out, 1)
}

func (a *flagArray) row(out []byte, flags []byte) []byte {
	a.rows++
	if a.enc.form == textForm {
		if a.rows > 1 {
			out = append(out, ',')
		}
		out = append(out, `"\\x`...)
		out = hex.AppendEncode(out, flags)
		return append(out, '"')
	}
	out = binary.BigEndian.AppendUint32(out, uint32(len(flags)))
	return append(out, flags...)
}

func (a *flagArray) end(out []byte) []byte {
	if a.enc.form == textForm {
		return append(out, '}')
	}
	binary.BigEndian.PutUint32(out[a.at+arrayHead-8:], uint32(a.rows))
	return out
}

// copyHead is the signature of COPY in binary with its two empty fields.
const copyHead = "PGCOPY\n\xff\r\n\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00"

// copyRow writes a row for COPY.
func (e *encoder) copyRow(out []byte, r *route, row millrace.Row) []byte {
	if e.form == textForm {
		return e.copyText(out, r, row)
	}
	out = binary.BigEndian.AppendUint16(out, uint16(len(r.insert)))
	for _, i := range r.insert {
		if !e.use(r, i, &row[i]) {
			out = binary.BigEndian.AppendUint32(out, 0xffffffff)
			continue
		}
		out = binary.BigEndian.AppendUint32(out, uint32(len(row[i].Raw)))
		out = append(out, row[i].Raw...)
	}
	return out
}

func (e *encoder) copyText(out []byte, r *route, row millrace.Row) []byte {
	for n, i := range r.insert {
		if n > 0 {
			out = append(out, '\t')
		}
		if !e.use(r, i, &row[i]) {
			out = append(out, `\N`...)
			continue
		}
		raw := row[i].Raw
		from := 0
		for at, c := range raw {
			var escaped byte
			switch c {
			case '\\':
				escaped = '\\'
			case '\n':
				escaped = 'n'
			case '\r':
				escaped = 'r'
			case '\t':
				escaped = 't'
			default:
				continue
			}
			out = append(append(out, raw[from:at]...), '\\', escaped)
			from = at + 1
		}
		out = append(out, raw[from:]...)
	}
	return append(out, '\n')
}

// copyTail ends the data of COPY.
func (e *encoder) copyTail(out []byte) []byte {
	if e.form == textForm {
		return out
	}
	return binary.BigEndian.AppendUint16(out, 0xffff)
}
