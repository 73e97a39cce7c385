package kafka_test

import (
	"encoding/json"
	"maps"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
	krecord "github.com/millrace/millrace/kafka/record"
)

// described is what a broker says of a topic.
type described struct {
	partitions, replicas int
	policy, retention    string
}

func describe(t *testing.T, k *rig.Kafka, topics ...string) map[string]described {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	adm, all := kadm.NewClient(cl), map[string]described{}
	found, err := adm.ListTopics(deadline(t), topics...)
	if err != nil {
		t.Fatal(err)
	}
	configs, err := adm.DescribeTopicConfigs(deadline(t), topics...)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range configs {
		d := described{partitions: len(found[c.Name].Partitions), replicas: found[c.Name].Partitions.NumReplicas()}
		for _, kv := range c.Configs {
			switch kv.Key {
			case "cleanup.policy":
				d.policy = kv.MaybeValue()
			case "retention.ms":
				d.retention = kv.MaybeValue()
			}
		}
		all[c.Name] = d
	}
	return all
}

func object(t *testing.T, value string) (o map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(value), &o); err != nil {
		t.Fatalf("%v: %s", err, value)
	}
	return o
}

// TestTopicsAreMadeAsConfigured asks the broker what the topics are: nothing is
// left to its defaults, which may be anything.
func TestTopicsAreMadeAsConfigured(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	for name, c := range map[string]struct {
		opt          kafka.TopicOptions
		table, marks described
	}{
		"defaults": {kafka.TopicOptions{Replication: 1}, described{partitions: 1, replicas: 1, policy: "delete", retention: "604800000"},
			described{partitions: 1, replicas: 1, policy: "delete", retention: "604800000"}},
		"retention": {kafka.TopicOptions{Partitions: 3, Replication: 1, Retention: 36 * time.Hour}, described{partitions: 3, replicas: 1, policy: "delete", retention: "129600000"},
			described{partitions: 1, replicas: 1, policy: "delete", retention: "129600000"}},
		"for ever": {kafka.TopicOptions{Partitions: 2, Retention: -1}, described{partitions: 2, replicas: 1, policy: "delete", retention: "-1"},
			described{partitions: 1, replicas: 1, policy: "delete", retention: "-1"}},
		// The broker's retention means nothing under compaction. The marks tell the
		// order of all that is still there.
		"compact": {kafka.TopicOptions{Partitions: 2, Replication: 1, Retention: time.Hour, Compact: true}, described{partitions: 2, replicas: 1, policy: "compact", retention: "604800000"},
			described{partitions: 1, replicas: 1, policy: "delete", retention: "-1"}},
	} {
		e := endpoint(k, newPrefix())
		o := options(t, e)
		o.Topics = c.opt
		loaded(t, o, relation(1, "a"))
		compacted := described{partitions: 1, replicas: 1, policy: "compact", retention: "604800000"}
		want := map[string]described{e.Prefix + ".public.a": c.table, e.Prefix + ".transaction": c.marks,
			e.Prefix + ".schema": compacted, e.Prefix + ".millrace.job": compacted}
		names := make([]string, 0, len(want))
		for n := range want {
			names = append(names, n)
		}
		if got := describe(t, k, names...); !maps.Equal(got, want) {
			t.Errorf("%s: the topics are\n%+v, want\n%+v", name, got, want)
		}
	}
}

// TestTombstonesFollowDeletes: a deletion is a record and a tombstone behind it,
// with the same key in the same partition, where compaction finds both; so is the
// old key of a changed one.
func TestTombstonesFollowDeletes(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := options(t, e)
	o.Topics = kafka.TopicOptions{Partitions: 3, Replication: 1, Compact: true}
	topic := e.Prefix + ".public.a"
	encoder, err := krecord.NewEncoder(krecord.Options{Format: krecord.JSON, Prefix: e.Prefix, Database: "db", Version: "1",
		Topic: func(millrace.TableName) string { return topic }})
	if err != nil {
		t.Fatal(err)
	}
	o.Encoder = encoder
	a := relation(1, "a")
	loaded(t, o, a)
	s, _ := claimed(t, o)
	x, y := txn(1, "v", a), txn(2, "v", a)
	x.Changes = append(x.Changes, millrace.Change{Op: millrace.Insert, Seq: 2, Rel: a, New: text("7", "v")})
	y.Changes = []millrace.Change{
		{Op: millrace.Delete, Seq: 1, Rel: a, Old: text("1", "")},
		{Op: millrace.Update, Seq: 2, Rel: a, Old: text("7", ""), New: text("8", "w")},
	}
	write(t, s, x, y)
	awaitDurable(t, s, 250)
	left := map[string]string{} // by key, as compaction leaves it
	last := map[int32]rec{}
	tombstones := 0
	for _, r := range readTopics(t, k, 7, topic) {
		if before := last[r.partition]; r.value == "" {
			tombstones++
			if before.key != r.key || object(t, before.value)["op"] != "d" {
				t.Errorf("the tombstone of %s comes behind %+v", r.key, before)
			}
		}
		last[r.partition] = r
		left[r.key] = r.value
	}
	if tombstones != 2 || left[`{"id":1}`] != "" || left[`{"id":7}`] != "" || object(t, left[`{"id":8}`])["op"] != "c" {
		t.Errorf("%d tombstones; what stays is %v", tombstones, left)
	}
}
