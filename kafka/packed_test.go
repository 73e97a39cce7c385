package kafka

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

// A record comes out of the spool as it went in, whatever of it is null, empty or large,
// and while others are unpacked behind it.
func TestPacked(t *testing.T) {
	some := rapid.OneOf(rapid.Just([]byte(nil)), rapid.SliceOfN(rapid.Byte(), 0, 5), rapid.Just(make([]byte, 300)))
	common := []kgo.RecordHeader{{Key: headerCommit, Value: []byte("0/16B3748")}, {Key: headerXID, Value: []byte("7")}, {Key: headerSystem, Value: []byte("s")}}
	header := rapid.Custom(func(t *rapid.T) kgo.RecordHeader {
		return kgo.RecordHeader{Key: rapid.SampledFrom([]string{headerSeq, "unchanged", "", "é"}).Draw(t, "name"), Value: some.Draw(t, "value")}
	})
	rapid.Check(t, func(t *rapid.T) {
		u := &unpacker{common: common, bytes: make([]byte, 0, 600)} // soon used up
		var want, got []*kgo.Record
		for range rapid.IntRange(1, 5).Draw(t, "records") {
			r := &kgo.Record{Topic: rapid.SampledFrom([]string{"a", "bc", ""}).Draw(t, "topic"), Partition: rapid.Int32Min(0).Draw(t, "partition"),
				Key: some.Draw(t, "key"), Value: some.Draw(t, "value"), Headers: rapid.SliceOfN(header, 0, 3).Draw(t, "before")}
			n := 0
			if rapid.Bool().Draw(t, "common") {
				n = len(common)
				r.Headers = append(r.Headers, common...)
			}
			r.Headers = append(r.Headers, rapid.SliceOfN(header, 0, 3).Draw(t, "behind")...)
			b := pack(nil, r, n)
			end := rapid.IntRange(0, len(b)-1).Draw(t, "end")
			if cut, err := (&unpacker{common: common}).record(b[:end]); err == nil {
				t.Fatalf("%d bytes of %d are enough: %+v", end, len(b), cut)
			}
			out, err := u.record(u.own(b))
			clear(b)
			if err != nil {
				t.Fatal(err)
			}
			want, got = append(want, r), append(got, out)
		}
		for i := range want {
			if len(want[i].Headers) == 0 {
				want[i].Headers, got[i].Headers = nil, nil
			}
			if d := cmp.Diff(want[i], got[i], cmp.AllowUnexported(kgo.Record{}, kgo.RecordAttrs{})); d != "" {
				t.Fatal(d)
			}
		}
	})
}
