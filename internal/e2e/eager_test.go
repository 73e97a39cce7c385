package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// eagerly is early: apply.eager is on where nobody says otherwise.
func eagerly(t *testing.T) func(*blackbox.Options, *pair) {
	t.Helper()
	setup, _ := early(t)
	return setup
}

// aside is a server for targets alone: where a slot is made, the maker waits for every
// transaction of the server, and what is applied ahead gives way to it.
func aside(t *testing.T) *rig.Postgres {
	t.Helper()
	return rig.Shared(t, rig.Newest, "cluster_name=targets")
}

// session is a connection that stays open.
func session(t *testing.T, db *rig.DB) (exec func(string)) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// ahead tells whether a transaction is applied while it is open, and how many savepoints
// deep the target is in it.
func (p *pair) ahead(t *testing.T) bool {
	t.Helper()
	return p.target.Query(t, fmt.Sprintf(`SELECT count(*) FROM pg_stat_activity
		WHERE application_name = 'millrace:%s:apply' AND state = 'idle in transaction' AND backend_xid IS NOT NULL`, p.Name)) == "1"
}

// committedAhead is how many transactions were, since the program's start.
func (p *pair) committedAhead(t *testing.T) (n int) {
	t.Helper()
	_, body := p.get(t, "/metrics", nil)
	for _, line := range lines(body) {
		if strings.HasPrefix(line, "millrace_apply_transactions_total{") && strings.Contains(line, `path="ahead"`) {
			if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
	}
	return n
}

// await passes a commit, so that the source sends what is open.
func (p *pair) await(t *testing.T, marker int) {
	t.Helper()
	p.source.SQL(t, fmt.Sprintf("INSERT INTO marker VALUES (%d)", marker))
	p.sync(t)
}

const eagerTables = `CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text);
	CREATE TABLE marker (id int PRIMARY KEY)`

// TestEager has an open transaction on the target before it is committed at the
// source: unseen, behind what was committed before, without what was rolled back, and
// gone when the whole is, or the program.
func TestEager(t *testing.T) {
	versions := []int{rig.Newest}
	if full() {
		versions = nil // all
	}
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		t.Parallel()
		p := running(t, plan{source: pg, target: aside(t), schema: eagerTables, options: eagerly(t)})
		exec := session(t, p.source)
		marker, label := 0, "one"
		open := func(sql string) {
			t.Helper()
			exec(strings.ReplaceAll(sql, "'open'", "'"+label+"'"))
			rig.Eventually(t, patience, func() bool { marker++; p.await(t, marker); return p.ahead(t) }, "the open transaction on the target")
			if n := p.target.Query(t, "SELECT (SELECT count(*) FROM t WHERE v = '"+label+"') + (SELECT count(*) FROM u WHERE v = '"+label+"')"); n != "0" {
				t.Fatalf("%s rows of a transaction that is open", n)
			}
		}
		ahead := func() int { p.sync(t); return p.committedAhead(t) }
		const rows = "generate_series(%d, %d) i"
		p.source.SQL(t, "INSERT INTO t SELECT i, 'base' FROM generate_series(1, 50000) i")
		before := ahead() // that one, most likely
		open("BEGIN; UPDATE t SET v = 'open' WHERE id <= 40000")
		exec("SAVEPOINT a; INSERT INTO t SELECT i, 'one' FROM " + fmt.Sprintf(rows, 100001, 140000))
		exec("SAVEPOINT b; DELETE FROM t WHERE id <= 20000 OR id > 120000")
		open("RELEASE b")
		exec("ROLLBACK TO a; INSERT INTO t SELECT i, 'one' FROM " + fmt.Sprintf(rows, 100001, 110000))
		// Free again, at the source and, for the stream, on the target.
		p.source.SQL(t, "UPDATE t SET v = 'other' WHERE id = 50000; INSERT INTO t VALUES (130000, 'other')")
		open("INSERT INTO u SELECT i, 'open' FROM " + fmt.Sprintf(rows, 1, 30000))
		exec("COMMIT")
		if n := ahead(); n != before+1 {
			t.Errorf("%d transactions were applied ahead, before %d", n, before)
		}
		p.equal(t)

		label = "two"
		open("BEGIN; UPDATE t SET v = 'open' WHERE id <= 50000")
		exec("ROLLBACK")
		p.source.SQL(t, "UPDATE t SET v = 'after' WHERE id <= 100")
		p.sync(t)
		p.equal(t)

		label = "three"
		open("BEGIN; DELETE FROM t WHERE id <= 50000")
		p.Kill(t)
		exec("INSERT INTO t SELECT i, 'three' FROM " + fmt.Sprintf(rows, 1, 100))
		p.Start(t)
		open("SELECT 1")
		exec("COMMIT")
		if n := ahead(); n != 1 {
			t.Errorf("%d transactions were applied ahead after the kill", n)
		}
		// What it described is known from there on.
		p.source.SQL(t, "INSERT INTO u VALUES (-1, 'known')")
		p.finish(t)
	}, versions...)
}

