package check

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

func TestMain(m *testing.M) { rig.Main(m) }

type bed struct {
	src, dst *rig.DB
	Options
}

func newBed(t *testing.T, sourceSQL, targetSQL string) *bed {
	t.Helper()
	b := &bed{src: rig.Shared(t, rig.Newest).NewDB(t), dst: rig.Shared(t, rig.Newest).NewDB(t)}
	job := b.src.Name
	b.src.Script(t, strings.ReplaceAll(sourceSQL, "JOB", job))
	b.dst.Script(t, strings.ReplaceAll(targetSQL, "JOB", job))
	b.Options = Options{
		Source: session.Static(millrace.PeerSource, b.src.URL(), job),
		Target: session.Static(millrace.PeerDestination, b.dst.URL(), job),
		Job:    job, Slot: "millrace_" + job, Publication: "millrace_" + job,
		CreatePublication: true, SchemaMode: "create", Mode: "consistent", Parallel: 2,
		PGDump: b.src.Server.Bin("pg_dump"),
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

func (b *bed) run(t *testing.T) Report {
	t.Helper()
	r, err := Run(t.Context(), b.Options)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func texts(found []Finding) string {
	var all []string
	for _, f := range found {
		all = append(all, f.String()+" => "+f.Cure)
	}
	return strings.Join(all, "\n")
}

func TestNothingWrong(t *testing.T) {
	b := newBed(t, `CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1)`, ``)
	if r := b.run(t); len(r.Problems)+len(r.Warnings) > 0 {
		t.Errorf("problems: %s\nwarnings: %s", texts(r.Problems), texts(r.Warnings))
	}
	for _, db := range []*rig.DB{b.src, b.dst} {
		if got := db.Query(t, `SELECT count(*) FROM pg_namespace WHERE nspname = 'millrace'`) +
			db.Query(t, `SELECT count(*) FROM pg_publication`) +
			db.Query(t, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'millrace_`+b.Job+`'`); got != "000" {
			t.Error("something was changed")
		}
	}
}

const plain = `CREATE TABLE t (id int PRIMARY KEY, v text);`

// findings are what one state of affairs is expected to give. A want starts with
// ! when it must be a problem and with ? when it must be a warning.
var findings = map[string]struct {
	source, target string
	change         func(*testing.T, *bed)
	want           []string
}{
	"publication missing": {source: plain, change: func(_ *testing.T, b *bed) { b.CreatePublication = false },
		want: []string{`!publication millrace_JOB: does not exist => CREATE PUBLICATION "millrace_JOB" FOR TABLE ONLY "public"."t"; or let`}},
	"publication lacks a table": {source: plain + `CREATE TABLE u (id int); CREATE PUBLICATION millrace_JOB FOR TABLE u WITH (publish = 'insert')`,
		want: []string{`!publication millrace_JOB: lacks "public"."t" => ALTER PUBLICATION "millrace_JOB" ADD TABLE "public"."t"`,
			`!publication millrace_JOB: publishes only some kinds of changes => ALTER PUBLICATION`}},
	"row filter and column list": {source: plain + `CREATE TABLE u (id int PRIMARY KEY, v int); CREATE PUBLICATION millrace_JOB FOR TABLE t WHERE (id > 1), u (id)`,
		want: []string{`!publication millrace_JOB: has a row filter for table public.t => ALTER PUBLICATION`,
			`!publication millrace_JOB: has a column list for table public.u => ALTER PUBLICATION`}},
	"via root and generated": {source: `CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
			CREATE PUBLICATION millrace_JOB FOR TABLE p WITH (publish_via_partition_root, publish_generated_columns = stored)`,
		want: []string{`!publication millrace_JOB: publishes partitions under the name of their root => ALTER PUBLICATION`,
			`!publication millrace_JOB: publishes generated columns`}},
	"kinds, by pattern": {source: plain + `CREATE VIEW v AS SELECT 1; CREATE UNLOGGED TABLE u (id int); CREATE MATERIALIZED VIEW m AS SELECT 1;
			CREATE EXTENSION postgres_fdw; CREATE SERVER s FOREIGN DATA WRAPPER postgres_fdw; CREATE FOREIGN TABLE f (id int) SERVER s`,
		want: []string{"?public.v: left out: it is a view", "?public.u: left out: it is unlogged", "?public.m: left out: it is a materialized view", "?public.f: left out: it is a foreign table"}},
	"kinds, by name": {source: plain + `CREATE VIEW v AS SELECT 1; CREATE UNLOGGED TABLE u (id int);`,
		change: func(t *testing.T, b *bed) { b.match(t, "public.t", "public.v", "public.u", "public.missing") },
		want: []string{"!public.v: is a view and can't be replicated", "!public.u: is unlogged and can't be replicated",
			"!table pattern public.missing: matches no table of the source"}},
	"root without partitions": {source: `CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)`,
		change: func(t *testing.T, b *bed) { b.match(t, "public.p") },
		want:   []string{"!public.p: is partitioned, and the list of tables lacks its partitions public.p1 => add a pattern that matches them, such as public.p*"}},
	"identity": {source: `CREATE TABLE no_key (id int); CREATE TABLE late (id int PRIMARY KEY DEFERRABLE); CREATE TABLE nothing (id int PRIMARY KEY);
			ALTER TABLE nothing REPLICA IDENTITY NOTHING; CREATE TABLE fine (id int); ALTER TABLE fine REPLICA IDENTITY FULL`,
		want: []string{"?public.no_key: has no replica identity", "?public.late: its primary key is deferrable", "?public.nothing: has REPLICA IDENTITY NOTHING"}},
	"sequences": {source: `CREATE TABLE s (id serial PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY)`,
		want: []string{"?sequences: the values of 2 sequences are not replicated => at a cut-over"}},
	"slot of somebody": {source: plain + `SELECT pg_create_logical_replication_slot('millrace_JOB', 'pgoutput')`,
		want: []string{"!slot millrace_JOB: exists already, and this job did not make it => name another one, or SELECT pg_drop_replication_slot('millrace_JOB')"}},
	"rows on the target": {source: plain, target: plain + `INSERT INTO t VALUES (1)`,
		want: []string{`!public.t: holds rows on the target => TRUNCATE "public"."t" there`}},
	"different definitions": {source: plain, target: `CREATE TABLE t (id int PRIMARY KEY, v varchar(3))`,
		want: []string{"!table public.t: column v is text on the source, character varying(3) on the target => make it equal"}},
	"existing, missing": {source: plain, change: func(_ *testing.T, b *bed) { b.SchemaMode = "existing" },
		want: []string{"!public.t: does not exist on the target => create it"}},
	"existing, unfit": {source: `CREATE TABLE t (id int PRIMARY KEY, n numeric(10,4), at timestamptz, gone int, g int GENERATED ALWAYS AS (id) STORED, s text)`,
		target: `CREATE TABLE t (id int PRIMARY KEY, n numeric(10,2), at timestamp, g int, s varchar(5), must int NOT NULL)`,
		change: func(_ *testing.T, b *bed) { b.SchemaMode = "existing" },
		want: []string{"!public.t: column n of the target is numeric(10,2) and rounds numeric(10,4) => ALTER TABLE \"public\".\"t\" ALTER COLUMN \"n\" TYPE numeric(10,4)",
			"!public.t: column at of the target is timestamp without time zone and moves timestamp with time zone to another time zone",
			"!public.t: column gone is missing on the target => ALTER TABLE \"public\".\"t\" ADD COLUMN \"gone\" integer",
			"!public.t: column g is generated on the source and an ordinary one on the target",
			"!public.t: column must is only on the target, is NOT NULL and has no default",
			"?public.t: column s of the target is character varying(5)"}},
	"existing, no index": {source: plain + `CREATE TABLE f (a int); ALTER TABLE f REPLICA IDENTITY FULL`, target: `CREATE TABLE t (id int, v text); CREATE TABLE f (a int)`,
		change: func(_ *testing.T, b *bed) { b.SchemaMode = "existing" },
		want: []string{`?public.t: the target has no unique index on the columns id, by which changed rows are found: changes go row by row and slowly => CREATE UNIQUE INDEX ON "public"."t" ("id")`,
			"?public.f: has REPLICA IDENTITY FULL and no unique index on the target"}},
	"existing, unlogged": {source: plain, target: `CREATE UNLOGGED TABLE t (id int PRIMARY KEY, v text)`,
		change: func(_ *testing.T, b *bed) { b.SchemaMode = "existing" },
		want:   []string{`!public.t: is unlogged on the target: a crash would empty it there, and the job could not notice => ALTER TABLE "public"."t" SET LOGGED`}},
	"triggers": {source: plain, target: plain + `CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
			CREATE TRIGGER quiet BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f();
			CREATE TRIGGER loud BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f(); ALTER TABLE t ENABLE ALWAYS TRIGGER loud`,
		want: []string{"?public.t: trigger loud of the target fires for replicated changes"}},
	"outside reference": {source: plain, target: plain + `CREATE TABLE mine (t int REFERENCES t)`,
		want: []string{"?public.t: table public.mine of the target, which the job does not replicate, refers to it"}},
	"half loaded": {source: plain, change: func(t *testing.T, b *bed) { b.record(t, false) },
		want: []string{"!job JOB: its first load was interrupted => millrace bootstrap --restart-snapshot --yes"}},
	"slot is gone": {source: plain + `CREATE PUBLICATION millrace_JOB FOR TABLE t`, target: plain, change: func(t *testing.T, b *bed) { b.record(t, true) },
		want: []string{"!slot millrace_JOB: is gone, and with it the changes since => millrace bootstrap --restart-snapshot --yes"}},
	"publication is gone": {source: plain + `SELECT pg_create_logical_replication_slot('millrace_JOB', 'pgoutput')`, target: plain,
		change: func(t *testing.T, b *bed) { b.record(t, true) },
		want:   []string{`!publication millrace_JOB: does not exist any more: run can't stream without it => CREATE PUBLICATION`}},
	"loaded and well": {source: plain + `CREATE PUBLICATION millrace_JOB FOR TABLE t; SELECT pg_create_logical_replication_slot('millrace_JOB', 'pgoutput')`,
		target: plain + `INSERT INTO t VALUES (1)`, change: func(t *testing.T, b *bed) { b.record(t, true); b.PGDump = "/nonexistent" }},
	"slot was read by another": {source: plain + `CREATE PUBLICATION millrace_JOB FOR TABLE t; SELECT pg_create_logical_replication_slot('millrace_JOB', 'pgoutput')`,
		target: plain, change: func(t *testing.T, b *bed) {
			b.record(t, true)
			b.src.Script(t, `INSERT INTO t VALUES (1); SELECT pg_replication_slot_advance('millrace_`+b.Job+`', pg_current_wal_lsn())`)
		}, want: []string{"!slot millrace_JOB: is at "}},
	"table made after the load": {source: plain + `CREATE PUBLICATION millrace_JOB FOR ALL TABLES; SELECT pg_create_logical_replication_slot('millrace_JOB', 'pgoutput')`,
		target: plain, change: func(t *testing.T, b *bed) { b.record(t, true); b.src.SQL(t, `CREATE TABLE late (id int)`) },
		want: []string{"?public.late: is selected and published, and was not there at the first load: its first change stops the job => exclude it with the pattern !public.late"}},
	"pg_dump": {source: plain, change: func(_ *testing.T, b *bed) { b.PGDump = "/nonexistent/pg_dump" },
		want: []string{"!pg_dump: find pg_dump: run /nonexistent/pg_dump --version: "}},
	"same database": {source: plain, change: func(_ *testing.T, b *bed) { b.Target = session.Static(millrace.PeerDestination, b.src.URL(), b.Job) },
		want: []string{"!destination: it is the same database as the source"}},
	"unreachable source": {target: plain, change: func(_ *testing.T, b *bed) {
		b.Source = session.Static(millrace.PeerSource, "postgres://postgres@127.0.0.1:1/nope", b.Job)
		b.Target = session.Static(millrace.PeerDestination, strings.Replace(b.dst.URL(), "postgres@", "nobody_here@", 1), b.Job)
	}, want: []string{"!source: connect to source 127.0.0.1:1/nope", `!destination: connect to destination`}},
}

// record writes a job's record as a load leaves it.
func (b *bed) record(t *testing.T, loaded bool) {
	t.Helper()
	conn, err := b.Target.Connect(t.Context(), session.Check)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := record.Install(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	here, err := b.Source.Connect(t.Context(), session.Check)
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close(context.Background())
	server, err := catalog.ReadServer(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	all, err := catalog.Tables(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	j := &record.Job{Name: b.Job, State: record.Stopped, SystemID: server.SystemID, Timeline: server.Timeline, Slot: b.Slot,
		Publication: b.Publication, Mode: b.Mode, OwnsSlot: true}
	for _, table := range all {
		j.Tables = append(j.Tables, record.Table{OID: table.OID, Name: table.Name, Copied: true})
	}
	if err := record.Create(t.Context(), conn, j); err != nil {
		t.Fatal(err)
	}
	if !loaded {
		return
	}
	point, err := catalog.Position(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	if err := record.FirstProgress(t.Context(), conn, j.Fence(), server.Timeline, point); err != nil {
		t.Fatal(err)
	}
	if err := record.SetConsistentFrom(t.Context(), conn, b.Job, point); err != nil {
		t.Fatal(err)
	}
}

func TestFindings(t *testing.T) {
	for name, test := range findings {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, test.source, test.target)
			if test.change != nil {
				test.change(t, b)
			}
			b.expect(t, test.want)
		})
	}
}

// expect wants each finding once, and no other problem.
func (b *bed) expect(t *testing.T, want []string) {
	t.Helper()
	r := b.run(t)
	problems := 0
	for _, w := range want {
		w = strings.ReplaceAll(w, "JOB", b.Job)
		list := r.Warnings
		if w[0] == '!' {
			problems++
			list = r.Problems
		}
		n := 0
		for _, f := range list {
			if strings.HasPrefix(f.String()+" => "+f.Cure, w[1:]) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("found %d times: %s", n, w)
		}
	}
	if problems != len(r.Problems) || t.Failed() {
		t.Errorf("problems:\n%s\nwarnings:\n%s", texts(r.Problems), texts(r.Warnings))
	}
}

// TestMissingRights has roles that lack everything, and then what the cures say.
func TestMissingRights(t *testing.T) {
	b := newBed(t, `CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY); CREATE TABLE app.hidden (id int PRIMARY KEY);
		ALTER TABLE app.hidden ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON app.hidden USING (false); CREATE TABLE public.u (id int PRIMARY KEY)`, ``)
	reader, writer := "r_"+b.src.Name, "w_"+b.dst.Name
	b.src.SQL(t, `CREATE ROLE `+reader+` LOGIN`)
	b.dst.SQL(t, `CREATE ROLE `+writer+` LOGIN`)
	t.Cleanup(func() {
		b.src.SQL(t, `DROP OWNED BY `+reader+`; DROP ROLE `+reader)
		b.dst.SQL(t, `DROP OWNED BY `+writer+`; DROP ROLE `+writer)
	})
	b.Source = session.Static(millrace.PeerSource, strings.Replace(b.src.URL(), "postgres@", reader+"@", 1), b.Job)
	b.Target = session.Static(millrace.PeerDestination, strings.Replace(b.dst.URL(), "postgres@", writer+"@", 1), b.Job)
	b.expect(t, []string{
		fmt.Sprintf(`!source: role %s may not replicate => ALTER ROLE "%s" REPLICATION`, reader, reader),
		"!schema app: role " + reader + " may not use it on the source => GRANT USAGE",
		"!app.t: role " + reader + " may not read it on the source => GRANT SELECT",
		"!app.hidden: role " + reader + " may not read it on the source => GRANT SELECT",
		"!app.hidden: row level security hides rows of it",
		"!public.u: role " + reader + " may not read it on the source => GRANT SELECT",
		"!publication millrace_JOB: does not exist, and role " + reader + " may not create one => GRANT CREATE ON DATABASE",
		"!publication millrace_JOB: does not exist, and role " + reader + " does not own",
		"!schema millrace: does not exist on the target, and role " + writer + " may not create it => CREATE SCHEMA millrace AUTHORIZATION",
		"!schema app: does not exist on the target, and role " + writer + " may not create it => CREATE SCHEMA",
		"!schema public: role " + writer + " may not create tables in it on the target => GRANT CREATE ON SCHEMA",
		"?destination: role " + writer + " may not set session_replication_role",
	})
	b.src.SQL(t, `ALTER ROLE `+reader+` REPLICATION BYPASSRLS; GRANT USAGE ON SCHEMA app TO `+reader+`; GRANT SELECT ON ALL TABLES IN SCHEMA app, public TO `+reader+`;
		CREATE PUBLICATION `+b.Publication+` FOR TABLE app.t, app.hidden, public.u`)
	b.dst.SQL(t, `CREATE SCHEMA millrace AUTHORIZATION `+writer+`; CREATE SCHEMA app AUTHORIZATION `+writer+`; GRANT CREATE ON SCHEMA public TO `+writer)
	b.expect(t, nil)
}

// TestForeignKeysWithoutReplicaRole: keys that act or can't wait are refused.
func TestForeignKeysWithoutReplicaRole(t *testing.T) {
	const ddl = `CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY, strict int CONSTRAINT strict REFERENCES a,
		acts int CONSTRAINT acts REFERENCES a ON DELETE CASCADE, fine int REFERENCES a DEFERRABLE);`
	b := newBed(t, ddl, ddl)
	writer := "w_" + b.dst.Name
	b.dst.SQL(t, `CREATE ROLE `+writer+` LOGIN; CREATE SCHEMA millrace AUTHORIZATION `+writer+`; GRANT ALL ON a, b TO `+writer)
	t.Cleanup(func() { b.dst.SQL(t, `DROP OWNED BY `+writer+`; DROP ROLE `+writer) })
	b.Target = session.Static(millrace.PeerDestination, strings.Replace(b.dst.URL(), "postgres@", writer+"@", 1), b.Job)
	b.SchemaMode = "existing"
	b.expect(t, []string{
		"!public.b: foreign key strict of the target can't be deferred to the end of a transaction => ALTER TABLE",
		"!public.b: foreign key acts of the target changes rows by itself",
	})
	b.dst.SQL(t, `ALTER TABLE b ALTER CONSTRAINT strict DEFERRABLE, DROP CONSTRAINT acts`)
	b.expect(t, nil)
}

// TestServerSettings needs servers of its own.
func TestServerSettings(t *testing.T) {
	b := newBed(t, plain, ``)
	small := rig.Start(t, 16, "wal_level=replica", "max_replication_slots=0", "max_wal_senders=0")
	db := small.NewDB(t)
	db.SQL(t, plain)
	b.Source = session.Static(millrace.PeerSource, db.URL(), b.Job)
	b.expect(t, []string{
		"!source: wal_level is replica, not logical => ALTER SYSTEM SET wal_level = logical, and restart the server",
		"!source: all 0 replication connections (max_wal_senders) are in use => raise max_wal_senders",
		"!source: all 0 replication slots (max_replication_slots) are in use => raise max_replication_slots",
	})
	old := rig.Shared(t, 15).NewDB(t)
	b.Source = session.Static(millrace.PeerSource, b.src.URL(), b.Job)
	b.Target = session.Static(millrace.PeerDestination, old.URL(), b.Job)
	b.expect(t, []string{"!destination: PostgreSQL 15 is too old: 16 is needed"})
}

// TestMissingExtension: the tables need what the target's server lacks.
func TestMissingExtension(t *testing.T) {
	b := newBed(t, `CREATE EXTENSION citext; CREATE TABLE t (id citext PRIMARY KEY)`, ``)
	writer := "w_" + b.dst.Name
	b.dst.SQL(t, `CREATE ROLE `+writer+` LOGIN; CREATE SCHEMA millrace AUTHORIZATION `+writer+`; GRANT CREATE ON SCHEMA public TO `+writer)
	t.Cleanup(func() { b.dst.SQL(t, `DROP OWNED BY `+writer+`; DROP ROLE `+writer) })
	b.Target = session.Static(millrace.PeerDestination, strings.Replace(b.dst.URL(), "postgres@", writer+"@", 1), b.Job)
	b.expect(t, []string{`!extension citext: the tables need it, and role ` + writer + ` may not create it => CREATE EXTENSION "citext" on the target, as a superuser`})
	b.dst.SQL(t, `CREATE EXTENSION citext`)
	b.expect(t, nil)
}

// TestChosenKeys: what is named under keys has to be there, to have a value in each
// row and change, and better has an index.
func TestChosenKeys(t *testing.T) {
	b := newBed(t, `CREATE TABLE fine (id int PRIMARY KEY, a int NOT NULL, b int NOT NULL); CREATE INDEX ON fine (b, a); ALTER TABLE fine REPLICA IDENTITY FULL;
		CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL, n int, g int GENERATED ALWAYS AS (id) STORED);
		CREATE TABLE loose (a int NOT NULL)`, ``)
	for _, c := range []struct {
		keys map[string][]string
		want string
	}{
		{map[string][]string{"public.fine": {"b", "a"}, "public.t": {"id"}}, ""},
		{map[string][]string{"public.fine": {"a"}}, `warning public.fine: no index has its rows in the order of keys: each chunk beside the stream sorts all of the table => CREATE INDEX CONCURRENTLY ON "public"."fine" ("a")`},
		{map[string][]string{"public.loose": {"a"}}, `warning public.loose: no index has its rows in the order of keys: each chunk beside the stream sorts all of the table => CREATE INDEX CONCURRENTLY ON "public"."loose" ("a")`},
		{map[string][]string{"public.gone": {"a"}}, "problem public.gone: keys names it, and it is no table of the job => correct it, or take it out of keys"},
		{map[string][]string{"public.t": {"x"}}, "problem public.t: keys names the column x, which it does not have => name another column under keys"},
		{map[string][]string{"public.t": {"g"}}, "problem public.t: keys names the column g, which is generated and so not in the stream => name another column under keys"},
		{map[string][]string{"public.t": {"n"}}, `problem public.t: keys names the column n, which may be NULL: NULL has no place in an order => ALTER TABLE "public"."t" ALTER COLUMN "n" SET NOT NULL; or name another column under keys`},
		{map[string][]string{"public.t": {"id", "a"}}, `problem public.t: keys names other columns than its replica identity: an UPDATE or DELETE does not say which values they had => ALTER TABLE "public"."t" REPLICA IDENTITY FULL`},
	} {
		keys, errs := catalog.ParseKeys(c.keys)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		b.Keys = keys
		r := b.run(t)
		var got []string
		for _, list := range []struct {
			kind  string
			found []Finding
		}{{"problem", r.Problems}, {"warning", r.Warnings}} {
			for _, f := range list.found {
				if strings.Contains(f.Text, "keys") {
					got = append(got, list.kind+" "+f.String()+" => "+f.Cure)
				}
			}
		}
		if !strings.HasPrefix(strings.Join(got, "\n"), c.want) || (c.want == "") != (len(got) == 0) {
			t.Errorf("%v: %s", c.keys, strings.Join(got, "\n"))
		}
	}
}
