package record

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
)

// Key reads a record's key: a row of which only the columns of the key have values. It is
// all that a tombstone has.
func (d *Decoder) Key(r *kgo.Record, m *Memory) (millrace.Row, error) {
	raw := r.Key
	if d.format == Avro || d.format == JSONSchema { // behind the number of the schema
		if len(raw) < 5 || raw[0] != 0 {
			return nil, d.fail(r, -1, errRecord)
		}
		raw = raw[5:]
	}
	switch {
	case len(raw) == 0:
		return nil, d.fail(r, -1, errRecord)
	case d.format == Avro:
		return d.avroKey(r, m, raw)
	case d.format == JSONInline:
		o := datum.NewJSONObject(raw)
		for raw = nil; o.Next(); {
			if string(o.Key) == `"payload"` {
				raw = o.Value
			}
		}
		if raw == nil || o.Err != nil {
			return nil, d.fail(r, -1, errRecord)
		}
	}
	row, err := d.jsonRow(r, m, raw)
	if err == nil && row == nil {
		err = d.fail(r, -1, errRecord)
	}
	return row, err
}

func (d *Decoder) avroKey(r *kgo.Record, m *Memory, raw []byte) (millrace.Row, error) {
	row := m.row(len(d.rel.Columns))
	for i := range row {
		row[i].Kind = millrace.Null
	}
	for _, k := range d.key {
		room := m.room()
		text, rest, err := d.codecs[k].AppendTextOfAvroValue(room, raw)
		if err != nil {
			return nil, d.fail(r, k, err)
		}
		row[k], raw = millrace.Value{Kind: millrace.Text, Raw: m.keep(room, text)}, rest
	}
	return row, nil
}
