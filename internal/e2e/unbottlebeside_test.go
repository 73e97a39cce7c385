package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// besideSchema has what a load beside the stream has to get right: keys that move, large values
// that updates leave alone, a foreign key, a further unique column, and no key at all.
const besideSchema = `CREATE TABLE owner (id int PRIMARY KEY, n int NOT NULL DEFAULT 0);
CREATE TABLE thing (id int PRIMARY KEY, owner int NOT NULL REFERENCES owner, n int NOT NULL DEFAULT 0, big text, code int UNIQUE);
ALTER TABLE thing ALTER big SET STORAGE EXTERNAL;
CREATE TABLE fleeting (id int PRIMARY KEY, v int);
CREATE TABLE bare (v int); ALTER TABLE bare REPLICA IDENTITY FULL;
INSERT INTO owner SELECT g FROM generate_series(1, 500) g;
INSERT INTO thing SELECT g, 1 + g %% 500, 0, repeat(md5(g::text), 70), g FROM generate_series(1, %[1]d) g;
INSERT INTO fleeting SELECT g, 0 FROM generate_series(1, %[1]d) g;
INSERT INTO bare SELECT g FROM generate_series(1, 100) g;`

// besideChanges draws the changes of a transaction.
func besideChanges(rng *rand.Rand, rows int) string {
	a, b, o := 1+rng.IntN(rows), rows+1+rng.IntN(rows), 1+rng.IntN(500)
	sql := fmt.Sprintf(`UPDATE thing SET n = n + 1 WHERE id BETWEEN %[1]d AND %[1]d + 15; DELETE FROM thing WHERE id = %[1]d + 4;
		UPDATE thing SET id = %[2]d WHERE id = %[1]d + 7 AND NOT EXISTS (SELECT FROM thing WHERE id = %[2]d);
		UPDATE thing SET id = %[1]d + 7 WHERE id = %[2]d - 1 AND NOT EXISTS (SELECT FROM thing WHERE id = %[1]d + 7);
		UPDATE thing SET code = NULL WHERE id = %[1]d; UPDATE thing SET code = %[1]d WHERE id = %[1]d + 1 AND NOT EXISTS (SELECT FROM thing WHERE code = %[1]d);
		INSERT INTO owner VALUES (%[2]d, 1) ON CONFLICT (id) DO UPDATE SET n = owner.n + 1;
		UPDATE thing SET owner = %[2]d WHERE id = %[1]d + 2; DELETE FROM owner WHERE id = %[3]d AND NOT EXISTS (SELECT FROM thing WHERE owner = %[3]d);
		DELETE FROM bare WHERE v = %[3]d; INSERT INTO bare VALUES (%[1]d);`, a, b, o)
	switch rng.IntN(40) {
	case 0:
		sql += fmt.Sprintf("TRUNCATE fleeting; INSERT INTO fleeting SELECT g, 1 FROM generate_series(1, %d) g;", 50)
	default:
		sql += fmt.Sprintf("INSERT INTO fleeting VALUES (%d, 2) ON CONFLICT (id) DO UPDATE SET v = fleeting.v + 1; DELETE FROM fleeting WHERE id = %d;", a, o)
	}
	return sql
}

// besideRound loads a database into Kafka in the given way while clients write, until stop is called.
func besideRound(t *testing.T, rows int, load, extra string) (r *round, stop func()) {
	t.Helper()
	r = roundInto(t, rig.Start(t, rig.Newest), fmt.Sprintf(besideSchema, rows), load, extra)
	return r, clients(t, r.pair, func(rng *rand.Rand) string { return besideChanges(rng, rows) })
}

// arrives waits for the far end: it is consistent, has the foreign key, and what the source has.
func (r *round) arrives(t *testing.T) {
	t.Helper()
	r.becomesConsistent(t)
	r.awaitForeignKey(t)
}

// becomesConsistent is arrives without a foreign key.
func (r *round) becomesConsistent(t *testing.T) {
	t.Helper()
	rig.Eventually(t, 2*patience, func() bool {
		for _, j := range []*blackbox.Job{r.in, r.Job} {
			if !j.Running() {
				t.Fatalf("job %s ended with code %d\n%s", j.Name, j.ExitCode(), j.Log(20))
			}
		}
		return r.record(t, "state") == "streaming"
	}, "the job that reads the topics streams")
	r.sync(t)
	rig.Eventually(t, patience, func() bool { return r.condition() == "" }, "nothing more is to come for what is there")
}

// condition is that of the job's newest instance, or why there is none yet.
func (r *round) condition() string {
	text, err := r.target.Server.TryQuery(r.target.Name, "SELECT coalesce(condition, '') FROM millrace.runtime ORDER BY heartbeat_at DESC LIMIT 1")
	if err != nil {
		return err.Error()
	}
	return text
}

