package schema

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace"
)

func TestWithoutPassword(t *testing.T) {
	for _, c := range []struct{ conn, rest, password string }{
		{"postgres://u:p%40ss@h:5432/db?sslmode=require", "postgres://u@h:5432/db?sslmode=require", "p@ss"},
		{"postgresql://u@h/db", "postgresql://u@h/db", ""},
		{"postgres://h1:1,h2:2/db?password=x%26y&user=u", "postgres://h1:1,h2:2/db?user=u", "x&y"},
		{"postgres:///db?host=/tmp&password=a", "postgres:///db?host=/tmp", "a"},
		{"postgres://u:p:q@h/db", "postgres://u@h/db", "p:q"},
		{"postgres://h/a@b", "postgres://h/a@b", ""},
		{"host=h password=secret dbname=d", "host=h dbname=d", "secret"},
		{`host=h password='it\'s a \\ secret' dbname = 'd b'`, `host=h dbname='d b'`, `it's a \ secret`},
		{`password=a\ b host=h`, "host=h", "a b"},
		{"service=shop", "service=shop", ""},
		{"", "", ""},
	} {
		rest, password, err := withoutPassword(c.conn)
		if err != nil || rest != c.rest || password != c.password {
			t.Errorf("%s: %q %q %v", c.conn, rest, password, err)
		}
	}
	for _, bad := range []string{"postgres://u:%zz@h/", "host", "password='open"} {
		if _, _, err := withoutPassword(bad); err == nil || strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func FuzzWithoutPassword(f *testing.F) {
	f.Add("postgres://u:SECRET@h/db")
	f.Add("host=h password='SECRET' user=u")
	f.Fuzz(func(t *testing.T, conn string) {
		rest, password, err := withoutPassword(conn)
		if err == nil && len(rest)+len(password) > len(conn)+len("postgresql://") {
			t.Errorf("%q became %q and %q", conn, rest, password)
		}
	})
}

func FuzzLex(f *testing.F) {
	f.Add(`CREATE TABLE "a""b" (c text DEFAULT E'\'' || $$x$$, d int GENERATED ALWAYS AS ((1 + 2)));`)
	f.Fuzz(func(t *testing.T, sql string) {
		if got := join(lex(sql)); got != sql {
			t.Errorf("%q became %q", sql, got)
		}
		e := &entry{desc: "TABLE", defn: sql}
		adapt(e, 16)
		e.desc = "CONSTRAINT"
		adapt(e, 16)
	})
}

func TestAdaptTable(t *testing.T) {
	for _, c := range []struct{ sql, want string }{
		{"CREATE TABLE s.t (\n    a integer,\n    b integer GENERATED ALWAYS AS ((a * 2))\n);\n",
			"CREATE TABLE s.t (\n    a integer,\n    b integer GENERATED ALWAYS AS ((a * 2)) STORED\n);\n"},
		{"CREATE TABLE s.t (\n    a integer GENERATED ALWAYS AS ((1)) STORED\n);", "CREATE TABLE s.t (\n    a integer GENERATED ALWAYS AS ((1)) STORED\n);"},
		{"CREATE TABLE t (\n);", "CREATE TABLE t (\n);"},
		{"CREATE TABLE t (\n    a integer DEFAULT ') GENERATED ALWAYS AS (x'::text NOT NULL NO INHERIT\n);", "CREATE TABLE t (\n    a integer DEFAULT ') GENERATED ALWAYS AS (x'::text NOT NULL\n);"},
		{"CREATE TABLE t (\n    CONSTRAINT n NOT NULL a,\n    b integer\n)\nINHERITS (p);", "CREATE TABLE t (\n    b integer\n)\nINHERITS (p);\nALTER TABLE ONLY t ALTER COLUMN a SET NOT NULL;\n"},
		{"CREATE TABLE t (\n    a integer\n)\nWITH (autovacuum_vacuum_max_threshold='5', fillfactor='70');", "CREATE TABLE t (\n    a integer\n)\nWITH ( fillfactor='70');"},
		{"CREATE TABLE t (\n    a integer\n)\nWITH (toast.autovacuum_vacuum_max_threshold='5');", "CREATE TABLE t (\n    a integer\n);"},
	} {
		got, note, problem := adapt(&entry{desc: "TABLE", defn: c.sql}, 17)
		if diff := cmp.Diff(c.want, got); diff != "" || note+problem != "" {
			t.Error(diff, note, problem)
		}
	}
	if _, _, problem := adapt(&entry{desc: "CONSTRAINT", defn: "ALTER TABLE ONLY t\n    ADD CONSTRAINT p PRIMARY KEY (a, b WITHOUT OVERLAPS);"}, 17); problem == "" {
		t.Error("a temporal key is no problem")
	}
}

func TestChoose(t *testing.T) {
	found := []Program{{"a", 18}, {"b", 16}, {"c", 17}, {"d", 17}}
	for major, want := range map[int]string{15: "b", 16: "b", 17: "c", 18: "a", 19: ""} {
		if p, _ := choose(found, major); p.Path != want {
			t.Errorf("%d: %v", major, p)
		}
	}
}

// fakeDump is a program that only knows its version.
func fakeDump(t *testing.T, dir, version string) string {
	t.Helper()
	path := filepath.Join(dir, "pg_dump")
	script := "#!/bin/sh\necho 'pg_dump (PostgreSQL) " + version + "'\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	path := fakeDump(t, dir, "16.4 (Debian 16.4-1)")
	for _, p := range []string{path, dir} {
		got, err := Find(context.Background(), p, 16)
		if err != nil || got.Major != 16 || got.Path != path {
			t.Errorf("%v %v", got, err)
		}
	}
	_, err := Find(context.Background(), path, 17)
	if millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(err.Error(), "needs pg_dump 17 or newer; found: 16 ("+path+")") {
		t.Errorf("%v", err)
	}
	if _, err := Find(context.Background(), filepath.Join(dir, "nope"), 16); err == nil || !strings.Contains(err.Error(), "nope") {
		t.Errorf("%v", err)
	}
	// In PATH, the rig's cache and the usual places: the one in PATH is the
	// first of its version.
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	if got, err := Find(context.Background(), "", 16); err != nil || got.Path != path {
		t.Errorf("%v %v", got, err)
	}
	cache := t.TempDir()
	bin := filepath.Join(cache, "pg", "99", "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	fetched := fakeDump(t, bin, "99.1")
	t.Setenv("MILLRACE_RIG", cache)
	if got, err := Find(context.Background(), "", 99); err != nil || got.Path != fetched {
		t.Errorf("%v %v", got, err)
	}
	if err := os.Chmod(bin, 0o777); err != nil {
		t.Fatal(err)
	}
	if got, err := Find(context.Background(), "", 99); err == nil {
		t.Errorf("a program that anybody can have put there was taken: %v", got)
	}
}

// TestCalledFunctions: what a body calls comes along, quoted or not.
func TestCalledFunctions(t *testing.T) {
	all := []entry{
		{id: 1, desc: "TABLE", oid: 10, deps: []int{2}},
		{id: 2, desc: "FUNCTION", tag: "a(integer)", defn: `CREATE FUNCTION a(integer) AS $$ select S.B (1) + "We ird"(2) $$`},
		{id: 3, desc: "FUNCTION", tag: "b(integer)", defn: "CREATE FUNCTION b(integer)"},
		{id: 4, desc: "FUNCTION", tag: `"We ird"(integer)`, defn: `CREATE FUNCTION "We ird"(integer)`, deps: []int{5}},
		{id: 5, desc: "SCHEMA", tag: "s"},
		{id: 6, desc: "FUNCTION", tag: "c(integer)", defn: "CREATE FUNCTION c(integer)"},
	}
	if diff := cmp.Diff(map[int]bool{1: true, 2: true, 3: true, 4: true, 5: true}, closeOver(all, map[uint32]bool{10: true})); diff != "" {
		t.Error(diff)
	}
}
