package record

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
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

// FuzzPlain holds what is read in one pass against what reads any JSON. Where that is no
// JSON at all, something is wrong in source or transaction, of which no use is made: with
// others in their place both read the same.
func FuzzPlain(f *testing.F) {
	x := benchTxn(millrace.Text)
	rel := x.Changes[0].Rel
	e, err := NewEncoder(options(JSON))
	if err != nil {
		f.Fatal(err)
	}
	add := func(r *Record) error {
		f.Add(r.Value)
		f.Add(bytes.Replace(r.Value, []byte(`,"transaction":{`), []byte(`,"after":null,"transaction":{`), 1))
		f.Add(bytes.Replace(r.Value, []byte(`,"ts_ns":`), []byte(`,"op":"d","ts_ns":`), 2))
		f.Add(bytes.Replace(r.Value, []byte(`"op":"u"`), []byte(`"op":"c"`), 1))
		return nil
	}
	if err := encodeOne(e, x, add); err != nil {
		f.Fatal(err)
	}
	d, err := NewDecoder(options(JSON), rel, rel.Key)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		op, before, after, ok := d.plain(value, &Memory{})
		if !ok {
			return
		}
		r := &kgo.Record{Value: value}
		if !json.Valid(value) {
			end, _ := plainEnd(value)
			from := bytes.Index(value, plainSource)
			value = append(append(slices.Clone(value[:from]), `,"source":{},`...), value[end+1:]...)
		}
		wantOp, wantBefore, wantAfter, err := d.members(r, &Memory{}, value, nil)
		if err != nil || op != wantOp || !reflect.DeepEqual(before, wantBefore) || !reflect.DeepEqual(after, wantAfter) {
			t.Fatalf("%c %v %v, want %c %v %v (%v)", op, before, after, wantOp, wantBefore, wantAfter, err)
		}
	})
}

// TestPlainIsTaken: what the encoder writes is read in one pass.
func TestPlainIsTaken(t *testing.T) {
	x := benchTxn(millrace.Text)
	e, err := NewEncoder(options(JSON))
	check(t, err)
	d, err := NewDecoder(options(JSON), x.Changes[0].Rel, x.Changes[0].Rel.Key)
	check(t, err)
	check(t, encodeOne(e, x, func(r *Record) error {
		if _, _, _, ok := d.plain(r.Value, &Memory{}); !ok {
			t.Errorf("%s is not read in one pass", r.Value)
		}
		return nil
	}))
}
