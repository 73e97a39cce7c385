package record

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
)

// Part tells what a record is of its change.
type Part int

// The parts.
const (
	Whole     Part = iota // the change itself
	OldHalf               // the delete that an update of the key begins with; its NewHalf has the same seq
	NewHalf               // the insert that it ends with: an update, once Join has added the old half
	Tombstone             // says nothing that the delete before it has not said
)

// Memory holds what decoded rows point to. It is not used again until its owner
// calls Reset; what was decoded before is void then.
type Memory struct {
	bytes  []byte
	values []millrace.Value
	size   int64
}

// block is how much memory is taken at once: bytes, and values.
const block = 64 << 10

// Reset makes all the memory free again.
func (m *Memory) Reset() { m.bytes, m.values, m.size = m.bytes[:0], m.values[:0], 0 }

// Size is the memory that rows point to, in bytes.
func (m *Memory) Size() int64 { return m.size }

// row gives a row of n values.
func (m *Memory) row(n int) millrace.Row {
	if n == 0 {
		return millrace.Row{} // not nil: there is a row
	}
	if cap(m.values)-len(m.values) < n {
		m.values = make([]millrace.Value, 0, max(n, block/32))
	}
	at := len(m.values)
	m.values = m.values[:at+n]
	m.size += int64(n) * 32
	row := m.values[at : at+n : at+n]
	clear(row)
	return row
}

// room gives an empty slice to append a value to, and keep takes it over. What
// does not fit gets memory of its own from append.
func (m *Memory) room() []byte {
	if cap(m.bytes)-len(m.bytes) < 256 {
		m.bytes = make([]byte, 0, block)
	}
	return m.bytes[len(m.bytes):cap(m.bytes)][:0]
}

func (m *Memory) keep(room, v []byte) []byte {
	m.size += int64(len(v))
	if len(v) <= cap(room) {
		m.bytes = m.bytes[:len(m.bytes)+len(v)]
	}
	return v[:len(v):len(v)]
}

// Decoder reads changes of one table back from records. It serves one goroutine
// at a time.
type Decoder struct {
	rel    *millrace.Relation
	format Format
	codecs []*datum.Codec
	names  [][]byte // as JSON
	heads  [][]byte // the same with a colon
	key    []int
	head   []byte // what stood before the payload in the last record of json-inline
}

// NewDecoder makes the decoder of a table's records; rel and key are as the
// encoder had them.
func NewDecoder(o Options, rel *millrace.Relation, key []int) (*Decoder, error) {
	switch {
	case !o.Format.Readable():
		return nil, fmt.Errorf("format %s does not hold enough to read changes back", o.Format)
	case o.Lossy:
		return nil, errors.New("records were written in forms that lose something (types: debezium) and can't be read back")
	}
	d := &Decoder{rel: rel, format: o.Format, key: key}
	for i := range rel.Columns {
		col := &rel.Columns[i]
		name, err := datum.AppendQuoted(nil, []byte(col.Name))
		if err != nil {
			return nil, err
		}
		d.names = append(d.names, name)
		d.heads = append(d.heads, append(name[:len(name):len(name)], ':'))
		d.codecs = append(d.codecs, datum.NewCodec(TypeOf(col), col.Mod, o.style()))
	}
	return d, nil
}

var errRecord = errors.New("malformed record")

// fail says which record could not be read, without its values.
func (d *Decoder) fail(r *kgo.Record, col int, err error) error {
	e := &millrace.Error{
		Kind: millrace.KindData, Op: "read Kafka", Table: d.rel.Name,
		Err:  fmt.Errorf("record at offset %d of %s [%d]: %w", r.Offset, r.Topic, r.Partition, err),
		Hint: "the record is not what Millrace wrote for this version of the table: check who else writes to the topic",
	}
	if col >= 0 {
		e.Column = d.rel.Columns[col].Name
	}
	return e
}

// Header gives the value of a record's header, or nil.
func Header(r *kgo.Record, name string) []byte {
	for i := range r.Headers {
		if r.Headers[i].Key == name {
			return r.Headers[i].Value
		}
	}
	return nil
}

