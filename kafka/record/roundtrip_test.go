package record

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
	"github.com/millrace/millrace/internal/rig"
)

// workload has every kind of change, on tables of every identity.
const workload = `
CREATE TABLE public."Wei ""rd" ("a b" int, "c""d" text, "é" numeric(10,2), PRIMARY KEY ("c""d", "a b"));
CREATE TABLE public.fulls (id int PRIMARY KEY, big text, n numeric); ALTER TABLE public.fulls REPLICA IDENTITY FULL;
ALTER TABLE public.fulls ALTER big SET STORAGE EXTERNAL;
CREATE TABLE public.ident (pk int PRIMARY KEY, k text NOT NULL UNIQUE, v jsonb); ALTER TABLE public.ident REPLICA IDENTITY USING INDEX ident_k_key;
CREATE TABLE public.bigkey (k text PRIMARY KEY, n int); ALTER TABLE public.bigkey ALTER k SET STORAGE EXTERNAL;
CREATE TABLE public.arrays (id int PRIMARY KEY, a text[], n int[], b bytea[], f float8[], j jsonb);
ALTER TABLE public.arrays ALTER a SET STORAGE EXTERNAL; ALTER TABLE public.arrays ALTER n SET STORAGE EXTERNAL;
ALTER TABLE public.arrays ALTER b SET STORAGE EXTERNAL; ALTER TABLE public.arrays ALTER f SET STORAGE EXTERNAL;
BEGIN;
INSERT INTO public."Wei ""rd" VALUES (1, 'x', 1.50), (2, '', NULL);
UPDATE public."Wei ""rd" SET "é" = 'NaN' WHERE "a b" = 1;
UPDATE public."Wei ""rd" SET "a b" = 3 WHERE "a b" = 1;
DELETE FROM public."Wei ""rd" WHERE "a b" = 3;
INSERT INTO public.fulls VALUES (1, repeat('é"', 3000), 1.0), (2, NULL, NULL);
COMMIT;
UPDATE public.fulls SET n = 1.00 WHERE id = 1;
UPDATE public.fulls SET id = 7 WHERE id = 1;
DELETE FROM public.fulls WHERE id = 7;
INSERT INTO public.ident VALUES (1, '__debezium_unavailable_value', '{"a":  1.0}');
UPDATE public.ident SET k = 'z', pk = 2; UPDATE public.ident SET pk = 3; DELETE FROM public.ident;
INSERT INTO public.bigkey VALUES (repeat('k', 2200), 1); UPDATE public.bigkey SET n = 2; UPDATE public.bigkey SET k = 'short';
INSERT INTO public.arrays SELECT 1, array_agg(md5(i::text)), array_agg(i), array_agg(decode(md5(i::text), 'hex')), array_agg(i::float8), '[1]'
  FROM generate_series(1, 2000) i;
UPDATE public.arrays SET j = NULL;
TRUNCATE public.fulls, public.ident RESTART IDENTITY; TRUNCATE public.arrays;
`

// asText gives a change as a decoder should: every value as text.
func asText(t *testing.T, c millrace.Change, key []int) millrace.Change {
	t.Helper()
	if c.Op == millrace.Truncate {
		return c
	}
	row := func(r millrace.Row) millrace.Row {
		if r == nil {
			return nil
		}
		out := make(millrace.Row, len(r))
		for i, v := range r {
			out[i] = millrace.Value{Kind: v.Kind}
			if v.Kind == millrace.Text || v.Kind == millrace.Binary {
				col := &c.Rel.Columns[i]
				raw, err := datum.NewCodec(TypeOf(col), col.Mod, datum.Style{}).AppendText([]byte{}, v)
				check(t, err)
				out[i] = millrace.Value{Kind: millrace.Text, Raw: raw}
			}
		}
		return out
	}
	c.Old, c.New = row(c.Old), row(c.New)
	for i := range c.New {
		// What the old row has of it is sent as the new value.
		if c.New[i].Kind == millrace.Unchanged && c.Old != nil && (c.OldFull || slices.Contains(key, i)) {
			c.New[i] = c.Old[i]
		}
	}
	return c
}

