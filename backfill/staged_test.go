package backfill

import (
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// again has tables of the source read again in place, as millrace table resnapshot does.
func (b *bed) again(t *testing.T, tables ...string) {
	t.Helper()
	conn, err := b.target.Connect(t.Context(), session.Watch)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	known, err := record.Tables(t.Context(), conn, "shop")
	if err != nil {
		t.Fatal(err)
	}
	oids := map[string]uint32{}
	for i := range known {
		oids[known[i].Name.Name] = known[i].OID
	}
	for _, name := range tables {
		for _, err := range []error{record.BeginLoad(t.Context(), conn, "shop", oids[name], snapshot.ReplaceMark),
			record.MakeStaging(t.Context(), conn, "shop", oids[name], millrace.TableName{Schema: "public", Name: name})} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestReadsAgain: tables that are read again get their differences and nothing else, in
// one transaction: rows that are right are not touched, and no reader sees anything
// but the old rows or the new ones.
func TestReadsAgain(t *testing.T) {
	const ddl = `CREATE TABLE a (id numeric PRIMARY KEY, mail text UNIQUE, v int, twice int GENERATED ALWAYS AS (v * 2) STORED, j json);
		CREATE TABLE plain (id int PRIMARY KEY, v int, j json);
		CREATE TABLE numbered (id int PRIMARY KEY, v int, serial int GENERATED ALWAYS AS IDENTITY);
		CREATE TABLE keyless (v int, j json); ALTER TABLE keyless REPLICA IDENTITY FULL;`
	const fill = `INSERT INTO a (id, mail, v, j) SELECT g, 'm' || g, g, '{}' FROM generate_series(1, 2000) g;
		INSERT INTO plain SELECT g, g, '[1]' FROM generate_series(1, 2000) g;
		INSERT INTO numbered SELECT g, g FROM generate_series(1, 500) g;
		INSERT INTO keyless SELECT g % 50, '{}' FROM generate_series(1, 500) g;`
	b := newBed(t, rig.Shared(t, rig.Newest), ddl, fill)
	small(b)
	b.run(t)
	b.loaded(t)
	b.same(t, "a", "plain", "numbered", "keyless")
	b.end()
	// In front, between and behind the rows, wrong, missing, too many; unique values that
	// have changed places; a key that is equal and yet another one; and the same again.
	b.dst.Script(t, `DELETE FROM plain WHERE id IN (1, 1000, 2000); INSERT INTO plain VALUES (-7, 1), (3000, 1); UPDATE plain SET v = -1, j = '[2]' WHERE id % 100 = 5;
		UPDATE a SET mail = NULL WHERE id IN (7, 8); UPDATE a SET mail = 'm7' WHERE id = 8; UPDATE a SET mail = 'm8' WHERE id = 7;
		UPDATE a SET id = 12.00 WHERE id = 12; UPDATE a SET v = 0 WHERE id = 13; INSERT INTO a (id, mail) VALUES (0.5, 'x'); DELETE FROM a WHERE id = 14;
		DELETE FROM keyless WHERE v = 3; INSERT INTO keyless VALUES (77, '1'), (77, '1');
		UPDATE numbered SET v = 0 WHERE id % 10 = 0; DELETE FROM numbered WHERE id = 5; INSERT INTO numbered (id) VALUES (5);
		CREATE TABLE was AS SELECT id, xmin::text x FROM plain; CREATE TABLE was_a AS SELECT id::text, xmin::text x FROM a;`)
	b.again(t, "a", "plain", "numbered", "keyless")
	var over atomic.Bool
	readers := make(chan struct{})
	go func() {
		defer close(readers)
		for !over.Load() {
			got, err := b.dst.Server.TryQuery(b.dst.Name, `SELECT count(*) || ' ' || count(*) FILTER (WHERE v = -1) || ' ' || count(*) FILTER (WHERE id IN (-7, 3000)) FROM plain`)
			if err == nil && got != "1999 20 2" && got != "2000 0 0" {
				t.Errorf("a reader has seen %s", got)
				return
			}
		}
	}()
	b.run(t)
	b.loaded(t)
	over.Store(true)
	<-readers
	b.same(t, "a", "plain", "numbered", "keyless")
	for query, want := range map[string]string{
		"SELECT count(*) FROM plain JOIN was USING (id) WHERE plain.xmin::text = x":         "1977",
		"SELECT count(*) FROM a JOIN was_a w ON w.id = a.id::text WHERE a.xmin::text = w.x": "1995",
		"SELECT count(*) FROM pg_class WHERE relname LIKE 'redo%'":                          "0",
		"SELECT count(*) FROM millrace.chunk":                                               "0",
	} {
		if got := b.dst.Query(t, query); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

// TestReadsAgainUnderWrites ends the job again and again while tables are read again and
// changed in all ways.
func TestReadsAgainUnderWrites(t *testing.T) {
	b := newBed(t, rig.Shared(t, rig.Newest), shopDDL, shopFill)
	small(b)
	b.run(t)
	b.loaded(t)
	b.end()
	b.dst.Script(t, "DELETE FROM ints WHERE id % 3 = 0; UPDATE names SET n = 99 WHERE v > 300; DELETE FROM fulls WHERE n < 100")
	b.again(t, "ints", "names", "fulls")
	stop := b.write(t, 2, true)
	for range 2 {
		b.run(t)
		left := b.dst.Query(t, "SELECT coalesce(sum(rows), 0) FROM millrace.chunk")
		rig.Eventually(t, patience, func() bool {
			return b.dst.Query(t, "SELECT coalesce(sum(rows), 0) FROM millrace.chunk") != left
		}, "the load goes on")
		b.dst.SQL(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'millrace:%' AND datname = current_database()")
		b.end()
	}
	b.run(t)
	b.loaded(t)
	stop()
	b.same(t, "ints", "names", "fulls")
}
