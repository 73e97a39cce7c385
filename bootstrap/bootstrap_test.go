package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

func TestMain(m *testing.M) { rig.Main(m) }

// bed is a job between two databases.
type bed struct {
	src, dst *rig.DB
	Options
}

func newBed(t *testing.T, source, target int, sourceSQL, targetSQL string) *bed {
	t.Helper()
	b := &bed{src: rig.Shared(t, source).NewDB(t), dst: rig.Shared(t, target).NewDB(t)}
	b.src.Script(t, sourceSQL)
	b.dst.Script(t, targetSQL)
	job := b.src.Name
	b.Options = Options{
		Source: session.Static(millrace.PeerSource, b.src.URL(), job),
		Target: session.Static(millrace.PeerDestination, b.dst.URL(), job),
		Job:    job, Slot: "millrace_" + job, Publication: "millrace_" + job,
		CreatePublication: true, SchemaMode: SchemaCreate, Mode: ModeConsistent, Parallel: 2,
		PGDump: b.src.Server.Bin("pg_dump"), Instance: "test",
	}
	b.match(t, "*.*")
	return b
}

func (b *bed) match(t *testing.T, patterns ...string) {
	t.Helper()
	p, errs := catalog.ParsePatterns(patterns)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	b.Patterns = p
}

func (b *bed) run(t *testing.T) error { t.Helper(); return Run(t.Context(), b.Options) }

func (b *bed) mustRun(t *testing.T) {
	t.Helper()
	if err := b.run(t); err != nil {
		t.Fatalf("%v\nhint: %s", err, millrace.HintOf(err))
	}
}

// job gives columns of the job's record.
func (b *bed) jobColumns(t *testing.T, columns string) string {
	t.Helper()
	return b.dst.Query(t, `SELECT `+columns+` FROM millrace.job WHERE job = '`+b.Job+`'`)
}

func (b *bed) slot(t *testing.T, columns string) string {
	t.Helper()
	return b.src.Query(t, `SELECT `+columns+` FROM pg_replication_slots WHERE slot_name = '`+b.Slot+`'`)
}

// content gives the rows of all user tables as text, sorted.
func content(t *testing.T, db *rig.DB, except ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for name := range strings.SplitSeq(db.Query(t, `SELECT c.oid::regclass FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
		WHERE relkind = 'r' AND nspname !~ '^pg_|information_schema|millrace'`), "\n") {
		all[name] = db.Query(t, `SELECT t::text FROM ONLY `+name+` t ORDER BY t::text COLLATE "C"`)
	}
	for _, name := range except {
		delete(all, name)
	}
	return all
}

// richRows fills the tables of schema/testdata/rich.sql.
const richRows = `
INSERT INTO shop.customer (name, email, mood, home, attrs, stay, level) VALUES
	('Ann', 'a@b.c', 'it''s ok', ('s "t', '12345', 'sad'), 'a=>1,b=>NULL', '[1.5,2.5)', 3),
	('Bob', NULL, DEFAULT, NULL, DEFAULT, 'empty', DEFAULT), ('Çe', 'ç@d', 'a\b', ROW(NULL, NULL, NULL), '', NULL, 1);
INSERT INTO shop."order" (customer, note) SELECT 10, repeat(md5(i::text), 100) FROM generate_series(1, 100) i;
INSERT INTO unused.target VALUES (1);
BEGIN; INSERT INTO shop.item VALUES (1, 2, 10, 1), (2, 1, 11, NULL); COMMIT;
UPDATE shop.customer SET best = 1 WHERE id = 10;
INSERT INTO shop.event SELECT i % 3, timestamptz '2025-06-01' + i * interval '3 days', '{"a":  1, "b":1}', 10 FROM generate_series(1, 150) i;
INSERT INTO shop.base VALUES (1, 'base'); INSERT INTO shop.child VALUES (1, 'child', 'b');
INSERT INTO "We.ird"."t""a.b c" VALUES (1, 'x', '{sad,NULL}');
INSERT INTO shop.none SELECT FROM generate_series(1, 3);
INSERT INTO shop.keyless VALUES (1, 'x'), (1, 'x'), (NULL, NULL);
INSERT INTO shop.slotted VALUES (1, '[1,3)'), (2, '[3,5)');
INSERT INTO shop.later VALUES (1, 2), (2, 1);
`

