package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

const collatedSchema = `CREATE COLLATION german (provider = icu, locale = 'de');
CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE word (w text COLLATE german PRIMARY KEY, n int NOT NULL DEFAULT 0);
CREATE TABLE name (name text COLLATE nocase PRIMARY KEY, n int NOT NULL DEFAULT 0, big text);
ALTER TABLE name ALTER big SET STORAGE EXTERNAL;
INSERT INTO word SELECT (ARRAY['ä', 'a', 'A', 'Z', 'ß', 'ss'])[1 + g % 6] || g FROM generate_series(1, 1500) g;
INSERT INTO name SELECT (ARRAY['Anna', 'bert', 'CARA'])[1 + g % 3] || g, 0, CASE WHEN g % 10 = 0 THEN repeat('x', 2500) END FROM generate_series(1, 300) g;`

// collatedChanges change the case of keys, which are equal then but written with other bytes.
func collatedChanges(rng *rand.Rand) string {
	a, b := 1+rng.IntN(300), 1+rng.IntN(1500)
	return fmt.Sprintf(`UPDATE name SET name = CASE n %% 2 WHEN 0 THEN upper(name) ELSE lower(name) END, n = n + 1 WHERE name IN ('anna%[1]d', 'BERT%[1]d', 'Cara%[1]d');
		DELETE FROM name WHERE name = 'anna%[2]d'; INSERT INTO name VALUES ('ANNA%[2]d', 5) ON CONFLICT (name) DO UPDATE SET n = name.n + 1;
		UPDATE word SET n = n + 1 WHERE w = 'ä%[2]d'; DELETE FROM word WHERE w = 'A%[2]d'; INSERT INTO word VALUES ('A%[2]d', 7) ON CONFLICT DO NOTHING;`, a, b)
}

// TestCollationsThroughKafka: keys in the order of a language, and such as are equal though their bytes are not, are loaded
// beside the stream into Kafka and read back. Of equal keys that go to several partitions the job says so before it begins.
func TestCollationsThroughKafka(t *testing.T) {
	t.Parallel()
	if !full() {
		t.Skip("half a minute, for make soak; TestNondeterministicKey (kafka) and TestLoadsByCollation (backfill) in short")
	}
	var refused *blackbox.Job
	r := roundWith(t, rig.SharedICU(t), collatedSchema, "", func(in *blackbox.Options, _ *pair) {
		more := *in
		more.Kafka = strings.TrimSuffix(in.Kafka, "}") + ", partitions: 2}"
		refused = blackbox.NewJob(t, more)
		in.Extra += "snapshot: {mode: incremental, rate: 100000}\n"
	})
	if c := refused.Run(t, "check"); c.Code != blackbox.No || !contains(c.Stdout, "column name of its key has a nondeterministic collation") {
		t.Errorf("check with two partitions: exit code %d\n%s%s", c.Code, c.Stdout, c.Stderr)
	}
	stop := clients(t, r.pair, collatedChanges)
	r.in.Start(t, "--bootstrap")
	r.Start(t, "--bootstrap")
	rig.Eventually(t, 2*patience, func() bool { return jobState(t, r.in) == "streaming" }, "the load is complete")
	stop()
	r.becomesConsistent(t)
	r.finish(t)
}
