package apply

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
)

// TestTablesThatWereEmpty: statistics of an empty table make the planner read it
// as a whole. Sets are used all the same, and once it has grown with its index.
func TestTablesThatWereEmpty(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY, v int); CREATE TABLE one (id int PRIMARY KEY, v int); INSERT INTO one VALUES (1, 0)")
	p.dst.SQL(t, "ANALYZE")
	s := p.open(t)
	write(t, s, p.change(t, "INSERT INTO a SELECT g, 0 FROM generate_series(1, 20) g; UPDATE a SET v = 1; DELETE FROM a WHERE id > 10; UPDATE one SET v = 1"))
	route := func() *route {
		for rel, r := range s.w.Load().router.routes {
			if rel.Name.Name == "a" {
				return r
			}
		}
		return nil
	}
	if r := route(); r.askAfter == 0 {
		t.Fatal("the planner searches the index of an empty table: this tests nothing")
	}
	// In three steps: what was asked counts from the next transaction on.
	write(t, s, p.change(t, "INSERT INTO a SELECT g, 0 FROM generate_series(1001, 3000) g"))
	write(t, s, p.change(t, "UPDATE a SET v = 2 WHERE id < 1100; UPDATE one SET v = 2"))
	if r := route(); r.askAfter != 0 || !r.sets {
		t.Errorf("the table has grown and the planner was not asked again: %d, %q", r.askAfter, r.why)
	}
	if st := s.Stats(); st.FallbackTransactions > 0 || st.RowRows > 0 {
		t.Errorf("%+v", st)
	}
	p.same(t)
}

// TestPlanChangesItsMind: a large table whose statistics say that it is empty goes
// row by row at first.
func TestPlanChangesItsMind(t *testing.T) {
	ddl := "CREATE TABLE a (id int PRIMARY KEY, v int); INSERT INTO a SELECT g, 0 FROM generate_series(1, 20000) g; " +
		"DELETE FROM a WHERE id > 1; ANALYZE a;"
	p := newPair(t, true, strings.Replace(ddl, "ANALYZE a;", "VACUUM a;", 1))
	p.dst.SQL(t, "INSERT INTO a SELECT g, 0 FROM generate_series(2, 20000) g; DELETE FROM a WHERE id > 1; ANALYZE a")
	s := p.open(t)
	write(t, s, p.change(t, "UPDATE a SET v = 1; INSERT INTO a SELECT g, 0 FROM generate_series(2, 300) g; UPDATE a SET v = 2"))
	if st := s.Stats(); st.RowRows == 0 {
		t.Fatalf("nothing went row by row, so this tests nothing: %+v", st)
	}
	p.dst.SQL(t, "ANALYZE a")
	before := s.Stats().RowRows
	write(t, s, p.change(t, "UPDATE a SET v = 3 WHERE id < 50"))
	if st := s.Stats(); st.RowRows != before {
		t.Errorf("%d changes went row by row", st.RowRows-before)
	}
	p.same(t)
}

// TestAskedWhileLocked: the planner is to be asked again about a table that our own
// open transaction has truncated. Nobody may wait for the lock then: it is given
// back only once the rest of the transaction has come.
func TestAskedWhileLocked(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY, v int)")
	p.dst.SQL(t, "ANALYZE")
	s := p.open(t)
	write(t, s, p.change(t, "INSERT INTO a SELECT g, 0 FROM generate_series(1, 20) g"))
	txns := p.change(t, "BEGIN; TRUNCATE a; INSERT INTO a SELECT g, 0 FROM generate_series(1, 900) g; COMMIT")
	writeParts(t, s, split(txns[0], 300))
	p.same(t)
}

// writeParts gives the parts of a transaction to the sink, the second once the first is
// being executed, and waits until they are durable.
func writeParts(t *testing.T, s *Sink, parts []*millrace.Txn) {
	t.Helper()
	for _, part := range parts {
		written := make(chan error, 1)
		go func() { written <- s.Write(t.Context(), part) }()
		select {
		case err := <-written:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(15 * time.Second):
			t.Fatalf("part %d waits for a lock of the transaction that it belongs to", part.Part)
		}
		if part.Part == 0 {
			rig.Eventually(t, 15*time.Second, func() bool { return s.w.Load().open.Load() }, "the executor is inside of the transaction")
		}
	}
	s.Flush()
	if _, err := s.Durable(t.Context(), parts[0].End-1); err != nil {
		t.Fatal(err)
	}
}