// Decode reads one record. The change's Seq is left to the caller, who has read
// the header already.
func (d *Decoder) Decode(r *kgo.Record, m *Memory) (millrace.Change, Part, error) {
	if r.Value == nil {
		return millrace.Change{}, Tombstone, nil
	}
	c := millrace.Change{Rel: d.rel}
	h := specialOf(r)
	op, before, after, err := d.envelope(r, m, h.unchanged)
	if err != nil {
		return c, Whole, err
	}
	switch op {
	case 'c', 'r':
		c.Op, c.New = millrace.Insert, after
		if op == 'r' {
			c.Op = millrace.Read
		}
		if h.oldKey != nil {
			c.Op = millrace.Update
			c.Old, err = d.jsonRow(r, m, h.oldKey)
			return c, NewHalf, err
		}
	case 'u':
		c.Op, c.Old, c.OldFull, c.New = millrace.Update, before, h.oldFull && before != nil, after
	case 'd':
		c.Op, c.Old, c.OldFull = millrace.Delete, before, h.oldFull
		if h.newKey != nil {
			return c, OldHalf, nil
		}
	case 't':
		restart := string(h.truncate) == "restart_identity"
		c = millrace.Change{Op: millrace.Truncate, Truncated: &millrace.Truncation{Rels: []*millrace.Relation{d.rel}, RestartIdentity: restart}}
		return c, Whole, nil
	default:
		return c, Whole, d.fail(r, -1, fmt.Errorf("%w: op %q", errRecord, op))
	}
	if c.Op == millrace.Delete && before == nil || c.Op != millrace.Delete && after == nil {
		return c, Whole, d.fail(r, -1, fmt.Errorf("%w: op %c without its row", errRecord, op))
	}
	return c, Whole, nil
}

// Join adds the old half of an update of the key to the new one. Without it, as
// in a compacted topic, the new half alone has the old key only.
func Join(old, update *millrace.Change) {
	if old.OldFull {
		update.Old, update.OldFull = old.Old, true
	}
}

// JoinTruncate adds a table to a TRUNCATE: the records of one have the same seq.
func JoinTruncate(c, more *millrace.Change) {
	c.Truncated.Rels = append(c.Truncated.Rels, more.Truncated.Rels...)
}

// envelope takes a value apart; unchanged is the header of that name.
func (d *Decoder) envelope(r *kgo.Record, m *Memory, unchanged []byte) (op byte, before, after millrace.Row, err error) {
	raw := r.Value
	switch d.format {
	case Avro:
		return d.avroEnvelope(r, m)
	case JSONSchema:
		if len(raw) < 5 || raw[0] != 0 {
			return 0, nil, nil, d.fail(r, -1, errRecord)
		}
		raw = raw[5:]
	case JSONInline:
		if raw, err = d.payload(raw); err != nil {
			return 0, nil, nil, d.fail(r, -1, err)
		}
	}
	if unchanged == nil {
		if op, before, after, ok := d.plain(raw, m); ok {
			return op, before, after, nil
		}
	}
	return d.members(r, m, raw, unchanged)
}

// members reads an envelope with members in any order.
func (d *Decoder) members(r *kgo.Record, m *Memory, raw, unchanged []byte) (op byte, before, after millrace.Row, err error) {
	o := datum.NewJSONObject(raw)
	for o.Next() && err == nil {
		switch string(o.Key) {
		case `"before"`:
			before, err = d.jsonRow(r, m, o.Value)
		case `"after"`:
			after, err = d.jsonRow(r, m, o.Value)
			if err == nil && unchanged != nil {
				err = d.mark(r, after, unchanged)
			}
		case `"op"`:
			if len(o.Value) != 3 {
				err = errRecord
				break
			}
			op = o.Value[1]
		}
	}
	if err == nil && o.Err != nil {
		err = d.fail(r, -1, o.Err)
	}
	return op, before, after, err
}