// decode reads changes back as the source does: in order, halves joined.
func decode(t *testing.T, o Options, records []*kgo.Record, rels map[string]*millrace.Relation, key func(*millrace.Relation) []int) []millrace.Change {
	t.Helper()
	var all []millrace.Change
	var old *millrace.Change
	var deleted millrace.Row
	var commit millrace.LSN // of the last change
	memory := &Memory{}
	decoders := map[*millrace.Relation]*Decoder{}
	for _, r := range records {
		rel := rels[r.Topic]
		d := decoders[rel]
		if d == nil {
			var err error
			d, err = NewDecoder(o, rel, key(rel))
			check(t, err)
			decoders[rel] = d
		}
		c, part, err := d.Decode(r, memory)
		check(t, err)
		p, err := PositionOf(r)
		check(t, err)
		c.Seq = p.Seq
		if c.Op == millrace.Delete {
			deleted = c.Old
		}
		last := len(all) - 1
		switch {
		case part == OldHalf:
			old = &c
			continue
		case part == Tombstone:
			row, err := d.Key(r, memory)
			check(t, err)
			for i, v := range row {
				if want := deleted[i]; slices.Contains(key(rel), i) && (v.Kind != want.Kind || string(v.Raw) != string(want.Raw)) || !slices.Contains(key(rel), i) && v.Kind != millrace.Null {
					t.Errorf("the key of a tombstone of %v: column %d is %c %q, want %q", rel.Name, i, v.Kind, v.Raw, want.Raw)
				}
			}
			continue
		case part == NewHalf:
			Join(old, &c)
		case c.Op == millrace.Truncate && last >= 0 && all[last].Op == millrace.Truncate && all[last].Seq == c.Seq && p.Commit == commit:
			JoinTruncate(&all[last], &c)
			continue
		}
		all = append(all, c)
		commit = p.Commit
	}
	return all
}

// TestRoundTrip: what was encoded comes back, in every format that can be read,
// from text and from binary form.
func TestRoundTrip(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		schema := strings.Replace(readFile(t, "schema.sql"), "c_a2 int4[][]", "c_a2 text", 1) // no schema has two dimensions
		schema = strings.NewReplacer("c_tsq tsquery", "c_tsq text").Replace(schema)
		s := newSource(t, pg, schema+readFile(t, "act.sql")+workload)
		for _, binary := range []bool{false, true} {
			txns := s.stream(t, binary)
			for _, f := range []Format{JSON, JSONInline, JSONSchema, Avro} {
				for _, toast := range []Toast{Placeholder, Omit} {
					for _, keyed := range []bool{true, false} {
						if pg.Major() != rig.Newest && (toast == Omit || !keyed) {
							continue
						}
						key := keyOf
						if !keyed { // FULL with a key beside it, as the sink has for a primary key
							key = func(r *millrace.Relation) []int {
								if r.Name.Name == "fulls" {
									return []int{0}
								}
								return keyOf(r)
							}
						}
						t.Run(fmt.Sprintf("%s %s %v %v", f, toast, binary, keyed), func(t *testing.T) { roundTrip(t, f, toast, txns, key) })
					}
				}
			}
		}
	})
}

func roundTrip(t *testing.T, f Format, toast Toast, txns []*millrace.Txn, key func(*millrace.Relation) []int) {
	o := options(f)
	o.Toast = toast
	e, err := NewEncoder(o)
	check(t, err)
	rels := map[string]*millrace.Relation{}
	var want []millrace.Change
	for _, x := range txns {
		for _, c := range x.Changes {
			if c.Rel != nil {
				rels[topicOf(c.Rel.Name)] = c.Rel
				want = append(want, asText(t, c, key(c.Rel)))
			} else {
				want = append(want, c)
			}
		}
	}
	got := decode(t, o, encode(t, e, txns, key), rels, key)
	if len(got) != len(want) {
		t.Fatalf("%d changes came back of %d", len(got), len(want))
	}
	for i := range want {
		g, w := got[i], want[i]
		if diff := cmp.Diff(show(w), show(g)); diff != "" {
			t.Errorf("change %d (%v of %v): %s", i, w.Op, w.Rel, diff)
		}
	}
}

// show makes changes comparable: relations by name, values with their kind.
func show(c millrace.Change) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %d full=%v\n", c.Op, c.Seq, c.OldFull)
	if c.Truncated != nil {
		for _, r := range c.Truncated.Rels {
			fmt.Fprintf(&b, "%v ", r.Name)
		}
		fmt.Fprintf(&b, "restart=%v", c.Truncated.RestartIdentity)
		return b.String()
	}
	for i, v := range c.New {
		fmt.Fprintf(&b, "new %s = %c %q\n", c.Rel.Columns[i].Name, v.Kind, v.Raw)
	}
	for i, v := range c.Old {
		fmt.Fprintf(&b, "old %s = %c %q\n", c.Rel.Columns[i].Name, v.Kind, v.Raw)
	}
	return b.String()
}
