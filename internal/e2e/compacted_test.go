package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/kcheck"
	"github.com/millrace/millrace/internal/rig"
)

const compactedSchema = `
	CREATE TABLE account (id int PRIMARY KEY, owner text, n numeric NOT NULL);
	CREATE TABLE entry (id int PRIMARY KEY, account int NOT NULL REFERENCES account ON DELETE CASCADE, amount numeric);
	CREATE TABLE fleeting (id int, at numeric, v text, PRIMARY KEY (id, at));
	INSERT INTO account SELECT g, 'owner ' || g, 0 FROM generate_series(1, 50) g;
	INSERT INTO entry SELECT g, g, 0 FROM generate_series(1, 40) g;
	INSERT INTO fleeting SELECT g, 1.0, 'x' FROM generate_series(1, 20) g;`

// rewrites changes the same rows again and again, deletes some and changes keys.
func rewrites(round int) string {
	var b strings.Builder
	for n := range 12 {
		fmt.Fprintf(&b, `BEGIN; UPDATE account SET n = n + 1 WHERE id %% 3 = %[1]d %% 3; UPDATE entry SET amount = amount + 1 WHERE account %% 3 = %[1]d %% 3; COMMIT;
			UPDATE fleeting SET v = v || '.', at = CASE at::text WHEN '1.0' THEN 1.00 ELSE 1.0 END WHERE id %% 4 = %[1]d %% 4;`, n)
	}
	fmt.Fprintf(&b, `DELETE FROM entry WHERE account = %[1]d; DELETE FROM account WHERE id = %[1]d + 10;
		UPDATE account SET id = id + 1000 * %[1]d WHERE id BETWEEN 40 + %[1]d AND 41 + %[1]d AND NOT EXISTS (SELECT FROM entry e WHERE e.account = account.id);
		DELETE FROM fleeting WHERE id = %[1]d; INSERT INTO account VALUES (%[1]d + 100, 'new', 1);`, round)
	return b.String()
}

// topicsShrink has the cleaner compact the topics and waits until it has.
func topicsShrink(t *testing.T, k *rig.Kafka, prefix string, tables ...string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	count := func() map[string]int {
		n := map[string]int{}
		if err := kcheck.Records(t.Context(), k.Brokers(), prefix, kgo.ReadCommitted(), func(r *kgo.Record) { n[r.Topic]++ }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := count()
	for _, table := range tables {
		name := prefix + ".public." + table
		for _, s := range [][2]string{{"min.cleanable.dirty.ratio", "0"}, {"max.compaction.lag.ms", "1"}} {
			res, err := kadm.NewClient(cl).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: s[0], Value: &s[1]}}, name)
			if err != nil || res[0].Err != nil {
				t.Fatal(err, res)
			}
		}
	}
	rig.Eventually(t, patience, func() bool {
		now := count()
		for _, table := range tables {
			if name := prefix + ".public." + table; now[name] >= before[name] {
				return false
			}
		}
		return true
	}, "the topics are compacted")
}

// segments has the segments of topics end with each batch.
func segments(t *testing.T, k *rig.Kafka, prefix string, tables ...string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ms := "1"
	for _, table := range tables {
		res, err := kadm.NewClient(cl).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "segment.ms", Value: &ms}}, prefix+".public."+table)
		if err != nil || res[0].Err != nil {
			t.Fatal(err, res)
		}
	}
}

// TestCompactedPrefix: what compaction has left of a prefix makes the same database, which
// says that it is not whole until it is, also where the topics are compacted while the job
// that reads is down, and killed in between.
func TestCompactedPrefix(t *testing.T) {
	t.Parallel()
	r := newRound(t, compactedSchema, ", partitions: 2, compact: true", rig.SharedKafka(t))
	if b := r.in.Run(t, "bootstrap"); b.Code != blackbox.Done {
		t.Fatalf("bootstrap: %s%s", b.Stdout, b.Stderr)
	}
	tables := []string{"account", "entry", "fleeting"}
	segments(t, r.kafka, r.prefix, tables...)
	r.in.Start(t)
	change := func(round int) {
		t.Helper()
		r.source.Script(t, rewrites(round))
		if round == 2 {
			r.source.SQL(t, "TRUNCATE fleeting; INSERT INTO fleeting VALUES (1, 1.0, 'again')")
		}
		if w := r.in.Run(t, "wait", "--now"); w.Code != blackbox.Done {
			t.Fatalf("wait: %s%s", w.Stdout, w.Stderr)
		}
	}
	change(1)
	change(2)
	topicsShrink(t, r.kafka, r.prefix, tables...)
	r.Start(t, "--bootstrap")
	r.sync(t)
	r.equal(t)
	if log := r.Log(400); !contains(log, "transactions are not whole until", "transactions are whole again") {
		t.Errorf("the log says nothing of it:\n%s", log)
	}
	r.Kill(t)
	change(3)
	change(4)
	topicsShrink(t, r.kafka, r.prefix, "account", "entry")
	r.Start(t)
	r.Kill(t)
	r.Start(t)
	r.sync(t)
	r.equal(t)
	change(5) // nothing is missing here
	r.sync(t)
	rig.Eventually(t, patience, func() bool { return r.status(t, "state") == "streaming" && r.status(t, "condition") == "" }, "all is whole")
	if got := r.target.Query(t, "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND convalidated"); got != "1" {
		t.Errorf("%s foreign keys, want 1", got)
	}
	r.finish(t)
}
