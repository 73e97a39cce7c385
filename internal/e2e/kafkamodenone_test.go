package e2e

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// TestKafkaModeNone: a prefix without the rows from before has its use for consumers, but no
// database can be made of it, and the job that would do so says why.
func TestKafkaModeNone(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	r := newRound(t, kafkaShop, "", k)
	r.in = blackbox.NewJob(t, blackbox.Options{Name: r.source.Name, Source: r.source, Tables: []string{"public.*"}, Extra: fast + "snapshot: {mode: none}\n",
		Kafka: fmt.Sprintf("{brokers: [%q], prefix: %s}", k.Brokers()[0], r.prefix)})
	if b := r.in.Run(t, "bootstrap"); b.Code != blackbox.Done {
		t.Fatalf("bootstrap of the job that writes: %s%s", b.Stdout, b.Stderr)
	}
	for _, verb := range []string{"check", "bootstrap"} {
		got := r.Run(t, verb)
		if got.Code == blackbox.Done {
			t.Errorf("%s is content", verb)
		}
		wants(t, verb, got.Stdout+got.Stderr, "snapshot.mode: none", "bootstrap --restart-snapshot --yes")
	}
	if got := r.target.Query(t, `SELECT count(*) FROM pg_namespace WHERE nspname = 'millrace'`); got != "0" {
		t.Error("the job was recorded")
	}
	r.in.Start(t)
	r.source.SQL(t, "INSERT INTO customer VALUES (900, 'x')")
	if w := r.in.Run(t, "wait", "--now"); w.Code != blackbox.Done {
		t.Errorf("changes are written: %s%s", w.Stdout, w.Stderr)
	}
}