// TestEagerGivesWay: what is applied ahead holds nothing up. A unique index that only
// the target has makes a later commit wait for it, which must go first.
func TestEagerGivesWay(t *testing.T) {
	t.Parallel()
	p := running(t, plan{target: aside(t), schema: eagerTables, options: eagerly(t),
		before: eagerTables + "; CREATE UNIQUE INDEX ON t (v)"})
	exec := session(t, p.source)
	exec("BEGIN; INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 30000) i")
	marker := 0
	rig.Eventually(t, patience, func() bool { marker++; p.await(t, marker); return p.ahead(t) }, "the open transaction on the target")
	p.source.SQL(t, "INSERT INTO t VALUES (100000, 'v1')")
	p.await(t, -1)
	if n := p.target.Query(t, "SELECT count(*) FROM t WHERE id = 100000"); n != "1" {
		t.Errorf("%s rows of the transaction in the middle", n)
	}
	exec("ROLLBACK")
	// Nor does it hold up anybody else, whom others would have to wait for.
	exec("BEGIN; INSERT INTO t SELECT i, 'w' || i FROM generate_series(200001, 230000) i")
	rig.Eventually(t, patience, func() bool { marker++; p.await(t, marker); return p.ahead(t) }, "the open transaction on the target")
	p.target.SQL(t, "SET lock_timeout = '60s'; DO 'BEGIN LOCK TABLE t; END'")
	if p.ahead(t) {
		t.Error("the table was locked, and the open transaction is still there")
	}
	p.source.SQL(t, "INSERT INTO t VALUES (100001, 'w')")
	p.await(t, -3)
	exec("ROLLBACK")
	// What does not suit is applied once it is committed.
	exec("BEGIN; INSERT INTO u SELECT i, 'u' FROM generate_series(1, 30000) i; TRUNCATE u; INSERT INTO u SELECT i, 'v' FROM generate_series(1, 30000) i")
	p.await(t, -2)
	exec("COMMIT")
	p.sync(t)
	if n := p.committedAhead(t); n != 0 {
		t.Errorf("%d transactions were applied ahead", n)
	}
	p.finish(t)
}

