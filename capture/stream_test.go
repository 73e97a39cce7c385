package capture_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/capture"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/replication"
)

func (s *source) confirmed(t testing.TB) millrace.LSN {
	t.Helper()
	return parseLSN(t, s.db.Query(t, "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '"+s.db.Name+"'"))
}

// TestRestart stops in the middle, with and without an acknowledgement, and
// every transaction comes once from the checkpoint on.
func TestRestart(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		noLeaks(t)
		s := prepare(t, pg.NewDB(t), twoTables)
		s.db.Script(t, "INSERT INTO t SELECT i FROM generate_series(1, 3) i; INSERT INTO u VALUES (1); INSERT INTO u VALUES (2); INSERT INTO u VALUES (3)")
		s.start(t)
		var commits []millrace.LSN
		for range 2 {
			txn := s.txn(t)
			commits = append(commits, txn.Commit)
			s.cp.Commit, s.cp.End, s.cp.Acked = txn.Commit, txn.End, txn.End
			txn.Release()
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for range 2 { // nothing was acknowledged: the same comes again
			s.start(t)
			var rest []millrace.LSN
			for range 2 {
				txn := s.txn(t)
				rest = append(rest, txn.Commit)
				txn.Release()
			}
			if rest[0] <= commits[1] || rest[1] <= rest[0] {
				t.Errorf("after %v came %v", commits, rest)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		if held := s.Stats().Held; held != 0 {
			t.Errorf("%d bytes are still held", held)
		}
		if got := s.confirmed(t); got != s.cp.Acked {
			t.Errorf("the slot is at %v, acknowledged was %v", got, s.cp.Acked)
		}
		if n := s.Stats().Reconnects; n != 2 {
			t.Errorf("%d reconnects, want 2", n)
		}
	}, versions...)
}

// TestRestartInsideOfLargeTransaction delivers it from its first part again.
func TestRestartInsideOfLargeTransaction(t *testing.T) {
	noLeaks(t)
	s := prepare(t, rig.Shared(t, 18).NewDB(t), twoTables)
	s.db.SQL(t, "INSERT INTO u SELECT generate_series(1, 20000)")
	s.db.SQL(t, "INSERT INTO t VALUES (1)")
	for range 2 {
		s.start(t)
		for want := range 2 {
			txn := s.txn(t)
			if txn.Part != want || txn.Last || txn.End != 0 || txn.Changes[0].Seq != uint64(1+want*4096) {
				t.Errorf("part %d, last %t, end %v, first change %d", txn.Part, txn.Last, txn.End, txn.Changes[0].Seq)
			}
			txn.Release()
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestAckFollows covers guarantee 3: the slot stands still without an Ack, and
// goes exactly as far as acknowledged.
func TestAckFollows(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		s := prepare(t, pg.NewDB(t), twoTables)
		s.start(t)
		s.db.SQL(t, "INSERT INTO t VALUES (1)")
		first := s.txn(t)
		s.db.SQL(t, "INSERT INTO t VALUES (2)")
		second := s.txn(t)
		s.Ack(first.End)
		rig.Eventually(t, time.Minute, func() bool { return s.confirmed(t) == first.End }, "the slot to follow")
		s.Ack(s.cp.Acked) // lower: ignored
		rig.Linger(t, 1500*time.Millisecond, "status updates pass")
		if got := s.confirmed(t); got != first.End || second.End <= first.End {
			t.Errorf("the slot is at %v, acknowledged was %v", got, first.End)
		}
		first.Release()
		second.Release()
	}, versions...)
}

// TestIdlePositionComes moves the log without publishing anything.
func TestIdlePositionComes(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		s := prepare(t, pg.NewDB(t), twoTables, func(o *capture.Options) {
			o.Match = func(n millrace.TableName) bool { return n.Name == "t" }
		})
		s.tables = s.tables[:0]
		s.start(t)
		for _, work := range []string{
			"CREATE TEMP TABLE x AS SELECT 1",                    // unpublished
			"INSERT INTO u VALUES (1)",                           // published, but excluded
			"SELECT pg_logical_emit_message(true, 'a', 'b')",     // empty
			"SELECT pg_switch_wal()",                             // rule 25: the insert position is behind a header
			"SELECT pg_logical_emit_message(false, 'a', 'last')", // not in a transaction
		} {
			s.db.SQL(t, work)
			want := s.insertPosition(t)
			for reached := millrace.LSN(0); reached < want; {
				s.RequestPosition()
				txn, err := s.next(t)
				if err != nil {
					t.Fatal(err)
				}
				if !txn.Idle() || len(txn.Changes) != 0 || !txn.Last {
					t.Fatalf("%s: got %+v", work, txn)
				}
				reached = txn.End
				txn.Release()
			}
		}
	}, versions...)
}

