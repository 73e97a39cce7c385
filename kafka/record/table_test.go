package record

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/session"
)

// TestTableVersions: a table made elsewhere from its records is the same, and
// its relation is that of the stream.
func TestTableVersions(t *testing.T) {
	s := newSource(t, rig.Shared(t, rig.Newest), `
		CREATE SCHEMA ext; CREATE SCHEMA "Up";
		CREATE EXTENSION hstore SCHEMA ext; CREATE EXTENSION citext SCHEMA ext;
		CREATE TYPE "Up"."Mood" AS ENUM ('it''s', 'ok'); CREATE DOMAIN public.price AS numeric(12,3) CHECK (VALUE > 0);
		CREATE TYPE public.pair AS (a int, "b c" varchar(7), m "Up"."Mood"[]); CREATE TYPE public.moods AS RANGE (subtype = "Up"."Mood");
		CREATE TABLE public.parent (id int PRIMARY KEY, u text UNIQUE);
		CREATE TABLE "Up"."T t" (a int REFERENCES public.parent, b numeric(10,2)[], c "Up"."Mood" NOT NULL, d public.price, e public.pair[],
		  f ext.hstore, g ext.citext, h timestamptz(3), i char(5), j varchar(9) NOT NULL, k bit(3), l public.moods, PRIMARY KEY (a, j), UNIQUE (c, d));
		INSERT INTO public.parent VALUES (1); INSERT INTO "Up"."T t" (a, c, j) VALUES (1, 'ok', 'x');`)
	names := []millrace.TableName{{Schema: "public", Name: "parent"}, {Schema: "Up", Name: "T t"}}
	target := rig.Shared(t, rig.Newest).NewDB(t)
	there, err := session.Static(millrace.PeerDestination, target.URL(), "test").Connect(t.Context(), session.Check)
	check(t, err)
	t.Cleanup(func() { there.Close(context.Background()) })

	tables, err := catalog.DescribeByName(t.Context(), s.conn, names)
	check(t, err)
	txns := s.stream(t, false)
	for i, name := range names {
		rel := txns[i].Changes[0].Rel
		table := tables[name]
		constraints, err := catalog.Constraints(t.Context(), s.conn, []uint32{table.OID})
		check(t, err)
		key, value, err := NewTableVersion(options(JSON), rel, rel.Key, table, constraints[table.OID]).Marshal()
		check(t, err)
		v, err := ParseTableVersion(value)
		check(t, err)
		if object(t, key)["table"] != name.Name {
			t.Errorf("key %s", key)
		}
		got, recordKey, o, err := v.Relation()
		check(t, err)
		if diff := cmp.Diff(catalog.ShapeOfRelation(rel), catalog.ShapeOfRelation(got)); diff != "" || got.Identity != rel.Identity ||
			!cmp.Equal(got.Key, rel.Key) || !cmp.Equal(recordKey, rel.Key) || o.Format != JSON {
			t.Errorf("relation of %v: %s %+v", name, diff, got)
		}
		for c := range rel.Columns {
			if diff := cmp.Diff(TypeOf(&rel.Columns[c]), TypeOf(&got.Columns[c])); diff != "" {
				t.Errorf("%v: %s", name, diff)
			}
		}
		statements, err := v.CreateTypes()
		check(t, err)
		table1, foreign := v.CreateTable()
		for _, sql := range append(append(statements, table1), foreign...) {
			if _, err := there.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		made, err := catalog.DescribeByName(t.Context(), there, []millrace.TableName{name})
		check(t, err)
		for c := range table.Columns {
			a, b := table.Columns[c], made[name].Columns[c]
			if a.Name != b.Name || a.Declared != b.Declared || a.NotNull != b.NotNull {
				t.Errorf("%v: column %s %s, made as %s %s", name, a.Name, a.Declared, b.Name, b.Declared)
			}
		}
		again, err := catalog.Constraints(t.Context(), there, []uint32{made[name].OID})
		check(t, err)
		if diff := cmp.Diff(constraints[table.OID], again[made[name].OID]); diff != "" {
			t.Errorf("%v: %s", name, diff)
		}
		// Without the catalog the columns are still all there.
		bare := NewTableVersion(options(JSON), rel, rel.Key, nil, nil)
		if bare.Same(v) || len(bare.Columns) != len(v.Columns) || !v.Same(v) {
			t.Errorf("%v without catalog: %+v", name, bare)
		}
		sql, _ := bare.CreateTable()
		if _, err := there.Exec(t.Context(), "DROP TABLE "+name.SQL()+" CASCADE; "+sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
		if _, err := there.Exec(t.Context(), "DROP TABLE "+name.SQL()+"; "+table1); err != nil {
			t.Error(err)
		}
	}
}