// TestEagerRandom has sessions with savepoints at any depth, while the program is
// killed now and then.
func TestEagerRandom(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	p := running(t, plan{target: aside(t), schema: eagerTables, options: eagerly(t)})
	const sessions = 3
	transactions, kills, most := 6, 2, 8000
	if full() {
		transactions, kills, most = 2000, 100, 4000
	}
	done := make(chan error, sessions)
	for i := range sessions {
		go func() {
			done <- rig.RandomSession(t.Context(), p.source.URL(), rand.New(rand.NewPCG(seed, uint64(i))), i, transactions, most)
		}()
	}
	ahead := 0
	for range kills {
		if err := p.Wait(10 * patience); err != nil {
			t.Fatal(err)
		}
		ahead += p.committedAhead(t)
		p.Kill(t)
		p.Start(t)
	}
	for range sessions {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Wait(10 * patience); err != nil {
		t.Fatal(err)
	}
	if ahead += p.committedAhead(t); ahead == 0 {
		t.Error("no transaction was applied ahead")
	}
	t.Logf("%d transactions were applied ahead", ahead)
	p.finish(t)
}

// TestEagerBehindOthers has the open transaction take up keys that others have just let
// go, and rows that they have just changed: it is behind them. All that passed is
// counted, once.
func TestEagerBehindOthers(t *testing.T) {
	t.Parallel()
	p := running(t, plan{target: aside(t), schema: eagerTables + "; INSERT INTO t SELECT i, 'base' FROM generate_series(1, 20000) i", options: eagerly(t)})
	exec := session(t, p.source)
	passed := 0
	others := func(sql string, changes int) { p.source.SQL(t, sql); passed += changes }
	exec("BEGIN; INSERT INTO u SELECT i, 'open' FROM generate_series(1, 30000) i")
	marker := 0
	rig.Eventually(t, patience, func() bool { marker++; p.await(t, marker); return p.ahead(t) }, "the open transaction on the target")
	const rounds, each = 20, 500
	for n := range rounds {
		lo, hi := n*1000+1, n*1000+each
		others(fmt.Sprintf("DELETE FROM t WHERE id BETWEEN %d AND %d", lo, hi), each)
		exec(fmt.Sprintf("INSERT INTO t SELECT i, 'mine' FROM generate_series(%d, %d) i", lo, hi))
		others(fmt.Sprintf("UPDATE t SET v = 'other' WHERE id BETWEEN %d AND %d", lo+each, hi+each), each)
		exec(fmt.Sprintf("UPDATE t SET v = v || ' and mine' WHERE id BETWEEN %d AND %d", lo+each, hi+each))
		// More than the spool gathers for one write.
		exec(fmt.Sprintf("INSERT INTO u SELECT i, 'more' FROM generate_series(%d, %d) i", (n+1)*100000, (n+1)*100000+4999))
	}
	exec("COMMIT")
	p.sync(t)
	if n := p.committedAhead(t); n != 1 {
		t.Errorf("%d transactions were applied ahead", n)
	}
	want := float64(passed + marker + 30000 + rounds*(2*each+5000))
	for _, metric := range []string{"source_changes_total", "table_changes_total"} {
		if got := p.metric(t, metric); got != want {
			t.Errorf("%s is %v, want %v", metric, got, want)
		}
	}
	p.finish(t)
}

// TestEagerFenced: an instance that stands still, with an open transaction on the target,
// loses the job. Its rows go, and what it held is free; when it wakes up it is too late.
func TestEagerFenced(t *testing.T) {
	t.Parallel()
	p := running(t, plan{target: aside(t), schema: eagerTables, options: eagerly(t)})
	first := p.Job
	exec := session(t, p.source)
	exec("BEGIN; INSERT INTO t SELECT i, 'open' FROM generate_series(1, 30000) i")
	marker := 0
	open := func() {
		t.Helper()
		rig.Eventually(t, patience, func() bool { marker++; p.await(t, marker); return p.ahead(t) }, "the open transaction on the target")
	}
	open()
	first.Signal(t, syscall.SIGSTOP)
	p.source.SQL(t, fmt.Sprintf("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = '%s'", p.slotName()))
	p.Job = first.Twin(t)
	p.Start(t)
	open()
	exec("INSERT INTO u SELECT i, 'open' FROM generate_series(1, 30000) i; COMMIT")
	p.sync(t)
	if n := p.committedAhead(t); n != 1 {
		t.Errorf("%d transactions were applied ahead", n)
	}
	first.Signal(t, syscall.SIGCONT)
	rig.Eventually(t, patience, func() bool { return !first.Running() }, "the first instance ends")
	p.finish(t)
}

// TestEagerReadAgain has a table of it read again in the middle of it.
func TestEagerReadAgain(t *testing.T) {
	t.Parallel()
	p := running(t, plan{target: aside(t), schema: eagerTables + "; INSERT INTO t SELECT i, 'base' FROM generate_series(1, 20000) i", options: eagerly(t)})
	exec := session(t, p.source)
	exec("BEGIN; UPDATE t SET v = 'open' WHERE id <= 15000; INSERT INTO u SELECT i, 'open' FROM generate_series(1, 30000) i")
	marker := 0
	rig.Eventually(t, patience, func() bool { marker++; p.await(t, marker); return p.ahead(t) }, "the open transaction on the target")
	p.tableVerb(t, "resnapshot", "public.t")
	exec("UPDATE t SET v = v || '+' WHERE id > 10000; DELETE FROM t WHERE id % 7 = 0; INSERT INTO u SELECT i, 'more' FROM generate_series(30001, 50000) i")
	p.source.SQL(t, "INSERT INTO t SELECT i, 'other' FROM generate_series(20001, 21000) i")
	exec("COMMIT")
	rig.Eventually(t, patience, func() bool { return p.target.Query(t, "SELECT count(*) FROM millrace.chunk") == "0" }, "the table was read again")
	p.finish(t)
}

// TestEagerIsLockedOut: a lock that keeps it from its table does not keep the stream from
// others, until its commit has come. Then the status says who is waited for.
func TestEagerIsLockedOut(t *testing.T) {
	t.Parallel()
	p := running(t, plan{target: aside(t), schema: eagerTables, options: eagerly(t)})
	exec := session(t, p.source)
	release := p.lock(t, "t")
	exec("BEGIN; INSERT INTO t SELECT i, 'open' FROM generate_series(1, 30000) i")
	marker := 0
	rig.Eventually(t, patience, func() bool { marker++; p.await(t, marker); return p.blocked(t) != "" }, "it waits for the lock")
	p.await(t, -1)
	exec("COMMIT")
	rig.Eventually(t, patience, func() bool { return p.status(t, "lag.waits_for") == "target_lock" }, "the status names the lock")
	release()
	p.sync(t)
	if n := p.committedAhead(t); n != 1 {
		t.Errorf("%d transactions were applied ahead", n)
	}
	p.finish(t)
}
