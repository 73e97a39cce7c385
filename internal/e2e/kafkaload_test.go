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
INSERT INTO still SELECT g, repeat('x', 200) FROM generate_series(1, %[1]d) g;
INSERT INTO moving SELECT g, 0 FROM generate_series(1, %[1]d) g;
INSERT INTO keyless SELECT g FROM generate_series(1, 200) g;`

// TestKafkaIncrementalUnderKills kills the program at random moments of a load beside the
// stream into Kafka. To a read_committed consumer each row of a table that nobody
// changes comes once, transactions and chunks are whole, and what it has in the end is
// what the source has.
func TestKafkaIncrementalUnderKills(t *testing.T) {
	t.Parallel()
	kills, rows := 2, 3000
	if full() {
		kills, rows = 20, 40_000
	}
	j, source, k, prefix, stop := kafkaLoad(t, rows, fmt.Sprintf("{mode: incremental, rate: %d}", rows*150/kills), ", partitions: 2")
	rng := rand.New(rand.NewPCG(10, 11))
	copied := 0
	for range kills {
		j.Start(t, "--bootstrap")
		rig.Eventually(t, 3*patience, func() bool {
			n := rowsCopied(t, j, "public.still")
			more := n > copied
			copied = max(copied, n)
			return more || n == rows || !j.Running()
		}, "the load goes on")
		rig.Linger(t, time.Duration(rng.IntN(500))*time.Millisecond, "a random moment of the load")
		if !j.Running() {
			t.Fatalf("the program ended with code %d\n%s", j.ExitCode(), j.Log(20))
		}
		j.Kill(t)
	}
	j.Start(t, "--bootstrap")
	rig.Eventually(t, 3*patience, func() bool {
		r := j.Run(t, "status", "--json")
		return strings.Contains(r.Stdout, `"state":"streaming"`) || !j.Running()
	}, "the job streams")
	stop()
	kafkaHolds(t, j, source, k, prefix, rows)
}

// TestKafkaInterruptedLoad kills the program when some tables are complete and others are
// not. The next run goes on: these stay, those are read beside the stream.
func TestKafkaInterruptedLoad(t *testing.T) {
	t.Parallel()
	const rows = 3000
	j, source, k, prefix, stop := kafkaLoad(t, rows, "{rate: 200000}", "")
	j.Start(t, "--bootstrap")
	rig.Eventually(t, 3*patience, func() bool { return strings.Contains(j.Log(1000), `"read the table"`) || !j.Running() }, "a table is complete")
	j.Kill(t)
	if n := strings.Count(j.Log(1000), `"read the table"`); n == 0 || n == 3 {
		t.Fatalf("%d tables are complete\n%s", n, j.Log(20))
	}
	rig.Eventually(t, 3*patience, func() bool { // the heartbeat of the one that was killed counts for a while
		if r := j.Run(t, "bootstrap"); r.Code == blackbox.Done {
			return true
		} else if !strings.Contains(r.Stderr, "another instance works on") {
			t.Fatalf("bootstrap: %d\n%s", r.Code, r.Stderr)
		}
		return false
	}, "the load is complete")
	stop()
	j.Start(t)
	kafkaHolds(t, j, source, k, prefix, rows)
}

// rowsCopied is what the status says of a table.
func rowsCopied(t *testing.T, j *blackbox.Job, table string) int {
	t.Helper()
	var status struct {
		Tables []struct {
			Table string `json:"table"`
			Rows  int    `json:"rows_copied"`
		} `json:"tables"`
	}
	r := j.Run(t, "status", "--json")
	_ = json.Unmarshal([]byte(r.Stdout), &status) // there may be none yet
	for _, x := range status.Tables {
		if x.Table == table {
			return x.Rows
		}
	}
	return 0
}

// kafkaLoad is a job that loads into Kafka while its source is written to, until stop is
// called.
func kafkaLoad(t *testing.T, rows int, load, extra string) (j *blackbox.Job, source *rig.DB, k *rig.Kafka, prefix string, stop func()) {
	t.Helper()
	k = rig.SharedKafka(t)
	source = rig.Shared(t, rig.Newest).NewDB(t)
	source.Script(t, fmt.Sprintf(kafkaLoadSchema, rows))
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