func rich(t *testing.T) string {
	t.Helper()
	sql, err := os.ReadFile("../schema/testdata/rich.sql")
	if err != nil {
		t.Fatal(err)
	}
	return string(sql) + richRows
}

func TestFirstLoad(t *testing.T) {
	for _, pair := range []struct{ source, target int }{{15, 17}, {16, 18}, {17, 17}, {18, 16}} {
		t.Run(fmt.Sprintf("%d-%d", pair.source, pair.target), func(t *testing.T) {
			b := newBed(t, pair.source, pair.target, rich(t), ``)
			b.match(t, "shop.*", `"We.ird".*`)
			if pair.target > pair.source { // reads the newest source as well
				b.PGDump = b.dst.Server.Bin("pg_dump")
			}
			b.mustRun(t)
			if diff := cmp.Diff(content(t, b.src, "unused.target", "unused.big"), content(t, b.dst)); diff != "" {
				t.Error(diff)
			}
			point := b.slot(t, "confirmed_flush_lsn")
			got := b.jobColumns(t, `state, generation, consistent_point, consistent_from, committed_lsn, acked_lsn, commit_lsn, owns_slot, owns_publication, array_length(tables, 1)`)
			want := "stopped|1|" + strings.Repeat(point+"|", 4) + "|t|t|13"
			if got != want {
				t.Errorf("record %s\nwant   %s", got, want)
			}
			if got := b.dst.Query(t, `SELECT count(*) FROM millrace.job_table WHERE NOT copied OR shape = '' AND table_name <> 'none' OR filenode = 0 OR target_oid = 0`); got != "0" {
				t.Errorf("%s tables are not recorded", got)
			}
			if got := b.dst.Query(t, `SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND NOT convalidated`); got != "0" {
				t.Errorf("%s foreign keys are not validated", got)
			}
			if got := b.dst.Query(t, `SELECT count(*) FROM pg_stats WHERE schemaname = 'shop' AND tablename = 'customer'`); got == "0" {
				t.Error("no statistics")
			}
			b.mustRun(t)
			if got := b.jobColumns(t, "generation"); got != "1" {
				t.Errorf("a second run began again: generation %s", got)
			}
		})
	}
}

// TestInterruptedEarly stops before any table is complete: nothing is left but
// the definitions, and the next run begins again by itself.
func TestInterruptedEarly(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, `CREATE TABLE t (id int PRIMARY KEY, v text);
		INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i`, ``)
	b.Rate = 2 << 20
	ctx, cancel := context.WithCancel(t.Context())
	b.Progress = reporter(func(p snapshot.Progress) {
		if p.Phase == snapshot.PhaseRows && p.Bytes > 0 {
			cancel()
		}
	})
	start := time.Now()
	err := Run(ctx, b.Options)
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("took %v", d)
	}
	if got := b.slot(t, "count(*)"); got != "0" {
		t.Error("the slot is still there")
	}
	if got := b.jobColumns(t, "state, reason"); got != "stopped|the first load was interrupted" {
		t.Error(got)
	}
	b.Rate, b.Progress = 0, nil
	b.mustRun(t)
	if got := b.dst.Query(t, `SELECT count(*) FROM t`); got != "20000" {
		t.Error(got)
	}
	if got := b.jobColumns(t, "generation, owns_publication"); got != "2|t" {
		t.Error(got)
	}
}

type reporter func(snapshot.Progress)

func (r reporter) Report(p snapshot.Progress) { r(p) }

