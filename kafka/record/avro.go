package record

import (
	"encoding/binary"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
)

// avroForm is the envelope in Avro's binary encoding behind the number of its
// schema (Confluent's wire format: 0, then four bytes). Names are those that
// Connect's Avro converter gives.
type avroForm struct{ e *encoder }

func (f avroForm) compile(t *table) error {
	o := &f.e.opt
	topic := o.Topic(t.rel.Name)
	key := newAvroNames().schema(nil, keySchema(topic, t), false)
	value := newAvroNames().schema(nil, envelopeSchema(topic, t), false)
	return registerAll(o, t, string(key), string(value))
}

// registerAll registers the schemas of a table under the names of its topic.
func registerAll(o *Options, t *table, key, value string) error {
	topic := o.Topic(t.rel.Name)
	if len(t.key) > 0 {
		id, err := o.Registry.Register(topic+"-key", key, o.Format)
		if err != nil {
			return err
		}
		t.keyID = wireID(id)
	}
	id, err := o.Registry.Register(topic+"-value", value, o.Format)
	t.valueID = wireID(id)
	return err
}

func wireID(id int) []byte { return binary.BigEndian.AppendUint32([]byte{0}, uint32(id)) }

func (f avroForm) key(dst []byte, t *table, row millrace.Row) (_ []byte, err error) {
	dst = append(dst, t.keyID...)
	for _, k := range t.key {
		if dst, err = f.required(dst, t, k, row[k]); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// required appends a value of a field that is not a union: what the codec
// writes, without the number of the branch.
func (f avroForm) required(dst []byte, t *table, col int, v millrace.Value) ([]byte, error) {
	if v.Kind == millrace.Null {
		return dst, f.e.fail(t.rel, col, errNullKey)
	}
	at := len(dst)
	dst, err := t.codecs[col].AppendAvro(dst, v)
	if err != nil {
		return dst, f.e.fail(t.rel, col, err)
	}
	copy(dst[at:], dst[at+1:])
	return dst[:len(dst)-1], nil
}

// appendStringBranch appends the second branch of a union with null.
func appendStringBranch(dst []byte, s string) []byte {
	return append(datum.AppendAvroLong(append(dst, 2), int64(len(s))), s...)
}

func appendString(dst []byte, s string) []byte {
	return append(datum.AppendAvroLong(dst, int64(len(s))), s...)
}

func appendLongBranch(dst []byte, n int64) []byte { return datum.AppendAvroLong(append(dst, 2), n) }

func (f avroForm) value(dst []byte, t *table, op byte, before, after millrace.Row) (_ []byte, err error) {
	dst = append(dst, t.valueID...)
	for _, row := range [...]millrace.Row{before, after} {
		if dst, err = f.row(dst, t, row); err != nil {
			return dst, err
		}
	}
	dst = f.source(dst, t)
	x := &f.e.txn
	dst = appendString(append(dst, 2), x.id) // the transaction block
	dst = datum.AppendAvroLong(dst, x.order)
	dst = datum.AppendAvroLong(dst, t.order)
	dst = append(datum.AppendAvroLong(dst, 1), op)
	ns := x.now.UnixNano()
	dst = appendLongBranch(dst, ns/1e6)
	dst = appendLongBranch(dst, ns/1e3)
	return appendLongBranch(dst, ns), nil
}

// row appends a union of null and a row.
func (f avroForm) row(dst []byte, t *table, row millrace.Row) (_ []byte, err error) {
	if row == nil {
		return append(dst, 0), nil
	}
	dst = append(dst, 2)
	for i, v := range row {
		switch {
		case isKey(t.key, i):
			dst, err = f.required(dst, t, i, v)
		case v.Kind == millrace.Unchanged:
			dst = f.standIn(dst, t.codecs[i].Schema.Kind)
		default:
			if dst, err = t.codecs[i].AppendAvro(dst, v); err != nil {
				err = f.e.fail(t.rel, i, err)
			}
		}
		if err != nil {
			return dst, err
		}
	}
	return dst, nil
}

func isKey(key []int, col int) bool {
	for _, k := range key {
		if k == col {
			return true
		}
	}
	return false
}

// standIn stands for a value that was not sent.
func (f avroForm) standIn(dst []byte, k datum.Kind) []byte {
	if f.e.opt.Toast == Placeholder && (k == datum.String || k == datum.Bytes) {
		return appendStringBranch(dst, placeholder)
	}
	return append(dst, 0)
}

// source appends the source block: see beginSource.
func (f avroForm) source(dst []byte, t *table) []byte {
	x, o := &f.e.txn, &f.e.opt
	stamp, snapshot, lsn := x.t.Time, "false", x.t.Commit
	if x.t.Chunk != nil {
		snapshot, lsn = "incremental", x.t.Chunk.Upto
	}
	if stamp.IsZero() {
		stamp = x.now
	}
	micros := stamp.UnixMicro()
	dst = appendString(dst, o.Version)
	dst = appendString(dst, "postgresql")
	dst = appendString(dst, o.Prefix)
	dst = datum.AppendAvroLong(dst, micros/1000)
	dst = appendStringBranch(dst, snapshot)
	dst = appendString(dst, o.Database)
	var buf [64]byte
	seq := strconv.AppendUint(append(buf[:0], `["`...), uint64(lsn), 10)
	seq = strconv.AppendUint(append(seq, `","`...), x.seq, 10)
	seq = append(seq, `"]`...)
	dst = datum.AppendAvroBytes(append(dst, 2), seq)
	dst = appendLongBranch(dst, micros)
	dst = appendLongBranch(dst, micros*1000)
	dst = appendString(dst, t.rel.Name.Schema)
	dst = appendString(dst, t.rel.Name.Name)
	if x.t.Chunk != nil {
		dst = append(dst, 0)
	} else {
		dst = appendLongBranch(dst, int64(x.t.XID))
	}
	dst = appendLongBranch(dst, int64(lsn))
	dst = append(dst, 0) // xmin
	if x.t.Origin == "" {
		dst = append(dst, 0)
	} else {
		dst = appendStringBranch(dst, x.t.Origin)
	}
	return append(dst, 0) // origin_lsn
}

// avroEnvelope reads the rows and the operation; what stands between is in the
// headers as well.
func (d *Decoder) avroEnvelope(r *kgo.Record, m *Memory) (op byte, before, after millrace.Row, err error) {
	raw := r.Value
	if len(raw) < 5 || raw[0] != 0 {
		return 0, nil, nil, d.fail(r, -1, errRecord)
	}
	raw = raw[5:]
	if before, raw, err = d.avroRow(r, m, raw); err != nil {
		return 0, nil, nil, err
	}
	if after, raw, err = d.avroRow(r, m, raw); err != nil {
		return 0, nil, nil, err
	}
	s := skipper{b: raw}
	for _, kind := range avroSource {
		s.skip(kind)
	}
	if s.long() == 1 { // the transaction block
		s.skip('s')
		s.long()
		s.long()
	}
	letter := s.string()
	if s.bad || len(letter) != 1 {
		return 0, nil, nil, d.fail(r, -1, errRecord)
	}
	if list := Header(r, HeaderUnchanged); list != nil {
		err = d.mark(r, after, list)
	}
	return letter[0], before, after, err
}

// avroSource are the members of the source block: strings, longs, and unions of
// null with them (capitals).
const avroSource = "sssl" + "Ss" + "S" + "LL" + "ss" + "LLL" + "S" + "L"

func (d *Decoder) avroRow(r *kgo.Record, m *Memory, raw []byte) (_ millrace.Row, rest []byte, err error) {
	if len(raw) == 0 {
		return nil, nil, d.fail(r, -1, errRecord)
	}
	if raw[0] == 0 {
		return nil, raw[1:], nil
	}
	raw = raw[1:]
	row := m.row(len(d.rel.Columns))
	unchanged := Header(r, HeaderUnchanged)
	for i := range row {
		row[i].Kind = millrace.Null
		if unchanged != nil && d.isUnchanged(unchanged, i) {
			s := skipper{b: raw}
			s.skip('S') // null, or the placeholder
			raw = s.b
			continue
		}
		room := m.room()
		var text []byte
		var null bool
		if isKey(d.key, i) {
			text, raw, err = d.codecs[i].AppendTextOfAvroValue(room, raw)
		} else {
			text, null, raw, err = d.codecs[i].AppendTextOfAvro(room, raw)
		}
		if err != nil {
			return nil, nil, d.fail(r, i, err)
		}
		if !null {
			row[i] = millrace.Value{Kind: millrace.Text, Raw: m.keep(room, text)}
		}
	}
	return row, raw, nil
}

// skipper steps over Avro values.
type skipper struct {
	b   []byte
	bad bool
}

func (s *skipper) long() int64 {
	n, size := binary.Varint(s.b)
	if size <= 0 {
		s.bad, s.b = true, nil
		return 0
	}
	s.b = s.b[size:]
	return n
}

func (s *skipper) string() []byte {
	n := s.long()
	if n < 0 || n > int64(len(s.b)) {
		s.bad, s.b = true, nil
		return nil
	}
	v := s.b[:n]
	s.b = s.b[n:]
	return v
}

func (s *skipper) skip(kind rune) {
	if kind == 'S' || kind == 'L' {
		if s.long() == 0 {
			return
		}
	}
	if kind == 's' || kind == 'S' {
		s.string()
		return
	}
	s.long()
}
