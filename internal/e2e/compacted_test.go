package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/kcheck"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
	krecord "github.com/millrace/millrace/kafka/record"
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

// topicsShrink has the cleaner compact the topics and waits until each lacks records of the
// transactions behind a position. It gives the last one's.
func topicsShrink(t *testing.T, k *rig.Kafka, prefix string, behind millrace.LSN, tables ...string) (last millrace.LSN) {
	t.Helper()
	alter(t, k, prefix, "min.cleanable.dirty.ratio", "0", tables...)
	alter(t, k, prefix, "max.compaction.lag.ms", "1", tables...)
	rig.Eventually(t, 3*patience, func() bool {
		left := map[string]int{}
		err := kcheck.Records(t.Context(), k.Brokers(), prefix, kgo.ReadCommitted(), func(r *kgo.Record) {
			at, err := millrace.ParseLSN(string(krecord.Header(r, "commit_lsn")))
			if err != nil || at <= behind {
				return
			}
			last = max(last, at)
			var e kafka.End
			switch {
			case !strings.HasSuffix(r.Topic, ".transaction"):
				left[r.Topic]--
			case json.Unmarshal(r.Value, &e) == nil:
				for _, x := range e.Partitions {
					left[x.Topic] += x.Count
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range tables {
			if left[prefix+".public."+table] <= 0 {
				return false
			}
		}
		return true
	}, "the topics are compacted")
	return last
}

// alter changes a setting of topics.
func alter(t *testing.T, k *rig.Kafka, prefix, name, value string, tables ...string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, table := range tables {
		res, err := kadm.NewClient(cl).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: name, Value: &value}}, prefix+".public."+table)
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
	alter(t, r.kafka, r.prefix, "segment.ms", "1", tables...) // a segment that is written to is not compacted
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
	before := topicsShrink(t, r.kafka, r.prefix, 0, tables...)
	r.Start(t, "--bootstrap")
	r.sync(t)
	r.equal(t)
	if log := r.Log(400); !contains(log, "transactions are not whole until", "transactions are whole again") {
		t.Errorf("the log says nothing of it:\n%s", log)
	}
	r.Kill(t)
	change(3)
	change(4)
	topicsShrink(t, r.kafka, r.prefix, before, "account", "entry")
	r.Start(t)
	r.Kill(t)
	r.Start(t)
	r.sync(t)
	r.equal(t)
	change(5) // nothing is missing here
	r.sync(t)
	rounds := 2
	if full() {
		rounds = 20
	}
	for n := range rounds { // compacted and killed all the while
		var load sync.WaitGroup
		load.Go(func() {
			if _, err := r.source.Server.TryQuery(r.source.Name, rewrites(6+n)); err != nil {
				t.Error(err)
			}
		})
		r.Kill(t)
		r.Start(t)
		if n%4 == 3 {
			r.in.Kill(t)
			r.in.Start(t)
		}
		load.Wait()
		if n%5 == 4 { // it is overtaken by the cleaner
			r.Kill(t)
			behind := topicsShrink(t, r.kafka, r.prefix, 0, "account")
			change(100 + n)
			change(200 + n)
			topicsShrink(t, r.kafka, r.prefix, behind, "account", "entry")
			r.Start(t)
			r.Kill(t)
			r.Start(t)
		}
		if n%8 == 7 {
			r.sync(t)
			r.equal(t)
		}
	}
	r.sync(t)
	rig.Eventually(t, patience, func() bool { return r.status(t, "state") == "streaming" && r.status(t, "condition") == "" }, "all is whole")
	r.awaitForeignKey(t)
	r.finish(t)
}

// compactedBesideSchema is besideSchema without what compacted topics can't have: a table without a key, a further unique
// column, whose values can't move while records are missing, and updates that leave values out.
const compactedBesideSchema = `CREATE TABLE owner (id int PRIMARY KEY, n int NOT NULL DEFAULT 0);
CREATE TABLE thing (id int PRIMARY KEY, owner int NOT NULL REFERENCES owner, n int NOT NULL DEFAULT 0, big text);
ALTER TABLE thing ALTER big SET STORAGE EXTERNAL; ALTER TABLE thing REPLICA IDENTITY FULL;
CREATE TABLE fleeting (id int PRIMARY KEY, v int);
INSERT INTO owner SELECT g FROM generate_series(1, 500) g;
INSERT INTO thing SELECT g, 1 + g %% 500, 0, repeat(md5(g::text), 70) FROM generate_series(1, %[1]d) g;
INSERT INTO fleeting SELECT g, 0 FROM generate_series(1, %[1]d) g;`

// compactedBesideChanges change few rows, again and again, so that much can be compacted.
func compactedBesideChanges(rng *rand.Rand, rows int) string {
	a, b, o := 1+rng.IntN(rows/10)*10, rows+1+rng.IntN(rows/10), 1+rng.IntN(500)
	sql := fmt.Sprintf(`UPDATE thing SET n = n + 1 WHERE id BETWEEN %[1]d AND %[1]d + 5; DELETE FROM thing WHERE id = %[1]d + 4;
		UPDATE thing SET id = %[2]d WHERE id = %[1]d + 7 AND NOT EXISTS (SELECT FROM thing WHERE id = %[2]d);
		UPDATE thing SET id = %[1]d + 7 WHERE id = %[2]d - 1 AND NOT EXISTS (SELECT FROM thing WHERE id = %[1]d + 7);
		INSERT INTO owner VALUES (%[2]d, 1) ON CONFLICT (id) DO UPDATE SET n = owner.n + 1;
		UPDATE thing SET owner = %[2]d WHERE id = %[1]d + 2; DELETE FROM owner WHERE id = %[3]d AND NOT EXISTS (SELECT FROM thing WHERE owner = %[3]d);
		INSERT INTO fleeting VALUES (%[1]d, 2) ON CONFLICT (id) DO UPDATE SET v = fleeting.v + 1; DELETE FROM fleeting WHERE id = %[3]d;`, a, b, o)
	if rng.IntN(60) == 0 {
		sql += "TRUNCATE fleeting; INSERT INTO fleeting SELECT g, 1 FROM generate_series(1, 50) g;"
	}
	return sql
}

// TestCompactedLoad: topics are loaded beside the stream, and compacted in the middle of that and after it. Who reads
// them behind the cleaner has the rows of the source in the end, and says that it has not until then.
func TestCompactedLoad(t *testing.T) {
	t.Parallel()
	rows := 1000
	var options blackbox.Options
	r := roundWith(t, rig.Start(t, rig.Newest), fmt.Sprintf(compactedBesideSchema, rows), ", partitions: 2, compact: true", func(in *blackbox.Options, _ *pair) {
		options = *in
		in.Extra += "snapshot: {mode: incremental, rate: 50000}\n" // at which the largest table takes too long
	})
	stop := clients(t, r.pair, func(rng *rand.Rand) string { return compactedBesideChanges(rng, rows) })
	written := func(until string) (at millrace.LSN) {
		t.Helper()
		rig.Eventually(t, patience, func() bool {
			at, _ = millrace.ParseLSN(statusOf(t, r.in).Destination.CommittedLSN) // there may be none yet
			return until == "" || r.source.Query(t, fmt.Sprintf("SELECT pg_lsn '%s' >= '%s'", at, until)) == "t"
		}, "the job that writes is at "+until)
		return at
	}
	r.in.Start(t, "--bootstrap")
	rig.Eventually(t, patience, func() bool { return jobState(t, r.in) == "catching_up" }, "the topics are there")
	alter(t, r.kafka, r.prefix, "segment.ms", "1", "owner", "thing", "fleeting") // a segment that is written to is not compacted
	r.source.SQL(t, strings.Repeat("UPDATE thing SET n = n + 1 WHERE id BETWEEN 1 AND 10; COMMIT; ", 10))
	written(r.position(t))
	r.in.Stop(t) // what a transaction is open behind is not compacted either
	if consistentFrom(t, r.in) != "" {
		t.Error("the load was over before the topics were compacted")
	}
	topicsShrink(t, r.kafka, r.prefix, 0, "thing")
	r.Start(t, "--bootstrap")
	rig.Eventually(t, patience, func() bool { return r.condition() == "converging" }, "the job that reads has seen rows of the load")
	if got := r.record(t, "consistent_from IS NULL AND state <> 'streaming'"); got != "t" {
		t.Error("the target is said to be consistent before all rows are in the topics")
	}
	r.Kill(t)
	behind := written("")
	options.Extra += "snapshot: {mode: incremental}\n"
	r.in = blackbox.NewJob(t, options)
	r.in.Start(t, "--bootstrap")
	rig.Eventually(t, 2*patience, func() bool { return jobState(t, r.in) == "streaming" }, "the load is complete")
	r.source.SQL(t, strings.Repeat("UPDATE thing SET n = n + 1 WHERE id BETWEEN 1 AND 10; COMMIT; ", 10))
	stop()
	written(r.position(t))
	topicsShrink(t, r.kafka, r.prefix, behind, "thing")
	r.Start(t, "--bootstrap")
	r.arrives(t)
	if got := r.record(t, fmt.Sprintf("consistent_from >= '%s'", consistentFrom(t, r.in))); got != "t" {
		t.Error("the far end says that it was consistent before the topics were")
	}
	r.finish(t)
}
