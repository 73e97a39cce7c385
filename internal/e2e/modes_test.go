package e2e

import (
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
)

// TestModeNone: nothing is copied; the target counts as equal when the slot is
// made.
func TestModeNone(t *testing.T) {
	t.Parallel()
	rows := "INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 100) i;"
	schema := "CREATE TABLE t (id int PRIMARY KEY, v text);" + rows
	p := newPair(t, plan{schema: schema, before: schema, options: func(o *blackbox.Options, _ *pair) {
		o.Extra += "snapshot: {mode: none}\n"
	}})
	p.Start(t, "--bootstrap")
	p.sync(t)
	if got := p.record(t, "consistent_from = consistent_point"); got != "t" {
		t.Errorf("consistent_from is the consistent point: %s", got)
	}
	p.source.SQL(t, "UPDATE t SET v = 'new' WHERE id < 10; DELETE FROM t WHERE id > 90; INSERT INTO t VALUES (1000, 'x')")
	p.finish(t)
}

// TestOtherShapeOfTheTarget: columns are known by name, and what the source
// does not have keeps its default or its value.
func TestOtherShapeOfTheTarget(t *testing.T) {
	t.Parallel()
	p := newPair(t, plan{
		schema: `CREATE TABLE t (id int PRIMARY KEY, a text, b numeric, c int); INSERT INTO t VALUES (1, 'a', 1.50, NULL), (2, 'b', NULL, 2);
			CREATE TABLE k (x int, y int, z text); ALTER TABLE k REPLICA IDENTITY FULL; INSERT INTO k VALUES (1, 2, 'z'), (1, 2, 'z'), (NULL, 3, '')`,
		before: `CREATE TABLE t (extra text DEFAULT 'default', c bigint, a text, n int GENERATED ALWAYS AS IDENTITY, b numeric, id int, PRIMARY KEY (id));
			CREATE TABLE k (z text, y int, at timestamptz DEFAULT now(), x int)`,
	})
	p.Start(t, "--bootstrap")
	p.sync(t)
	p.target.SQL(t, "UPDATE t SET extra = 'mine' WHERE id = 1")
	for _, sql := range []string{
		"INSERT INTO t VALUES (3, 'c', 3, 3), (4, 'd', 'NaN', -4)", "UPDATE t SET a = 'aa', c = 11 WHERE id = 1", "UPDATE t SET id = 20 WHERE id = 2",
		"DELETE FROM t WHERE id = 4", "BEGIN; DELETE FROM t WHERE id = 3; INSERT INTO t VALUES (3, 'again', 0, 0); COMMIT",
		"INSERT INTO k VALUES (5, 5, 'five')", "BEGIN; INSERT INTO k VALUES (6, 6, 'six'); DELETE FROM k WHERE ctid = (SELECT min(ctid) FROM k WHERE x = 1); UPDATE k SET z = NULL WHERE x IS NULL; COMMIT",
	} {
		p.source.SQL(t, sql)
	}
	p.sync(t)
	for _, q := range []string{"SELECT id, a, b, c FROM t ORDER BY id", "SELECT x, y, z FROM k ORDER BY x, y, z"} {
		if want, got := p.source.Query(t, q), p.target.Query(t, q); want != got {
			t.Errorf("%s:\nsource:\n%s\ntarget:\n%s", q, want, got)
		}
	}
	if got := p.target.Query(t, "SELECT string_agg(id || extra, ' ' ORDER BY id) FROM t"); got != "1mine 3default 20default" {
		t.Errorf("the target's own column: %s", got)
	}
	if got := p.target.Query(t, "SELECT count(*) FROM t WHERE n IS NULL"); got != "0" {
		t.Errorf("%s rows without the target's own identity", got)
	}
	if code := p.Stop(t); code != blackbox.Done {
		t.Errorf("exit code %d", code)
	}
}

// TestBinaryAndText: an enum's labels are the same in binary; a regclass is a
// number that means something only at the source, and puts the stream into text.
func TestBinaryAndText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, column, value string }{
		{"binary", "", ""},
		{"text", ", r regclass, e2 mood[]", ", 'other'::regclass, '{sad,happy}'"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, plan{schema: `CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy'); CREATE TABLE other (id int PRIMARY KEY);
				CREATE TABLE t (id int PRIMARY KEY, m mood, f float8, n numeric, b bytea, a int[], at timestamptz` + c.column + `);
				INSERT INTO t SELECT i, (enum_range(NULL::mood))[1 + i % 3], i / 3.0, i / 7.0, decode(md5(i::text), 'hex'), ARRAY[[i, NULL]], 'epoch'::timestamptz + i * interval '1.000001 s'` +
				c.value + ` FROM generate_series(1, 300) i`})
			// Other OIDs on the target than on the source.
			p.target.SQL(t, "CREATE TYPE unrelated AS ENUM ('x'); CREATE SCHEMA apart; CREATE TABLE apart.t (id int)")
			p.Start(t, "--bootstrap")
			p.sync(t)
			p.source.SQL(t, "INSERT INTO t SELECT i + 1000, 'happy', 'Infinity', 'NaN', '', '[0:1]={1,2}', '-infinity'"+c.value+" FROM generate_series(1, 50) i; INSERT INTO other VALUES (1)")
			p.source.SQL(t, "UPDATE t SET m = 'sad', f = f * 0.1 WHERE id % 7 = 0; DELETE FROM t WHERE id % 11 = 0")
			p.finish(t)
		})
	}
}
