package capture_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/capture"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/spool"
)

const twoAlike = "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text)"

// withImmediate are the versions that can be told to send every change at once.
var withImmediate = []int{16, 17, 18}

// sendEarly makes the database's walsenders send what is open as early as they
// can: each change, or what outgrows 64 kB.
func sendEarly(t testing.TB, db *rig.DB) {
	t.Helper()
	db.SQL(t, "ALTER DATABASE "+db.Name+" SET logical_decoding_work_mem = '64kB'")
	if db.Server.Major() >= 16 {
		db.SQL(t, "ALTER DATABASE "+db.Name+" SET debug_logical_replication_streaming = immediate")
	}
}

// early gives the source a spool.
func early(t testing.TB) func(*capture.Options) {
	t.Helper()
	return limited(t, 0)
}

func limited(t testing.TB, limit int64) func(*capture.Options) {
	t.Helper()
	sp, err := spool.Open(spool.Options{Dir: t.TempDir(), Job: "test", Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := sp.Bytes(); n != 0 {
			t.Errorf("%d bytes are left in the spool", n)
		}
		if err := sp.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(o *capture.Options) { o.Spool = sp }
}

// replica holds what the transactions make of the tables t and u.
type replica map[string]map[string]string

func newReplica() replica { return replica{"t": {}, "u": {}} }

func (r replica) apply(t testing.TB, txn *millrace.Txn) {
	for i := range txn.Changes {
		c := &txn.Changes[i]
		if c.Op == millrace.Truncate {
			for _, rel := range c.Truncated.Rels {
				clear(r[rel.Name.Name])
			}
			continue
		}
		table := r[c.Rel.Name.Name]
		if c.Op == millrace.Delete || c.Op == millrace.Update && c.Old != nil {
			delete(table, string(c.Old[0].Raw))
		}
		if c.New != nil {
			key := string(c.New[0].Raw)
			if _, there := table[key]; there == (c.Op == millrace.Insert) && c.Old == nil {
				t.Errorf("%v of %s %s, there: %t", c.Op, c.Rel.Name, key, there)
			}
			table[key] = string(c.New[1].Raw)
		}
	}
}

// equal compares with the source, which must be idle.
func (r replica) equal(t testing.TB, db *rig.DB) {
	t.Helper()
	for name, table := range r {
		want := map[string]string{}
		for line := range strings.Lines(db.Query(t, "SELECT id, COALESCE(v, '') FROM "+name)) {
			id, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "|")
			want[id] = v
		}
		if len(want) != len(table) {
			t.Errorf("%s has %d rows, the source %d", name, len(table), len(want))
		}
		for id, v := range want {
			if got, ok := table[id]; !ok || got != v {
				t.Fatalf("%s: row %s is %q (there: %t), at the source %q", name, id, got, ok, v)
			}
		}
	}
}

// follow applies what comes until the position is passed.
func (s *source) follow(t testing.TB, r replica, end millrace.LSN) {
	t.Helper()
	for reached := millrace.LSN(0); reached < end; {
		s.RequestPosition()
		txn, err := s.next(t)
		if err != nil {
			t.Fatalf("%v; hint: %s", err, millrace.HintOf(err))
		}
		if !txn.Idle() {
			if txn.Commit < s.cp.Commit {
				t.Errorf("a commit at %v after %v", txn.Commit, s.cp.Commit)
			}
			s.cp.Commit = txn.Commit
			r.apply(t, txn)
		}
		if txn.Last {
			reached = max(reached, txn.End)
			s.cp.End = max(s.cp.End, txn.End)
			s.cp.Acked = s.cp.End
			s.Ack(s.cp.Acked)
		}
		txn.Release()
	}
}

// TestRandomSavepoints has sessions that write at the same time, with
// savepoints, rollbacks and releases at any depth, and now and then a change of
// definition that is rolled back.
func TestRandomSavepoints(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) { t.Parallel(); randomSavepoints(t, pg) }, versions...)
}

// TestRandomSavepointsByProtocol4 has aborts that tell their position and time.
func TestRandomSavepointsByProtocol4(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		t.Parallel()
		randomSavepoints(t, pg, func(o *capture.Options) { o.Parallel = true })
	}, withImmediate...)
}

