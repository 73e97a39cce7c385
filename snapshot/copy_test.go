package snapshot

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/session"
)

func TestMain(m *testing.M) { rig.Main(m) }

// bed is a source and a target with tables of the same names.
type bed struct {
	src, dst       *rig.DB
	source, target *session.Endpoint
	exporter       pgx.Tx // an exported snapshot
	exported       string
}

func newBed(t *testing.T, source, target int, sourceSQL, targetSQL string) *bed {
	t.Helper()
	b := &bed{src: rig.Shared(t, source).NewDB(t), dst: rig.Shared(t, target).NewDB(t)}
	b.src.Script(t, sourceSQL)
	b.dst.Script(t, targetSQL)
	b.source = session.Static(millrace.PeerSource, b.src.URL(), "test")
	b.target = session.Static(millrace.PeerDestination, b.dst.URL(), "test")
	b.export(t)
	return b
}

// export takes a new snapshot, as the creation of a slot does.
func (b *bed) export(t *testing.T) {
	t.Helper()
	conn := connect(t, b.source)
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	b.exporter = tx
	if err := tx.QueryRow(t.Context(), `SELECT pg_export_snapshot()`).Scan(&b.exported); err != nil {
		t.Fatal(err)
	}
}

func connect(t *testing.T, e *session.Endpoint) *pgx.Conn {
	t.Helper()
	conn, err := e.Connect(t.Context(), session.Copy)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// selected gives the ordinary tables that the patterns match, described.
func selected(t *testing.T, q catalog.Querier, patterns ...string) []*catalog.Table {
	t.Helper()
	all, err := catalog.Tables(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	p, errs := catalog.ParsePatterns(patterns)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	s := Select(all, p, nil, nil)
	if len(s.Problems) > 0 {
		t.Fatal(s.Problems)
	}
	described, err := catalog.Describe(t.Context(), q, s.OIDs())
	if err != nil {
		t.Fatal(err)
	}
	for i, light := range s.Tables {
		s.Tables[i] = described[light.OID]
	}
	return s.Tables
}

// pairs matches all tables of both sides.
func (b *bed) pairs(t *testing.T, tables []*catalog.Table) []*Table {
	t.Helper()
	there := selected(t, connect(t, b.target), "*.*")
	var all []*Table
	for _, s := range tables {
		i := slices.IndexFunc(there, func(d *catalog.Table) bool { return d.Name == s.Name })
		if i < 0 {
			t.Fatalf("no table %s on the target", s.Name)
		}
		pair, found := Pair(s, there[i])
		if len(found) > 0 {
			t.Fatal(found)
		}
		all = append(all, &pair)
	}
	return all
}

func (b *bed) hold(t *testing.T, streams int) *Holder {
	t.Helper()
	h, err := Hold(t.Context(), b.source, b.exported, selected(t, b.exporter, "*.*"), streams)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Release)
	return h
}

func (b *bed) copy(t *testing.T, h *Holder, o Options) error {
	t.Helper()
	o.Source, o.Target, o.Holder = b.source, b.target, h
	o.Tables = b.pairs(t, selected(t, h.Conn(), "*.*"))
	return Copy(t.Context(), o)
}

// content gives the rows of all tables as text, sorted.
func content(t *testing.T, db *rig.DB, columns string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name := range strings.SplitSeq(db.Query(t, `SELECT c.oid::regclass FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
		WHERE relkind = 'r' AND nspname !~ '^pg_|information_schema'`), "\n") {
		all[name] = db.Query(t, `SELECT `+columns+` FROM ONLY `+name+` t ORDER BY `+columns+` COLLATE "C"`)
	}
	return all
}

// tablesSQL has a column of most kinds, and tables that are awkward; rowsSQL
// fills them.
const tablesSQL = `
CREATE EXTENSION hstore; CREATE EXTENSION citext;
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN small AS int CHECK (VALUE < 100);
CREATE TABLE types (
	id int PRIMARY KEY, i2 int2, i8 int8, n numeric, n2 numeric(10,2), f4 float4, f8 float8, m money, t text, v varchar(9), c char(5),
	b bytea, ts timestamp, tz timestamptz, d date, ti time, ttz timetz, iv interval, bo boolean, e mood,
	ia int[], ta text[], dom small, j json, jb jsonb, x xml, u uuid, inet inet, cidr cidr, mac macaddr,
	pt point, bx box, poly polygon, bits bit(3), vb varbit, r int4range, mr datemultirange, tv tsvector, l pg_lsn,
	h hstore, ci citext, o oid, xid xid8);
CREATE TABLE as_text (id int PRIMARY KEY, rc regclass, ea mood[], p pair, pa pair[], dom small[]);
CREATE TABLE plain (id int, t text, g int GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE empty (a int, b text);
CREATE TABLE nothing ();
CREATE TABLE dropped (gone int, a int, gone2 text, b text); ALTER TABLE dropped DROP gone, DROP gone2;
CREATE TABLE base (id int, a text); CREATE TABLE child (b int) INHERITS (base);
CREATE TABLE part (id int, k int) PARTITION BY LIST (k);
CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1); CREATE TABLE part_rest PARTITION OF part DEFAULT;
CREATE TABLE ident (id int GENERATED ALWAYS AS IDENTITY, v text);
CREATE TABLE "We ""ird.T" ("select" int, "ü x" text);
`

const rowsSQL = `
INSERT INTO types VALUES
	(1, 1, 1099511627776, 'NaN', 1.10, 'Infinity', -0.0, '$1.50', E'tab\t nl\n back\\ \\. \r', 'ü', 'ab', '\x00ff', 'infinity', '0044-03-15 BC', '-infinity',
	 '24:00:00', '10:00+02', '-1 mons +3 days -00:00:00.000001', true, 'sad', '[0:1][2:3]={{1,2},{3,4}}',
	 '{"a,b",NULL,"NULL",""}', 7, '{"b":1, "a":  2,"a":3}', '{"b":1.10}', '<a>1</a>', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '10.0.0.1/8', '10.0.0.0/8',
	 '08:00:2b:01:02:03', '(1,2)', '(1,1),(0,0)', '((0,0),(1,1))', '101', '1', '[1,5)', '{[2020-01-01,2021-01-01)}', 'a:1 b', '1/2',
	 'a=>1,b=>NULL', 'CI', 4000000000, '5000000000');
INSERT INTO types VALUES (2, NULL, NULL, 1e-100, NULL, 'NaN', 1e300, NULL, '', '', '', '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{}', '{}');
INSERT INTO types (id, t, b) SELECT i, repeat(md5(i::text), 200 + i), decode(repeat('ab', i), 'hex') FROM generate_series(10, 400) i;
INSERT INTO as_text VALUES (1, 'pg_class', '{sad,NULL,happy}', '(1,"x,""y")', '{"(1,a)",NULL}', '{1,2}'); INSERT INTO as_text VALUES (2);
INSERT INTO plain SELECT i, 'x' || i FROM generate_series(1, 1000) i;
INSERT INTO nothing SELECT FROM generate_series(1, 3);
INSERT INTO dropped VALUES (1, 'one'), (2, NULL);
INSERT INTO base VALUES (1, 'base'); INSERT INTO child VALUES (2, 'child', 3);
INSERT INTO part SELECT i, i % 3 FROM generate_series(1, 30) i;
INSERT INTO ident (v) VALUES ('a'), ('b');
INSERT INTO "We ""ird.T" VALUES (1, 'y');
`

func TestCopyIsEqual(t *testing.T) {
	for _, pair := range []struct{ source, target int }{{15, 17}, {16, 18}, {17, 17}, {18, 16}} {
		t.Run(fmt.Sprintf("%d-%d", pair.source, pair.target), func(t *testing.T) {
			b := newBed(t, pair.source, pair.target, tablesSQL+rowsSQL, tablesSQL)
			h := b.hold(t, 2)
			b.src.SQL(t, `DELETE FROM plain; INSERT INTO types (id) VALUES (3)`) // after the snapshot
			if err := b.copy(t, h, Options{Replica: true, MinPart: 1}); err != nil {
				t.Fatal(err)
			}
			got := content(t, b.dst, "t::text")
			b.src.SQL(t, `DELETE FROM types WHERE id = 3; INSERT INTO plain SELECT i, 'x' || i FROM generate_series(1, 1000) i`)
			if diff := cmp.Diff(content(t, b.src, "t::text"), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestOtherColumns has the target's columns in another order, and more of them.
func TestOtherColumns(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest,
		`CREATE TABLE t (a int, b text, c int); INSERT INTO t VALUES (1, 'x', 2), (3, NULL, 4);
		 CREATE TABLE n (); INSERT INTO n SELECT FROM generate_series(1, 2);`,
		`CREATE TABLE t (extra text DEFAULT 'def', c bigint, id int GENERATED ALWAYS AS IDENTITY, b varchar, a int); CREATE TABLE n (x int DEFAULT 7)`)
	if err := b.copy(t, b.hold(t, 1), Options{Replica: true}); err != nil {
		t.Fatal(err)
	}
	if got, want := b.dst.Query(t, `SELECT * FROM t ORDER BY a`), "def|2|1|x|1\ndef|4|2||3"; got != want {
		t.Error(got)
	}
	if got := b.dst.Query(t, `SELECT * FROM n`); got != "7\n7" {
		t.Error(got)
	}
}

// TestParts reads a table in ranges that grow and shrink while they are read.
func TestParts(t *testing.T) {
	const ddl = `CREATE TABLE t (id int, v text) WITH (autovacuum_enabled = off); CREATE TABLE small (id int);`
	b := newBed(t, rig.Newest, rig.Newest, ddl+`INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 20000) i;
		DELETE FROM t WHERE id % 10 = 0; INSERT INTO small VALUES (1)`, ddl)
	h := b.hold(t, 3)
	b.src.SQL(t, `UPDATE t SET v = 'new'; INSERT INTO t SELECT i, 'late' FROM generate_series(30000, 90000) i`)
	var mu sync.Mutex
	marks := map[string]int{}
	var complete []Copied
	tracker := NewTracker(nil)
	err := b.copy(t, h, Options{Replica: true, MinPart: 1 << 20, Tracker: tracker,
		Mark: func(_ context.Context, _ pgx.Tx, c Copied) error {
			mu.Lock()
			defer mu.Unlock()
			marks[c.Part.String()]++
			if c.TableDone {
				complete = append(complete, c)
			}
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	if got := b.dst.Query(t, `SELECT count(*), count(DISTINCT id), sum(id), min(v) = max(v) FROM t`); got != "18000|18000|180000000|t" {
		t.Error(got)
	}
	if len(marks) < 5 || len(complete) != 2 {
		t.Errorf("marks %v, complete %v", marks, complete)
	}
	for _, c := range complete {
		if c.Part.Table.Name().Name == "t" && c.TableRows != 18000 {
			t.Errorf("table has %d rows", c.TableRows)
		}
	}
	if p := tracker.Progress(); p.Rows != 18001 || p.TablesDone != 2 || p.Bytes < 18000*500 {
		t.Errorf("progress %+v", p)
	}
}

// TestRewrite alters tables between the snapshot and the lock: under the
// snapshot they look empty, and nothing in the stream says so.
func TestRewrite(t *testing.T) {
	for name, change := range map[string]string{
		"retype":   `ALTER TABLE t ALTER v TYPE int USING v::int`,
		"truncate": `TRUNCATE t`,
		"replace":  `DROP TABLE t; CREATE TABLE t (id int, v int)`,
		"rename":   `ALTER TABLE t RENAME TO gone`,
		"swap":     `ALTER TABLE t RENAME TO u; CREATE TABLE t (id int)`,
		"full":     `VACUUM FULL t`,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, rig.Newest, rig.Newest, `CREATE TABLE t (id int, v text); INSERT INTO t VALUES (1, '1')`, ``)
			tables := selected(t, b.exporter, "*.*")
			b.src.SQL(t, change)
			_, err := Hold(t.Context(), b.source, b.exported, tables, 1)
			if !errors.Is(err, ErrChanged) {
				t.Errorf("%v", err)
			}
			b.export(t)
			b.hold(t, 1)
		})
	}
}

// TestLockedTables wants an exclusive lock as soon as the holder has its own. It
// has to wait until the load is over, and the load must not wait for it.
func TestLockedTables(t *testing.T) {
	const ddl = `CREATE TABLE t (id int)`
	b := newBed(t, rig.Newest, rig.Newest, ddl+`; INSERT INTO t SELECT generate_series(1, 1000)`, ddl)
	h := b.hold(t, 2)
	altered := make(chan error, 1)
	go func() {
		_, err := b.src.Server.TryQuery(b.src.Name, `ALTER TABLE t ADD c text DEFAULT random()::text`)
		altered <- err
	}()
	rig.Eventually(t, 20*time.Second, func() bool {
		return b.src.Query(t, `SELECT count(*) FROM pg_locks WHERE NOT granted`) == "1"
	}, "nobody waits for the lock")
	if err := b.copy(t, h, Options{Replica: true}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-altered:
		t.Errorf("the table was altered during the load: %v", err)
	default:
	}
	h.Release()
	if err := <-altered; err != nil {
		t.Error(err)
	}
	if got := b.dst.Query(t, `SELECT count(*) FROM t`); got != "1000" {
		t.Error(got)
	}
}

// TestLostConnections kills the target's sessions while rows are on their way,
// and once right behind a commit that was not heard of.
func TestLostConnections(t *testing.T) {
	const ddl = `CREATE TABLE t (id int, v text)`
	b := newBed(t, rig.Newest, rig.Newest, ddl+`; INSERT INTO t SELECT i, repeat('x', 2000) FROM generate_series(1, 20000) i`,
		ddl+`; CREATE TABLE marks (part int PRIMARY KEY)`)
	h := b.hold(t, 2)
	var once sync.Once
	kill := func() {
		b.dst.Query(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'millrace:test:copy' AND datname = current_database()`)
	}
	stop := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		rig.Eventually(t, 20*time.Second, func() bool {
			return b.dst.Query(t, `SELECT count(*) FROM pg_stat_progress_copy WHERE tuples_processed > 100`) != "0"
		}, "no copy is running")
		kill()
		<-stop
	})
	err := b.copy(t, h, Options{Replica: true, MinPart: 4 << 20, Rate: 30 << 20,
		Mark: func(ctx context.Context, tx pgx.Tx, c Copied) (err error) {
			if c.Part.Table.Name().Name != "t" {
				return nil
			}
			if c.TableDone {
				if _, err := tx.Exec(ctx, `INSERT INTO public.marks VALUES (-1)`); err != nil {
					return err
				}
			}
			if _, err := tx.Exec(ctx, `INSERT INTO public.marks VALUES ($1) ON CONFLICT DO NOTHING`, c.Part.Number); err != nil {
				return err
			}
			once.Do(func() {
				// The commit happens, and the answer gets lost.
				if _, err = tx.Exec(ctx, `COMMIT`); err == nil {
					err = &millrace.Error{Kind: millrace.KindRetry, Op: "commit", Err: errors.New("lost")}
				}
			})
			return err
		},
		Marked: func(ctx context.Context, conn *pgx.Conn, p *Part) (found Marked, err error) {
			err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM public.marks WHERE part = $1), EXISTS (SELECT FROM public.marks WHERE part = -1)`, p.Number).
				Scan(&found.Done, &found.Table)
			return found, err
		}})
	close(stop)
	killer.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if got := b.dst.Query(t, `SELECT count(*), count(DISTINCT id) FROM t`); got != "20000|20000" {
		t.Error(got)
	}
	if got := b.dst.Query(t, `SELECT count(*) FROM marks WHERE part = -1`); got != "1" {
		t.Errorf("the table was marked as complete %s times", got)
	}
}

// TestSourceLost ends the holder: the load can't go on.
func TestSourceLost(t *testing.T) {
	const ddl = `CREATE TABLE t (id int)`
	b := newBed(t, rig.Newest, rig.Newest, ddl+`; INSERT INTO t SELECT generate_series(1, 1000)`, ddl)
	h := b.hold(t, 1)
	b.src.Query(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'millrace:test:copy' AND datname = current_database()`)
	if err := b.copy2(t, h); !session.Retryable(err) {
		t.Errorf("%v", err)
	}
}

// copy2 copies tables that are described on a session of their own.
func (b *bed) copy2(t *testing.T, h *Holder) error {
	t.Helper()
	tables := b.pairs(t, selected(t, connect(t, b.source), "*.*"))
	return Copy(t.Context(), Options{Source: b.source, Target: b.target, Holder: h, Tables: tables, Replica: true})
}

func TestCanceled(t *testing.T) {
	const ddl = `CREATE TABLE t (id int, v text); CREATE TABLE first (id int)`
	b := newBed(t, rig.Newest, rig.Newest, ddl+`; INSERT INTO t SELECT i, repeat('x', 2000) FROM generate_series(1, 20000) i`, ddl)
	h := b.hold(t, 1)
	tables := b.pairs(t, selected(t, h.Conn(), "*.*"))
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	time.AfterFunc(300*time.Millisecond, func() { cancel(stopped) })
	start := time.Now()
	err := Copy(ctx, Options{Source: b.source, Target: b.target, Holder: h, Tables: tables, Replica: true, Rate: 4 << 20})
	if !errors.Is(err, stopped) || time.Since(start) > 5*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
	if got := b.dst.Query(t, `SELECT count(*) FROM t`); got != "0" {
		t.Errorf("%s rows are there", got)
	}
}

// TestLargeRows copies rows that are larger than all buffers together, without
// ever having one in memory.
func TestLargeRows(t *testing.T) {
	const ddl = `CREATE TABLE t (id int, v text); ALTER TABLE t ALTER v SET STORAGE EXTERNAL`
	b := newBed(t, rig.Newest, rig.Newest, ddl+`; INSERT INTO t SELECT i, repeat('0123456789abcdef', 4 << 20) FROM generate_series(1, 3) i`, ddl)
	h := b.hold(t, 1)
	var most atomic.Uint64
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most.Store(max(most.Load(), m.HeapAlloc))
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	err := b.copy(t, h, Options{Replica: true})
	close(stop)
	watching.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if got := b.dst.Query(t, `SELECT count(*), min(length(v)), count(DISTINCT md5(v)) FROM t`); got != "3|67108864|1" {
		t.Error(got)
	}
	if most.Load() > 48<<20 {
		t.Errorf("rows of 64 MiB took %d MiB", most.Load()>>20)
	}
}

func TestRate(t *testing.T) {
	const ddl = `CREATE TABLE t (id int, v text)`
	b := newBed(t, rig.Newest, rig.Newest, ddl+`; INSERT INTO t SELECT i, repeat('x', 2000) FROM generate_series(1, 1000) i`, ddl)
	start := time.Now()
	if err := b.copy(t, b.hold(t, 2), Options{Replica: true, Rate: 2 << 20}); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d < 700*time.Millisecond || d > 5*time.Second {
		t.Errorf("2 MB at 2 MiB/s took %v", d)
	}
}

// TestRowSecurity: a policy must not hide rows in silence.
func TestRowSecurity(t *testing.T) {
	const ddl = `CREATE TABLE t (id int)`
	b := newBed(t, rig.Newest, rig.Newest, ddl+`; INSERT INTO t VALUES (1), (2); ALTER TABLE t ENABLE ROW LEVEL SECURITY;
		CREATE POLICY p ON t USING (id = 1)`, ddl)
	role := "rls_" + b.src.Name
	b.src.SQL(t, `CREATE ROLE `+role+` LOGIN; GRANT SELECT ON t TO `+role)
	t.Cleanup(func() { b.src.SQL(t, `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	b.source = session.Static(millrace.PeerSource, strings.Replace(b.src.URL(), "postgres@", role+"@", 1), "test")
	err := b.copy(t, b.hold(t, 1), Options{Replica: true})
	if err == nil || !strings.Contains(millrace.HintOf(err), "BYPASSRLS") {
		t.Errorf("%v\nhint: %s", err, millrace.HintOf(err))
	}
}

// TestForeignKeyOrder copies with foreign keys in force.
func TestForeignKeyOrder(t *testing.T) {
	const ddl = `CREATE TABLE a (id int PRIMARY KEY, b int); CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a, self int REFERENCES b);
		CREATE TABLE c (id int, b int) PARTITION BY LIST (id); CREATE TABLE c1 PARTITION OF c FOR VALUES IN (1);
		ALTER TABLE c ADD FOREIGN KEY (b) REFERENCES b;`
	b := newBed(t, rig.Newest, rig.Newest, ddl+`INSERT INTO a VALUES (1), (2); INSERT INTO b VALUES (5, 1, 6), (6, 2, NULL); INSERT INTO c VALUES (1, 5)`, ddl)
	conn := connect(t, b.target)
	var oids []uint32
	for _, d := range selected(t, conn, "*.*") {
		oids = append(oids, d.OID)
	}
	levels, circle, err := ForeignKeyLevels(t.Context(), conn, oids)
	if err != nil || circle != nil || len(levels) != 3 {
		t.Fatalf("%v %v %v", levels, circle, err)
	}
	if err := b.copy(t, b.hold(t, 2), Options{Levels: levels, MinPart: 1}); err != nil {
		t.Fatal(err)
	}
	if got := b.dst.Query(t, `SELECT count(*) FROM c JOIN b ON c.b = b.id JOIN a ON a.id = b.a`); got != "1" {
		t.Error(got)
	}
	b.dst.SQL(t, `ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES b`)
	if _, circle, err = ForeignKeyLevels(t.Context(), conn, oids); err != nil || len(circle) != 3 {
		t.Errorf("%v %v", circle, err)
	}
}

func TestAwaitFlushed(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, `CREATE TABLE t (id int)`, ``)
	conn := connect(t, b.source)
	point, err := millrace.ParseLSN(b.src.Query(t, `SELECT pg_current_wal_flush_lsn()`))
	if err != nil {
		t.Fatal(err)
	}
	if err := AwaitFlushed(t.Context(), conn, point); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := AwaitFlushed(ctx, conn, point+1<<30); err == nil {
		t.Error("a position ahead of the log counts as flushed")
	}
}
