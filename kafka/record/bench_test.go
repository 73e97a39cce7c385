package record

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
)

// benchTxn is a transaction of updates of a table like pgbench's, with a
// timestamp and a numeric more, in either form.
func benchTxn(kind millrace.ValueKind) *millrace.Txn {
	rel := &millrace.Relation{OID: 1, Name: millrace.TableName{Schema: "public", Name: "accounts"}, Identity: 'd', Key: []int{0}, Columns: []millrace.Column{
		{Name: "aid", Type: 23, Mod: -1}, {Name: "bid", Type: 23, Mod: -1}, {Name: "balance", Type: 1700, Mod: 10<<16 | 2 + 4},
		{Name: "filler", Type: 1042, Mod: 88}, {Name: "changed", Type: 1184, Mod: -1},
	}}
	filler := "the quick brown fox jumps over the lazy dog and then rests for a while in the green shade  "
	values := map[millrace.ValueKind][]string{
		millrace.Text:   {"123456", "7", "1234.50", filler, "2024-02-29 12:34:56.789012+00"},
		millrace.Binary: {"\x00\x01\xe2\x40", "\x00\x00\x00\x07", "\x00\x02\x00\x00\x00\x00\x00\x02\x04\xd2\x13\x88", filler, "\x00\x02\xb5\x83\x9d\x85\xd5\x14"},
	}[kind]
	row := make(millrace.Row, len(values))
	for i, v := range values {
		row[i] = millrace.Value{Kind: kind, Raw: []byte(v)}
	}
	return &millrace.Txn{
		XID: 700, Commit: 1 << 30, End: 1<<30 + 100, Time: time.Unix(1700000000, 0), Last: true,
		From:    &millrace.History{System: "7", Timeline: 1, Generation: 1},
		Changes: []millrace.Change{{Op: millrace.Update, Seq: 1, Rel: rel, New: row}},
	}
}

// encodeOne is what a sink does with a transaction of one row.
func encodeOne(e Encoder, x *millrace.Txn, emit func(*Record) error) error {
	e.Begin("700:1073741824", x)
	c := &x.Changes[0]
	return e.Encode(c, c.Rel, c.Rel.Key, emit)
}

func TestEncoderAllocatesNothing(t *testing.T) {
	for _, f := range []Format{JSON, JSONInline, Avro, Flat, Keys} {
		for _, kind := range []millrace.ValueKind{millrace.Text, millrace.Binary} {
			e, err := NewEncoder(options(f))
			check(t, err)
			x := benchTxn(kind)
			emit := func(*Record) error { return nil }
			encode := func() {
				e.Begin("700:1073741824", x)
				for range 100 {
					if err := e.Encode(&x.Changes[0], x.Changes[0].Rel, x.Changes[0].Rel.Key, emit); err != nil {
						t.Fatal(err)
					}
				}
			}
			encode()
			if n := testing.AllocsPerRun(10, encode); n > 20 { // a few per transaction
				t.Errorf("%s, form %c: %v allocations for 100 rows", f, kind, n)
			}
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, f := range []Format{JSON, JSONInline, Avro, Flat, Keys} {
		for _, kind := range []millrace.ValueKind{millrace.Text, millrace.Binary} {
			b.Run(string(f)+"/"+string(rune(kind)), func(b *testing.B) {
				e, err := NewEncoder(options(f))
				check(b, err)
				x := benchTxn(kind)
				bytes := 0
				emit := func(r *Record) error { bytes += len(r.Key) + len(r.Value); return nil }
				b.ReportAllocs()
				for b.Loop() {
					if err := encodeOne(e, x, emit); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
				b.SetBytes(int64(bytes / b.N))
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, f := range []Format{JSON, JSONInline, Avro} {
		b.Run(string(f), func(b *testing.B) {
			e, err := NewEncoder(options(f))
			check(b, err)
			x := benchTxn(millrace.Binary)
			var rec kgo.Record
			check(b, encodeOne(e, x, func(r *Record) error {
				rec = kgo.Record{Key: bytesOf(r.Key), Value: bytesOf(r.Value), Headers: positionHeaders(x, 1)}
				return nil
			}))
			d, err := NewDecoder(options(f), x.Changes[0].Rel, x.Changes[0].Rel.Key)
			check(b, err)
			m := &Memory{}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%1000 == 0 {
					m.Reset()
				}
				if _, _, err := d.Decode(&rec, m); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
