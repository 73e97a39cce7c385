package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// twoPhase has the job carry prepared transactions as such.
func twoPhase(o *blackbox.Options, p *pair) { o.SourceKeys = "two_phase: on" }

const twoTables = "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)"

// alone gives servers of the test's own: what is prepared on a server holds up
// the making of slots in all its databases.
func alone(t *testing.T, major int) (source, target *rig.Postgres) {
	t.Helper()
	return rig.Start(t, major), rig.Start(t, rig.Newest)
}

// prepare prepares transactions at the source. Names are those of the whole
// server.
func (p *pair) prepare(t *testing.T, name, sql string) {
	t.Helper()
	p.source.SQL(t, "BEGIN; "+sql+"; PREPARE TRANSACTION '"+p.gid(name)+"'")
}

func (p *pair) gid(name string) string { return p.source.Name + "_" + name }

// prepared counts what is prepared on the target.
func (p *pair) prepared(t *testing.T) string {
	t.Helper()
	return p.target.Query(t, "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")
}

func (p *pair) awaitPrepared(t *testing.T, n string) {
	t.Helper()
	rig.Eventually(t, patience, func() bool { return p.prepared(t) == n }, n, "prepared transactions on the target")
}

// nothingLeft checks that no trace of a prepared transaction is on the target.
func (p *pair) nothingLeft(t *testing.T) {
	t.Helper()
	if n := p.prepared(t); n != "0" {
		t.Errorf("%s prepared transactions are left", n)
	}
	if n := p.target.Query(t, "SELECT count(*) FROM millrace.prepared"); n != "0" {
		t.Errorf("%s rows of millrace.prepared are left", n)
	}
}

// TestPreparedTransactions carries small and large ones as prepared, from each
// version, decides them in both ways, and kills the program while they are
// undecided. What comes after them does not wait.
func TestPreparedTransactions(t *testing.T) {
	for _, major := range []int{16, 17, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) { preparedTransactions(t, major) })
	}
}

func preparedTransactions(t *testing.T, major int) {
	t.Parallel()
	source, target := alone(t, major)
	p := newPair(t, plan{source: source, target: target, schema: twoTables, options: func(o *blackbox.Options, p *pair) {
		twoPhase(o, p)
		o.SourceKeys += ", streaming: on"
		p.source.SQL(t, "ALTER DATABASE "+p.source.Name+" SET logical_decoding_work_mem = '64kB'")
	}})
	p.Start(t, "--bootstrap")
	p.sync(t)
	p.prepare(t, "small", "INSERT INTO t VALUES (1, 'small')")
	p.prepare(t, "large", "INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1000, 20000) i")
	p.prepare(t, "none", "INSERT INTO t VALUES (2, 'rolled back')")
	p.prepare(t, "late", "INSERT INTO t VALUES (3, 'decided while the program is away')")
	p.awaitPrepared(t, "4")
	if n := p.target.Query(t, "SELECT count(*) FROM t"); n != "0" {
		t.Errorf("%s rows of prepared transactions can be seen", n)
	}
	p.source.SQL(t, "INSERT INTO t VALUES (100, 'does not wait')")
	p.sync(t)
	p.Kill(t)
	p.source.SQL(t, "COMMIT PREPARED '"+p.gid("late")+"'")
	p.Start(t)
	p.sync(t)
	p.awaitPrepared(t, "3")
	p.source.SQL(t, "ROLLBACK PREPARED '"+p.gid("none")+"'")
	p.source.SQL(t, "COMMIT PREPARED '"+p.gid("small")+"'")
	p.source.SQL(t, "INSERT INTO u VALUES (1)")
	p.source.SQL(t, "COMMIT PREPARED '"+p.gid("large")+"'")
	p.finish(t)
	p.nothingLeft(t)
	if n := p.target.Query(t, "SELECT count(*) FROM t"); n != "19004" {
		t.Errorf("%s rows", n)
	}
}

