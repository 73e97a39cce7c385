package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/kcheck"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
)

// verdicts is what a consumer of all topics of a prefix holds against them: every
// transaction has one END, and in each partition as many records as that says.
func verdicts(t *testing.T, k *rig.Kafka, prefix string, level kgo.IsolationLevel) []string {
	t.Helper()
	type place struct {
		topic, commit, xid string
		partition          int32
	}
	counted, wanted, ends := map[place]int{}, map[place]int{}, map[string]int{}
	err := kcheck.Records(t.Context(), k.Brokers(), prefix, level, func(r *kgo.Record) {
		h := map[string]string{}
		for _, x := range r.Headers {
			h[x.Key] = string(x.Value)
		}
		if !strings.HasSuffix(r.Topic, ".transaction") {
			counted[place{r.Topic, h["commit_lsn"], h["xid"], r.Partition}]++
			return
		}
		var e kafka.End
		if err := json.Unmarshal(r.Value, &e); err != nil || e.Status != "END" {
			return
		}
		ends[e.ID]++
		for _, p := range e.Partitions {
			if !strings.HasSuffix(p.Topic, ".schema") {
				wanted[place{p.Topic, h["commit_lsn"], h["xid"], p.Partition}] += p.Count
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(ends) == 0 {
		t.Fatal("no transaction was read")
	}
	var found []string
	for id, n := range ends {
		if n != 1 {
			found = append(found, fmt.Sprintf("transaction %s ends %d times", id, n))
		}
	}
	for p, n := range wanted {
		if counted[p] != n {
			found = append(found, fmt.Sprintf("%+v: %d records, END says %d", p, counted[p], n))
		}
	}
	for p, n := range counted {
		if _, ok := wanted[p]; !ok {
			found = append(found, fmt.Sprintf("%+v: %d records of a transaction without END", p, n))
		}
	}
	return found
}

// Whatever is killed when, a read_committed consumer sees every transaction wholly
// and once; and the consumer that looks could tell: it does, where it reads what
// was not committed.
func TestKafkaExactlyOnceUnderKills(t *testing.T) {
	t.Parallel()
	j, source, k, prefix := kafkaJob(t, kafkaShop, ", partitions: 3")
	if r := j.Run(t, "bootstrap"); r.Code != 0 {
		t.Fatalf("bootstrap: %s%s", r.Stdout, r.Stderr)
	}
	kills := 2
	if full() {
		kills = 25
	}
	id := 10_000
	for range kills {
		j.Start(t)
		for range 40 {
			source.SQL(t, fmt.Sprintf(`BEGIN; INSERT INTO orders SELECT g, 1 + g %% 50, g, 'new' FROM generate_series(%d, %d) g;
				UPDATE customer SET name = name || '.' WHERE id %% 10 = %d; DELETE FROM orders WHERE id = %d; COMMIT`, id, id+9, id%10, id-5))
			id += 10
		}
		held := j.Log(400)
		rig.Eventually(t, patience, func() bool { return strings.Contains(j.Log(400), "streaming from") || held != j.Log(400) })
		j.Kill(t)
	}
	j.Start(t)
	if r := j.Run(t, "wait", "--now", "--timeout", "60s"); r.Code != 0 {
		t.Fatalf("wait: %s%s", r.Stdout, r.Stderr)
	}
	if code := j.Stop(t); code != 0 {
		t.Errorf("stop: exit code %d", code)
	}
	if found := verdicts(t, k, prefix, kgo.ReadCommitted()); len(found) > 0 {
		t.Errorf("%d faults: %v", len(found), found[:min(len(found), 5)])
	}
	abortOne(t, k, prefix)
	if found := verdicts(t, k, prefix, kgo.ReadCommitted()); len(found) > 0 {
		t.Errorf("an aborted record is seen: %v", found)
	}
	if found := verdicts(t, k, prefix, kgo.ReadUncommitted()); len(found) == 0 {
		t.Error("the consumer finds nothing wrong with what was not committed")
	}
}

// abortOne writes a record of a transaction that is then aborted.
func abortOne(t *testing.T, k *rig.Kafka, prefix string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...), kgo.TransactionalID("test."+prefix))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	r := &kgo.Record{Topic: prefix + ".public.orders", Value: []byte("{}"), Headers: []kgo.RecordHeader{{Key: "commit_lsn", Value: []byte("0/1")}, {Key: "xid", Value: []byte("1")}}}
	if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := cl.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
}
