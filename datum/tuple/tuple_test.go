package tuple

import (
	"bytes"
	"cmp"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// FuzzCut: bytes that nobody has written are an error, not a crash.
func FuzzCut(f *testing.F) {
	f.Add([]byte{zero + 8, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{Text, 'a', 0, 0xFF, 0})
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _, _ = CutInt(b)
		_, _, _ = CutString(nil, b)
		_, _, _ = CutDouble(b)
		_, _, _ = CutUUID(b)
	})
}

// TestBytesCompareAsValues: tuples of an integer, a string and a number compare by their
// bytes as by their elements, and read back.
func TestBytesCompareAsValues(t *testing.T) {
	type row struct {
		n int64
		s []byte
		f float64
	}
	ints := rapid.OneOf(rapid.Int64(), rapid.Int64Range(-300, 300), rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64, -256, -255, 255, 256, 1 << 32, -1 << 32}))
	strings := rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.SliceOf(rapid.SampledFrom([]byte{0, 1, 0xFE, 0xFF})))
	floats := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), math.Float64frombits(0xFFF8000000000001)}))
	rows := rapid.Custom(func(t *rapid.T) row {
		return row{ints.Draw(t, "n"), strings.Draw(t, "s"), floats.Draw(t, "f")}
	})
	encode := func(r row) []byte { return AppendDouble(AppendString(AppendInt(nil, r.n), Bytes, r.s), r.f) }
	number := func(a, b float64) int { // NaN is the greatest in SQL
		if math.IsNaN(a) || math.IsNaN(b) {
			return -cmp.Compare(b2i(!math.IsNaN(a)), b2i(!math.IsNaN(b)))
		}
		return cmp.Compare(a, b)
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := rows.Draw(t, "a"), rows.Draw(t, "b")
		if rapid.Bool().Draw(t, "same n") {
			b.n = a.n
		}
		if rapid.Bool().Draw(t, "same s") {
			b.s = a.s
		}
		want := cmp.Or(cmp.Compare(a.n, b.n), bytes.Compare(a.s, b.s), number(a.f, b.f))
		if got := bytes.Compare(encode(a), encode(b)); got != want {
			t.Fatalf("%v and %v compare as %d, their bytes as %d", a, b, want, got)
		}
		n, rest, err := CutInt(encode(a))
		if err != nil || n != a.n {
			t.Fatal(n, err)
		}
		s, rest, err := CutString(nil, rest)
		if err != nil || !bytes.Equal(s, a.s) {
			t.Fatal(s, err)
		}
		f, rest, err := CutDouble(rest)
		if err != nil || number(f, a.f) != 0 || len(rest) != 0 {
			t.Fatal(f, rest, err)
		}
	})
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
