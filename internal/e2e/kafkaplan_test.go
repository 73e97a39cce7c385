package e2e

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// TestKafkaPlan: bootstrap --dry-run of a job that writes topics, and of one that reads
// them, says what is made, and makes nothing.
func TestKafkaPlan(t *testing.T) {
	t.Parallel()
	r := newRound(t, kafkaShop, ", partitions: 3, retention: 24h", rig.SharedKafka(t))
	plan := func(j *blackbox.Job, flags []string, wants ...string) {
		t.Helper()
		got := j.Run(t, "bootstrap", append([]string{"--dry-run"}, flags...)...)
		if got.Code != blackbox.Done {
			t.Errorf("exit code %d\n%s%s", got.Code, got.Stdout, got.Stderr)
		}
		for _, want := range wants {
			if !strings.Contains(got.Stdout, want) {
				t.Errorf("the plan lacks %q:\n%s", want, got.Stdout)
			}
		}
	}
	untouched := func(when string) {
		t.Helper()
		if got := r.target.Query(t, `SELECT string_agg(nspname, ' ') FROM pg_namespace WHERE nspname = 'millrace'`); got != "" {
			t.Errorf("%s: the reader's plan made schema %s", when, got)
		}
		if got := r.target.Query(t, `SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`); got != "0" {
			t.Errorf("%s: the reader's plan made %s tables", when, got)
		}
	}
	topic := "-- topic " + r.prefix + "."
	plan(r.in, nil, "mode consistent", "CREATE_REPLICATION_SLOT", topic+"transaction: is made; partitions: 1, ",
		topic+"public.orders: is made; partitions: 3, replication: the cluster's default, cleanup.policy=delete, retention.ms=86400000",
		topic+"millrace."+r.in.Name+": is made", `-- key of the records of public.orders: "id"`, `COPY "public"."orders"; -- about`)
	if got := r.source.Query(t, `SELECT count(*) FROM pg_replication_slots`); got != "0" {
		t.Error("the plan made a slot")
	}
	plan(r.in, nil, topic+"public.orders: is made") // still
	plan(r.Job, nil, "no job has begun to write to prefix "+r.prefix, "CREATE SCHEMA millrace;")
	untouched("before there are topics")
	if b := r.in.Run(t, "bootstrap"); b.Code != blackbox.Done {
		t.Fatalf("bootstrap: %s%s", b.Stdout, b.Stderr)
	}
	plan(r.Job, nil, "generation 1", "CREATE TABLE "+`"public"."customer"`, "-- once all rows are there\nALTER TABLE "+`"public"."orders" ADD CONSTRAINT`)
	untouched("once the topics are there")
	plan(r.in, []string{"--restart-snapshot"}, "-- a new generation", topic+"public.orders: is there, and is used as it is; partitions: 3", "DROP_REPLICATION_SLOT")
	if got := r.in.Run(t, "status", "--json"); !strings.Contains(got.Stdout, `"generation":1`) {
		t.Errorf("the plan began a new generation: %s%s", got.Stdout, got.Stderr)
	}
}