// payload finds the payload behind its schema, which is most of the record and
// mostly that of the record before.
func (d *Decoder) payload(raw []byte) ([]byte, error) {
	if n := len(d.head); n > 0 && len(raw) > n && bytes.Equal(raw[:n], d.head) {
		return raw[n : len(raw)-1], nil
	}
	o := datum.NewJSONObject(raw)
	for o.Next() {
		if string(o.Key) == `"payload"` {
			if end := len(raw) - 1; raw[end] == '}' && &raw[end-1] == &o.Value[len(o.Value)-1] {
				d.head = append(d.head[:0], raw[:end-len(o.Value)]...)
			}
			return o.Value, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("%w: no payload", errRecord), o.Err)
}

// jsonRow reads a row; null gives nil. Columns that are missing are null.
func (d *Decoder) jsonRow(r *kgo.Record, m *Memory, raw []byte) (millrace.Row, error) {
	if datum.IsJSONNull(raw) {
		return nil, nil
	}
	row := m.row(len(d.rel.Columns))
	for i := range row {
		row[i].Kind = millrace.Null
	}
	o := datum.NewJSONObject(raw)
	unchanged := Header(r, HeaderUnchanged)
	for next := 0; o.Next(); {
		i := d.column(o.Key, next)
		if i < 0 {
			return nil, d.fail(r, -1, fmt.Errorf("%w: member %s is no column", errRecord, o.Key))
		}
		next = i + 1
		if datum.IsJSONNull(o.Value) || unchanged != nil && d.isUnchanged(unchanged, i) {
			continue
		}
		room := m.room()
		text, _, err := d.codecs[i].AppendTextOfJSON(room, o.Value)
		if err != nil {
			return nil, d.fail(r, i, err)
		}
		row[i] = millrace.Value{Kind: millrace.Text, Raw: m.keep(room, text)}
	}
	if o.Err != nil {
		return nil, d.fail(r, -1, o.Err)
	}
	return row, nil
}

// column finds a column by its name as JSON; they come in order.
func (d *Decoder) column(name []byte, guess int) int {
	if guess < len(d.names) && bytes.Equal(d.names[guess], name) {
		return guess
	}
	for i := range d.names {
		if bytes.Equal(d.names[i], name) {
			return i
		}
	}
	return -1
}

func (d *Decoder) isUnchanged(list []byte, col int) bool {
	for a := datum.NewJSONArray(list); a.Next(); {
		if bytes.Equal(a.Value, d.names[col]) {
			return true
		}
	}
	return false
}

// mark sets what the header says was not sent.
func (d *Decoder) mark(r *kgo.Record, row millrace.Row, list []byte) error {
	a := datum.NewJSONArray(list)
	for a.Next() {
		i := d.column(a.Value, 0)
		if i < 0 || row == nil {
			return d.fail(r, -1, fmt.Errorf("%w: header %s", errRecord, HeaderUnchanged))
		}
		row[i] = millrace.Value{Kind: millrace.Unchanged}
	}
	if a.Err != nil {
		return d.fail(r, -1, a.Err)
	}
	return nil
}

// Position is what the headers say about a record.
type Position struct {
	Commit  millrace.LSN
	Seq     uint64
	XID     uint32
	History millrace.History
}

// PositionOf reads the headers that every record has.
func PositionOf(r *kgo.Record) (p Position, err error) {
	err = p.Read(r)
	return p, err
}

// Read is PositionOf, in the place of another position, whose system is mostly the same:
// then it costs no memory.
func (p *Position) Read(r *kgo.Record) error {
	var seen int
	*p = Position{History: millrace.History{System: p.History.System}}
	for i := range r.Headers {
		h := &r.Headers[i]
		// The text of a number is converted where it is parsed, which costs no memory.
		var n uint64
		var bad error
		switch h.Key {
		case "commit_lsn":
			p.Commit, bad = millrace.ParseLSN(string(h.Value))
		case "seq":
			p.Seq, bad = strconv.ParseUint(string(h.Value), 10, 64)
		case "xid":
			n, bad = strconv.ParseUint(string(h.Value), 10, 32)
			p.XID = uint32(n)
		case "system":
			if p.History.System != string(h.Value) {
				p.History.System = string(h.Value)
			}
		case "timeline":
			n, bad = strconv.ParseUint(string(h.Value), 10, 31)
			p.History.Timeline = int32(n)
		case "generation":
			p.History.Generation, bad = strconv.ParseInt(string(h.Value), 10, 64)
		default:
			continue
		}
		if bad != nil {
			return fmt.Errorf("%w: header %s: %w", errRecord, h.Key, bad)
		}
		seen++
	}
	if seen < 6 {
		return fmt.Errorf("%w: headers are missing: it was not written by Millrace", errRecord)
	}
	return nil
}
