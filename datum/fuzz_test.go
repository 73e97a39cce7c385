package datum_test

import (
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
)

// FuzzValues feeds any bytes as any type in every form: nothing may panic.
func FuzzValues(f *testing.F) {
	for _, c := range benchColumns {
		f.Add(c.oid, c.mod, []byte(c.text))
		f.Add(c.oid, c.mod, []byte(c.binary))
	}
	f.Add(uint32(3904), int32(-1), []byte("[1,5)"))
	f.Add(uint32(3614), int32(-1), []byte("\x00\x00\x00\x01a\x00\x00\x01\xc0\x01"))
	f.Add(uint32(600), int32(-1), []byte(`{"x":1,"y":"NaN"}`))
	f.Fuzz(func(_ *testing.T, oid uint32, mod int32, raw []byte) {
		typ := datum.Builtin(oid)
		if typ == nil {
			typ = &datum.Type{OID: oid, Name: "hstore", Extension: "hstore", Kind: 'b', Delim: ','}
			if oid%2 == 0 {
				typ = &datum.Type{OID: oid, Name: "c", Kind: 'c', Fields: []datum.Field{
					{Name: "a", Type: datum.Builtin(23)}, {Name: "b", Type: datum.Builtin(1009)},
				}}
			}
		}
		mod %= 1 << 20 // lengths and precisions of real columns
		for _, style := range styles {
			c := datum.NewCodec(typ, mod, style)
			k := datum.NewKey(typ, mod, datum.CollationBytes)
			for _, kind := range []millrace.ValueKind{millrace.Text, millrace.Binary} {
				v := millrace.Value{Kind: kind, Raw: raw}
				_, _ = c.AppendText(nil, v)
				_, _ = c.AppendJSON(nil, v)
				_, _ = c.AppendAvro(nil, v)
				_, _ = k.Append(nil, v)
			}
			if value, _, err := datum.NextJSON(raw); err == nil {
				_, _, _ = c.AppendTextOfJSON(nil, value)
			}
			_, _, _, _ = c.AppendTextOfAvro(nil, raw)
			_, _, _, _ = k.AppendText(nil, raw)
		}
	})
}
