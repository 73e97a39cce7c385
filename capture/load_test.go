package capture_test

import (
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
)

// TestLargeTransactionIsBounded streams a million rows in one transaction to a
// consumer that holds nothing.
func TestLargeTransactionIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("a million rows")
	}
	const rows = 1000000
	s := prepare(t, rig.Shared(t, 18).NewDB(t), "CREATE TABLE t (id int PRIMARY KEY, kind int, name text, at timestamptz)")
	s.db.SQL(t, fmt.Sprintf("INSERT INTO t SELECT i, i %% 1000, 'item ' || i, now() FROM generate_series(1, %d) i", rows))
	s.start(t)
	var before, now runtime.MemStats
	var most int64
	runtime.GC()
	runtime.ReadMemStats(&before)
	got, parts := 0, 0
	for last := false; !last; {
		txn := s.txn(t)
		if txn.Part != parts || len(txn.Changes) > 4096 || txn.Changes[0].Seq != uint64(got+1) {
			t.Fatalf("part %d after %d, %d changes from %d", txn.Part, parts, len(txn.Changes), txn.Changes[0].Seq)
		}
		got += len(txn.Changes)
		parts++
		last = txn.Last
		most = max(most, s.Stats().Held)
		txn.Release()
	}
	runtime.ReadMemStats(&now)
	if got != rows {
		t.Errorf("%d rows", got)
	}
	if most > 8<<20+4<<20 {
		t.Errorf("up to %d bytes were held", most)
	}
	perRow := float64(now.TotalAlloc-before.TotalAlloc) / rows
	t.Logf("%d parts, up to %d bytes held, %.1f bytes and %.4f allocations a row", parts, most, perRow, float64(now.Mallocs-before.Mallocs)/rows)
	if allocs := float64(now.Mallocs-before.Mallocs) / rows; allocs > 0.05 {
		t.Errorf("%.3f allocations a row", allocs)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if held := s.Stats().Held; held != 0 {
		t.Errorf("%d bytes are still held", held)
	}
}

// TestLatencyOfSmallTransactions sends one at a time: nothing on the way may
// wait for more.
func TestLatencyOfSmallTransactions(t *testing.T) {
	s := prepare(t, rig.Shared(t, 18).NewDB(t), twoTables)
	s.start(t)
	conn := dial(t, s.db)
	defer conn.Close(t.Context())
	const n = 200
	took := make([]time.Duration, n)
	for i := range n {
		if _, err := conn.Exec(t.Context(), "INSERT INTO t VALUES ($1)", i); err != nil {
			t.Fatal(err)
		}
		started := time.Now()
		s.txn(t).Release()
		took[i] = time.Since(started)
		rig.Linger(t, time.Millisecond, "a pause") // what follows a commit must not count for the next
	}
	slices.Sort(took)
	t.Logf("after the answer to the commit: median %v, worst %v", took[n/2], took[n-1])
	// What waits for more does so every time; a busy machine now and then.
	if took[n/4] > 20*time.Millisecond {
		t.Errorf("three quarters took more than %v", took[n/4])
	}
}

// workloads are backlogs to read; each iteration reads a copy of the same slot.
var workloads = []struct{ name, sql string }{
	{"100kTransactionsOf3Rows", `DO $$ BEGIN FOR i IN 1..100000 LOOP
		INSERT INTO item VALUES (i, i % 1000, 'item ' || i, i * 1.5, now());
		UPDATE stock SET n = n + 1, at = now() WHERE id = i % 1000;
		INSERT INTO log VALUES (i, 'something happened to ' || i);
		COMMIT; END LOOP; END $$`},
	{"OneTransactionOf1MRows", `INSERT INTO item SELECT i, i % 1000, 'item ' || i, i * 1.5, now() FROM generate_series(1, 1000000) i`},
	{"100kRowsOf2KB", `INSERT INTO log SELECT i, repeat(md5(i::text), 64) FROM generate_series(1, 100000) i`},
}

// BenchmarkCapture takes a backlog out of a Source, and BenchmarkRecvlogical
// has pg_recvlogical write the same to /dev/null.
//
//	go test ./capture -run '^$' -bench . -benchtime 5x
func BenchmarkCapture(b *testing.B) {
	benchmarkBacklogs(b, func(b *testing.B, s *source, end millrace.LSN) {
		s.start(b)
		b.StartTimer()
		for reached := millrace.LSN(0); reached < end; {
			txn, err := s.Next(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			reached = max(reached, txn.End)
			txn.Release()
		}
		b.StopTimer()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkRecvlogical(b *testing.B) {
	benchmarkBacklogs(b, func(b *testing.B, s *source, end millrace.LSN) {
		slot := s.db.Query(b, "SELECT slot_name FROM pg_copy_logical_replication_slot('"+s.db.Name+"', '"+s.db.Name+"_copy')")
		cmd := exec.CommandContext(b.Context(), s.db.Server.Bin("pg_recvlogical"), "-d", s.db.URL(), "--slot", slot, "--start", "-f", "/dev/null",
			"--endpos", end.String(), "-o", "proto_version=1", "-o", "publication_names=everything", "-o", "binary=true", "-o", "messages=true")
		b.StartTimer()
		out, err := cmd.CombinedOutput()
		b.StopTimer()
		if err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		s.db.SQL(b, "SELECT pg_drop_replication_slot('"+slot+"')")
	})
}

func benchmarkBacklogs(b *testing.B, read func(b *testing.B, s *source, end millrace.LSN)) {
	pg := rig.Start(b, 18, "shared_buffers=1GB", "max_wal_size=16GB", "autovacuum=off", "fsync=off")
	for _, w := range workloads {
		b.Run(w.name, func(b *testing.B) {
			s := prepare(b, pg.NewDB(b), `CREATE TABLE item (id int PRIMARY KEY, kind int, name text, price numeric, at timestamptz);
				CREATE TABLE stock (id int PRIMARY KEY, n int, at timestamptz);
				CREATE TABLE log (id int PRIMARY KEY, line text);
				ALTER TABLE log ALTER line SET STORAGE EXTERNAL`)
			s.db.SQL(b, "INSERT INTO stock SELECT i, 0, now() FROM generate_series(0, 999) i")
			s.db.Script(b, w.sql)
			end := parseLSN(b, s.db.Query(b, "SELECT pg_current_wal_flush_lsn()"))
			s.db.SQL(b, "SELECT pg_switch_wal()")
			s.db.SQL(b, "CHECKPOINT")
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				read(b, s, end)
				b.StartTimer()
			}
		})
	}
}
