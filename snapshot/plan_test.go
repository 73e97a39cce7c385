package snapshot

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
)

// TestSplit: whatever the sizes, the parts of a table cover its pages once, and
// the last has no end.
func TestSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tables []*Table
		pages := map[uint32]int64{}
		for i := range rapid.IntRange(0, 6).Draw(t, "tables") {
			n := rapid.Int64Range(0, 1<<20).Draw(t, "pages")
			s := &catalog.Table{OID: uint32(i + 1), Bytes: n * rapid.Int64Range(0, 20000).Draw(t, "bytes of a page")}
			pages[s.OID] = n
			tables = append(tables, &Table{Source: s, Columns: make([]string, rapid.IntRange(0, 1).Draw(t, "columns"))})
		}
		parts := Split(tables, pages, rapid.IntRange(1, 8).Draw(t, "streams"), rapid.Int64Range(0, 1<<30).Draw(t, "least"))
		if !slices.IsSortedFunc(parts, func(a, b Part) int { return int(min(1, max(-1, b.Bytes-a.Bytes))) }) {
			t.Error("not largest first")
		}
		for _, table := range tables {
			var own []Part
			for _, p := range parts {
				if p.Table == table {
					own = append(own, p)
				}
			}
			slices.SortFunc(own, func(a, b Part) int { return a.Number - b.Number })
			next := uint32(0)
			for i, p := range own {
				if p.Number != i || p.Of != len(own) || p.First != next || !p.Last() && p.End <= p.First {
					t.Fatalf("part %+v begins not at %d", p, next)
				}
				next = p.End
			}
			if len(own) == 0 || !own[len(own)-1].Last() {
				t.Fatalf("parts %+v have no end", own)
			}
		}
	})
}

func TestOrder(t *testing.T) {
	refers := map[uint32][]uint32{1: {2, 9}, 2: {3}, 4: {5}, 5: {4}, 6: {5}}
	levels, circle := order([]uint32{1, 2, 3, 4, 5, 6, 7}, refers)
	if diff := cmp.Diff([][]uint32{{3, 7}, {2}, {1}}, levels); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]uint32{4, 5, 6}, circle); diff != "" {
		t.Error(diff)
	}
}

func table(oid uint32, name string, kind byte, parents ...uint32) *catalog.Table {
	return &catalog.Table{OID: oid, Name: millrace.TableName{Schema: "s", Name: name}, Kind: kind, Persistence: 'p',
		Parents: parents, Partition: len(parents) > 0}
}

func TestSelectAndPublish(t *testing.T) {
	all := []*catalog.Table{
		table(12, "leaf_b", 'r', 11), table(1, "plain", 'r'), table(2, "view", 'v'), table(11, "middle", 'p', 10),
		table(10, "root", 'p'), table(13, "leaf_a", 'r', 10), table(3, "spatial", 'r'),
	}
	for _, c := range []struct {
		patterns []string
		tables   string
		sql      string
		problems int
	}{
		{[]string{"s.*"}, "leaf_b plain leaf_a", `CREATE PUBLICATION "p" FOR TABLE "s"."root", ONLY "s"."plain"`, 0},
		{[]string{"s.leaf*"}, "leaf_b leaf_a", `CREATE PUBLICATION "p" FOR TABLE ONLY "s"."leaf_b", ONLY "s"."leaf_a"`, 0},
		{[]string{"s.middle", "s.leaf*"}, "leaf_b leaf_a", `CREATE PUBLICATION "p" FOR TABLE "s"."middle", ONLY "s"."leaf_a"`, 0},
		{[]string{"s.root"}, "", "", 1},
		{[]string{"s.plain", "s.view"}, "plain", "", 1},
		{[]string{"s.plain", "s.spatial"}, "plain", "", 1},
		{[]string{"t.*"}, "", "", 1},
		{nil, "leaf_b plain leaf_a", "", 0},
	} {
		p, errs := catalog.ParsePatterns(c.patterns)
		if errs != nil {
			t.Fatal(errs)
		}
		s := Select(all, p, nil, map[uint32]string{3: "postgis"})
		var names []string
		for _, table := range s.Tables {
			names = append(names, table.Name.Name)
		}
		if got := strings.Join(names, " "); got != c.tables || len(s.Problems) != c.problems {
			t.Errorf("%v: %s, problems %v", c.patterns, got, s.Problems)
		}
		if got := s.PublicationSQL("p"); c.sql != "" && got != c.sql {
			t.Errorf("%v: %s", c.patterns, got)
		}
	}
	// Without patterns the publication decides.
	pub := &catalog.Publication{Tables: []catalog.PublishedTable{{OID: 1}}}
	if s := Select(all, catalog.Patterns{}, pub, nil); len(s.Tables) != 1 || s.Tables[0].OID != 1 {
		t.Errorf("%v", s.OIDs())
	}
}

// collector is a rowWriter.
type collector struct {
	strings.Builder
	rows int
}

func (c *collector) row() { c.rows++ }

// TestGulp reads messages that arrive in pieces of any size, larger and smaller
// than the buffer.
func TestGulp(t *testing.T) {
	big := strings.Repeat("x", 1000)
	var wire []byte
	for _, body := range []string{"a", "", big, "bc"} {
		wire = append(wire, 'd')
		wire = binary.BigEndian.AppendUint32(wire, uint32(len(body)+4))
		wire = append(wire, body...)
	}
	for name, from := range map[string]io.Reader{
		"whole": strings.NewReader(string(wire)), "bytes": iotest.OneByteReader(strings.NewReader(string(wire))),
		"halves": iotest.HalfReader(strings.NewReader(string(wire))), "data with error": iotest.DataErrReader(strings.NewReader(string(wire))),
	} {
		g := gulp{from: from, buf: make([]byte, 16)}
		var to collector
		for range 4 {
			kind, n, err := g.header()
			if err != nil || kind != 'd' {
				t.Fatalf("%s: %q %v", name, kind, err)
			}
			if err := g.pass(&to, n); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			to.row()
		}
		if to.String() != "a"+big+"bc" {
			t.Errorf("%s: %d bytes", name, to.Len())
		}
		if _, _, err := g.header(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPipe(t *testing.T) {
	var reported, rows int64
	p := newPipe(context.Background(), &Limiter{}, func(b, r int64) { reported += b; rows += r })
	want := strings.Repeat("0123456789", 200_000)
	go func() {
		_, err := io.Copy(p, strings.NewReader(want))
		p.row()
		p.closeWrite(err)
	}()
	got, err := io.ReadAll(p)
	if err != nil || string(got) != want || reported != int64(len(want)) || rows != 1 {
		t.Errorf("%d bytes, %d reported, %d rows, %v", len(got), reported, rows, err)
	}

	failed := errors.New("failed")
	p = newPipe(context.Background(), &Limiter{}, func(int64, int64) {})
	go func() { p.closeWrite(failed) }()
	if _, err := io.ReadAll(p); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}

	p = newPipe(context.Background(), &Limiter{}, func(int64, int64) {})
	p.closeRead()
	if _, err := io.Copy(p, strings.NewReader(want)); !errors.Is(err, errReaderGone) {
		t.Errorf("%v", err)
	}
}
