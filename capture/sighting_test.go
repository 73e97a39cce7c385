package capture_test

import (
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
)

// A new column after the storage has changed for another reason is no rewrite.

func TestTruncatedBeforeTheStart(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		noLeaks(t)
		s := prepare(t, pg.NewDB(t), twoTables)
		s.db.SQL(t, "INSERT INTO t VALUES (1)")
		s.db.SQL(t, "TRUNCATE t")
		s.db.SQL(t, "VACUUM FULL u")
		s.start(t)
		s.db.Script(t, "ALTER TABLE t ADD c int; ALTER TABLE u ADD c int; INSERT INTO t VALUES (2); INSERT INTO u VALUES (2)")
		for range 4 {
			s.txn(t).Release()
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		// Both were seen, and then both got new columns.
		if len(s.shapes) != 4 || s.shapes[0].Filenode == s.tables[0].Filenode && s.shapes[0].Filenode == s.tables[1].Filenode {
			t.Errorf("recorded %+v of %+v", s.shapes, s.tables)
		}
	}, versions...)
}

func TestTruncatedWhileStreaming(t *testing.T) {
	t.Parallel()
	s := prepare(t, rig.Shared(t, 18).NewDB(t), twoTables)
	s.start(t)
	s.db.SQL(t, "INSERT INTO t VALUES (1)")
	s.db.SQL(t, "TRUNCATE t")
	for range 2 {
		s.txn(t).Release()
	}
	want := s.db.Query(t, "SELECT pg_relation_filenode('t')")
	deadline := time.Now().Add(30 * time.Second)
	for n := 2; ; n++ { // until it was looked at and the stream has passed that
		if time.Now().After(deadline) {
			t.Fatal("the new file node is not recorded")
		}
		s.RequestPosition()
		txn, err := s.next(t)
		if err != nil {
			t.Fatal(err)
		}
		txn.Release()
		if len(s.recorded()) > 0 {
			break
		}
		rig.Linger(t, 200*time.Millisecond, "nothing may come")
		s.db.SQL(t, "SELECT pg_logical_emit_message(true, 'a', 'b')")
	}
	if got := s.recorded()[0]; got.Name.Name != "t" || want == "" {
		t.Errorf("recorded %+v, want file node %s", got, want)
	}
	s.db.Script(t, "ALTER TABLE t ADD c int; INSERT INTO t VALUES (2)")
	s.txn(t).Release()
}

// TestRewriteAfterTruncate is still one.
func TestRewriteAfterTruncate(t *testing.T) {
	s := prepare(t, rig.Shared(t, 18).NewDB(t), twoTables)
	s.db.SQL(t, "TRUNCATE t")
	s.start(t)
	s.db.Script(t, "INSERT INTO t VALUES (1, '1'); INSERT INTO u VALUES (1); ALTER TABLE t ALTER v TYPE int USING v::int; INSERT INTO t VALUES (2, 2)")
	whole, err := s.failure(t)
	if whole != 3 || millrace.KindOf(err) != millrace.KindData { // the TRUNCATE, and the rows before the change
		t.Errorf("after %d transactions: %v", whole, err)
	}
}

// TestRewriteWhileBehind looks at a table that was rewritten after the position
// of the stream: that must not make the rewrite look old.
func TestRewriteWhileBehind(t *testing.T) {
	s := prepare(t, rig.Shared(t, 18).NewDB(t), twoTables)
	s.db.Script(t, "INSERT INTO t VALUES (1, '1'); ALTER TABLE t ALTER v TYPE int USING v::int; INSERT INTO t VALUES (2, 2)")
	s.start(t)
	whole, err := s.failure(t)
	if whole != 1 || millrace.KindOf(err) != millrace.KindData {
		t.Errorf("after %d transactions: %v", whole, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if len(s.recorded()) != 0 {
		t.Errorf("recorded %+v", s.recorded())
	}
}
