package schema

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/session"
)

func TestMain(m *testing.M) { rig.Main(m) }

// pairs are the directions that definitions travel in: up, down and level.
var pairs = []struct{ source, target int }{{15, 17}, {16, 18}, {17, 17}, {18, 16}, {18, 18}}

// fixture is a source with definitions and an empty target.
type fixture struct {
	src, dst *rig.DB
	source   *session.Endpoint
	here     *pgx.Conn
	there    *pgx.Conn
	target   Target
	program  Program
}

func newFixture(t *testing.T, source, target int, sql string) *fixture {
	t.Helper()
	f := &fixture{src: rig.Shared(t, source).NewDB(t), dst: rig.Shared(t, target).NewDB(t)}
	f.src.Script(t, sql)
	f.source = session.Static(millrace.PeerSource, f.src.URL(), "test")
	f.here = connect(t, f.source)
	f.there = connect(t, session.Static(millrace.PeerDestination, f.dst.URL(), "test"))
	f.target = Target{Major: target, Replica: true, Catalog: f.there}
	f.program = Program{Path: f.src.Server.Bin("pg_dump"), Major: source}
	return f
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

// oids gives those of the tables, named as regclass takes them.
func (f *fixture) oids(t *testing.T, names ...string) []uint32 {
	t.Helper()
	var oids []uint32
	err := f.here.QueryRow(t.Context(), `SELECT array_agg(CASE WHEN n LIKE '%.%' THEN n ELSE 'public.' || n END::regclass::oid)
		FROM unnest($1::text[]) n`, names).Scan(&oids)
	if err != nil {
		t.Fatal(err)
	}
	return oids
}

func (f *fixture) read(t *testing.T, tables ...string) *Definitions {
	t.Helper()
	d, err := Read(t.Context(), Request{Program: f.program, Source: f.source, Tables: f.oids(t, tables...), Catalog: f.here})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (f *fixture) plan(t *testing.T, d *Definitions) *Plan {
	t.Helper()
	p, err := d.Plan(t.Context(), f.here, f.target)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (f *fixture) apply(t *testing.T, p *Plan) {
	t.Helper()
	if len(p.Problems) > 0 {
		t.Fatalf("problems: %v", p.Problems)
	}
	if err := p.ApplyBefore(t.Context(), f.there); err != nil {
		t.Fatal(err)
	}
	target := session.Static(millrace.PeerDestination, f.dst.URL(), "test")
	if err := p.ApplyAfter(t.Context(), target, 2, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.ApplyKeys(t.Context(), f.there, nil); err != nil {
		t.Fatal(err)
	}
}

// richTables are all tables of testdata/rich.sql that are to be copied, leaves
// of partitioned ones only.
var richTables = []string{
	"shop.customer", `shop."order"`, "shop.item", "shop.event_2025_1", "shop.event_2025_rest", "shop.event_2026",
	"shop.base", "shop.child", `"We.ird"."t""a.b c"`, "shop.none", "shop.keyless", "shop.slotted", "shop.later",
}

func richSQL(t *testing.T) string {
	t.Helper()
	sql, err := os.ReadFile("testdata/rich.sql")
	if err != nil {
		t.Fatal(err)
	}
	return string(sql)
}

// TestRichDefinitions copies one of everything and asks pg_dump what became of
// it.
func TestRichDefinitions(t *testing.T) {
	for _, pair := range pairs {
		t.Run(fmt.Sprintf("%d-%d", pair.source, pair.target), func(t *testing.T) {
			f := newFixture(t, pair.source, pair.target, richSQL(t))
			d := f.read(t, richTables...)
			f.apply(t, f.plan(t, d))

			again := f.plan(t, d)
			if n := len(again.Before) + len(again.Indexes) + len(again.Keys) + len(again.Validate); n > 0 || len(again.Problems) > 0 {
				before, after := again.Describe()
				t.Errorf("a second plan is not empty:\n%s%s\n%v", before, after, again.Problems)
			}
			// The same pg_dump reads both, so that only the databases differ.
			program := f.src.Server.Bin("pg_dump")
			if pair.target > pair.source {
				program = f.dst.Server.Bin("pg_dump")
			}
			want, got := dumpObjects(t, program, f.src), dumpObjects(t, program, f.dst)
			for _, left := range []string{
				"FUNCTION unused.nothing()", "SCHEMA unused", "TABLE unused.target", "CONSTRAINT unused.target target_pkey",
				"FK CONSTRAINT shop.item item_elsewhere_fkey", "TABLE unused.big", "VIEW shop.names",
				"MATERIALIZED VIEW shop.counts", "FUNCTION shop.audit()", "TRIGGER shop.customer audit",
				"RULE shop.keyless nothing",
			} {
				if _, ok := want[left]; !ok {
					t.Errorf("the source has no %s", left)
				}
				delete(want, left)
			}
			if pair.target < 18 { // NOT NULL has no name there
				for name, sql := range want {
					want[name] = namedNotNull.ReplaceAllString(sql, " NOT NULL")
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("target differs from source (-source +target):\n%s", diff)
			}
		})
	}
}

// dumpObjects gives the definitions of a database by pg_dump's headers.
func dumpObjects(t *testing.T, program string, db *rig.DB) map[string]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, "-s", "-O", "-x", "--no-publications", "-d", db.URL()).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	objects := map[string]string{}
	header := regexp.MustCompile(`(?m)^--\n-- Name: (.*); Type: (.*); Schema: (.*); Owner: .*\n--\n`)
	text := string(out)
	all := header.FindAllStringSubmatchIndex(text, -1)
	for i, m := range all {
		end := len(text)
		if i+1 < len(all) {
			end = all[i+1][0]
		}
		name := text[m[4]:m[5]] + " " + text[m[6]:m[7]] + "." + text[m[2]:m[3]]
		objects[strings.Replace(name, " -.", " ", 1)] = settings.ReplaceAllString(strings.TrimSpace(text[m[1]:end]), "")
	}
	delete(objects, "COMMENT EXTENSION hstore")
	delete(objects, "COMMENT EXTENSION citext")
	return objects
}

var namedNotNull = regexp.MustCompile(` CONSTRAINT \w+ NOT NULL`)

// settings are statements that pg_dump writes between objects, and its end.
var settings = regexp.MustCompile(`(?m)\s*^(SET |--|\\unrestrict).*$`)

// TestNothingMore selects one table: what only others need stays away.
func TestNothingMore(t *testing.T) {
	f := newFixture(t, rig.Newest, rig.Newest, richSQL(t))
	p := f.plan(t, f.read(t, `"We.ird"."t""a.b c"`))
	var got []string
	for _, s := range slices.Concat(p.Before, slices.Concat(p.Indexes...), p.Keys) {
		got = append(got, s.Object)
	}
	want := []string{
		"schema We.ird", "schema shop", "type shop.mood", "comment shop.TYPE mood",
		`table We.ird.t"a.b c`, `index We.ird.i "x`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	f.apply(t, p)
}

// TestPartialTree selects one partition: its parents come, its siblings do not.
func TestPartialTree(t *testing.T) {
	f := newFixture(t, rig.Newest, rig.Newest, richSQL(t))
	f.apply(t, f.plan(t, f.read(t, "shop.event_2025_rest", "shop.customer")))
	got := f.dst.Query(t, `SELECT relid::regclass FROM pg_partition_tree('shop.event') ORDER BY level`)
	if want := "shop.event\nshop.event_2025\nshop.event_2025_rest"; got != want {
		t.Errorf("partitions: %s", got)
	}
	if got := f.dst.Query(t, `SELECT count(*) FROM pg_index WHERE NOT indisvalid`); got != "0" {
		t.Errorf("%s invalid indexes", got)
	}
}

// TestDifferent has objects on the target that are not those of the source: all
// are named at once, and so is each difference.
func TestDifferent(t *testing.T) {
	f := newFixture(t, rig.Newest, rig.Newest, `
		CREATE TYPE mood AS ENUM ('sad', 'happy');
		CREATE FUNCTION f(i int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT i + 1';
		CREATE TABLE t (id int PRIMARY KEY, m mood, n numeric(5,2) DEFAULT 1, s text NOT NULL, c int CHECK (f(c) > 0));
		CREATE TABLE same (id int PRIMARY KEY, v varchar(3));`)
	f.dst.SQL(t, `
		CREATE TYPE mood AS ENUM ('sad', 'glad');
		CREATE FUNCTION f(i int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT i + 2';
		CREATE TABLE t (id bigint PRIMARY KEY, m mood, n numeric(5,2) DEFAULT 2, s text, extra int, c int CHECK (f(c) > 0));
		CREATE TABLE same (v varchar(3), id int CONSTRAINT other_name PRIMARY KEY);`)
	p := f.plan(t, f.read(t, "t", "same"))
	var got []string
	for _, d := range p.Problems {
		got = append(got, d.String())
	}
	want := []string{
		"type public.mood: labels is 'sad', 'happy' on the source, 'sad', 'glad' on the target",
		"function public.f(integer): definition differs",
		"table public.t: column extra is only on the target",
		"table public.t: column id is integer not null on the source, bigint not null on the target",
		"table public.t: column n is numeric(5,2) default 1 on the source, numeric(5,2) default 2 on the target",
		"table public.t: column s is text not null on the source, text on the target",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(p.Before)+len(p.Indexes) > 0 {
		t.Errorf("statements for what is there: %v %v", p.Before, p.Indexes)
	}
}

// TestForeignKeysWithoutReplicaRole makes them checkable at commit.
func TestForeignKeysWithoutReplicaRole(t *testing.T) {
	f := newFixture(t, rig.Newest, rig.Newest, `
		CREATE TABLE a (id int PRIMARY KEY);
		CREATE TABLE b (id int PRIMARY KEY,
			plain int REFERENCES a, strict int REFERENCES a ON DELETE RESTRICT ON UPDATE RESTRICT,
			late int REFERENCES a DEFERRABLE INITIALLY DEFERRED);
		CREATE TABLE c (id int PRIMARY KEY, a int REFERENCES a ON DELETE CASCADE);`)
	f.target.Replica = false
	d := f.read(t, "a", "b")
	f.apply(t, f.plan(t, d))
	got := f.dst.Query(t, `SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'f' ORDER BY 1`)
	want := `b_late_fkey|FOREIGN KEY (late) REFERENCES a(id) DEFERRABLE INITIALLY DEFERRED
b_plain_fkey|FOREIGN KEY (plain) REFERENCES a(id) DEFERRABLE
b_strict_fkey|FOREIGN KEY (strict) REFERENCES a(id) DEFERRABLE`
	if got != want {
		t.Error(got)
	}
	if again := f.plan(t, d); len(again.Keys) > 0 || len(again.Problems) > 0 {
		t.Errorf("a second plan: %v %v", again.Keys, again.Problems)
	}
	p := f.plan(t, f.read(t, "a", "c"))
	if len(p.Problems) != 1 || !strings.Contains(p.Problems[0].Text, "CASCADE") {
		t.Errorf("problems: %v", p.Problems)
	}
}

// TestNewerSyntax takes what only 18 knows to a server that does not.
func TestNewerSyntax(t *testing.T) {
	f := newFixture(t, 18, 17, `
		CREATE TABLE p (
			a int NOT NULL, b int CONSTRAINT bnn NOT NULL NO INHERIT,
			v int GENERATED ALWAYS AS (a * 2) VIRTUAL,
			w text GENERATED ALWAYS AS ('x, ('')y'::text || a) VIRTUAL,
			s int GENERATED ALWAYS AS (a + 1) STORED,
			CONSTRAINT ck CHECK (a > 0) NOT ENFORCED, CHECK (b > 1)
		) WITH (autovacuum_vacuum_max_threshold = 5000, fillfactor = 70);
		COMMENT ON CONSTRAINT ck ON p IS 'dropped with it';
		CREATE TABLE only_new () WITH (autovacuum_vacuum_max_threshold = 5000);
		CREATE TABLE par (x int, y int);
		CREATE TABLE "Ch" (CONSTRAINT ynn NOT NULL y, z int) INHERITS (par);
		CREATE TABLE q (id int PRIMARY KEY, r int REFERENCES q (id) NOT ENFORCED);
		ALTER TABLE par ADD CONSTRAINT xnn NOT NULL x NOT VALID;`)
	d := f.read(t, "p", "only_new", "par", `"Ch"`, "q")
	f.apply(t, f.plan(t, d))
	got := f.dst.Query(t, `SELECT attrelid::regclass, attname, attnotnull, attgenerated FROM pg_attribute
		WHERE attrelid IN ('p'::regclass, '"Ch"'::regclass, 'par'::regclass) AND attnum > 0 ORDER BY attrelid::regclass::text COLLATE "C", attnum`)
	want := `"Ch"|x|f|
"Ch"|y|t|
"Ch"|z|f|
p|a|t|
p|b|t|
p|v|f|s
p|w|f|s
p|s|f|s
par|x|f|
par|y|f|`
	if got != want {
		t.Errorf("columns:\n%s", got)
	}
	if got := f.dst.Query(t, `SELECT reloptions FROM pg_class WHERE relname = 'p'`); got != "{fillfactor=70}" {
		t.Errorf("options: %s", got)
	}
	if again := f.plan(t, d); len(again.Problems) > 0 || len(again.Before) > 0 {
		t.Errorf("a second plan: %v %v", again.Before, again.Problems)
	}
}

func TestPartitionedIdentityBefore17(t *testing.T) {
	f := newFixture(t, 17, 16, `
		CREATE TABLE pid (a int GENERATED ALWAYS AS IDENTITY, b int) PARTITION BY LIST (b);
		CREATE TABLE pid1 PARTITION OF pid FOR VALUES IN (1);`)
	p := f.plan(t, f.read(t, "pid1"))
	f.apply(t, p)
	if len(p.Notes) != 1 || !strings.Contains(p.Notes[0].Text, "identity") {
		t.Errorf("notes: %v", p.Notes)
	}
}

// TestLeastPrivilegeAtSource reads definitions with SELECT on the selected table
// and nothing else, beside tables that the role can't lock.
func TestLeastPrivilegeAtSource(t *testing.T) {
	for _, major := range []int{15, 16, 17, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			f := newFixture(t, major, rig.Newest, richSQL(t))
			role := "reader_" + f.src.Name
			f.src.SQL(t, `CREATE ROLE `+role+` LOGIN; GRANT USAGE ON SCHEMA shop TO `+role+`;
				GRANT SELECT ON shop.customer, shop."order" TO `+role)
			t.Cleanup(func() { f.src.SQL(t, `DROP OWNED BY `+role+`; DROP ROLE `+role) })
			f.source = session.Static(millrace.PeerSource,
				strings.Replace(f.src.URL(), "postgres@", role+"@", 1), "test")
			f.here = connect(t, f.source)
			f.apply(t, f.plan(t, f.read(t, "shop.customer", `shop."order"`)))

			_, err := Read(t.Context(), Request{Program: f.program, Source: f.source,
				Tables: f.oids(t, "shop.customer", "shop.item"), Catalog: f.here})
			if millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(millrace.HintOf(err), "GRANT SELECT on item") {
				t.Errorf("a table without the right: %v\nhint: %s", err, millrace.HintOf(err))
			}
		})
	}
}