// TestPreparedAcrossCrashes crashes each server while a transaction is prepared,
// and once more behind its commit.
func TestPreparedAcrossCrashes(t *testing.T) {
	t.Parallel()
	source, target := alone(t, rig.Newest)
	p := running(t, plan{source: source, target: target, schema: twoTables, options: func(o *blackbox.Options, p *pair) {
		o.SourceKeys, o.Extra = "two_phase: on", fast
	}})
	for round, server := range []*rig.Postgres{target, source, target} {
		name := fmt.Sprint("round", round)
		p.prepare(t, name, fmt.Sprintf("INSERT INTO t SELECT i, 'x' FROM generate_series(%d, %d) i", round*1000, round*1000+99))
		p.awaitPrepared(t, "1")
		server.Crash(t)
		server.Restart(t)
		p.source.SQL(t, fmt.Sprintf("INSERT INTO u VALUES (%d)", round))
		p.sync(t)
		if n := p.prepared(t); n != "1" {
			t.Fatalf("%s prepared transactions after the crash", n)
		}
		p.source.SQL(t, "COMMIT PREPARED '"+p.gid(name)+"'")
		if round == 2 {
			server.Crash(t)
			server.Restart(t)
		}
		p.sync(t)
		p.awaitPrepared(t, "0")
	}
	p.finish(t)
	p.nothingLeft(t)
}

// TestPreparedIsSwitched turns two-phase commit on while a transaction is
// prepared, which then comes whole and late, and off while another one is: the
// slot keeps it on.
func TestPreparedIsSwitched(t *testing.T) {
	for _, major := range []int{16, 17, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) { preparedIsSwitched(t, major) })
	}
}

func preparedIsSwitched(t *testing.T, major int) {
	t.Parallel()
	source, target := alone(t, major)
	off := newPair(t, plan{source: source, target: target, schema: twoTables, options: func(o *blackbox.Options, _ *pair) { o.SourceKeys = "failover: false" }})
	off.Start(t, "--bootstrap")
	off.sync(t)
	other := *off
	on := &other
	on.Job = blackbox.NewJob(t, blackbox.Options{Name: off.Name, Source: off.source, Target: off.target, Tables: []string{"public.*"},
		SourceKeys: "two_phase: on", Extra: fast})

	off.prepare(t, "before", "INSERT INTO t VALUES (1, 'prepared before')")
	off.source.SQL(t, "INSERT INTO u VALUES (1)")
	off.sync(t)
	off.Stop(t)
	on.Start(t)
	on.sync(t)
	on.source.SQL(t, "INSERT INTO u VALUES (2)")
	on.prepare(t, "within", "INSERT INTO t VALUES (2, 'prepared within')")
	on.awaitPrepared(t, "1")
	on.source.SQL(t, "COMMIT PREPARED '"+on.gid("before")+"'")
	on.sync(t)
	on.equal(t)
	on.Stop(t)

	off.Start(t)
	off.source.SQL(t, "INSERT INTO u VALUES (3)")
	off.sync(t)
	off.source.SQL(t, "COMMIT PREPARED '"+off.gid("within")+"'")
	off.finish(t)
	off.nothingLeft(t)
	if n := off.target.Query(t, "SELECT count(*) FROM t"); n != "2" {
		t.Errorf("%s rows", n)
	}
	wants(t, "the log", off.Log(40), "the slot has two-phase commit")
}

