package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// eagerly is early with apply.eager.
func eagerly(t *testing.T) func(*blackbox.Options, *pair) {
	t.Helper()
	setup, _ := early(t)
	return func(o *blackbox.Options, p *pair) {
		setup(o, p)
		o.Extra += "apply: {eager: on}\n"
	}
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
		p := running(t, plan{source: pg, schema: eagerTables, options: eagerly(t)})
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
	p := running(t, plan{schema: eagerTables, options: eagerly(t),
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
	// Nor does somebody else who waits for it, and for whom all others wait.
	exec("BEGIN; INSERT INTO t SELECT i, 'w' || i FROM generate_series(200001, 230000) i")
	rig.Eventually(t, patience, func() bool { marker++; p.await(t, marker); return p.ahead(t) }, "the open transaction on the target")
	locked := make(chan error, 1)
	go func() {
		_, err := p.target.Server.TryQuery(p.target.Name, "DO 'BEGIN LOCK TABLE t; END'")
		locked <- err
	}()
	rig.Eventually(t, patience, func() bool {
		return p.target.Query(t, "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass") == "1"
	}, "somebody waits for the table")
	p.source.SQL(t, "INSERT INTO t VALUES (100001, 'w')")
	p.await(t, -3)
	exec("ROLLBACK")
	if err := <-locked; err != nil {
		t.Error(err)
	}
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
	p := running(t, plan{schema: eagerTables, options: eagerly(t)})
	const sessions = 3
	transactions, kills := 6, 2
	if full() {
		transactions, kills = 2000, 100
	}
	done := make(chan error, sessions)
	for i := range sessions {
		go func() {
			done <- rig.RandomSession(t.Context(), p.source.URL(), rand.New(rand.NewPCG(seed, uint64(i))), i, transactions, 4000)
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
