package airbyte

import (
	"strconv"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
)

// field is a column that records have.
type field struct {
	column int    // in the relation
	name   []byte // "name":
	codec  *datum.Codec
}

// encoder writes the records of one relation as lines. It serves one goroutine.
type encoder struct {
	rel    *millrace.Relation
	fields []field
	head   []byte // up to the first member of data
	cdc    bool   // with the members about the change
	cursor bool   // with MemberCursor, which older catalogs lack
	number bool   // decimals as numbers
	native bool   // json as it is, not as a string
}

// newEncoder makes the encoder of a stream's relation. Only the members that the
// configured catalog has are written; nil: all.
func newEncoder(d Descriptor, rel *millrace.Relation, types func(*millrace.Column) *datum.Type, only map[string]bool,
	style datum.Style, number bool,
) *encoder {
	e := &encoder{rel: rel, number: number, cdc: only == nil || only[MemberLSN], cursor: only == nil || only[MemberCursor]}
	e.head = append(e.head, `{"type":"RECORD","record":{`...)
	if d.Namespace != "" {
		e.head = append(appendName(append(e.head, `"namespace":`...), d.Namespace), ',')
	}
	e.head = append(appendName(append(e.head, `"stream":`...), d.Name), `,"data":{`...)
	for i := range rel.Columns {
		c := &rel.Columns[i]
		if only != nil && !only[c.Name] {
			continue
		}
		e.fields = append(e.fields, field{column: i, name: append(appendName(nil, c.Name), ':'), codec: datum.NewCodec(types(c), c.Mod, style)})
	}
	return e
}

// stamp is what the records of one transaction share.
type stamp struct {
	before  millrace.LSN // the end of the transaction before
	commit  millrace.LSN // zero in a chunk
	xid     uint32
	lsn     millrace.LSN
	now     int64  // microseconds since 1970
	cursor  int64  // of the record before
	updated []byte // "2024-02-29T10:34:56.789012Z", quoted
	emitted int64  // milliseconds since 1970
	millis  int64  // updated, likewise
}

func (s *stamp) set(lsn millrace.LSN, at, now time.Time) {
	s.lsn, s.now, s.emitted, s.millis = lsn, now.UnixMicro(), now.UnixMilli(), at.UnixMilli()
	s.updated = at.UTC().AppendFormat(append(s.updated[:0], '"'), "2006-01-02T15:04:05.000000Z")
	s.updated = append(s.updated, '"')
}

// next gives the next record's cursor: the time at which it is written, and more
// than that of the record before. A time, since it has to be above those of records
// that an earlier run has written behind the last state that was kept.
func (s *stamp) next() int64 {
	s.cursor = max(s.cursor+1, s.now)
	return s.cursor
}

// appendRecord appends one line. Of a deleted row with keysOnly, only the columns
// of the replica identity are known; the others are left out.
func (e *encoder) appendRecord(b []byte, row millrace.Row, s *stamp, deleted, keysOnly bool) ([]byte, error) {
	b = append(b, e.head...)
	b, first, err := e.appendMembers(b, row, keysOnly)
	if err != nil {
		return b, err
	}
	if e.cdc {
		b = e.appendChange(b, s, deleted, first)
	}
	b = append(b, `},"emitted_at":`...)
	b = strconv.AppendInt(b, s.emitted, 10)
	return append(b, '}', '}', '\n'), nil
}

// appendMembers appends the columns that have a value; first tells that there is
// none.
func (e *encoder) appendMembers(b []byte, row millrace.Row, keysOnly bool) (_ []byte, first bool, err error) {
	first = true
	for i := range e.fields {
		f := &e.fields[i]
		v := row[f.column]
		if keysOnly && v.Kind == millrace.Null || v.Kind == millrace.Unchanged {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(b, f.name...)
		from := len(b)
		if e.native && v.Kind == millrace.Text && nativeJSON(f.codec.Type) {
			b = appendOneLine(b, v.Raw)
			continue
		}
		if b, err = f.codec.AppendJSON(b, v); err != nil {
			return b, first, &millrace.Error{Kind: millrace.KindData, Op: "write a record", Peer: millrace.PeerSource, Table: e.rel.Name,
				Column: e.rel.Columns[f.column].Name, Err: err,
				Hint: "take the column out of the publication's column list, or the table out of the catalog, or correct the value"}
		}
		if e.number && f.codec.Schema.Format == "number" {
			b = bareNumber(b, from)
		}
	}
	return b, first, nil
}

func (e *encoder) appendChange(b []byte, s *stamp, deleted, first bool) []byte {
	if !first {
		b = append(b, ',')
	}
	b = append(b, `"`+MemberLSN+`":`...)
	b = strconv.AppendUint(b, uint64(s.lsn), 10)
	if e.cursor {
		b = strconv.AppendInt(append(b, `,"`+MemberCursor+`":`...), s.next(), 10)
	}
	b = append(append(b, `,"`+MemberUpdated+`":`...), s.updated...)
	b = append(b, `,"`+MemberDeleted+`":`...)
	if deleted {
		return append(b, s.updated...)
	}
	return append(b, "null"...)
}

// appendOneLine appends JSON text. What breaks lines in it is white space, since
// strings can't hold it.
func appendOneLine(b, text []byte) []byte {
	from := len(b)
	b = append(b, text...)
	for i, c := range b[from:] {
		if c == '\n' || c == '\r' {
			b[from+i] = ' '
		}
	}
	return b
}

// bareNumber takes the quotes off a decimal at the end of b, if it is a number.
func bareNumber(b []byte, from int) []byte {
	if b[from] != '"' || b[len(b)-2] < '0' || b[len(b)-2] > '9' { // null, NaN, Infinity
		return b
	}
	copy(b[from:], b[from+1:len(b)-1])
	return b[:len(b)-2]
}
