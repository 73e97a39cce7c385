package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// TestTableSet changes the set of tables of a running job under writes: a table is
// added while a transaction that has changed it before is open, another is read
// again in place, and one is dropped.
func TestTableSet(t *testing.T) {
	t.Parallel()
	const rows = 2000
	p := newPair(t, plan{schema: fmt.Sprintf(killedSchema, rows), options: func(o *blackbox.Options, _ *pair) {
		o.Tables, o.HTTP, o.Token = []string{"public.a"}, "actions: true", "sesame"
	}})
	p.source.SQL(t, "DROP PUBLICATION "+p.slotName())
	p.Start(t, "--bootstrap", "--create-publication")
	p.sync(t)
	stop := churn(t, p, rows)
	p.adds(t)
	p.readsAgain(t)
	stop()
	p.sync(t)
	for _, table := range []string{"a", "b"} {
		sum := fmt.Sprintf(`SELECT count(*) || ' ' || md5(string_agg(x::text, ',' ORDER BY x::text COLLATE "C")) FROM %s x`, table)
		if want, got := p.source.Query(t, sum), p.target.Query(t, sum); got != want {
			t.Errorf("table %s: the source has %s, the target %s", table, want, got)
		}
	}
	p.drops(t)
	p.cures(t)
}

// TestForeignKeysAfterAKill: the program dies when an added table is loaded and its
// foreign keys are not made yet. The next run makes them.
func TestForeignKeysAfterAKill(t *testing.T) {
	t.Parallel()
	p := newPair(t, plan{schema: fmt.Sprintf(killedSchema, 200), options: func(o *blackbox.Options, _ *pair) { o.Tables = []string{"public.a"} }})
	p.source.SQL(t, "DROP PUBLICATION "+p.slotName())
	p.Start(t, "--bootstrap", "--create-publication")
	p.sync(t)
	lock, err := pgx.Connect(t.Context(), p.target.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close(context.Background())
	if _, err := lock.Exec(t.Context(), "BEGIN; LOCK TABLE a IN SHARE UPDATE EXCLUSIVE MODE"); err != nil { // lets rows pass
		t.Fatal(err)
	}
	if r := p.Run(t, "table", "add", "public.b"); r.Code != blackbox.Done {
		t.Fatalf("table add: exit code %d\n%s", r.Code, r.Stderr)
	}
	const waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ILIKE 'ALTER TABLE%FOREIGN KEY%' AND datname = current_database()"
	rig.Eventually(t, patience, func() bool { return p.target.Query(t, "SELECT count(*) "+waiting) == "1" }, "the foreign key waits for the lock")
	p.loaded(t, "a b")
	p.Kill(t)
	p.target.SQL(t, "SELECT pg_terminate_backend(pid) "+waiting)
	if _, err := lock.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	const keys = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND convalidated"
	if n := p.target.Query(t, keys); n != "0" {
		t.Fatalf("%s foreign keys are there already", n)
	}
	p.Start(t)
	rig.Eventually(t, patience, func() bool { return p.target.Query(t, keys) == "1" }, "the foreign key is there")
	rig.Eventually(t, patience, func() bool { return p.target.Query(t, "SELECT count(*) FROM millrace.chunk") == "0" }, "nothing is owed any more")
}

// cures reads a table again that has stopped the job, since a row is missing.
func (p *pair) cures(t *testing.T) {
	t.Helper()
	p.target.SQL(t, "SET session_replication_role = replica; DELETE FROM a")
	p.source.SQL(t, "UPDATE a SET n = 78 WHERE id = (SELECT min(id) FROM a)")
	if r := p.refusal(t); r.state != "error" {
		t.Errorf("state %s, want error: %s", r.state, r.reason)
	}
	if r := p.Run(t, "table", "resnapshot", "public.a"); r.Code != blackbox.Done {
		t.Fatalf("table resnapshot: exit code %d\n%s", r.Code, r.Stderr)
	}
	p.Start(t)
	p.loaded(t, "a")
	p.sync(t)
	if want, got := p.source.Query(t, "SELECT count(*), sum(n) FROM a"), p.target.Query(t, "SELECT count(*), sum(n) FROM a"); got != want {
		t.Errorf("the source has %s, the target %s", want, got)
	}
}

// loaded waits until nothing is loaded any more.
func (p *pair) loaded(t *testing.T, tables string) {
	t.Helper()
	rig.Eventually(t, patience, func() bool {
		return p.target.Query(t, "SELECT string_agg(table_name, ' ' ORDER BY table_name) FROM millrace.job_table WHERE copied") == tables
	}, "the tables are loaded")
}

// adds adds table b. One open transaction has inserted a row of it before the
// publication has the table, which is not in the stream, and inserts one after it.
func (p *pair) adds(t *testing.T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), p.source.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("BEGIN")
	exec("INSERT INTO b VALUES ('before', 1)")
	if r := p.Run(t, "table", "add", "public.b"); r.Code != blackbox.Done {
		t.Fatalf("table add: exit code %d\n%s", r.Code, r.Stderr)
	}
	exec("INSERT INTO b VALUES ('after', 1)")
	exec("COMMIT")
	p.loaded(t, "a b")
	rig.Eventually(t, patience, func() bool {
		return p.target.Query(t, "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND convalidated") == "1"
	}, "the foreign key is there")
	if got := p.target.Query(t, "SELECT string_agg(name, ' ' ORDER BY name) FROM b WHERE name IN ('before', 'after')"); got != "after before" {
		t.Errorf("of the open transaction's rows there are: %s", got)
	}
}