// TestInterruptedHalf stops when one table is complete: its rows stay, and the rest
// is left to be read beside the stream, unless the operator wants to start over.
func TestInterruptedHalf(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, `CREATE TABLE small (id int PRIMARY KEY); INSERT INTO small VALUES (1), (2);
		CREATE TABLE big (id int PRIMARY KEY, v text); INSERT INTO big SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i`, ``)
	b.Rate = 2 << 20
	ctx, cancel := context.WithCancel(t.Context())
	b.Progress = reporter(func(p snapshot.Progress) {
		if p.TablesDone > 0 {
			cancel()
		}
	})
	if err := Run(ctx, b.Options); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if got := b.jobColumns(t, "state, hint LIKE '%goes on%'"); got != "stopped|t" {
		t.Error(got)
	}
	slot := b.slot(t, "confirmed_flush_lsn")
	if slot == "" {
		t.Error("the slot is gone")
	}
	b.Rate, b.Progress = 0, nil
	b.mustRun(t)
	if got := b.jobColumns(t, "state, consistent_from IS NULL"); got != "stopped|t" {
		t.Error(got)
	}
	if got := b.slot(t, "confirmed_flush_lsn"); got != slot {
		t.Errorf("slot %s, before %s", got, slot)
	}
	if got := b.dst.Query(t, `SELECT (SELECT count(*) FROM small), (SELECT count(*) FROM big), (SELECT count(*) FROM millrace.chunk WHERE part = -1),
		(SELECT count(*) FROM pg_index WHERE indisprimary AND indrelid IN ('big'::regclass, 'small'::regclass))`); got != "2|0|1|2" {
		t.Errorf("complete and emptied rows, marks, keys: %s", got)
	}
	b.src.SQL(t, `INSERT INTO small VALUES (3)`)
	b.dst.SQL(t, `CREATE TABLE other (id int); INSERT INTO other VALUES (1)`)
	b.Restart = true
	b.mustRun(t)
	if diff := cmp.Diff(content(t, b.src), content(t, b.dst, "other")); diff != "" {
		t.Error(diff)
	}
	if got := b.dst.Query(t, `SELECT count(*) FROM other`); got != "1" {
		t.Error("a table of somebody else was emptied")
	}
	if got := b.jobColumns(t, "generation, state"); got != "2|stopped" {
		t.Error(got)
	}
	if got := b.slot(t, "confirmed_flush_lsn"); got == slot || got == "" {
		t.Errorf("slot %s, before %s", got, slot)
	}
	// Complete jobs start over as well, with what the stream has brought.
	b.dst.SQL(t, `DELETE FROM small`)
	b.mustRun(t)
	if got := b.dst.Query(t, `SELECT count(*) FROM small`); got != "3" {
		t.Error(got)
	}
}

