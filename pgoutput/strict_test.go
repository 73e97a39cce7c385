package pgoutput_test

import (
	"encoding/hex"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/millrace/millrace"
	. "github.com/millrace/millrace/pgoutput"
)

// TestEveryPrefixIsRefused cuts every recorded message at every length, only
// not inside of a long value, and adds a byte.
func TestEveryPrefixIsRefused(t *testing.T) {
	for _, rec := range recordings {
		inBlock(t, readHex(t, rec.name), func(_ uint32, msg []byte) {
			for n := range msg {
				short := TagOf(msg) == TagStreamAbort && n == 9       // the form of protocol version 2
				if n > 0 && (n < 200 || n > len(msg)-200) && !short { // an empty message has no tag to parse it by
					refuse(t, msg[:n:n])
				}
			}
			refuse(t, append(msg[:len(msg):len(msg)], 0))
		})
	}
}

func refuse(t *testing.T, msg []byte) {
	t.Helper()
	if m, err := parse(msg, new(Slab)); err == nil {
		t.Fatalf("%x was taken as %+v", msg, m)
	} else if !errors.Is(err, ErrMalformed) {
		t.Fatalf("%x: %v is not ErrMalformed", msg, err)
	}
}

func TestGarbageIsRefused(t *testing.T) {
	for name, msg := range map[string]string{
		"more columns than bytes":            "49 00000001 4e 7fff 6e",
		"negative number of columns":         "49 00000001 4e ffff 6e",
		"unknown kind of value":              "49 00000001 4e 0001 78",
		"length beyond the message":          "49 00000001 4e 0001 74 00000002 61",
		"negative length":                    "49 00000001 4e 0001 74 ffffffff 61",
		"length that overflows with 5 added": "49 00000001 4e 0001 62 fffffffc 61",
		"insert of an old tuple":             "49 00000001 4f 0001 6e",
		"update without a new tuple":         "55 00000001 4b 0001 6e",
		"update of two old tuples":           "55 00000001 4b 0001 6e 4b 0001 6e",
		"delete of a new tuple":              "44 00000001 4e 0001 6e",
		"more relations than bytes":          "54 7fffffff 00 00000001",
		"negative number of relations":       "54 ffffffff 00 00000001",
		"unknown flag of truncate":           "54 00000001 04 00000001",
		"unknown flag of commit":             "43 01 0000000000000000 0000000000000000 0000000000000000",
		"unknown flag of message":            "4d 02 0000000000000000 00 00000000",
		"content beyond the message":         "4d 01 0000000000000000 00 00000001",
		"negative content":                   "4d 01 0000000000000000 00 ffffffff",
		"more columns than relation has":     "52 00000001 00 6100 64 7fff 00 6100 00000017 ffffffff",
		"unknown replica identity":           "52 00000001 00 6100 7a 0000",
		"unknown flag of column":             "52 00000001 00 6100 64 0001 02 6100 00000017 ffffffff",
		"string without an end":              "59 00000001 61 62",
		"unknown flag of stream start":       "53 00000001 02",
		"stream stop with a number":          "45 00000001",
		"unknown flag of stream commit":      "63 00000001 01 0000000000000000 0000000000000000 0000000000000000",
		"stream abort with half a position":  "41 00000001 00000002 00000000",
		"stream abort without a time":        "41 00000001 00000002 0000000000000001",
		"unknown flag of prepare":            "50 01 0000000000000000 0000000000000000 0000000000000000 00000001 6700",
		"gid without an end":                 "62 0000000000000000 0000000000000000 0000000000000000 00000001 67",
	} {
		t.Run(name, func(t *testing.T) { refuse(t, unhex(t, msg)) })
	}
}

func TestUnstreamNeedsANumber(t *testing.T) {
	for _, msg := range []string{"", "49", "49 000000"} {
		if _, _, err := Unstream(unhex(t, msg)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: %v", msg, err)
		}
	}
}

func TestWrongTagIsRefused(t *testing.T) {
	if _, err := ParseBegin([]byte{'C'}); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
	if _, err := ParseInsert(nil, new(Slab)); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
}

func TestValuesThatLookAlike(t *testing.T) {
	m, err := ParseInsert(unhex(t, "49 00000001 4e 0004 6e 75 74 00000000 62 00000000"), new(Slab))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []millrace.ValueKind{millrace.Null, millrace.Unchanged, millrace.Text, millrace.Binary} {
		v := m.New[i]
		if v.Kind != want || len(v.Raw) != 0 {
			t.Errorf("value %d is %+v, want kind %c", i, v, want)
		}
		if hasBytes := v.Raw != nil; hasBytes != (want == millrace.Text || want == millrace.Binary) {
			t.Errorf("value %d of kind %c: Raw is nil: %t", i, want, v.Raw == nil)
		}
	}
}

// TestValuesEndWhereTheyEnd appends to a value, which must not reach the next.
func TestValuesEndWhereTheyEnd(t *testing.T) {
	m, err := ParseInsert(unhex(t, "49 00000001 4e 0002 74 00000001 61 74 00000001 62"), new(Slab))
	if err != nil {
		t.Fatal(err)
	}
	_ = append(m.New[0].Raw, "XXXXXXXX"...)
	if got := string(m.New[1].Raw); got != "b" {
		t.Errorf("the second value became %q", got)
	}
}

func TestExtremeTimes(t *testing.T) {
	for us, want := range map[int64]time.Time{
		0:             time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
		-1:            time.Date(1999, 12, 31, 23, 59, 59, 999999000, time.UTC),
		math.MaxInt64: time.Unix(math.MaxInt64/1_000_000+946684800, math.MaxInt64%1_000_000*1000).UTC(), // infinity
		math.MinInt64: time.Unix(math.MinInt64/1_000_000+946684800, math.MinInt64%1_000_000*1000).UTC(),
	} {
		msg := []byte{'B', 0, 0, 0, 0, 0, 0, 0, 1}
		for shift := 56; shift >= 0; shift -= 8 {
			msg = append(msg, byte(us>>shift))
		}
		m, err := ParseBegin(append(msg, 0, 0, 0, 9))
		if err != nil {
			t.Fatal(err)
		}
		if !m.Time.Equal(want) {
			t.Errorf("%d: %v, want %v", us, m.Time, want)
		}
	}
}

func TestSlabAsksForMore(t *testing.T) {
	var asked []int
	s := NewSlab(func(n int) []millrace.Value {
		asked = append(asked, n)
		return make([]millrace.Value, max(n, 4))
	})
	a, b, c, d := s.Row(3), s.Row(1), s.Row(0), s.Row(9)
	if len(a) != 3 || len(b) != 1 || len(c) != 0 || len(d) != 9 {
		t.Errorf("rows of %d %d %d %d values", len(a), len(b), len(c), len(d))
	}
	if len(asked) != 2 || asked[0] != 3 || asked[1] != 9 {
		t.Errorf("asked for %v, want [3 9]", asked)
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	var clean []byte
	for _, c := range []byte(s) {
		if c != ' ' {
			clean = append(clean, c)
		}
	}
	b, err := hex.DecodeString(string(clean))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
