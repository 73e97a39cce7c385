package record

import (
	"encoding/binary"
	"encoding/json"
	"strings"
	"testing"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
)

// TestAvroReadByOthers: another implementation parses the schemas and reads the
// records by them, values compared with those of the JSON envelope.
func TestAvroReadByOthers(t *testing.T) {
	schema := strings.NewReplacer("c_a2 int4[][]", "c_a2 text").Replace(readFile(t, "schema.sql"))
	s := newSource(t, rig.Shared(t, rig.Newest), schema+readFile(t, "act.sql")+workload)
	txns := s.stream(t, false)
	o := options(Avro)
	reg := o.Registry.(*registry)
	e, err := NewEncoder(o)
	check(t, err)
	records := encode(t, e, txns, keyOf)
	plain, err := NewEncoder(options(JSON))
	check(t, err)
	want := encode(t, plain, txns, keyOf)

	byID := map[uint32]avro.Schema{}
	for schema, id := range reg.ids {
		parsed, err := avro.ParseWithCache(schema, "", &avro.SchemaCache{})
		if err != nil {
			t.Fatalf("%v: %s", err, schema)
		}
		byID[uint32(id)] = parsed
	}
	for i, r := range records {
		for _, part := range [][2][]byte{{r.Key, want[i].Key}, {r.Value, want[i].Value}} {
			if part[0] == nil {
				continue
			}
			if part[0][0] != 0 {
				t.Fatalf("record %d: no magic byte", i)
			}
			var got any
			if err := avro.Unmarshal(byID[binary.BigEndian.Uint32(part[0][1:])], part[0][5:], &got); err != nil {
				t.Fatalf("record %d of %s: %v", i, r.Topic, err)
			}
			compareAvro(t, r.Topic, got.(map[string]any), object(t, part[1]))
		}
	}
}

// compareAvro looks at what is said in the same words in both.
func compareAvro(t *testing.T, name string, got, want map[string]any) {
	t.Helper()
	for k, w := range want {
		key := strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(k, " ", "_"), `"`, "_"), "é", "__")
		g, ok := got[key]
		if !ok {
			t.Errorf("%s: no %s (%s) in %v", name, k, key, got)
			continue
		}
		if m, ok := g.(map[string]any); ok && len(m) == 1 { // a union's branch
			for branch, v := range m {
				if strings.Contains(branch, ".") || branch == "string" || branch == "long" || branch == "int" || branch == "array" {
					g = v
				}
			}
		}
		switch w := w.(type) {
		case map[string]any:
			if m, ok := g.(map[string]any); ok && w["wkb"] == nil {
				compareAvro(t, name+"."+k, m, w)
			}
		case string:
			if s, ok := g.(string); ok && s != w {
				t.Errorf("%s.%s: %q, in JSON %q", name, k, s, w)
			}
		case json.Number:
			if strings.HasPrefix(k, "ts_") && len(want) > 3 && want["op"] != nil {
				continue // the time of encoding
			}
			if b, err := json.Marshal(g); err == nil && string(b) != w.String() && !strings.ContainsAny(w.String(), ".e") {
				t.Errorf("%s.%s: %s, in JSON %s", name, k, b, w)
			}
		case nil:
			if g != nil && k != "big" && k != "n" && k != "f" { // stand-ins have other words
				t.Errorf("%s.%s: %v, in JSON null", name, k, g)
			}
		}
	}
}

// TestRegistry registers through the client, and a schema that has grown again.
func TestRegistry(t *testing.T) {
	fake := srfake.New()
	t.Cleanup(fake.Close)
	reg, err := NewRegistry(RegistryOptions{URL: fake.URL(), RequireTLS: true})
	check(t, err)
	s := newSource(t, rig.Shared(t, rig.Newest), `CREATE TABLE public.t (id int PRIMARY KEY, a text); INSERT INTO public.t VALUES (1, 'a');
		ALTER TABLE public.t ADD b numeric; INSERT INTO public.t VALUES (2, 'a', 1.50);`)
	for _, f := range []Format{Avro, JSONSchema} {
		o := options(f)
		o.Registry, o.Topic = reg, func(n millrace.TableName) string { return string(f) + "." + n.Name }
		e, err := NewEncoder(o)
		check(t, err)
		records := encode(t, e, s.stream(t, true), keyOf)
		first, second := binary.BigEndian.Uint32(records[0].Value[1:]), binary.BigEndian.Uint32(records[1].Value[1:])
		if first == second || string(records[0].Key[:5]) != string(records[1].Key[:5]) {
			t.Errorf("%s: value schemas %d and %d, keys %x and %x", f, first, second, records[0].Key[:5], records[1].Key[:5])
		}
	}
	for _, bad := range []RegistryOptions{{URL: "registry:8081"}, {URL: "http://registry.example:8081", RequireTLS: true}} {
		if _, err := NewRegistry(bad); err == nil {
			t.Errorf("%s was taken", bad.URL)
		}
	}
	gone, err := NewRegistry(RegistryOptions{URL: "http://127.0.0.1:1"})
	check(t, err)
	if _, err := gone.Register("x", `"int"`, Avro); millrace.KindOf(err) != millrace.KindRetry {
		t.Errorf("a registry that is not there: %v", err)
	}
}