// TestOnlyTheNewestSignOfLifeIsKept lets the source work for itself while
// nobody takes anything.
func TestOnlyTheNewestSignOfLifeIsKept(t *testing.T) {
	s := prepare(t, rig.Shared(t, 18).NewDB(t), twoTables)
	s.start(t)
	for range 50 {
		s.db.SQL(t, "SELECT pg_logical_emit_message(true, 'a', 'b')")
	}
	want := s.insertPosition(t)
	s.RequestPosition()
	rig.Eventually(t, time.Minute, func() bool { return s.Stats().Position >= want }, "the position")
	n := 0
	for s.Queued() {
		txn, err := s.next(t)
		if err != nil {
			t.Fatal(err)
		}
		n++
		txn.Release()
	}
	// More may come while they are taken.
	if n < 1 || n > 5 {
		t.Errorf("%d signs of life were queued", n)
	}
}

// TestShutdownOfTheSourceEnds has a source that shuts down, which waits until
// its receivers have acknowledged everything.
func TestShutdownOfTheSourceEnds(t *testing.T) {
	for _, major := range versions {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			pg := rig.Start(t, major)
			s := prepare(t, &rig.DB{Server: pg, Name: "postgres"}, twoTables)
			s.start(t)
			s.db.SQL(t, "INSERT INTO t VALUES (1)")
			done := make(chan error, 1)
			go func() {
				for {
					txn, err := s.Next(t.Context())
					if err != nil {
						done <- err
						return
					}
					s.cp.Commit, s.cp.End, s.cp.Acked = max(s.cp.Commit, txn.Commit), txn.End, txn.End
					s.Ack(txn.End)
					txn.Release()
				}
			}()
			started := time.Now()
			pg.Stop(t)
			if took := time.Since(started); took > 30*time.Second { // it would wait without end
				t.Errorf("the shutdown took %v", took)
			}
			if err := <-done; millrace.KindOf(err) != millrace.KindRetry || conditionOf(err) != "source_unreachable" {
				t.Errorf("got %v", err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			pg.Restart(t)
			s.start(t)
		})
	}
}

// TestSlowConsumer blocks three times as long as wal_sender_timeout while the
// queue, the buffers and the socket are full.
func TestSlowConsumer(t *testing.T) {
	noLeaks(t) // behind all of them: they run side by side
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		t.Parallel()
		db := pg.NewDB(t)
		db.SQL(t, "ALTER DATABASE "+db.Name+" SET wal_sender_timeout = '4s'")
		s := prepare(t, db, twoTables, func(o *capture.Options) { o.MaxInflight = 1 << 20 })
		db.SQL(t, "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 100000) i")
		s.start(t)
		rig.Linger(t, 12*time.Second, "three times wal_sender_timeout")
		if held := s.Stats().Held; held > 512<<10+2<<20 { // the share, the part that waits for room, the open part
			t.Errorf("%d bytes are held", held)
		}
		rows := 0
		for rows < 100000 {
			txn := s.txn(t)
			rows += len(txn.Changes)
			txn.Release()
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if n := s.Stats().Reconnects; n != 0 {
			t.Errorf("%d reconnects", n)
		}
	}, versions...)
}

// TestRowOfMaxMessage passes the smallest budget, and one byte more stops.
func TestRowOfMaxMessage(t *testing.T) {
	const limit = 4 << 20
	s := prepare(t, rig.Shared(t, 18).NewDB(t), twoTables, func(o *capture.Options) {
		o.MaxMessage = limit
		o.MaxInflight = 64 << 10
	})
	s.start(t)
	overhead := 1 + 4 + 1 + 2 + (1 + 4 + 4) + (1 + 4) // tag, OID, N, columns, int4 in binary, head of the text
	for i, size := range []int{limit - overhead, 100, limit - overhead + 1} {
		s.db.SQL(t, fmt.Sprintf("INSERT INTO t VALUES (%d, repeat('x', %d))", i, size))
	}
	for _, want := range []int{limit - overhead, 100} {
		txn := s.txn(t)
		if got := len(txn.Changes[0].New[1].Raw); got != want {
			t.Errorf("a value of %d bytes, want %d", got, want)
		}
		txn.Release()
	}
	_, err := s.failure(t)
	var large *replication.TooLarge
	if millrace.KindOf(err) != millrace.KindData || !errors.As(err, &large) || large.Size != limit+1 {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(err.Error(), "table public.t") || !strings.Contains(millrace.HintOf(err), "resources.max_message") {
		t.Errorf("%v; hint: %s", err, millrace.HintOf(err))
	}
}

// TestBinaryAndText compares the two forms, and that UseText changes them.
func TestBinaryAndText(t *testing.T) {
	s := prepare(t, rig.Shared(t, 18).NewDB(t), twoTables)
	s.db.SQL(t, "INSERT INTO t VALUES (258, 'v')")
	for _, want := range []millrace.Value{{Kind: millrace.Binary, Raw: []byte{0, 0, 1, 2}}, {Kind: millrace.Text, Raw: []byte("258")}} {
		s.start(t)
		txn := s.txn(t)
		if diff := cmp.Diff(want, txn.Changes[0].New[0]); diff != "" {
			t.Error(diff)
		}
		txn.Release()
		s.UseText()
	}
}

// TestTraps are the five of the notes: measured facts about the stream that
// would break what forgets them.
func TestTraps(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		s := prepare(t, pg.NewDB(t), twoTables+"; ALTER TABLE u REPLICA IDENTITY FULL")
		s.start(t)
		s.db.Script(t, `INSERT INTO t VALUES (1); ALTER TABLE t SET (fillfactor = 50); INSERT INTO t VALUES (2);
			INSERT INTO u VALUES (1); INSERT INTO u VALUES (2)`)
		var txns []*millrace.Txn
		for range 4 {
			txns = append(txns, s.txn(t))
		}
		if a, b := txns[0].Changes[0].Rel, txns[1].Changes[0].Rel; a != b {
			t.Error("a relation that was described again, unchanged, has another pointer")
		}
		if key := txns[2].Changes[0].Rel.Key; len(key) != 1 {
			t.Errorf("key %v", key)
		}
		for i, txn := range txns[1:] {
			if txn.Commit < txns[i].End {
				t.Errorf("transaction %d commits at %v, before the end %v of the one before", i+1, txn.Commit, txns[i].End)
			}
		}
		for _, txn := range txns {
			txn.Release()
		}
	}, versions...)
}

