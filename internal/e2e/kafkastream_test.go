package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
)

// rowsIn follows a prefix up to its end and gives how many rows each table has
// then, by their keys.
func rowsIn(t *testing.T, k *rig.Kafka, prefix string, until millrace.LSN) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := kafka.OpenReader(ctx, kafka.ReaderOptions{Endpoint: &kafka.Endpoint{Peer: millrace.PeerSource, Brokers: k.Brokers(), Prefix: prefix}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	rows, generation := map[string]map[string]bool{}, int64(0)
	keyOf := func(row millrace.Row) string { return string(row[0].Raw) }
	for at := millrace.LSN(0); at < until; {
		x, err := r.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if x.From.Generation != generation { // a new load
			generation = x.From.Generation
			clear(rows)
		}
		for i := range x.Changes {
			c := &x.Changes[i]
			table := rows[c.Rel.Name.Name]
			if table == nil {
				table = map[string]bool{}
				rows[c.Rel.Name.Name] = table
			}
			switch c.Op {
			case millrace.Insert, millrace.Read:
				key := keyOf(c.New)
				if table[key] {
					t.Fatalf("%v: key %s comes twice", c.Rel.Name, key)
				}
				table[key] = true
			case millrace.Delete:
				delete(table, keyOf(c.Old))
			}
		}
		if x.Last {
			at = max(at, x.End)
		}
	}
	counts := map[string]int{}
	for name, table := range rows {
		counts[name] = len(table)
	}
	return counts
}

// Several jobs share a cluster: each has its prefix, and nothing of one is in the
// topics of another. One of them has all its transactions in one topic.
func TestKafkaNeighbours(t *testing.T) {
	t.Parallel()
	const schema = `CREATE TABLE customer (id int PRIMARY KEY, name text NOT NULL); INSERT INTO customer SELECT g, 'c' || g FROM generate_series(1, 500) g;
		CREATE TABLE note (id int PRIMARY KEY, v text); INSERT INTO note VALUES (1, repeat('large ', 500000));`
	stream, source, k, one := kafkaJob(t, schema, ", layout: stream")
	tables, other, _, two := kafkaJob(t, schema, ", partitions: 2")
	for _, j := range []*blackbox.Job{stream, tables} {
		want := blackbox.Done
		if j == tables {
			want = blackbox.No // the large row is more than a topic of its own takes
		}
		if r := j.Run(t, "check"); r.Code != blackbox.Done {
			t.Fatalf("check: %s%s", r.Stdout, r.Stderr)
		}
		r := j.Run(t, "bootstrap")
		if (r.Code == blackbox.Done) != (want == blackbox.Done) || want != blackbox.Done && !strings.Contains(r.Stderr, "max.message.bytes") {
			t.Fatalf("bootstrap: %d %s%s", r.Code, r.Stdout, r.Stderr)
		}
	}
	other.SQL(t, "UPDATE note SET v = 'small'")
	if r := tables.Run(t, "bootstrap", "--restart-snapshot", "--yes"); r.Code != blackbox.Done {
		t.Fatalf("bootstrap: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	for _, x := range []struct {
		job *blackbox.Job
		db  *rig.DB
		n   int
	}{{stream, source, 7}, {tables, other, 11}} {
		x.job.Start(t)
		x.db.SQL(t, fmt.Sprintf("BEGIN; INSERT INTO customer SELECT g, 'new' FROM generate_series(1001, %d) g; DELETE FROM customer WHERE id = 1; COMMIT", 1000+x.n))
		if r := x.job.Run(t, "wait", "--now"); r.Code != blackbox.Done {
			t.Fatalf("wait: %s%s", r.Stdout, r.Stderr)
		}
		rig.Eventually(t, patience, func() bool {
			r := x.job.Run(t, "status")
			return strings.Contains(r.Stdout, "kafka://"+k.Brokers()[0]) && strings.Contains(r.Stdout, "streaming")
		}, "the status names the destination")
		if code := x.job.Stop(t); code != 0 {
			t.Errorf("stop: exit code %d", code)
		}
	}
	for prefix, want := range map[string]int{one: 506, two: 510} {
		if got := rowsIn(t, k, prefix, committedOf(t, k, prefix)); got["customer"] != want || got["note"] != 1 {
			t.Errorf("%s holds %v, want %d customers", prefix, got, want)
		}
	}
	all := topicsOf(t, k)
	for _, n := range []string{one + ".stream", one + ".schema", two + ".transaction", two + ".public.customer"} {
		if !slices.Contains(all, n) {
			t.Errorf("there is no topic %s", n)
		}
	}
	if slices.Contains(all, one+".public.customer") || slices.Contains(all, one+".transaction") {
		t.Error("layout stream has topics of the other layout")
	}
	for _, j := range []*blackbox.Job{stream, tables} {
		if r := j.Run(t, "cleanup", "--yes"); r.Code != blackbox.Done {
			t.Errorf("cleanup: %s%s", r.Stdout, r.Stderr)
		}
	}
}

func topicsOf(t *testing.T, k *rig.Kafka) []string {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	all, err := kadm.NewClient(cl).ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all.Names()
}

// committedOf is the end of the last transaction that the job of a prefix, whose
// name is the same, has written.
func committedOf(t *testing.T, k *rig.Kafka, prefix string) millrace.LSN {
	t.Helper()
	e := &kafka.Endpoint{Peer: millrace.PeerDestination, Brokers: k.Brokers(), Prefix: prefix, Job: prefix}
	ctl, err := e.OpenControl()
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	s, err := ctl.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Checkpoint.End
}
