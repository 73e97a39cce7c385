package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// TestTableSetThroughKafka changes the set of tables of a running job into Kafka under writes; a job that
// reads the topics follows, and so does one that begins with their beginning.
func TestTableSetThroughKafka(t *testing.T) {
	t.Parallel()
	layouts := []string{"partitions: 3"}
	if full() {
		layouts = append(layouts, "layout: stream")
	}
	for _, layout := range layouts {
		t.Run(strings.Fields(layout)[1], func(t *testing.T) {
			t.Parallel()
			const rows = 1000
			r := roundOf(t, fmt.Sprintf(killedSchema, rows), ", "+layout, "public.a")
			stop := churn(t, r.pair, rows)
			r.adds(t)
			r.readsAgain(t)
			r.drops(t)
			r.dropsAndAdds(t)
			stop()
			r.arrives(t)
			r.equal(t)
			r.Stop(t)
			if got := r.Run(t, "bootstrap", "--restart-snapshot", "--yes"); got.Code != blackbox.Done {
				t.Fatalf("exit code %d\n%s", got.Code, got.Stderr)
			}
			r.Start(t)
			r.arrives(t)
			r.finish(t)
		})
	}
}

// roundOf is a round whose first job has some of the tables, with a publication of its own.
func roundOf(t *testing.T, schema, extra string, tables ...string) *round {
	t.Helper()
	r := &round{kafka: rig.SharedKafka(t)}
	r.pair = newPair(t, plan{source: rig.Start(t, rig.Newest), schema: schema, options: func(o *blackbox.Options, p *pair) {
		r.prefix = "r" + strings.ReplaceAll(p.target.Name, "_", "-")
		r.in = blackbox.NewJob(t, blackbox.Options{Name: o.Name, Source: p.source, Tables: tables, Extra: fast,
			Kafka: fmt.Sprintf("{brokers: [%q], prefix: %s%s}", r.kafka.Brokers()[0], r.prefix, extra)})
		o.Name, o.Tables = "back_"+o.Name, nil
		o.From = fmt.Sprintf("{brokers: [%q], prefix: %s}", r.kafka.Brokers()[0], r.prefix)
	}})
	r.source.SQL(t, "DROP PUBLICATION millrace_"+r.in.Name)
	r.in.Start(t, "--bootstrap", "--create-publication")
	r.Start(t, "--bootstrap")
	r.sync(t)
	return r
}

// verb changes the set of tables of the first job.
func (r *round) verb(t *testing.T, args ...string) {
	t.Helper()
	if got := r.in.Run(t, "table", args...); got.Code != blackbox.Done {
		t.Fatalf("table %v: exit code %d\n%s", args, got.Code, got.Stderr)
	}
}

// loaded waits until the first job has these tables, and loads none of them any more.
func (r *round) loaded(t *testing.T, tables string) {
	t.Helper()
	rig.Eventually(t, patience, func() bool {
		if !r.in.Running() {
			t.Fatalf("job %s ended with code %d\n%s", r.in.Name, r.in.ExitCode(), r.in.Log(20))
		}
		var names []string
		for _, x := range statusOf(t, r.in).Tables {
			if x.State == "streaming" {
				names = append(names, x.Table)
			}
		}
		return strings.Join(names, " ") == tables && len(kafkaMarks(t, r.kafka, r.in.Name, r.prefix)) == 0
	}, "the tables are loaded")
}

// adds adds tables b and c. One open transaction has inserted a row of b before the
// publication has the table, which is not in the stream, and inserts one after it.
func (r *round) adds(t *testing.T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), r.source.URL())
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
	r.verb(t, "add", "public.b", "public.c")
	exec("INSERT INTO b VALUES ('after', 1)")
	exec("COMMIT")
	r.loaded(t, "public.a public.b public.c")
	r.in.Kill(t)
	r.in.Start(t)
}

// readsAgain spoils a table at the far end and has it read again.
func (r *round) readsAgain(t *testing.T) {
	t.Helper()
	r.arrives(t)
	// With the table locked: whoever applies has locks on rows in an order of its own.
	r.target.SQL(t, "BEGIN; SET LOCAL session_replication_role = replica; LOCK TABLE b IN EXCLUSIVE MODE; UPDATE b SET n = -5 WHERE n = 0; COMMIT")
	r.verb(t, "resnapshot", "public.b")
	r.loaded(t, "public.a public.b public.c")
	rig.Eventually(t, patience, func() bool { return r.target.Query(t, "SELECT count(*) FROM b WHERE n < 0") == "0" }, "the rows are as they should be")
	got := r.in.Run(t, "table", "resnapshot", "public.c")
	if got.Code != blackbox.No || !contains(got.Stderr, "public.c", "have no key", "millrace table drop public.c") {
		t.Errorf("of a table without a key: exit code %d\n%s", got.Code, got.Stderr)
	}
}

// remadeC makes table c anew.
const remadeC = "BEGIN; DROP TABLE c; CREATE TABLE c (k int, n int NOT NULL DEFAULT 0); ALTER TABLE c REPLICA IDENTITY FULL; INSERT INTO c VALUES (1), (1), (2); COMMIT"