// TestCommitAtTheConsistentPoint starts from a checkpoint whose two positions
// are the same, as a job's first one is, and right where a transaction begins
// to commit. It must come.
func TestCommitAtTheConsistentPoint(t *testing.T) {
	s := prepare(t, rig.Shared(t, 18).NewDB(t), twoTables)
	s.db.SQL(t, "INSERT INTO t VALUES (1)")
	s.start(t)
	txn := s.txn(t)
	commit := txn.Commit
	txn.Release()
	s.cp.Commit, s.cp.End, s.cp.Acked = commit, commit, commit
	s.start(t)
	if txn = s.txn(t); txn.Commit != commit {
		t.Errorf("after the checkpoint at %v came %v", commit, txn.Commit)
	}
	txn.Release()
}

func TestShapesAreRecorded(t *testing.T) {
	s := prepare(t, rig.Shared(t, 18).NewDB(t), twoTables)
	s.start(t)
	s.db.Script(t, "INSERT INTO t VALUES (1); ALTER TABLE t ADD extra int; ALTER TABLE t RENAME TO t2; INSERT INTO t2 VALUES (2); INSERT INTO t2 VALUES (3)")
	for range 3 {
		s.txn(t).Release()
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if len(s.shapes) != 1 || s.shapes[0].Name.Name != "t2" || s.shapes[0].Shape != `"id":23:-1 "v":25:-1 "extra":23:-1` || s.shapes[0].Filenode != s.tables[0].Filenode {
		t.Errorf("recorded %+v", s.shapes)
	}
}

// TestLostConnection cuts the network in the middle: what was complete comes,
// then the error, and after it the rest.
func TestLostConnection(t *testing.T) {
	noLeaks(t)
	pg := rig.Shared(t, 18)
	proxy := rig.NewProxy(t, pg)
	db := pg.NewDB(t)
	s := prepare(t, db, twoTables, func(o *capture.Options) {
		endpoint := *o.Endpoint
		endpoint.Conn = func() (string, error) { return proxy.URL(db.Name), nil }
		o.Endpoint = &endpoint
	})
	db.Script(t, "DO $$ BEGIN FOR i IN 1..5000 LOOP INSERT INTO t VALUES (i, repeat('x', 100)); COMMIT; END LOOP; END $$")
	got := 0
	for attempt := 0; got < 5000; attempt++ {
		proxy.CutAfter(100 << 10)
		if attempt > 20 {
			proxy.CutAfter(1 << 40)
		}
		if err := s.Start(t.Context(), s.cp); err != nil {
			if millrace.KindOf(err) != millrace.KindRetry {
				t.Fatal(err)
			}
			continue
		}
		for got < 5000 {
			txn, err := s.next(t)
			if err != nil {
				if millrace.KindOf(err) != millrace.KindRetry || conditionOf(err) != "source_unreachable" {
					t.Fatal(err)
				}
				break
			}
			if !txn.Idle() {
				got++
				if id := string(txn.Changes[0].New[0].Raw); id != fmt.Sprintf("\x00\x00%c%c", got>>8, got&0xff) && got < 128 {
					t.Fatalf("row %x as number %d", id, got)
				}
				s.cp.Commit, s.cp.End, s.cp.Acked = txn.Commit, txn.End, txn.End
			}
			txn.Release()
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if held := s.Stats().Held; held != 0 {
		t.Errorf("%d bytes are still held", held)
	}
}