func randomSavepoints(t *testing.T, pg *rig.Postgres, options ...func(*capture.Options)) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	db := pg.NewDB(t)
	sendEarly(t, db)
	s := prepare(t, db, twoAlike, append(options, early(t))...)
	s.UseText()
	s.start(t)
	done := make(chan error)
	const sessions, transactions = 4, 12
	for i := range sessions {
		go func() {
			done <- rig.RandomSession(t.Context(), db.URL(), rand.New(rand.NewPCG(seed, uint64(i))), i, transactions, 300)
		}()
	}
	for range sessions {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	r := newReplica()
	s.follow(t, r, s.insertPosition(t))
	r.equal(t, db)
	if s.Stats().Streamed == 0 {
		t.Error("no transaction came before its commit")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestRolledBackShapes rolls a change of definition back, alone and in the
// whole, after the source has sent what was written under it, and changes it for
// good afterwards: only that one is judged.
func TestRolledBackShapes(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		db := pg.NewDB(t)
		sendEarly(t, db)
		s := prepare(t, db, twoAlike, early(t))
		s.UseText()
		s.start(t)
		r := newReplica()
		conn := dial(t, db)
		defer conn.Close(t.Context())
		rows := 0
		insert := func(table, columns string) string {
			rows += 1000
			return fmt.Sprintf("INSERT INTO %s SELECT %s FROM generate_series(%d, %d) i", table, columns, rows, rows+999)
		}
		marker := 0
		for _, work := range []string{
			// What is rolled back would stop the job: a rewrite, and a table that is not in the set.
			"BEGIN; " + insert("t", "i, 'a'"), "SAVEPOINT s; ALTER TABLE t ALTER id TYPE int8; " + insert("t", "i, 'b'"),
			"ROLLBACK TO s; " + insert("t", "i, 'c'"), "COMMIT",
			"BEGIN; ALTER TABLE t ALTER id TYPE int8; " + insert("t", "i, 'd'"), "ROLLBACK",
			"BEGIN; CREATE TABLE more (id int PRIMARY KEY); " + insert("more", "i"), "ROLLBACK",
			insert("t", "i, 'e'"),
			"BEGIN; ALTER TABLE t ADD w int; " + insert("t", "i, 'f', i"), "COMMIT",
			insert("t", "i, 'g'"),
		} {
			if _, err := conn.Exec(t.Context(), work); err != nil {
				t.Fatal(err)
			}
			marker++
			db.SQL(t, fmt.Sprintf("INSERT INTO u VALUES (%d)", marker)) // has what is open flushed
			s.follow(t, r, s.insertPosition(t))
		}
		r.equal(t, db)
		if shapes := s.recorded(); len(shapes) != 1 || !strings.Contains(shapes[0].Shape, `"w"`) {
			t.Errorf("recorded %+v", shapes)
		}
		db.SQL(t, "BEGIN; "+insert("t", "i, 'h'")+"; ALTER TABLE t ALTER id TYPE int8; "+insert("t", "i, 'i'")+"; COMMIT")
		if _, err := s.failure(t); millrace.KindOf(err) != millrace.KindData || !strings.Contains(err.Error(), "was rewritten") {
			t.Errorf("got %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}, versions...)
}

// TestTenThousandSubtransactions rolls every second one back.
func TestTenThousandSubtransactions(t *testing.T) {
	db := rig.Shared(t, 18).NewDB(t)
	sendEarly(t, db)
	s := prepare(t, db, twoAlike, early(t))
	s.UseText()
	s.start(t)
	db.SQL(t, `DO $$ BEGIN
		FOR i IN 1..10000 LOOP
			BEGIN
				INSERT INTO t VALUES (i, 'v');
				IF i % 2 = 0 THEN RAISE EXCEPTION 'no'; END IF;
			EXCEPTION WHEN OTHERS THEN NULL;
			END;
		END LOOP; END $$`)
	r := newReplica()
	s.follow(t, r, s.insertPosition(t))
	r.equal(t, db)
	if len(r["t"]) != 5000 {
		t.Errorf("%d rows", len(r["t"]))
	}
}

// TestHundredOpenTransactions holds a hundred large ones open at once, and ends
// them in another order, half of them with a rollback.
func TestHundredOpenTransactions(t *testing.T) {
	const n, rows = 100, 3000
	pg := rig.Start(t, 18, "max_connections=150")
	db := &rig.DB{Server: pg, Name: "postgres"}
	db.SQL(t, "ALTER DATABASE postgres SET logical_decoding_work_mem = '64kB'")
	option := early(t)
	var sp *spool.Spool
	s := prepare(t, db, twoAlike, option, func(o *capture.Options) { sp = o.Spool })
	s.UseText()
	s.start(t)
	conns := make([]*pgx.Conn, n)
	for i := range conns {
		conns[i] = dial(t, db)
		defer conns[i].Close(t.Context())
	}
	exec := func(i int, sql string) {
		if _, err := conns[i].Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for block := range 3 { // they take turns
		for i := range conns {
			if block == 0 {
				exec(i, "BEGIN")
			}
			exec(i, fmt.Sprintf("INSERT INTO t SELECT i, md5(i::text) || md5((-i)::text) FROM generate_series(%d, %d) i", i*rows+block*rows/3, i*rows+(block+1)*rows/3-1))
		}
	}
	rig.Eventually(t, time.Minute, func() bool { return s.Stats().Streamed == n }, "all to come", func() any { return s.Stats() })
	runtime.GC()
	runtime.ReadMemStats(&now)
	if grown := int64(now.HeapAlloc) - int64(before.HeapAlloc); grown > 8<<20 {
		t.Errorf("%d transactions take %d bytes of memory", n, grown)
	}
	if open := openFiles(sp.Dir()); open > 2 { // the lock, and what is just being written
		t.Errorf("%d files are open", open)
	}
	for _, i := range rand.Perm(n) {
		exec(i, []string{"COMMIT", "ROLLBACK"}[i%2])
	}
	r := newReplica()
	s.follow(t, r, s.insertPosition(t))
	r.equal(t, db)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func openFiles(dir string) (n int) {
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, dir) {
			n++
		}
	}
	return n
}

// TestRestartWithinStreamedTransaction stops while a transaction is open whose
// beginning has come, and whose log is acknowledged by others that came later.
// All of it comes again.
func TestRestartWithinStreamedTransaction(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		noLeaks(t)
		db := pg.NewDB(t)
		sendEarly(t, db)
		s := prepare(t, db, twoAlike, early(t))
		s.UseText()
		r := newReplica()
		conn := dial(t, db)
		defer conn.Close(t.Context())
		exec := func(sql string) {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		exec("BEGIN; INSERT INTO t SELECT i, 'first' FROM generate_series(1, 2000) i; SAVEPOINT s")
		for round := range 3 {
			before := s.Stats().Streamed
			s.start(t)
			exec(fmt.Sprintf("INSERT INTO t SELECT i, 'round' FROM generate_series(%d, %d) i", 10000*(round+1), 10000*(round+1)+1999))
			db.SQL(t, fmt.Sprintf("INSERT INTO u VALUES (%d)", round))
			rig.Eventually(t, 30*time.Second, func() bool { return s.Stats().Streamed > before }, "blocks to come")
			s.follow(t, r, s.insertPosition(t))
			if len(r["t"]) != 0 {
				t.Fatal("rows of an open transaction came")
			}
			rig.Eventually(t, 10*time.Second, func() bool { return s.confirmed(t) == s.cp.Acked }, "the slot to follow")
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		exec("ROLLBACK TO s; INSERT INTO t SELECT i, 'last' FROM generate_series(90001, 92000) i; COMMIT")
		s.start(t)
		s.follow(t, r, s.insertPosition(t))
		r.equal(t, db)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}, versions...)
}

// TestSpoolIsFull has a transaction that the spool can't hold. It comes once it
// is committed, like those of a job without a spool, and the slot has not moved.
func TestSpoolIsFull(t *testing.T) {
	db := rig.Shared(t, 18).NewDB(t)
	sendEarly(t, db)
	s := prepare(t, db, twoAlike, limited(t, 100<<10))
	s.UseText()
	s.start(t)
	db.SQL(t, "INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 10000) i")
	whole, err := s.failure(t)
	if whole != 0 || millrace.KindOf(err) != millrace.KindRetry || !strings.Contains(err.Error(), "resources.spool.limit") ||
		!strings.Contains(millrace.HintOf(err), "raise resources.spool.limit") {
		t.Errorf("%d, %v; hint: %s", whole, err, millrace.HintOf(err))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if got := s.confirmed(t); got != s.cp.Acked {
		t.Errorf("the slot is at %v, acknowledged was %v", got, s.cp.Acked)
	}
	before := s.Stats().Streamed
	s.start(t)
	r := newReplica()
	s.follow(t, r, s.insertPosition(t))
	r.equal(t, db)
	if n := s.Stats().Streamed - before; n != 0 {
		t.Errorf("%d transactions came early", n)
	}
}

// TestTooLargeWithinBlock names the table.
func TestTooLargeWithinBlock(t *testing.T) {
	db := rig.Shared(t, 18).NewDB(t)
	sendEarly(t, db)
	s := prepare(t, db, twoAlike, early(t), func(o *capture.Options) { o.MaxMessage = 100 << 10 })
	db.SQL(t, "INSERT INTO t VALUES (1)")
	s.start(t)
	s.txn(t).Release()
	db.SQL(t, "INSERT INTO t VALUES (2, repeat('x', 200000))")
	if _, err := s.failure(t); !strings.Contains(err.Error(), "table public.t") || !errors.As(err, new(*millrace.Error)) {
		t.Errorf("got %v", err)
	}
}

// TestTooLargeRowThatIsRolledBack is no reason to stop: not when its savepoint is
// rolled back, and not when the whole is. Once one is committed, it is.
func TestTooLargeRowThatIsRolledBack(t *testing.T) {
	const limit = 100 << 10
	db := rig.Shared(t, 18).NewDB(t)
	sendEarly(t, db)
	s := prepare(t, db, twoAlike, early(t), func(o *capture.Options) { o.MaxMessage = limit })
	s.start(t)
	overhead := 1 + 4 + 1 + 2 + (1 + 4 + 4) + (1 + 4) // tag, OID, N, columns, int4 in binary, head of the text
	db.SQL(t, "BEGIN; INSERT INTO t VALUES (1, 'whole'); INSERT INTO t VALUES (2, repeat('x', 3000000)); ROLLBACK")
	db.SQL(t, `BEGIN; INSERT INTO t VALUES (3, 'before'); SAVEPOINT s; INSERT INTO t VALUES (4, repeat('x', 3000000));
		ROLLBACK TO SAVEPOINT s; INSERT INTO t VALUES (5, 'behind'); COMMIT`)
	// A row of exactly the limit passes, as it does outside of a block.
	db.SQL(t, fmt.Sprintf("INSERT INTO u VALUES (6, repeat('x', %d))", limit-overhead))
	txn := s.txn(t)
	if len(txn.Changes) != 2 || string(txn.Changes[0].New[1].Raw) != "before" || string(txn.Changes[1].New[1].Raw) != "behind" {
		t.Errorf("%d changes", len(txn.Changes))
	}
	txn.Release()
	txn = s.txn(t)
	if len(txn.Changes) != 1 || len(txn.Changes[0].New[1].Raw) != limit-overhead {
		t.Errorf("%d changes", len(txn.Changes))
	}
	txn.Release()
	if n := s.Stats().Streamed; n < 3 {
		t.Fatalf("%d transactions came in blocks", n)
	}
	db.SQL(t, fmt.Sprintf("BEGIN; INSERT INTO u VALUES (7, 'small'); INSERT INTO u VALUES (8, repeat('x', %d)); COMMIT", limit-overhead+1))
	whole, err := s.failure(t)
	var m *millrace.Error
	var large *replication.TooLarge
	if whole != 0 || !errors.As(err, &m) || m.Kind != millrace.KindData || m.LSN == 0 || m.Table.Name != "u" || !errors.As(err, &large) || large.Size != limit+1 {
		t.Errorf("%d, %v; hint: %s", whole, err, millrace.HintOf(err))
	}
}
