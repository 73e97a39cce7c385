package backfill

import (
	"testing"
	"time"

	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/internal/rig"
)

// collatedDDL has keys in the order of a language, and such as are equal though their bytes are not: as a
// part of what tells rows apart, and as what rows share.
const collatedDDL = `CREATE COLLATION german (provider = icu, locale = 'de');
CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE words (w text COLLATE german PRIMARY KEY, v int NOT NULL DEFAULT 0, pad text);
CREATE TABLE names (n text COLLATE nocase, k int, v int NOT NULL DEFAULT 0, big text, PRIMARY KEY (n, k));
ALTER TABLE names ALTER big SET STORAGE EXTERNAL;
CREATE TABLE tags (id int PRIMARY KEY, tag text COLLATE nocase NOT NULL, v int NOT NULL DEFAULT 0, pad text);
CREATE INDEX ON tags (tag); ALTER TABLE tags REPLICA IDENTITY FULL;`

const collatedFill = `INSERT INTO words SELECT (ARRAY['ä', 'a', 'A', 'Z', 'z', 'ß', 'ss', 'é'])[1 + g % 8] || md5(g::text), 0, repeat('x', 100) FROM generate_series(1, 2500) g;
INSERT INTO names SELECT (ARRAY['Anna', 'anna', 'BERT', 'Bert', 'cara'])[1 + g % 5] || g / 40, g, 0, CASE WHEN g % 20 = 0 THEN repeat('y', 3000) END FROM generate_series(1, 2500) g;
INSERT INTO tags SELECT g, (ARRAY['red', 'RED', 'Blue', 'blue', 'green'])[1 + g % 5] || g % 30, 0, repeat('x', 100) FROM generate_series(1, 2500) g;`

var collatedWrites = []string{
	"UPDATE words SET v = v + 1 WHERE w LIKE 'ä%[1]d%%' COLLATE \"C\"", "DELETE FROM words WHERE w = 'a' || md5('%[2]d')", "UPDATE words SET w = 'Ä' || w WHERE w = 'z' || md5('%[2]d')",
	"UPDATE names SET n = upper(n) WHERE k BETWEEN %[2]d AND %[2]d + 9", "UPDATE names SET n = lower(n), v = v + 1 WHERE k = 20 * %[1]d", "UPDATE names SET n = 'moved%[1]d' WHERE k = %[2]d",
	"DELETE FROM names WHERE k = %[2]d", "INSERT INTO names VALUES ('ANNA%[1]d', 10000 + %[2]d, 1) ON CONFLICT (n, k) DO UPDATE SET n = 'anna%[1]d', v = names.v + 1",
	"UPDATE tags SET tag = upper(tag) WHERE id BETWEEN %[2]d AND %[2]d + 5", "UPDATE tags SET tag = 'BLUE%[1]d', v = v + 1 WHERE id = %[2]d", "DELETE FROM tags WHERE id = %[2]d",
	"INSERT INTO tags VALUES (5000 + %[2]d, 'Green%[1]d', 1) ON CONFLICT (id) DO UPDATE SET tag = 'new%[1]d'",
}

// TestLoadsByCollation loads tables whose keys follow collations of ICU, under writes that change
// the case of keys as well, and over restarts.
func TestLoadsByCollation(t *testing.T) {
	b := newBed(t, rig.SharedICU(t), collatedDDL, collatedFill)
	small(b)
	b.opt.ChunkBytes, b.opt.Parallel = 24<<10, 2
	b.opt.Keys = catalog.Keys{{Schema: "public", Name: "tags"}: {"tag"}}
	stop := b.writeRandom(t, 2, collatedWrites, 30, 2500)
	rest := time.AfterFunc(patience/3, stop) // as in TestChosenKeys
	defer rest.Stop()
	for range 3 {
		b.run(t)
		left := b.dst.Query(t, "SELECT coalesce(sum(rows), 0) FROM millrace.chunk")
		rig.Eventually(t, patience, func() bool {
			return b.dst.Query(t, "SELECT coalesce(sum(rows), 0) FROM millrace.chunk") != left || b.dst.Query(t, "SELECT count(*) FROM millrace.job_table WHERE NOT copied") == "0"
		}, "the load goes on")
		b.end()
	}
	b.run(t)
	b.loaded(t)
	stop()
	b.same(t, "words", "names", "tags")
}
