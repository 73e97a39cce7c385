package backfill

import (
	"testing"

	"github.com/millrace/millrace/internal/rig"
)

// TestResumesInAnotherForm: the destination needs text for some table, so the keys of
// a mark were read as text. The next run begins with binary values until that table
// changes again, and must know which ranges the keys of changes lie in nevertheless.
func TestResumesInAnotherForm(t *testing.T) {
	for _, text := range []bool{true, false} {
		b := newBed(t, rig.Shared(t, rig.Newest), "CREATE TABLE a (at timestamptz PRIMARY KEY, v int)",
			"INSERT INTO a SELECT timestamptz '2020-01-01' + g * interval '1 h', 0 FROM generate_series(1, 3000) g")
		small(b)
		b.text, b.opt.Rate = text, 50_000
		b.run(t)
		rig.Eventually(t, patience, func() bool {
			return b.dst.Query(t, "SELECT coalesce(sum(rows), 0) > 0 FROM millrace.chunk") == "t"
		}, "a part is loaded")
		b.end()
		if left := b.dst.Query(t, "SELECT count(*) FROM a"); left == "3000" {
			t.Fatal("all of it is loaded")
		}
		b.src.SQL(t, "UPDATE a SET v = 1")
		b.text, b.opt.Rate = !text, 0
		b.run(t)
		b.loaded(t)
		b.same(t, "a")
		b.end()
	}
}

// TestResumesWithAnotherKey: the bounds of a mark are keys of other columns than the
// table has its key over now, or of none.
func TestResumesWithAnotherKey(t *testing.T) {
	for _, change := range []string{"ALTER TABLE a DROP CONSTRAINT a_pkey, ADD PRIMARY KEY (v)", "ALTER TABLE a DROP CONSTRAINT a_pkey"} {
		b := newBed(t, rig.Shared(t, rig.Newest), "CREATE TABLE a (id int PRIMARY KEY, v int NOT NULL)",
			"INSERT INTO a SELECT g, 10000 - g FROM generate_series(1, 3000) g")
		small(b)
		b.opt.Rate = 50_000
		b.run(t)
		rig.Eventually(t, patience, func() bool {
			return b.dst.Query(t, "SELECT coalesce(sum(rows), 0) > 0 FROM millrace.chunk") == "t"
		}, "a part is loaded")
		b.end()
		b.src.Script(t, change)
		b.dst.Script(t, change)
		b.opt.Rate = 0
		b.run(t)
		b.loaded(t)
		b.same(t, "a")
		b.end()
	}
}
