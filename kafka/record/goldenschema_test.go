package record

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/rig"
)

// otherModes lists the columns whose type differs from that of the run with
// schemas, and why.
var otherModes = map[string]string{
	"c_time3":  "time.precision.mode=adaptive_time_microseconds there",
	"c_bytea":  "binary.handling.mode=hex there",
	"c_hstore": "hstore.handling.mode=map there",
	"c_varbit": "Bits has no length: '00101' and '101' would be one",
	"c_a2":     "two dimensions",
	"g":        "a generated column is in a snapshot only",
	"name":     "NOT NULL and default are not in the stream",
}

// TestGoldenSchema compares the schemas of json-inline with Debezium's, and the
// exact forms of values with those of decimal.handling.mode=string and
// interval.handling.mode=string.
func TestGoldenSchema(t *testing.T) {
	schema := strings.NewReplacer("c_a2 int4[][]", "c_a2 text").Replace(readFile(t, "schema.sql"))
	s := newSource(t, rig.Shared(t, rig.Newest), schema)
	e, err := NewEncoder(options(JSONInline))
	check(t, err)
	ours := map[string]map[string]any{}
	keys := map[string]map[string]any{}
	for _, r := range encode(t, e, s.stream(t, false), keyOf) {
		o := object(t, r.Value)
		id := r.Topic + fmt.Sprint(o["payload"].(map[string]any)["after"].(map[string]any)["id"])
		ours[id] = o
		if r.Key != nil {
			keys[id] = object(t, r.Key)
		}
	}
	seen := 0
	for _, g := range goldens(t, "events-with-schema.tsv") {
		if !strings.Contains(g.value, `"op":"r"`) {
			continue
		}
		o := object(t, []byte(g.value))
		after := o["payload"].(map[string]any)["after"].(map[string]any)
		id := g.topic + fmt.Sprint(after["id"])
		if ours[id] == nil {
			t.Fatalf("no record for %s", id)
		}
		seen++
		compareSchema(t, id, o["schema"], ours[id]["schema"])
		if g.key != "" {
			if want := object(t, []byte(g.key)); !reflect.DeepEqual(want, keys[id]) {
				t.Errorf("key of %s: %v, Debezium %v", id, keys[id], want)
			}
		}
		mine := ours[id]["payload"].(map[string]any)["after"].(map[string]any)
		for col, v := range after {
			if otherModes[col] != "" || differs[col] != nil || v == nil {
				continue
			}
			if !sameJSON(v, mine[col]) && !exact[fmt.Sprintf("%s=%v", col, v)] {
				t.Errorf("%s: %s is %v, Debezium %v", id, col, mine[col], v)
			}
		}
	}
	if seen != 7 {
		t.Errorf("%d records compared", seen)
	}
}

// exact lists values where Debezium loses something.
var exact = map[string]bool{
	"c_timetz=10:34:56.789012Z": true, // ours keeps the offset
	"c_num=NAN":                 true, // PostgreSQL says NaN
	"c_date=-622191234":         true, // for infinity and -infinity
}

// compareSchema walks two schemas of Connect.
func compareSchema(t *testing.T, name string, theirs, ours any) {
	t.Helper()
	a, b := theirs.(map[string]any), ours.(map[string]any)
	for k, v := range a {
		switch k {
		case "fields":
			x, y := v.([]any), b[k].([]any)
			at := map[string]any{}
			for _, f := range y {
				at[f.(map[string]any)["field"].(string)] = f
			}
			for _, f := range x {
				field := f.(map[string]any)["field"].(string)
				if otherModes[field] != "" && strings.Contains(name, "after") || otherModes[field] != "" && strings.Contains(name, "before") {
					continue
				}
				if at[field] == nil {
					t.Errorf("%s: no field %s", name, field)
					continue
				}
				compareSchema(t, name+"."+field, f, at[field])
			}
		case "items":
			compareSchema(t, name+"[]", v, b[k])
		case "default": // of source.snapshot, "false", which is always sent
		case "optional":
			if v != b[k] && !strings.HasSuffix(name, "c_ae[]") { // an enum's array can hold nulls
				t.Errorf("%s: optional %v, Debezium %v", name, b[k], v)
			}
		default:
			if !reflect.DeepEqual(v, b[k]) {
				t.Errorf("%s: %s is %v, Debezium %v", name, k, b[k], v)
			}
		}
	}
}
