package datum_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
)

type benchColumn struct {
	name         string
	oid          uint32
	mod          int32
	text, binary string
}

func be64(n int64) string { return string(binary.BigEndian.AppendUint64(nil, uint64(n))) }

// benchColumns are columns as tables have them, with a value in both forms.
var benchColumns = []benchColumn{
	{"bool", 16, -1, "t", "\x01"},
	{"int4", 23, -1, "123456", "\x00\x01\xe2\x40"},
	{"int8", 20, -1, "1234567890123", be64(1234567890123)},
	{"float8", 701, -1, "3.25", string(binary.BigEndian.AppendUint64(nil, math.Float64bits(3.25)))},
	{"numeric(10,2)", 1700, 10<<16 | 2 + 4, "1234.50", "\x00\x02\x00\x00\x00\x00\x00\x02\x04\xd2\x13\x88"},
	{"text", 25, -1, "the quick brown fox jumps over the lazy dog", "the quick brown fox jumps over the lazy dog"},
	{"date", 1082, -1, "2024-02-29", "\x00\x00\x22\x79"},
	{"timestamp", 1114, -1, "2024-02-29 12:34:56.789012", be64(762525296789012)},
	{"timestamptz", 1184, -1, "2024-02-29 12:34:56.789012+00", be64(762525296789012)},
	{"uuid", 2950, -1, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "\xa0\xee\xbc\x99\x9c\x0b\x4e\xf8\xbb\x6d\x6b\xb9\xbd\x38\x0a\x11"},
	{"jsonb", 3802, -1, `{"a": [1, 2]}`, "\x01" + `{"a": [1, 2]}`},
	{"int4[]", 1007, -1, "{1,NULL,3}", "\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x17\x00\x00\x00\x03\x00\x00\x00\x01" +
		"\x00\x00\x00\x04\x00\x00\x00\x01\xff\xff\xff\xff\x00\x00\x00\x04\x00\x00\x00\x03"},
	{"bytea", 17, -1, `\x00ff5c`, "\x00\xff\x5c"},
	{"interval", 1186, -1, "1 year 3 days 04:05:06", be64(14706000000) + "\x00\x00\x00\x03\x00\x00\x00\x0c"},
}

func (c benchColumn) values() []millrace.Value {
	return []millrace.Value{{Kind: millrace.Text, Raw: []byte(c.text)}, {Kind: millrace.Binary, Raw: []byte(c.binary)}}
}

// TestNoAllocations: nothing is allocated per value, there and back.
func TestNoAllocations(t *testing.T) {
	for _, col := range benchColumns {
		for _, style := range []datum.Style{{}, {Plain: true}} {
			c := datum.NewCodec(datum.Builtin(col.oid), col.mod, style)
			k := datum.NewKey(datum.Builtin(col.oid), col.mod, datum.CollationBytes)
			var json, text, key []byte
			for _, v := range col.values() {
				run := func() {
					var err1, err2, err3 error
					json, err1 = c.AppendJSON(json[:0], v)
					text, _, err2 = c.AppendTextOfJSON(text[:0], json)
					key, err3 = k.Append(key[:0], v)
					if err1 != nil || err2 != nil || err3 != nil || string(text) != col.text {
						t.Fatalf("%s: %s -> %s, %v, %v, %v", col.name, json, text, err1, err2, err3)
					}
				}
				run()
				if n := testing.AllocsPerRun(20, run); n > 0 {
					t.Errorf("%s %+v, form %c: %v allocations", col.name, style, v.Kind, n)
				}
			}
		}
	}
}

func BenchmarkAppendJSON(b *testing.B) {
	for _, col := range benchColumns {
		c := datum.NewCodec(datum.Builtin(col.oid), col.mod, datum.Style{})
		for _, v := range col.values() {
			b.Run(fmt.Sprintf("%s/%c", col.name, v.Kind), func(b *testing.B) {
				b.ReportAllocs()
				var dst []byte
				for b.Loop() {
					var err error
					if dst, err = c.AppendJSON(dst[:0], v); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