// drops takes b out of the job: its topic and its rows at the far end stay as they are. It gets another
// column meanwhile; added again, it is that of the source. c is made anew meanwhile.
func (r *round) drops(t *testing.T) {
	t.Helper()
	r.verb(t, "drop", "public.b", "public.c")
	r.source.SQL(t, "INSERT INTO b VALUES ('dropped', 1); DELETE FROM b WHERE n % 2 = 1; INSERT INTO a VALUES (-1)")
	r.sync(t)
	if n := r.target.Query(t, "SELECT count(*) FROM b WHERE name = 'dropped'"); n != "0" {
		t.Error("a change of a table that was dropped has come")
	}
	if n := r.target.Query(t, "SELECT count(*) FROM a WHERE id = -1"); n != "1" {
		t.Error("the stream does not go on")
	}
	r.loaded(t, "public.a")
	for _, db := range []*rig.DB{r.source, r.target} {
		db.SQL(t, "ALTER TABLE b ADD extra int DEFAULT 7")
	}
	r.source.SQL(t, remadeC)
	r.verb(t, "add", "public.b", "public.c")
	r.loaded(t, "public.a public.b public.c")
}

// dropsAndAdds drops b, and c, which was made anew, and adds them while the job is stopped. Its stream then has what was before, and not what
// happened in between.
func (r *round) dropsAndAdds(t *testing.T) {
	t.Helper()
	if code := r.in.Stop(t); code != blackbox.Done {
		t.Errorf("exit code %d after SIGTERM, want %d", code, blackbox.Done)
	}
	r.source.SQL(t, "INSERT INTO b VALUES ('gap', 1), ('gap', 2); INSERT INTO c VALUES (-1)")
	r.source.SQL(t, remadeC)
	r.verb(t, "drop", "public.b", "public.c")
	r.source.SQL(t, "DELETE FROM b WHERE name = 'gap' AND v = 1")
	r.verb(t, "add", "public.b", "public.c")
	r.source.SQL(t, "DELETE FROM b WHERE name = 'gap'")
	r.in.Start(t)
	r.loaded(t, "public.a public.b public.c")
}

// TestKillsOfTableVerbsThroughKafka kills both programs at random moments while the set of tables is changed, with
// clients that write. In the end the far end is equal. It is for the soak.
func TestKillsOfTableVerbsThroughKafka(t *testing.T) {
	t.Parallel()
	if !full() {
		t.Skip("MILLRACE_SOAK is not set")
	}
	for _, layout := range []string{"partitions: 3", "layout: stream"} {
		t.Run(strings.Fields(layout)[1], func(t *testing.T) {
			t.Parallel()
			killKafkaTables(t, layout, 40)
		})
	}
}

func killKafkaTables(t *testing.T, layout string, kills int) {
	const rows = 5000
	r := roundOf(t, fmt.Sprintf(killedSchema, rows), ", "+layout, "public.a")
	stop := churn(t, r.pair, rows)
	rng := rand.New(rand.NewPCG(3, uint64(len(layout))))
	has := false // b
	done := map[string]int{}
	for n := range kills {
		verb, table := "resnapshot", []string{"public.a", "public.b"}[rng.IntN(2)]
		switch {
		case !has:
			verb, table, has = "add", "public.b", true
		case rng.IntN(3) == 0:
			verb, table, has = "drop", "public.b", false
		}
		over := make(chan blackbox.Result)
		go func() { over <- r.in.Run(t, "table", verb, table) }()
		rig.Linger(t, time.Duration(rng.IntN(1200))*time.Millisecond, "a random moment of the verb or of the load")
		killed := r.in
		if n%3 == 2 {
			killed = r.Job
		}
		for _, j := range []*blackbox.Job{r.in, r.Job} {
			if !j.Running() {
				t.Fatalf("job %s ended with code %d\n%s", j.Name, j.ExitCode(), j.Log(20))
			}
		}
		killed.Kill(t)
		killed.Start(t)
		if got := <-over; got.Code != blackbox.Done {
			t.Fatalf("table %s %s: exit code %d\n%s", verb, table, got.Code, got.Stderr)
		}
		done[verb]++
		if n%5 == 4 {
			rig.Eventually(t, patience, func() bool { return len(kafkaMarks(t, r.kafka, r.in.Name, r.prefix)) == 0 }, "the tables are loaded")
		}
	}
	t.Attr("kills", strconv.Itoa(kills))
	t.Logf("%d kills; %v", kills, done)
	if !has {
		r.verb(t, "add", "public.b")
	}
	r.loaded(t, "public.a public.b")
	stop()
	r.arrives(t)
	for _, table := range []string{"a", "b"} {
		sum := fmt.Sprintf(`SELECT count(*) || ' ' || md5(string_agg(x::text, ',' ORDER BY x::text COLLATE "C")) FROM %s x`, table)
		if want, got := r.source.Query(t, sum), r.target.Query(t, sum); got != want {
			t.Errorf("table %s: the source has %s, the far end %s", table, want, got)
		}
	}
}
