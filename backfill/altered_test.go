package backfill

import (
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
)

// halted loads a part of the tables and has the load rest then.
func halted(t *testing.T, ddl, fill string) *bed {
	t.Helper()
	b := newBed(t, rig.Shared(t, rig.Newest), ddl, fill)
	small(b)
	b.opt.Rate = 100_000
	b.run(t)
	rig.Eventually(t, patience, func() bool {
		return b.dst.Query(t, "SELECT coalesce(sum(rows), 0) > 0 FROM millrace.chunk") == "t"
	}, "a part is loaded")
	b.backfill.Pause(true)
	if b.dst.Query(t, "SELECT count(*) > 0 FROM millrace.job_table WHERE NOT copied") != "t" {
		t.Fatal("all of it is loaded")
	}
	return b
}

// TestAlteredWhileItIsLoaded: a table gets another replica identity, key, name or other
// columns in the middle of its load. The load goes on, or begins anew by itself.
func TestAlteredWhileItIsLoaded(t *testing.T) {
	const ddl = "CREATE TABLE a (junk int, id int PRIMARY KEY, other int NOT NULL UNIQUE, v int, big text)"
	const fill = "INSERT INTO a SELECT g, g, -g, 0, repeat('x', 60) FROM generate_series(1, 4000) g"
	const changes = "UPDATE a SET v = v + 1 WHERE id % 3 = 0; DELETE FROM a WHERE id % 7 = 0; UPDATE a SET id = id + BASE, other = other - BASE WHERE id < 10000 AND id % 11 = 0; " +
		"INSERT INTO a (id, other) SELECT g, -g FROM generate_series(BASE + 90000, BASE + 90100) g"
	for _, c := range []struct{ name, both, source, then string }{
		{name: "replica identity", source: "ALTER TABLE a REPLICA IDENTITY USING INDEX a_other_key"},
		{name: "replica identity full", source: "ALTER TABLE a REPLICA IDENTITY FULL"},
		{name: "another primary key", both: "ALTER TABLE a DROP CONSTRAINT a_pkey, ADD PRIMARY KEY (other)"},
		{name: "no key, and rows twice", both: "ALTER TABLE a DROP CONSTRAINT a_pkey, DROP CONSTRAINT a_other_key; ALTER TABLE a REPLICA IDENTITY FULL",
			then: "INSERT INTO a SELECT * FROM a WHERE id % 5 = 0"},
		{name: "a column less before the key", source: "ALTER TABLE a DROP COLUMN junk"},
		{name: "another name", both: "ALTER TABLE a RENAME TO b; CREATE VIEW a AS TABLE b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := halted(t, ddl, fill)
			b.src.Script(t, "UPDATE a SET v = 7 WHERE id % 2 = 0")
			b.same(t) // what comes next finds the destination altered
			b.src.Script(t, c.both+";"+c.source)
			b.dst.Script(t, c.both)
			b.src.Script(t, strings.ReplaceAll(changes, "BASE", "100000")+";"+c.then)
			b.backfill.Pause(false)
			b.src.Script(t, strings.ReplaceAll(changes, "BASE", "300000")) // beside the load that goes on
			b.loaded(t)
			b.same(t, "(SELECT id, other, v, big FROM a)")
		})
	}
}

// TestEarlyTruncate: where changes pass before their rows are read, what a TRUNCATE
// takes away can be older than any snapshot that has shown something.
func TestEarlyTruncate(t *testing.T) {
	s, l := newFiltered(t, "")
	s.opt.Early = true
	ranges(t, l)
	l.segments[0].state, l.segments[0].view = read, l.segments[1].view
	txn := &millrace.Txn{XID: 50, Commit: 500, End: 510, Last: true,
		Changes: []millrace.Change{{Op: millrace.Truncate, Truncated: &millrace.Truncation{Rels: []*millrace.Relation{rel}}}}}
	if err := s.take(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
	if len(txn.Changes) != 1 || statesOf(l) != "unread" || len(txn.Marks) != 1 {
		t.Errorf("%v, ranges %s, marks %v", txn.Changes, statesOf(l), txn.Marks)
	}
}

// TestManyDelivered: while loads rest, what is remembered of delivered transactions
// does not grow, and a snapshot has to see all of them nevertheless.
func TestManyDelivered(t *testing.T) {
	s := New(Options{})
	const first = uint32(1<<32 - 10) // wraps around
	s.floor = uint64(first)
	for n := range uint32(3 * mostDelivered) {
		s.deliver(first + n)
		if len(s.delivered) > mostDelivered {
			t.Fatalf("%d transactions are remembered", len(s.delivered))
		}
	}
	if want := uint64(first) + uint64(3*mostDelivered-len(s.delivered)); s.floor != want {
		t.Errorf("snapshots have to see everything below %d", s.floor)
	}
}

// TestColumnsChangeWithinATransaction: each change is judged by the columns that it came
// with.
func TestColumnsChangeWithinATransaction(t *testing.T) {
	s, l := newFiltered(t, "")
	ranges(t, l)
	wide := *rel
	wide.Columns = append([]millrace.Column{{Name: "junk", Type: 20}}, rel.Columns...)
	wide.Key = []int{1}
	txn := &millrace.Txn{XID: 150, Commit: 500, End: 510, Last: true, Changes: []millrace.Change{
		{Op: millrace.Insert, Rel: &wide, New: millrace.Row{id(5), id(99), text}}, // unread
		{Op: millrace.Insert, Rel: rel, New: millrace.Row{id(5), text}},           // done
	}}
	if err := s.take(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
	if len(txn.Changes) != 1 || txn.Changes[0].Rel != rel {
		t.Errorf("what remains is %v", txn.Changes)
	}
}
