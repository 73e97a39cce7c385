package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/kcheck"
	"github.com/millrace/millrace/internal/rig"
)

const kafkaLoadSchema = `
CREATE TABLE still (id int PRIMARY KEY, v text);
CREATE TABLE moving (id int PRIMARY KEY, n int NOT NULL);
CREATE TABLE keyless (v int); ALTER TABLE keyless REPLICA IDENTITY FULL;
INSERT INTO still SELECT g, repeat('x', %[2]d) FROM generate_series(1, %[1]d) g;
INSERT INTO moving SELECT g, 0 FROM generate_series(1, %[1]d) g;
INSERT INTO keyless SELECT g FROM generate_series(1, 200) g;`

// TestKafkaIncrementalUnderKills kills the program at random moments of a load beside the
// stream into Kafka. To a read_committed consumer each row of a table that nobody
// changes comes once, transactions and chunks are whole, and what it has in the end is
// what the source has.
func TestKafkaIncrementalUnderKills(t *testing.T) {
	t.Parallel()
	eachMajor(t, incrementalUnderKills)
}

// eachMajor runs a test of kills: in the long form with three versions of the source, one after the other.
func eachMajor(t *testing.T, test func(t *testing.T, major int)) {
	t.Helper()
	if !full() {
		test(t, rig.Newest)
		return
	}
	for _, major := range []int{18, 17, 16} {
		t.Run(strconv.Itoa(major), func(t *testing.T) { test(t, major) })
	}
}

// manyKills is the size of the long form: a table that several readers share, whose load takes longer
// than the time that twenty processes have until they are killed, at a rate at which each of them reads some chunks.
func manyKills() (kills, rows, width, rate int) { return 20, 100_000, 1900, 6_000_000 }

func incrementalUnderKills(t *testing.T, major int) {
	kills, rows, width, rate := 2, 3000, 200, 225_000
	if full() {
		kills, rows, width, rate = manyKills()
	}
	const readers = 2
	j, source, k, prefix, stop := kafkaLoad(t, major, rows, width, fmt.Sprintf("{mode: incremental, rate: %d, parallel: %d}", rate, readers), ", partitions: 2")
	counted := countRepeats(t, source, readers)
	j.Start(t, "--bootstrap")
	killBeside(t, j, k, prefix, counted, kills, rows)
	stop()
	kafkaHolds(t, j, source, k, prefix, rows)
}

// killBeside kills a job that loads beside the stream at random moments, and has it
// go on to the end.
func killBeside(t *testing.T, j *blackbox.Job, k *rig.Kafka, prefix string, counted *repeats, kills, rows int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(10, 11))
	copied, longest := 0, 500
	if full() {
		longest = 1500
	}
	for counted.kills < kills {
		rig.Eventually(t, 3*patience, func() bool {
			n := rowsCopied(t, j, "public.still")
			more := n > copied
			copied = max(copied, n)
			return more || n == rows || !j.Running()
		}, "the load goes on")
		rig.Linger(t, time.Duration(rng.IntN(longest))*time.Millisecond, "a random moment of the load")
		if !j.Running() {
			t.Fatalf("the program ended with code %d\n%s", j.ExitCode(), j.Log(20))
		}
		j.Kill(t)
		gone(t, j, counted.db)
		rig.Linger(t, 100*time.Millisecond, "a commit that is under way ends")
		counted.killed(t, kafkaMarks(t, k, j.Name, prefix))
		j.Start(t, "--bootstrap")
	}
	counted.report(t)
	if full() && counted.ranges < 2 {
		t.Errorf("%d readers of a table at once", counted.ranges)
	}
	rig.Eventually(t, 3*patience, func() bool { return jobState(t, j) == "streaming" || !j.Running() }, "the job streams")
}

// TestKafkaInterruptedLoad kills the program when some tables are complete and others are
// not. The next run goes on: these stay, those are read beside the stream, and in the
// long form the program is killed at random moments of that as well.
func TestKafkaInterruptedLoad(t *testing.T) {
	t.Parallel()
	eachMajor(t, interruptedUnderKills)
}

func interruptedUnderKills(t *testing.T, major int) {
	kills, rows, width, rate := 1, 3000, 200, 200_000
	if full() {
		kills, rows, width, rate = manyKills()
	}
	const readers = 2
	j, source, k, prefix, stop := kafkaLoad(t, major, rows, width, fmt.Sprintf("{rate: %d, parallel: %d}", rate, readers), "")
	counted := countRepeats(t, source, readers)
	j.Start(t, "--bootstrap")
	rig.Eventually(t, 2*patience, func() bool { return strings.Contains(j.Log(1000), `"read the table"`) || !j.Running() }, "a table is complete")
	j.Kill(t)
	if n := strings.Count(j.Log(1000), `"read the table"`); n == 0 || n == 3 {
		t.Fatalf("%d tables are complete\n%s", n, j.Log(20))
	}
	counted.kills++
	counted.asked(t)
	rig.Eventually(t, patience, func() bool { // the heartbeat of the one that was killed counts for a while
		if !j.Running() {
			j.Start(t, "--bootstrap")
		}
		return strings.Contains(j.Log(1000), "goes on beside the stream")
	}, "the load goes on")
	killBeside(t, j, k, prefix, counted, kills, rows)
	stop()
	kafkaHolds(t, j, source, k, prefix, rows)
}

