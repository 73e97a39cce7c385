package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

const sharedSchema = `
	CREATE TABLE account (id int PRIMARY KEY, owner text UNIQUE, n numeric NOT NULL);
	CREATE TABLE entry (id int PRIMARY KEY, account int NOT NULL REFERENCES account ON DELETE CASCADE, amount numeric);
	CREATE TABLE fleeting (id int, at numeric, v text, PRIMARY KEY (id, at));
	INSERT INTO account SELECT g, 'owner ' || g, 0 FROM generate_series(1, 50) g;
	INSERT INTO entry SELECT g, g, 0 FROM generate_series(1, 40) g;
	INSERT INTO fleeting SELECT g, 1.0, 'x' FROM generate_series(1, 20) g;`

// TestConsistencyByKey: two jobs share the partitions of a prefix that is loaded beside the stream, are
// killed, and have the rows of the source between them in the end.
func TestConsistencyByKey(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	r := roundInto(t, rig.Start(t, rig.Newest), sharedSchema, "{mode: incremental}", ", partitions: 4")
	jobs := make([]*blackbox.Job, 2)
	for n := range jobs {
		jobs[n] = blackbox.NewJob(t, blackbox.Options{Name: fmt.Sprintf("share%d_%s", n+1, r.in.Name), Source: r.source, Target: r.target, Extra: fast,
			From: fmt.Sprintf("{brokers: [%q], prefix: %s, consistency: key, share: %d/2}", k.Brokers()[0], r.prefix, n+1)})
	}
	r.in.Start(t, "--bootstrap")
	r.target.SQL(t, "CREATE TABLE fleeting (id int, at numeric, v text, PRIMARY KEY (id, at)); INSERT INTO fleeting VALUES (99, 1, 'of nobody')")
	if b := jobs[0].Run(t, "bootstrap"); b.Code == blackbox.Done || !strings.Contains(b.Stderr, "holds rows at the destination") {
		t.Errorf("rows of nobody: %d %s%s", b.Code, b.Stdout, b.Stderr)
	}
	r.target.SQL(t, "TRUNCATE fleeting")
	for _, j := range jobs {
		j.Start(t, "--bootstrap")
	}
	sync := func() {
		t.Helper()
		for _, j := range jobs {
			if err := j.Wait(patience); err != nil {
				t.Fatal(err)
			}
		}
		r.equal(t)
	}
	sync()
	for round := 1; round <= 4; round++ {
		r.source.Script(t, strings.ReplaceAll(rewrites(round), "'new', 1", fmt.Sprintf("'new %d', 1", round)))
		jobs[round%2].Kill(t)
		jobs[round%2].Start(t)
	}
	sync()
	if got := r.target.Query(t, "SELECT string_agg(DISTINCT condition, ' ') FROM millrace.runtime"); got != "converging" {
		t.Errorf("the condition is %q", got)
	}
	if got := r.target.Query(t, "SELECT count(*) FROM pg_constraint WHERE contype IN ('f', 'u') AND connamespace = 'public'::regnamespace"); got != "0" {
		t.Errorf("%s constraints that look beyond a key", got)
	}
	// Both have done some of it.
	if got := r.target.Query(t, "SELECT count(*) FROM (SELECT job FROM millrace.progress GROUP BY job HAVING max(seq) > 3) x"); got != "2" {
		t.Errorf("%s jobs have written", got)
	}
	third := blackbox.NewJob(t, blackbox.Options{Name: "third_" + r.in.Name, Source: r.source, Target: r.target, Extra: fast,
		From: fmt.Sprintf("{brokers: [%q], prefix: %s, consistency: key, share: 1/3}", k.Brokers()[0], r.prefix)})
	third.Start(t, "--bootstrap")
	rig.Eventually(t, patience, func() bool { return strings.Contains(third.Log(100), "shares of another number") }, "a third of something else waits")
	third.Kill(t)
	if b := jobs[0].Run(t, "bootstrap", "--restart-snapshot", "--yes"); b.Code == blackbox.Done || !strings.Contains(b.Stderr, "rows of other jobs") {
		t.Errorf("a restart: %d %s%s", b.Code, b.Stdout, b.Stderr)
	}
	for _, j := range jobs {
		if code := j.Stop(t); code != blackbox.Done {
			t.Errorf("exit code %d", code)
		}
	}
	r.equal(t)
}