// TestPreparedHasNoPlace covers a target that takes none, and one that takes no
// more.
func TestPreparedHasNoPlace(t *testing.T) {
	t.Parallel()
	t.Run("none", func(t *testing.T) {
		p := running(t, plan{source: rig.Start(t, rig.Newest), target: rig.Start(t, rig.Newest, "max_prepared_transactions=0"), schema: twoTables, options: twoPhase})
		p.prepare(t, "a", "INSERT INTO t VALUES (1)")
		p.source.SQL(t, "INSERT INTO u VALUES (1)")
		p.sync(t)
		p.source.SQL(t, "COMMIT PREPARED '"+p.gid("a")+"'")
		p.finish(t)
		wants(t, "the log", p.Log(40), "max_prepared_transactions = 0")
	})
	t.Run("no more", func(t *testing.T) {
		p := running(t, plan{source: rig.Start(t, rig.Newest), target: rig.Start(t, rig.Newest, "max_prepared_transactions=1"), schema: twoTables, options: twoPhase})
		p.prepare(t, "a", "INSERT INTO t VALUES (1)")
		p.awaitPrepared(t, "1")
		p.prepare(t, "b", "INSERT INTO t VALUES (2)")
		r := p.refusal(t)
		wants(t, "the refusal", r.state+r.reason+r.hint, "error", "prepare the transaction millrace_"+p.Name, "raise max_prepared_transactions")
		p.source.SQL(t, "COMMIT PREPARED '"+p.gid("a")+"'")
		p.source.SQL(t, "COMMIT PREPARED '"+p.gid("b")+"'")
		if r := p.Run(t, "cleanup", "--yes"); r.Code != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// TestCleanupOfPrepared ends a job that has prepared a transaction.
func TestCleanupOfPrepared(t *testing.T) {
	t.Parallel()
	source, target := alone(t, rig.Newest)
	p := running(t, plan{source: source, target: target, schema: twoTables, options: twoPhase})
	p.prepare(t, "a", "INSERT INTO t VALUES (1)")
	p.awaitPrepared(t, "1")
	// No run could take the load up that this asks for.
	if r := p.Run(t, "table", "resnapshot", "public.t"); r.Code == blackbox.Done || !strings.Contains(r.Stderr, "two-phase commit") {
		t.Errorf("table resnapshot: %+v", r)
	}
	p.source.SQL(t, "INSERT INTO u VALUES (1)")
	p.sync(t)
	p.Stop(t)
	if r := p.Run(t, "cleanup", "--dry-run"); !strings.Contains(r.Stdout, "would roll back prepared transaction millrace_"+p.Name) || p.prepared(t) != "1" {
		t.Errorf("dry run: %+v", r)
	}
	if r := p.Run(t, "cleanup", "--yes"); r.Code != 0 || !strings.Contains(r.Stdout, "rolled back prepared transaction millrace_"+p.Name) {
		t.Errorf("%+v", r)
	}
	if n := p.prepared(t); n != "0" {
		t.Errorf("%s prepared transactions are left", n)
	}
	p.source.SQL(t, "ROLLBACK PREPARED '"+p.gid("a")+"'")
}

// TestOnlyLocal has two databases follow each other: what one has from the other
// does not come back.
func TestOnlyLocal(t *testing.T) {
	t.Parallel()
	here := running(t, plan{schema: twoTables, options: func(o *blackbox.Options, _ *pair) { o.SourceKeys = "origin: none" }})
	here.target.SQL(t, "CREATE PUBLICATION millrace_back FOR TABLE t, u")
	back := &pair{source: here.target, target: here.source, address: map[int]string{}}
	back.Job = blackbox.NewJob(t, blackbox.Options{Name: here.target.Name, Source: here.target, Target: here.source, Existing: true,
		SourceKeys: "origin: none, publication: millrace_back", Tables: []string{"public.*"}, Extra: fast + "snapshot: {mode: none}\n"})
	back.Start(t, "--bootstrap")
	back.sync(t)
	here.source.SQL(t, "INSERT INTO t VALUES (1, 'here')")
	here.target.SQL(t, "INSERT INTO t VALUES (2, 'there')")
	for range 2 {
		here.sync(t)
		back.sync(t)
	}
	here.equal(t)
	if n := here.target.Query(t, "SELECT count(*) FROM t"); n != "2" {
		t.Errorf("%s rows", n)
	}
	for _, p := range []*pair{here, back} {
		if n := p.status(t, "fallback_transactions"); n != "0" {
			t.Errorf("%s: %s transactions on the row path", p.Name, n)
		}
		if code := p.Stop(t); code != blackbox.Done {
			t.Errorf("exit code %d", code)
		}
	}
}
