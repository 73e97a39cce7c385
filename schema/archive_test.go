package schema

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// golden are the archives that the pg_dump of each version made of
// testdata/rich.sql: pg_dump -s -Fc -Z0.
func golden(t testing.TB, major int) []byte { t.Helper(); return dumped(t, "rich", major) }

func dumped(t testing.TB, name string, major int) []byte {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("testdata/%s%d.dump", name, major))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestReadArchive(t *testing.T) {
	versions := map[int]byte{15: 14, 16: 15, 17: 16, 18: 16}
	for major, minor := range versions {
		a, err := readArchive(bytes.NewReader(golden(t, major)))
		if err != nil {
			t.Fatalf("%d: %v", major, err)
		}
		if a.version.minor != minor {
			t.Errorf("%d: archive version 1.%d", major, a.version.minor)
		}
		find := func(desc, tag string) entry {
			i := slices.IndexFunc(a.entries, func(e entry) bool { return e.desc == desc && e.tag == tag })
			if i < 0 {
				t.Fatalf("%d: no %s %s", major, desc, tag)
			}
			return a.entries[i]
		}
		table, sequence := find("TABLE", "order"), find("SEQUENCE", "order_id_seq")
		if table.class != 1259 || table.oid < 16384 || table.namespace != "shop" || table.section != sectionPreData ||
			!strings.HasPrefix(table.defn, "CREATE TABLE shop.\"order\" (") || !strings.Contains(table.defn, "REPLICA IDENTITY FULL") {
			t.Errorf("%d: %+v", major, table)
		}
		if !slices.Contains(sequence.deps, table.id) {
			t.Errorf("%d: the sequence depends on %v, not on %d", major, sequence.deps, table.id)
		}
		if e := find("FK CONSTRAINT", "order order_customer_fkey"); e.section != sectionPostData {
			t.Errorf("%d: %+v", major, e)
		}
	}
}

func TestBrokenArchive(t *testing.T) {
	whole := golden(t, 18)
	for _, n := range []int{0, 3, 7, 11, 40, 100, 5000, len(whole) / 2} {
		if _, err := readArchive(bytes.NewReader(whole[:n])); !errors.Is(err, errArchive) {
			t.Errorf("the first %d bytes: %v", n, err)
		}
	}
	newer := slices.Clone(whole)
	newer[6] = 17
	if _, err := readArchive(bytes.NewReader(newer)); err == nil || !strings.Contains(err.Error(), "archive version 1.17") {
		t.Errorf("%v", err)
	}
}

func FuzzReadArchive(f *testing.F) {
	for _, major := range []int{15, 18} {
		f.Add(dumped(f, "small", major)) // one table; inputs are minimized, which takes long for large ones
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := readArchive(bytes.NewReader(b))
		if err != nil {
			return
		}
		oids := []uint32{}
		for _, e := range a.entries {
			oids = append(oids, e.oid)
		}
		selectFrom(a, oids) // must end, whatever the dependencies
	})
}
