package record

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
)

// FuzzDecode reads anything as a record: an error, but no panic.
func FuzzDecode(f *testing.F) {
	x := benchTxn(millrace.Text)
	rel := x.Changes[0].Rel
	formats := []Format{JSON, JSONInline, JSONSchema, Avro}
	for i, format := range formats {
		e, err := NewEncoder(options(format))
		if err != nil {
			f.Fatal(err)
		}
		err = encodeOne(e, x, func(r *Record) error { f.Add(i, r.Value, []byte(`["filler"]`), []byte(`{"aid":1}`)); return nil })
		if err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(_ *testing.T, format int, value, unchanged, oldKey []byte) {
		d, err := NewDecoder(options(formats[uint(format)%4]), rel, rel.Key)
		if err != nil {
			return
		}
		r := &kgo.Record{Value: value}
		for range 2 {
			_, _, _ = d.Decode(r, &Memory{})
			r.Headers = []kgo.RecordHeader{{Key: HeaderUnchanged, Value: unchanged}, {Key: HeaderOldKey, Value: oldKey}}
		}
		_, _ = ParseTableVersion(value)
	})
}