// TestTargetLostAfterCopy ends the target's sessions again and again once all
// rows are there: that must not cost the load.
func TestTargetLostAfterCopy(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, rich(t), ``)
	b.match(t, "shop.*", `"We.ird".*`)
	kills := 0
	b.Progress = reporter(func(p snapshot.Progress) {
		if (p.Phase == snapshot.PhaseIndexes || p.Phase == snapshot.PhaseKeys) && p.StepsDone%4 == 1 && kills < 3 {
			kills++
			b.dst.Query(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'millrace:%' AND datname = current_database()`)
		}
	})
	b.mustRun(t)
	if diff := cmp.Diff(content(t, b.src, "unused.target", "unused.big"), content(t, b.dst)); diff != "" {
		t.Error(diff)
	}
	if got := b.dst.Query(t, `SELECT count(*) FROM pg_constraint WHERE connamespace = 'shop'::regnamespace AND contype IN ('p', 'u', 'f', 'x')`); kills != 3 ||
		got != b.src.Query(t, `SELECT count(*) FROM pg_constraint WHERE connamespace = 'shop'::regnamespace AND contype IN ('p', 'u', 'f', 'x') AND conname NOT LIKE 'item_elsewhere%'`) {
		t.Errorf("%s constraints, %d kills", got, kills)
	}
}

// TestRestartEmptiesReferenced empties tables that foreign keys tie together,
// partitioned ones among them, without a cascade.
func TestRestartEmptiesReferenced(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, rich(t), ``)
	b.match(t, "shop.*", `"We.ird".*`)
	b.mustRun(t)
	b.Restart = true
	b.mustRun(t)
	if diff := cmp.Diff(content(t, b.src, "unused.target", "unused.big"), content(t, b.dst)); diff != "" {
		t.Error(diff)
	}
	b.dst.SQL(t, `CREATE TABLE outside (c int REFERENCES shop.customer); INSERT INTO outside VALUES (10)`)
	err := b.run(t)
	if millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(err.Error(), "public.outside") {
		t.Errorf("%v", err)
	}
	if got := b.dst.Query(t, `SELECT count(*) FROM shop.customer`); got != "3" {
		t.Errorf("%s rows are left", got)
	}
}

// TestKilled dies without a word when it has copied nothing yet: the slot that is
// left is known by the record.
func TestKilled(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, `CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)`, ``)
	b.mustRun(t)
	b.dst.SQL(t, `UPDATE millrace.job_state SET consistent_from = NULL, state = 'bootstrapping'; UPDATE millrace.job_table SET copied = false; TRUNCATE t`)
	b.mustRun(t)
	if got := b.dst.Query(t, `SELECT count(*) FROM t`); got != "1" {
		t.Error(got)
	}
	if got := b.jobColumns(t, "generation"); got != "2" {
		t.Error(got)
	}
	// Parts of a table are no reason to ask anybody.
	b.dst.SQL(t, `UPDATE millrace.job_state SET consistent_from = NULL, state = 'bootstrapping'; UPDATE millrace.job_table SET copied = false;
		INSERT INTO millrace.chunk (job, oid, part) SELECT job, oid, 0 FROM millrace.job_table`)
	b.mustRun(t)
	if got := b.dst.Query(t, `SELECT count(*) FROM t`); got != "1" {
		t.Error(got)
	}
}

func TestRowsOnTarget(t *testing.T) {
	const ddl = `CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY); INSERT INTO a VALUES (1);`
	b := newBed(t, rig.Newest, rig.Newest, ddl, ddl+`INSERT INTO c VALUES (7)`)
	err := b.run(t)
	if millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(err.Error(), "public.a: holds rows on the target; public.c: holds rows on the target") {
		t.Errorf("%v", err)
	}
	if got := b.slot(t, "count(*)"); got != "0" {
		t.Error("a slot was made")
	}
	if got := b.dst.Query(t, `SELECT count(*) FROM pg_namespace WHERE nspname = 'millrace'`); got != "0" {
		t.Error("a record was made")
	}
	if got := b.src.Query(t, `SELECT count(*) FROM pg_publication`); got != "0" {
		t.Error("a publication was made")
	}
}

func TestModeNone(t *testing.T) {
	const ddl = `CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1);`
	b := newBed(t, rig.Newest, rig.Newest, ddl, ddl)
	b.Mode = ModeNone
	b.mustRun(t)
	if got := b.jobColumns(t, "consistent_from = consistent_point, acked_lsn = consistent_point"); got != "t|t" {
		t.Error(got)
	}
	if got := b.dst.Query(t, `SELECT count(*) FROM a`); got != "1" {
		t.Error(got)
	}
	// A later start over does not take these rows for its own.
	b.Mode, b.Restart = ModeConsistent, true
	if err := b.run(t); err == nil || !strings.Contains(err.Error(), "public.a: holds rows") {
		t.Errorf("%v", err)
	}
}

// TestSlotWaits has a transaction open that the slot has to wait for.
func TestSlotWaits(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, `CREATE TABLE t (id int PRIMARY KEY)`, ``)
	conn, err := b.Source.Connect(t.Context(), session.Check)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `BEGIN; INSERT INTO public.t VALUES (1)`); err != nil {
		t.Fatal(err)
	}
	b.SlotWait = 1500 * time.Millisecond
	var log strings.Builder
	b.Log = slog.New(slog.NewTextHandler(&log, nil))
	err = b.run(t)
	pid := fmt.Sprintf("pid %d (", conn.PgConn().PID())
	if millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(err.Error(), pid) {
		t.Errorf("%v", err)
	}
	if !strings.Contains(log.String(), pid) {
		t.Errorf("the log does not name %s: %s", pid, &log)
	}
	if got := b.slot(t, "count(*)"); got != "0" {
		t.Error("a slot is left")
	}
	if _, err := conn.Exec(t.Context(), `COMMIT`); err != nil {
		t.Fatal(err)
	}
	b.mustRun(t)
	if got := b.dst.Query(t, `SELECT count(*) FROM t`); got != "1" {
		t.Error(got)
	}
}

// TestTableMadeMeanwhile: while the slot waits, a table is created and filled.
// It belongs to the set that the snapshot shows.
func TestTableMadeMeanwhile(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, `CREATE TABLE t (id int PRIMARY KEY)`, ``)
	conn, err := b.Source.Connect(t.Context(), session.Check)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `BEGIN; INSERT INTO public.t VALUES (1)`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Run(t.Context(), b.Options) }()
	rig.Eventually(t, 20*time.Second, func() bool {
		return b.src.Query(t, `SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted`) == "1"
	}, "the slot does not wait")
	b.src.SQL(t, `CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (5)`)
	if _, err := conn.Exec(t.Context(), `COMMIT`); err != nil {
		t.Fatal(err)
	}
	// The publication that was made for the first try lacks the table.
	err = <-done
	if millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(err.Error(), `lacks "public"."late"`) {
		t.Fatalf("%v", err)
	}
	b.src.SQL(t, `ALTER PUBLICATION `+b.Publication+` ADD TABLE late`)
	b.mustRun(t)
	if diff := cmp.Diff(content(t, b.src), content(t, b.dst)); diff != "" {
		t.Error(diff)
	}
}

func TestDryRun(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, rich(t), ``)
	b.match(t, "shop.*", `"We.ird".*`)
	var out strings.Builder
	b.DryRun = &out
	b.mustRun(t)
	for _, want := range []string{"CREATE PUBLICATION", "CREATE_REPLICATION_SLOT", "CREATE TABLE shop.customer", "CREATE SCHEMA millrace",
		`COPY "shop"."order"; -- about`, "ADD CONSTRAINT", "VALIDATE CONSTRAINT", "item_elsewhere_fkey: left out"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the plan lacks %q:\n%s", want, &out)
		}
	}
	if got := b.dst.Query(t, `SELECT count(*) FROM pg_namespace WHERE nspname IN ('millrace', 'shop')`); got != "0" {
		t.Error("something was made")
	}
	if got := b.src.Query(t, `SELECT count(*) FROM pg_publication WHERE pubname LIKE 'millrace%'`); got != "0" {
		t.Error("a publication was made")
	}
	b.DryRun = nil
	b.mustRun(t)
	out.Reset()
	b.DryRun, b.Restart = &out, true
	b.mustRun(t)
	for _, want := range []string{"DROP_REPLICATION_SLOT", `TRUNCATE ONLY "shop"."customer"`, "-- kept: table shop.customer"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the plan lacks %q:\n%s", want, &out)
		}
	}
	if got := b.dst.Query(t, `SELECT count(*) FROM shop.customer`); got != "3" {
		t.Error("rows are gone")
	}
}

// TestLeastPrivileges has a source role that may read its tables and replicate,
// and a target role that owns its schema and nothing else.
func TestLeastPrivileges(t *testing.T) {
	for _, pair := range []struct{ source, target int }{{16, 17}, {17, 18}, {15, 16}} {
		t.Run(fmt.Sprintf("%d-%d", pair.source, pair.target), func(t *testing.T) {
			b := newBed(t, pair.source, pair.target, `
				CREATE SCHEMA app;
				CREATE TYPE app.mood AS ENUM ('sad', 'happy');
				CREATE TABLE app.a (id int PRIMARY KEY, m app.mood);
				CREATE TABLE app.b (id bigserial PRIMARY KEY, a int REFERENCES app.a);
				CREATE TABLE app.c (id int PRIMARY KEY, a int REFERENCES app.a DEFERRABLE INITIALLY DEFERRED, c int REFERENCES app.c);
				CREATE TABLE app.secret (id int);
				INSERT INTO app.a VALUES (1, 'sad'), (2, NULL); INSERT INTO app.b (a) VALUES (1), (2); INSERT INTO app.c VALUES (1, 2, 2), (2, 1, 1);`, ``)
			reader, writer := "r_"+b.src.Name, "w_"+b.dst.Name
			b.src.SQL(t, `CREATE ROLE `+reader+` LOGIN REPLICATION; GRANT USAGE ON SCHEMA app TO `+reader+`;
				GRANT SELECT ON app.a, app.b, app.c TO `+reader+`; CREATE PUBLICATION `+b.Publication+` FOR TABLE app.a, app.b, app.c`)
			b.dst.SQL(t, `CREATE ROLE `+writer+` LOGIN; CREATE SCHEMA app AUTHORIZATION `+writer+`; CREATE SCHEMA millrace AUTHORIZATION `+writer)
			t.Cleanup(func() {
				b.src.SQL(t, `DROP OWNED BY `+reader+`; DROP ROLE `+reader)
				b.dst.SQL(t, `DROP OWNED BY `+writer+`; DROP ROLE `+writer)
			})
			b.Source = session.Static(millrace.PeerSource, strings.Replace(b.src.URL(), "postgres@", reader+"@", 1), b.Job)
			b.Target = session.Static(millrace.PeerDestination, strings.Replace(b.dst.URL(), "postgres@", writer+"@", 1), b.Job)
			b.match(t, "app.*", "!app.secret")
			b.CreatePublication = false
			b.mustRun(t)
			if diff := cmp.Diff(content(t, b.src, "app.secret"), content(t, b.dst)); diff != "" {
				t.Error(diff)
			}
			if got := b.dst.Query(t, `SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND condeferrable AND convalidated`); got != "3" {
				t.Errorf("%s foreign keys are deferrable", got)
			}
			if got := b.jobColumns(t, "owns_slot, owns_publication"); got != "t|f" {
				t.Error(got)
			}
		})
	}
}

// TestExistingSchema has the definitions made by hand, and foreign keys that are
// in force while rows are copied.
func TestExistingSchema(t *testing.T) {
	const ddl = `CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a);`
	b := newBed(t, rig.Newest, rig.Newest, ddl+`INSERT INTO a VALUES (1); INSERT INTO b VALUES (1, 1)`, ddl)
	writer := "w_" + b.dst.Name
	b.dst.SQL(t, `CREATE ROLE `+writer+` LOGIN; CREATE SCHEMA millrace AUTHORIZATION `+writer+`; GRANT ALL ON a, b TO `+writer)
	t.Cleanup(func() { b.dst.SQL(t, `DROP OWNED BY `+writer+`; DROP ROLE `+writer) })
	b.Target = session.Static(millrace.PeerDestination, strings.Replace(b.dst.URL(), "postgres@", writer+"@", 1), b.Job)
	b.SchemaMode, b.PGDump = SchemaExisting, "/nonexistent"
	b.mustRun(t)
	if diff := cmp.Diff(content(t, b.src), content(t, b.dst)); diff != "" {
		t.Error(diff)
	}
}

func TestRefusals(t *testing.T) {
	const ddl = `CREATE TABLE t (id int PRIMARY KEY, v text); CREATE VIEW v AS SELECT 1; CREATE UNLOGGED TABLE u (id int);`
	tests := map[string]struct {
		source  string
		change  func(*bed)
		want    string
		patters []string
	}{
		"no publication":   {change: func(b *bed) { b.CreatePublication = false }, want: "publication millrace_JOB: does not exist"},
		"slot of another":  {source: `SELECT pg_create_logical_replication_slot('millrace_JOB', 'pgoutput')`, want: "slot millrace_JOB: exists already, and this job did not make it"},
		"view by name":     {patters: []string{"public.t", "public.v"}, want: "public.v: is a view and can't be replicated"},
		"no such table":    {patters: []string{"public.nope"}, want: "table pattern public.nope: matches no table of the source"},
		"row filter":       {source: `CREATE PUBLICATION millrace_JOB FOR TABLE t WHERE (id > 1)`, want: "has a row filter for table public.t"},
		"publish subset":   {source: `CREATE PUBLICATION millrace_JOB FOR TABLE t WITH (publish = 'insert')`, want: "publishes only some kinds of changes"},
		"same database":    {change: func(b *bed) { b.Target = session.Static(millrace.PeerDestination, b.src.URL(), b.Job) }, want: "it is the same database as the source"},
		"not in the table": {source: `CREATE TABLE x (id int); CREATE PUBLICATION millrace_JOB FOR TABLE x`, want: `lacks "public"."t"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, rig.Newest, rig.Newest, ddl, ``)
			b.src.Script(t, strings.ReplaceAll(test.source, "JOB", b.Job))
			if test.patters != nil {
				b.match(t, test.patters...)
			}
			if test.change != nil {
				test.change(b)
			}
			err := b.run(t)
			if millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(err.Error(), strings.ReplaceAll(test.want, "JOB", b.Job)) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestFoundSlotStays: what this job did not make, it does not drop.
