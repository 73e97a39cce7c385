package e2e

import (
	"strconv"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
)

// behind puts changes into the source while the job is stopped, so that they
// are waiting together when it starts: some good ones, a bad one, and more. It
// gives the source's position before the bad one.
func (p *pair) behind(t *testing.T, good []string, bad string, more ...string) (before string) {
	t.Helper()
	if p.Running() {
		if code := p.Stop(t); code != blackbox.Done {
			t.Fatalf("exit code %d after SIGTERM", code)
		}
	}
	for _, sql := range good {
		p.source.SQL(t, sql)
	}
	before = p.source.Query(t, "SELECT pg_current_wal_lsn()")
	for _, sql := range append([]string{bad}, more...) {
		p.source.SQL(t, sql)
	}
	return before
}

// stops starts the job, which has to stop before the bad transaction.
func (p *pair) stops(t *testing.T, before string) refused {
	t.Helper()
	p.Start(t)
	r := p.refusal(t)
	if r.state != "error" {
		t.Errorf("state %s, want error: %s", r.state, r.reason)
	}
	if got := p.slot(t, "confirmed_flush_lsn <= '"+before+"', confirmed_flush_lsn"); got[0] != 't' {
		t.Errorf("the slot is at %s, the bad transaction begins behind %s", got[2:], before)
	}
	if got := p.record(t, "acked_lsn <= '"+before+"', acked_lsn"); got[0] != 't' {
		t.Errorf("the record is at %s, the bad transaction begins behind %s", got[2:], before)
	}
	// A restart alone does not help, and changes nothing.
	p.Start(t)
	again := p.refusal(t)
	if again.reason != r.reason {
		t.Errorf("the second run stopped for another reason:\n%s\n%s", r.reason, again.reason)
	}
	return r
}

// cured starts the job again, which has to go on where it stopped.
func (p *pair) cured(t *testing.T) {
	t.Helper()
	p.Start(t)
	p.sync(t)
	p.equal(t)
}

// TestSchemaMismatch: a column that the source got first stops the job right
// before the first transaction that needs it.
func TestSchemaMismatch(t *testing.T) {
	t.Parallel()
	p := running(t, plan{schema: `CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b');
		CREATE TABLE u (id int PRIMARY KEY)`})
	before := p.behind(t, []string{
		"INSERT INTO t VALUES (3, 'c')", "UPDATE t SET v = 'aa' WHERE id = 1", "INSERT INTO u VALUES (1)",
		"ALTER TABLE t ADD COLUMN extra int NOT NULL DEFAULT 7",
		"INSERT INTO u VALUES (2)",
	}, "INSERT INTO t VALUES (4, 'd', 8)", "INSERT INTO u VALUES (3)", "UPDATE t SET extra = 9 WHERE id = 1")
	r := p.stops(t, before)
	wants(t, "the hint", r.hint, "ALTER TABLE", `t"`, "ADD COLUMN", "extra")
	wants(t, "the reason", r.reason, "public.t", "extra")
	if got := p.target.Query(t, "SELECT (SELECT string_agg(id || v, ' ' ORDER BY id) FROM t), (SELECT max(id) FROM u)"); got != "1aa 2b 3c|2" {
		t.Errorf("the target holds %q, which is not all before the transaction and nothing of it", got)
	}
	p.target.SQL(t, "ALTER TABLE t ADD COLUMN extra int NOT NULL DEFAULT 7")
	p.cured(t)

	// While it runs, too.
	p.source.SQL(t, "ALTER TABLE t ADD COLUMN more text; INSERT INTO t VALUES (5, 'e', 1, 'm')")
	if r := p.refusal(t); r.state != "error" {
		t.Errorf("state %s, want error: %s", r.state, r.reason)
	}
	p.target.SQL(t, "ALTER TABLE t ADD COLUMN more text")
	p.cured(t)
}

// TestStopRatherThanGuess: what can't be applied stops the job right before its
// transaction, with the table, the key and what cures it; once it is cured the
// next run goes on.
func TestStopRatherThanGuess(t *testing.T) {
	t.Parallel()
	p := running(t, plan{schema: `CREATE TABLE t (id int PRIMARY KEY, v varchar(20)); INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 20) i;
		CREATE TABLE u (id int PRIMARY KEY)`})
	for i, c := range []struct {
		name          string
		damage        string // done to the target
		bad           string // what the source does then
		cure          string
		reason, hints []string
	}{
		{"updated row is missing", "DELETE FROM t WHERE id = 3", "UPDATE t SET v = 'new' WHERE id = 3", "INSERT INTO t VALUES (3, 'v3')",
			[]string{"update", "public.t", ")=(3)", "missing"}, []string{"put the row back"}},
		{"deleted row is missing", "DELETE FROM t WHERE id = 4", "DELETE FROM t WHERE id = 4", "INSERT INTO t VALUES (4, '')",
			[]string{"delete", "public.t", ")=(4)", "missing"}, []string{"put the row back"}},
		{"value is too long", "ALTER TABLE t ALTER v TYPE varchar(5)", "UPDATE t SET v = 'longer than 5' WHERE id = 5", "ALTER TABLE t ALTER v TYPE varchar(20)",
			[]string{"update", "public.t", ")=(5)", "too long"}, []string{"ALTER TABLE"}},
		{"key is taken", "INSERT INTO t VALUES (99, 'by hand')", "INSERT INTO t VALUES (99, 'mine')", "DELETE FROM t WHERE id = 99",
			[]string{"insert", "public.t", ")=(99)", "duplicate"}, []string{"t_pkey", "remove"}},
		{"value is refused", "ALTER TABLE t ADD CHECK (v <> 'bad')", "INSERT INTO t VALUES (100, 'bad')", "ALTER TABLE t DROP CONSTRAINT t_v_check",
			[]string{"insert", "public.t", ")=(100)", "check"}, []string{"t_v_check"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.target.SQL(t, c.damage)
			id := func(n int) string { return strconv.Itoa(100*i + n) }
			before := p.behind(t,
				[]string{"INSERT INTO u VALUES (" + id(1) + ")", "INSERT INTO u VALUES (" + id(2) + ")", "UPDATE t SET v = v || '' WHERE id IN (7, 8)"},
				"BEGIN; INSERT INTO u VALUES ("+id(3)+"); "+c.bad+"; COMMIT",
				"INSERT INTO u VALUES ("+id(4)+")")
			r := p.stops(t, before)
			wants(t, "the reason", r.reason, append(c.reason, "/")...)
			wants(t, "the hint", r.hint, c.hints...)
			if got, want := p.target.Query(t, "SELECT max(id) FROM u"), id(2); got != want {
				t.Errorf("the target is at %s, want %s: all before the bad transaction and nothing of it", got, want)
			}
			p.target.SQL(t, c.cure)
			p.cured(t)
		})
	}
	p.finish(t)
}