// TestUnbottleIncremental: a database goes through a prefix that is loaded beside the stream. Until
// that load is complete the far end does not say that it is consistent, whatever it holds.
func TestUnbottleIncremental(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{"partitions: 3", "layout: stream"} {
		t.Run(strings.Fields(layout)[1], func(t *testing.T) {
			t.Parallel()
			rows := 1500
			r, stop := besideRound(t, rows, fmt.Sprintf("{mode: incremental, rate: %d}", rows*1200), ", "+layout)
			r.in.Start(t, "--bootstrap")
			r.Start(t, "--bootstrap")
			rig.Eventually(t, patience, func() bool { return r.condition() == "converging" }, "the job that reads has seen rows of the load")
			if got := r.record(t, "consistent_from IS NULL AND state <> 'streaming'"); got != "t" && jobState(t, r.in) != "streaming" {
				t.Error("the target is said to be consistent before all rows are in the topics")
			}
			r.Kill(t)
			r.Start(t, "--bootstrap")
			rig.Eventually(t, 2*patience, func() bool { return jobState(t, r.in) == "streaming" }, "the load is complete")
			stop()
			r.arrives(t)
			if got := r.record(t, fmt.Sprintf("consistent_from >= '%s'", consistentFrom(t, r.in))); got != "t" {
				t.Error("the far end says that it was consistent before the topics were")
			}
			r.finish(t)
		})
	}
}

// TestUnbottleInterruptedLoad: the job that writes is killed in its load, when a table is complete,
// and goes on beside the stream; the far end was reading all the while.
func TestUnbottleInterruptedLoad(t *testing.T) {
	t.Parallel()
	rows := 1500
	r, stop := besideRound(t, rows, fmt.Sprintf("{rate: %d}", rows*1000), ", partitions: 2")
	r.in.Start(t, "--bootstrap")
	r.Start(t, "--bootstrap")
	rig.Eventually(t, 2*patience, func() bool { return strings.Contains(r.in.Log(1000), `"read the table"`) }, "a table is complete")
	r.in.Kill(t)
	if n := strings.Count(r.in.Log(1000), `"read the table"`); n == 4 {
		t.Fatalf("all tables are complete\n%s", r.in.Log(20))
	}
	rig.Eventually(t, patience, func() bool { // the heartbeat of the one that was killed counts for a while
		if !r.in.Running() {
			r.in.Start(t, "--bootstrap")
		}
		return strings.Contains(r.in.Log(1000), "goes on beside the stream")
	}, "the load goes on")
	r.Kill(t)
	r.Start(t, "--bootstrap")
	rig.Eventually(t, 2*patience, func() bool { return jobState(t, r.in) == "streaming" }, "the load is complete")
	stop()
	r.arrives(t)
	r.finish(t)
}

// TestStandbyThroughKafka: the job that writes the topics loads them from a standby of its source, beside the stream
// and over a kill. There a chunk comes once the stream has passed all that it may show.
func TestStandbyThroughKafka(t *testing.T) {
	t.Parallel()
	if !full() {
		t.Skip("half a minute, for make soak; TestEarlyChangesFromAStandby (backfill) in short")
	}
	rows := 400
	primary, standby := rig.Pair(t, rig.Newest)
	r := roundWith(t, primary, fmt.Sprintf(besideSchema, rows), ", partitions: 2", func(in *blackbox.Options, p *pair) {
		in.SourceURL = rig.URLs(p.source.Name, "standby", primary, standby)
		in.Extra += fmt.Sprintf("snapshot: {mode: incremental, rate: %d}\n", rows*1000)
	})
	standby.AwaitReplay(t, primary)
	stop := clients(t, r.pair, func(rng *rand.Rand) string { return besideChanges(rng, rows) })
	r.in.Start(t, "--bootstrap")
	r.Start(t, "--bootstrap")
	rig.Eventually(t, patience, func() bool { return r.condition() == "converging" }, "the job that reads has seen rows of the load")
	if jobState(t, r.in) == "streaming" {
		t.Error("the load was over too soon")
	}
	r.in.Kill(t)
	r.in.Start(t, "--bootstrap")
	rig.Eventually(t, 2*patience, func() bool { return jobState(t, r.in) == "streaming" }, "the load is complete")
	stop()
	r.arrives(t)
	if n := standby.Query(t, "postgres", "SELECT count(*) FROM pg_replication_slots"); n != "1" {
		t.Errorf("%s slots on the standby", n)
	}
	r.finish(t)
}