func TestFoundSlotStays(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, `CREATE TABLE t (id int PRIMARY KEY)`, ``)
	b.src.SQL(t, `SELECT pg_create_logical_replication_slot('`+b.Slot+`', 'pgoutput')`)
	for _, restart := range []bool{false, true} {
		b.Restart = restart
		if err := b.run(t); millrace.KindOf(err) != millrace.KindPreflight {
			t.Errorf("%v", err)
		}
	}
	if b.slot(t, "count(*)") != "1" {
		t.Error("the slot is gone")
	}
}

// TestDifferentDefinition is found when the slot is there already.
func TestDifferentDefinition(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, `CREATE TABLE t (id int PRIMARY KEY, v text)`, `CREATE TABLE t (id int PRIMARY KEY, v varchar(3))`)
	err := b.run(t)
	if millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(err.Error(), "column v is text on the source, character varying(3) on the target") {
		t.Errorf("%v", err)
	}
	if b.slot(t, "count(*)") != "0" {
		t.Error("a slot is left")
	}
	if got := b.jobColumns(t, "state"); got != "error" {
		t.Error(got)
	}
	b.dst.SQL(t, `DROP TABLE t`)
	b.mustRun(t)
}

// TestTimeout: when the snapshot was held for long enough, the load goes on beside
// the stream.
func TestTimeout(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, `CREATE TABLE t (id int PRIMARY KEY, v text);
		INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 10000) i`, ``)
	b.Rate, b.Timeout = 1<<20, 1500*time.Millisecond
	b.mustRun(t)
	if b.slot(t, "count(*)") != "1" {
		t.Error("the slot is gone")
	}
	if got := b.dst.Query(t, `SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM millrace.chunk WHERE part = -1)`); got != "0|1" {
		t.Errorf("rows and marks: %s", got)
	}
}

