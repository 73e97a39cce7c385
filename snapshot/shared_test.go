package snapshot

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/session"
)

// TestSharedKeys: rows whose keys the server takes for equal come with the same
// chunk, whichever limit ends it, and all rows come once.
func TestSharedKeys(t *testing.T) {
	db := rig.Shared(t, rig.Newest).NewDB(t)
	db.Script(t, `CREATE EXTENSION citext SCHEMA public;
		CREATE TABLE t (a int NOT NULL, b public.citext NOT NULL, n numeric NOT NULL, id int NOT NULL);
		CREATE INDEX ON t (a); CREATE INDEX ON t (b, n); ALTER TABLE t REPLICA IDENTITY FULL;
		INSERT INTO t SELECT g / (1 + g % 17), CASE WHEN g % 2 = 0 THEN 'name' ELSE 'NAME' END || g % 23, CASE WHEN g % 3 = 0 THEN 1.0 ELSE 1.00 END, g
		  FROM generate_series(1, 2000) g;
		CREATE TABLE large (a int NOT NULL, pad text); ALTER TABLE large REPLICA IDENTITY FULL;
		INSERT INTO large SELECT 1, repeat('x', 4000000) FROM generate_series(1, 10)`)
	r, err := NewChunkReader(t.Context(), session.Static(millrace.PeerSource, db.URL(), "test"), NewLimiter(0))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	describe := func(table string, columns ...string) *ChunkTable {
		t.Helper()
		var oid uint32
		if err := r.Conn().QueryRow(t.Context(), "SELECT $1::regclass::oid", "public."+table).Scan(&oid); err != nil {
			t.Fatal(err)
		}
		c, err := DescribeChunks(t.Context(), r.Conn(), oid, true, catalog.Keys{{Schema: "public", Name: table}: columns})
		if err != nil {
			t.Fatal(err)
		}
		if c.Key == nil || !c.Key.Shared {
			t.Fatal("the key is not taken for shared")
		}
		return c
	}
	for _, columns := range [][]string{{"a"}, {"b", "n"}} {
		for _, limit := range []struct {
			rows int
			size int64
		}{{50, 1 << 20}, {1, 1 << 20}, {100_000, 3000}, {1 << 20, 1}} {
			t.Run(fmt.Sprint(columns, limit), func(t *testing.T) {
				c := describe("t", columns...)
				groupOf := db.Query(t, fmt.Sprintf("SELECT string_agg(r::text, ',' ORDER BY id) FROM (SELECT id, dense_rank() OVER (ORDER BY %s) r FROM t) x", c.Key.names("")))
				groups := splitInts(t, groupOf)
				seen, last, chunks := map[int]bool{}, 0, 0
				for in := (Range{}); ; chunks++ {
					rows := readOne(t, r, c, in, limit.rows, limit.size)
					first := 0
					for i := range rows.Changes {
						id := int(binaryInt(rows.Changes[i].New[3].Raw))
						if seen[id] {
							t.Fatalf("row %d came twice", id)
						}
						seen[id] = true
						g := groups[id-1]
						if i == 0 {
							first = g
						}
						if g < last || i == 0 && g == last {
							t.Fatalf("a row of group %d comes behind group %d", g, last)
						}
						last = g
					}
					if limit.size == 1 && len(rows.Changes) > 0 && first != last {
						t.Errorf("a chunk of groups %d to %d, though one is too large", first, last)
					}
					if rows.Final {
						break
					}
					in.After = slices.Clone(rows.Keys[len(rows.Keys)-1])
				}
				if len(seen) != 2000 || chunks < 3 {
					t.Errorf("%d rows in %d chunks", len(seen), chunks)
				}
			})
		}
	}
	t.Run("too many rows of one key", func(t *testing.T) {
		c := describe("large", "a")
		if _, err := r.Begin(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		_, err := r.Range(t.Context(), c, Range{}, 1000, 1<<20)
		if millrace.KindOf(err) != millrace.KindData || millrace.HintOf(err) == "" {
			t.Error(err)
		}
		if err := r.Abandon(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func readOne(t *testing.T, r *ChunkReader, c *ChunkTable, in Range, most int, size int64) *Rows {
	t.Helper()
	view, err := r.Begin(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := r.Range(t.Context(), c, in, most, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.End(t.Context(), view); err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestChosenKeyThatDoesNotFit: what check finds is refused while reading as well,
// since the table may have changed in between.
func TestChosenKeyThatDoesNotFit(t *testing.T) {
	db := rig.Shared(t, rig.Newest).NewDB(t)
	db.Script(t, `CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL, n int, g int GENERATED ALWAYS AS (id + 1) STORED NOT NULL)`)
	r, err := NewChunkReader(t.Context(), session.Static(millrace.PeerSource, db.URL(), "test"), NewLimiter(0))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var oid uint32
	if err := r.Conn().QueryRow(t.Context(), "SELECT 'public.t'::regclass::oid").Scan(&oid); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		column string
		fits   bool
	}{{"id", true}, {"a", false}, {"n", false}, {"g", false}, {"gone", false}} {
		_, err := DescribeChunks(t.Context(), r.Conn(), oid, true, catalog.Keys{{Schema: "public", Name: "t"}: {c.column}})
		var e *millrace.Error
		if c.fits != (err == nil) || err != nil && (!errors.As(err, &e) || e.Hint == "") {
			t.Errorf("key %s: %v", c.column, err)
		}
	}
}