// rowsCopied is what the status says of a table.
func rowsCopied(t *testing.T, j *blackbox.Job, table string) int {
	t.Helper()
	for _, x := range statusOf(t, j).Tables {
		if x.Table == table {
			return x.Rows
		}
	}
	return 0
}

// kafkaLoad is a job that loads into Kafka while its source is written to, until stop is
// called.
func kafkaLoad(t *testing.T, major, rows, width int, load, extra string) (j *blackbox.Job, source *rig.DB, k *rig.Kafka, prefix string, stop func()) {
	t.Helper()
	k = rig.SharedKafka(t)
	source = rig.Shared(t, major).NewDB(t)
	source.Script(t, fmt.Sprintf(kafkaLoadSchema, rows, width))
	source.SQL(t, "CREATE PUBLICATION millrace_"+source.Name+" FOR ALL TABLES")
	prefix = source.Name
	j = blackbox.NewJob(t, blackbox.Options{Name: source.Name, Source: source, Tables: []string{"public.*"},
		Extra: fast + "snapshot: " + load + "\n",
		Kafka: fmt.Sprintf("{brokers: [%q], prefix: %s%s}", k.Brokers()[0], prefix, extra)})
	over := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		rng := rand.New(rand.NewPCG(8, 9))
		for n := 0; ; n++ {
			select {
			case <-over:
				return
			default:
			}
			id := 1 + rng.IntN(rows)
			if _, err := source.Server.TryQuery(source.Name, fmt.Sprintf(`BEGIN; UPDATE moving SET n = n + 1 WHERE id BETWEEN %[1]d AND %[1]d + 10;
				DELETE FROM moving WHERE id = %[1]d + 3; INSERT INTO moving VALUES (%[2]d, 5); UPDATE moving SET id = -%[2]d WHERE id = %[1]d + 5; COMMIT`, id, rows+1+n)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	stop = sync.OnceFunc(func() { close(over); writing.Wait() })
	t.Cleanup(stop)
	return j, source, k, prefix, stop
}

// kafkaHolds ends a job, whose source nobody writes to any more, and compares.
func kafkaHolds(t *testing.T, j *blackbox.Job, source *rig.DB, k *rig.Kafka, prefix string, rows int) {
	t.Helper()
	if r := j.Run(t, "wait", "--now", "--timeout", "120s"); r.Code != 0 {
		t.Fatalf("wait: %s%s", r.Stdout, r.Stderr)
	}
	if code := j.Stop(t); code != 0 {
		t.Errorf("stop: exit code %d", code)
	}
	if found := verdicts(t, k, prefix, kgo.ReadCommitted()); len(found) > 0 {
		t.Errorf("%d faults: %v", len(found), found[:min(len(found), 5)])
	}
	seen, state := consumed(t, k, prefix)
	for id := 1; id <= rows; id++ {
		if n := seen["still"][strconv.Itoa(id)]; n != 1 {
			t.Fatalf("row %d of the table that nobody changes came %d times", id, n)
		}
	}
	want := map[string]string{}
	for _, line := range strings.Split(source.Query(t, "SELECT id || ' ' || n FROM moving ORDER BY 1"), "\n") {
		id, n, _ := strings.Cut(line, " ")
		want[id] = n
	}
	for id, n := range want {
		if state["moving"][id] != n {
			t.Fatalf("row %s has n = %q in Kafka, %s at the source", id, state["moving"][id], n)
		}
	}
	if got := len(state["moving"]); got != len(want) {
		t.Errorf("%d rows in Kafka, %d at the source", got, len(want))
	}
	if n := seen["keyless"]["null"]; n != 200 {
		t.Errorf("%d records of the table without a key, want 200", n)
	}
}

// consumed reads what is committed: how many records each key has, and the last value of
// each row.
func consumed(t *testing.T, k *rig.Kafka, prefix string) (seen map[string]map[string]int, state map[string]map[string]string) {
	t.Helper()
	seen, state = map[string]map[string]int{}, map[string]map[string]string{}
	err := kcheck.Records(t.Context(), k.Brokers(), prefix, kgo.ReadCommitted(), func(r *kgo.Record) {
		if !strings.HasPrefix(r.Topic, prefix+".public.") {
			return
		}
		table := r.Topic[strings.LastIndex(r.Topic, ".")+1:]
		if seen[table] == nil {
			seen[table], state[table] = map[string]int{}, map[string]string{}
		}
		var key struct{ ID json.Number }
		var value struct{ After *struct{ N json.Number } }
		id := "null"
		if r.Key != nil {
			if err := json.Unmarshal(r.Key, &key); err != nil {
				t.Fatal(err)
			}
			id = key.ID.String()
		}
		seen[table][id]++
		if r.Value != nil {
			if err := json.Unmarshal(r.Value, &value); err != nil {
				t.Fatal(err)
			}
		}
		if value.After == nil {
			delete(state[table], id)
			return
		}
		state[table][id] = value.After.N.String()
	})
	if err != nil {
		t.Fatal(err)
	}
	return seen, state
}