// TestRival: a heartbeat that moves is another instance, one that rests was one.
func TestRival(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, `CREATE TABLE t (id int PRIMARY KEY)`, ``)
	b.Heartbeat = 400 * time.Millisecond
	conn, err := b.Target.Connect(t.Context(), session.Check)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := record.Install(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	other := &record.Runtime{Job: b.Job, Instance: "other", Host: "elsewhere", PID: 4711, StartedAt: time.Now()}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(b.Heartbeat)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if err := record.Beat(context.Background(), conn, other); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	rig.Eventually(t, 10*time.Second, func() bool {
		return b.dst.Query(t, `SELECT count(*) FROM millrace.runtime`) == "1"
	}, "no heartbeat")
	err = b.run(t)
	if err == nil || !strings.Contains(err.Error(), "pid 4711 on elsewhere") {
		t.Errorf("%v", err)
	}
	close(stop)
	<-stopped
	b.mustRun(t)
}

// A load that stood still while another instance started anew must not declare
// that one's load complete, nor clean it up as its own.
func TestReplacedLoadTouchesNothing(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, `CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)`, ``)
	b.mustRun(t)
	stale := &load{Options: b.Options, log: slog.New(slog.DiscardHandler), tracker: snapshot.NewTracker(nil), recorded: true}
	defer stale.close()
	var err error
	if stale.target, err = b.Target.Connect(t.Context(), session.Watch); err == nil {
		stale.job, _, err = record.Read(t.Context(), stale.target, b.Job)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.Restart = true
	b.mustRun(t)
	b.dst.SQL(t, `UPDATE millrace.job_table SET copied = false; UPDATE millrace.job_state SET consistent_from = NULL, state = 'bootstrapping'`)
	was := b.jobColumns(t, "generation, state, consistent_from")
	if err := stale.finish(t.Context()); !errors.Is(err, record.ErrFenced) {
		t.Errorf("finish: %v", err)
	}
	stale.undo(t.Context(), errors.New("fenced"))
	if now := b.jobColumns(t, "generation, state, consistent_from"); now != was {
		t.Errorf("the record was %s and is %s", was, now)
	}
	if b.slot(t, "slot_name") == "" || b.dst.Query(t, "SELECT count(*) FROM t") != "2" {
		t.Error("the slot or the rows of the new load are gone")
	}
}
