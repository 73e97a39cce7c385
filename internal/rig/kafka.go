package rig

import (
	"context"
	"fmt"
	"testing"

	"github.com/millrace/millrace/internal/rig/kafkaserver"
)

// Kafka is a Kafka cluster in a test: what fails, fails the test.
type Kafka struct {
	*kafkaserver.Cluster
	shared bool
}

// KafkaOptions say what cluster a test wants.
type KafkaOptions = kafkaserver.Options

// HaveKafka tells whether brokers can be started.
func HaveKafka() bool { return kafkaserver.Have() }

// StartKafka gives the test a fresh cluster of its own, which is gone at its
// end.
func StartKafka(t testing.TB, o KafkaOptions) *Kafka {
	t.Helper()
	needKafka(t)
	o.Name = dirName(t)
	c, err := kafkaserver.Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of Kafka ends with:\n%s", c.Log(25))
		}
		if err := c.Close(); err != nil {
			t.Errorf("close Kafka: %v", err)
		}
	})
	return &Kafka{Cluster: c}
}

// SharedKafka gives the cluster of one node that all tests of the binary share;
// the first one starts it. Tests keep apart by the names of their topics. The
// package's TestMain must be rig.Main.
func SharedKafka(t testing.TB) *Kafka {
	t.Helper()
	needKafka(t)
	e := sharedEntry(t, "kafka")
	e.once.Do(func() {
		var c *kafkaserver.Cluster
		c, e.err = kafkaserver.Start(context.Background(), kafkaserver.Options{Name: "-shared"})
		if e.err == nil {
			e.kafka = &Kafka{Cluster: c, shared: true}
		}
	})
	if e.err != nil {
		t.Fatal(e.err)
	}
	return e.kafka
}

func needKafka(t testing.TB) {
	t.Helper()
	if HaveKafka() {
		return
	}
	if testing.Short() {
		t.Skip("no Kafka: run `make rig`")
	}
	t.Fatalf("no Kafka in %s, or no java: run `make rig`", kafkaserver.LibDir())
}

// Kill ends a node, counted from 1, with SIGKILL.
func (k *Kafka) Kill(t testing.TB, node int) {
	t.Helper()
	k.must(t, "kill", node, k.Cluster.Kill(node))
}

// Stop is an orderly shutdown of a node.
func (k *Kafka) Stop(t testing.TB, node int) {
	t.Helper()
	k.must(t, "stop", node, k.Cluster.Stop(node))
}

// Restart starts a node again, on the same ports.
func (k *Kafka) Restart(t testing.TB, node int) {
	t.Helper()
	k.must(t, "restart", node, k.Cluster.Restart(context.Background(), node))
}

// CutLog takes the last batches of a partition away from a node that does not run.
func (k *Kafka) CutLog(t testing.TB, node int, topic string, partition, batches int) {
	t.Helper()
	k.must(t, "cut a log of", node, k.Cluster.CutLog(node, topic, partition, batches))
}

// Pause stops a node's process, so that connections stay open and nobody
// answers.
func (k *Kafka) Pause(t testing.TB, node int) {
	t.Helper()
	k.must(t, "pause", node, k.Cluster.Pause(node))
}

// Continue undoes Pause.
func (k *Kafka) Continue(t testing.TB, node int) {
	t.Helper()
	k.must(t, "continue", node, k.Cluster.Continue(node))
}

// URL is the address of a prefix for Millrace; query is what stands behind it,
// such as "?layout=stream".
func (k *Kafka) URL(prefix, query string) string {
	hosts := ""
	for i, b := range k.Brokers() {
		if i > 0 {
			hosts += ","
		}
		hosts += b
	}
	return fmt.Sprintf("kafka://%s/%s%s", hosts, prefix, query)
}

func (k *Kafka) must(t testing.TB, op string, node int, err error) {
	t.Helper()
	if k.shared {
		t.Fatalf("%s: other tests use this cluster: take one with rig.StartKafka", op)
	}
	if err != nil {
		t.Fatalf("%s Kafka node %d: %v", op, node, err)
	}
}