// readsAgain spoils table a at the target and has it read again. A reader never
// sees it empty.
func (p *pair) readsAgain(t *testing.T) {
	t.Helper()
	p.target.SQL(t, "SET session_replication_role = replica; UPDATE a SET n = -1 WHERE id % 3 = 1; INSERT INTO a VALUES (-5, 0)")
	over := make(chan struct{})
	least := make(chan string)
	go func() {
		low := ""
		for {
			if got, err := p.target.Server.TryQuery(p.target.Name, "SELECT count(*) < 500 FROM a"); err == nil && low != "t" {
				low = got
			}
			select {
			case <-over:
				least <- low
				return
			default:
			}
		}
	}()
	if r := p.Run(t, "table", "resnapshot", "public.a"); r.Code != blackbox.Done {
		t.Fatalf("table resnapshot: exit code %d\n%s", r.Code, r.Stderr)
	}
	p.loaded(t, "a b")
	close(over)
	if low := <-least; low == "t" {
		t.Error("a reader has seen the table without most of its rows")
	}
}

// drops takes b out of the job: its rows stay as they are.
func (p *pair) drops(t *testing.T) {
	t.Helper()
	before := p.target.Query(t, "SELECT count(*) FROM b")
	// As the page does it.
	if code, body := p.post(t, "/tables", `{"action": "drop", "tables": ["public.c*"]}`); code != http.StatusConflict || !contains(body, "the job has no such table") {
		t.Errorf("of a table that there is not: %d %s", code, body)
	}
	if code, body := p.post(t, "/tables", `{"action": "drop", "tables": ["public.b"]}`); code != http.StatusOK {
		t.Fatalf("table drop: %d %s", code, body)
	}
	p.source.SQL(t, "INSERT INTO b VALUES ('dropped', 1); UPDATE a SET n = 77 WHERE id = (SELECT min(id) FROM a)")
	p.sync(t)
	if got := p.target.Query(t, "SELECT count(*) FROM b"); got != before {
		t.Errorf("table b has %s rows after it was dropped, before %s", got, before)
	}
	if got := p.target.Query(t, "SELECT n FROM a ORDER BY id LIMIT 1"); got != "77" {
		t.Errorf("the stream does not go on: n is %s", got)
	}
	if got := p.record(t, "tables"); got != "{public.a}" {
		t.Errorf("the job has %s", got)
	}
}
