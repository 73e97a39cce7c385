package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

const kafkaShop = `
CREATE TABLE customer (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL REFERENCES customer, total numeric(12,2), note text);
CREATE TABLE events (at timestamptz, what text);
INSERT INTO customer SELECT g, 'customer ' || g FROM generate_series(1, 50) g;
INSERT INTO orders SELECT g, 1 + g % 50, g * 1.10, repeat('x', g % 100) FROM generate_series(1, 2000) g;
INSERT INTO events SELECT now(), 'event ' || g FROM generate_series(1, 10) g;
ALTER TABLE events REPLICA IDENTITY FULL;
`

// kafkaJob is a job from a database of its own to a prefix of the shared broker.
func kafkaJob(t *testing.T, schema, extra string) (*blackbox.Job, *rig.DB, *rig.Kafka, string) {
	t.Helper()
	k := rig.SharedKafka(t)
	source := rig.Shared(t, rig.Newest).NewDB(t)
	source.Script(t, schema)
	source.SQL(t, "CREATE PUBLICATION millrace_"+source.Name+" FOR ALL TABLES")
	prefix := source.Name
	j := blackbox.NewJob(t, blackbox.Options{Name: source.Name, Source: source, Tables: []string{"public.*"}, Extra: fast,
		Kafka: fmt.Sprintf("{brokers: [%q], prefix: %s%s}", k.Brokers()[0], prefix, extra)})
	return j, source, k, prefix
}

// holdSlot has the creation of a slot wait for a transaction, which ends a second
// after that has begun. The result waits for the end.
func holdSlot(t *testing.T, db *rig.DB) (wait func()) {
	t.Helper()
	writing, pid := openSession(t, db, "BEGIN", "SELECT pg_current_xact_id()")
	blocks := fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'millrace:%s:%%' AND %d = ANY (pg_blocking_pids(pid))", db.Name, pid)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for began := time.Now(); time.Since(began) < patience; {
			if n, err := db.Server.TryQuery(db.Name, blocks); err == nil && n != "0" {
				break
			}
			<-time.After(50 * time.Millisecond)
		}
		<-time.After(time.Second)
		_, _ = writing.Exec(context.Background(), "COMMIT") // else the test's end does it
	}()
	return func() { <-over }
}

func TestKafkaVerbs(t *testing.T) {
	t.Parallel()
	j, source, k, prefix := kafkaJob(t, kafkaShop, "")
	if r := j.Run(t, "check"); r.Code != blackbox.Done {
		t.Fatalf("check: %s%s", r.Stdout, r.Stderr)
	}
	release := holdSlot(t, source)
	if r := j.Run(t, "bootstrap"); r.Code != blackbox.Done || !strings.Contains(r.Stdout, "3 tables") || !strings.Contains(r.Stderr, "waits for a transaction") {
		t.Fatalf("bootstrap: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	release()
	j.Start(t)
	source.SQL(t, "BEGIN; INSERT INTO orders VALUES (5000, 1, 1.00, 'n'); UPDATE customer SET name = 'x' WHERE id = 1; DELETE FROM events; COMMIT")
	if r := j.Run(t, "wait", "--now"); r.Code != blackbox.Done {
		t.Fatalf("wait: %s%s", r.Stdout, r.Stderr)
	}
	rig.Eventually(t, patience, func() bool {
		r := j.Run(t, "status", "--json")
		return r.Code == blackbox.Done && strings.Contains(r.Stdout, `"kind":"kafka"`) && strings.Contains(r.Stdout, `"streaming"`)
	}, "the status says that the job streams to Kafka")
	if code := j.Stop(t); code != 0 {
		t.Errorf("stop: exit code %d", code)
	}
	if r := j.Run(t, "status"); r.Code != blackbox.Done || !strings.Contains(r.Stdout, "stopped") {
		t.Errorf("status: %s%s", r.Stdout, r.Stderr)
	}
	// A second job at the prefix is refused.
	other := rig.Shared(t, rig.Newest).NewDB(t)
	other.Script(t, "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION millrace_rival FOR ALL TABLES")
	rival := blackbox.NewJob(t, blackbox.Options{Name: "rival", Source: other, Tables: []string{"public.*"}, Extra: fast,
		Kafka: fmt.Sprintf("{brokers: [%q], prefix: %s}", k.Brokers()[0], prefix)})
	if r := rival.Run(t, "bootstrap"); r.Code == blackbox.Done || !strings.Contains(r.Stderr, "belongs to job") {
		t.Errorf("a second job at the prefix: %s%s", r.Stdout, r.Stderr)
	}
	if r := j.Run(t, "cleanup", "--yes"); r.Code != blackbox.Done || !strings.Contains(r.Stdout, "dropped slot") {
		t.Errorf("cleanup: %s%s", r.Stdout, r.Stderr)
	}
	if r := j.Run(t, "status"); r.Code == blackbox.Done {
		t.Errorf("status of %s after cleanup: %s%s", prefix, r.Stdout, r.Stderr)
	}
	// The next load has the next generation.
	if r := j.Run(t, "bootstrap"); r.Code != blackbox.Done {
		t.Fatalf("bootstrap: %s%s", r.Stdout, r.Stderr)
	}
	if r := j.Run(t, "status", "--json"); !strings.Contains(r.Stdout, `"generation":2`) {
		t.Errorf("status: %s%s", r.Stdout, r.Stderr)
	}
}
