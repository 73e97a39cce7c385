package record

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/datum"
	"github.com/millrace/millrace/internal/rig"
)

// golden is a record of a real Debezium run.
type golden struct {
	topic      string
	key, value string // "" for null
}

// goldens reads the records of table topics.
func goldens(t *testing.T, file string) []golden { return parseGoldens(readFile(t, file)) }

func parseGoldens(text string) []golden {
	var all []golden
	for _, line := range strings.Split(text, "\n") {
		f := strings.Split(line, "\t")
		if len(f) != 3 || !strings.HasPrefix(f[0], "t.public.") || f[0] == "t.public.dbz_signal" {
			continue
		}
		for i := range f {
			if f[i] == "null" {
				f[i] = ""
			}
		}
		if f[1] == "" && f[2] == "" {
			continue // a tombstone without key ends nothing; Millrace writes none
		}
		all = append(all, golden{f[0], f[1], f[2]})
	}
	return all
}

// differs lists, by column, where the value is not Debezium's even with Lossy,
// and how it is related to Debezium's: 3.6 has no form for these types and gives
// the text of the JDBC driver as bytes, only if asked to (include.unknown.datatypes).
var differs = map[string]func(theirs, ours any) bool{
	"c_box": geometric, "c_line": geometric, "c_circle": geometric, "c_poly": geometric, "c_path": geometric, "c_lseg": geometric,
	"c_mr": sameText, "c_comp": sameText, "c_tsq": sameText, "c_lsn": sameText, "c_xid8": sameText,
	// Debezium loses the second dimension.
	"c_a2": func(theirs, ours any) bool {
		return fmt.Sprint(theirs) == "[<nil> <nil>]" && fmt.Sprint(ours) == "[[1 2] [3 4]]"
	},
	// A stored generated column is in a snapshot only.
	"g": func(_, ours any) bool { return ours == nil },
}

func sameText(theirs, ours any) bool {
	b, err := base64.StdEncoding.DecodeString(fmt.Sprint(theirs))
	return err == nil && string(b) == ours
}

// geometric: the driver writes 1.0 for 1.
func geometric(theirs, ours any) bool {
	b, err := base64.StdEncoding.DecodeString(fmt.Sprint(theirs))
	return err == nil && strings.ReplaceAll(string(b), ".0", "") == ours
}

// TestGoldenLossy makes the same changes as the Debezium run and compares every
// member of every record of a table, in order.
func TestGoldenLossy(t *testing.T) {
	o := options(JSON)
	o.Lossy, o.Decimal = true, datum.DecimalBytes
	for _, binary := range []bool{false, true} {
		schema := readFile(t, "schema.sql")
		if binary { // the binary form of tsquery is not known
			schema = strings.NewReplacer("c_tsq tsquery", "c_tsq text", "'fat & cat'", "$$'fat' & 'cat'$$").Replace(schema)
		}
		s := newSource(t, rig.Shared(t, rig.Newest), schema+readFile(t, "act.sql"))
		e, err := NewEncoder(o)
		check(t, err)
		compareGolden(t, goldens(t, "events-schemaless.tsv"), encode(t, e, s.stream(t, binary), keyOf))
	}
}

// compareGolden: the snapshot's rows come as inserts here.
func compareGolden(t *testing.T, want []golden, got []*kgo.Record) {
	t.Helper()
	got = slices.DeleteFunc(got, func(r *kgo.Record) bool { return r.Topic == "t.public.dbz_signal" })
	if len(got) != len(want) {
		t.Fatalf("%d records, Debezium has %d", len(got), len(want))
	}
	// The order of tables in schema.sql is not that of Debezium's snapshot.
	bySnapshot := func(topic string) int {
		return slices.Index([]string{"t.public.typ", "t.public.ord", "t.public.toast", "t.public.nopk"}, topic)
	}
	first := slices.IndexFunc(want, func(g golden) bool { return !strings.Contains(g.value, `"op":"r"`) })
	slices.SortStableFunc(got[:first], func(a, b *kgo.Record) int { return bySnapshot(a.Topic) - bySnapshot(b.Topic) })
	for i, w := range want {
		g := got[i]
		name := fmt.Sprintf("record %d of %s", i, w.topic)
		if g.Topic != w.topic || string(g.Key) != w.key {
			t.Errorf("%s: topic %s key %s, Debezium has key %s", name, g.Topic, g.Key, w.key)
			continue
		}
		if (g.Value == nil) != (w.value == "") {
			t.Errorf("%s: value %s, Debezium %s", name, g.Value, w.value)
		}
		if g.Value == nil || w.value == "" {
			continue
		}
		compareEnvelope(t, name, object(t, []byte(w.value)), object(t, g.Value))
	}
}

func compareEnvelope(t *testing.T, name string, theirs, ours map[string]any) {
	t.Helper()
	if !slices.Equal(sortedKeys(theirs), sortedKeys(ours)) {
		t.Errorf("%s: members %v, Debezium %v", name, sortedKeys(ours), sortedKeys(theirs))
	}
	read := theirs["op"] == "r"
	if ours["op"] != theirs["op"] && !read {
		t.Errorf("%s: op %v, Debezium %v", name, ours["op"], theirs["op"])
	}
	compareRow(t, name+" after", theirs["after"], ours["after"])
	compareRow(t, name+" before", theirs["before"], ours["before"])
	a, b := theirs["source"].(map[string]any), ours["source"].(map[string]any)
	if !slices.Equal(sortedKeys(a), sortedKeys(b)) {
		t.Errorf("%s: source %v, Debezium %v", name, sortedKeys(b), sortedKeys(a))
	}
	for k := range a {
		switch k {
		case "ts_ms", "ts_us", "ts_ns", "lsn", "txId":
			if reflect.TypeOf(a[k]) != reflect.TypeOf(b[k]) {
				t.Errorf("%s: source.%s is %v, Debezium %v", name, k, b[k], a[k])
			}
		case "version":
		case "sequence":
			var pair []*string
			if err := json.Unmarshal([]byte(b[k].(string)), &pair); err != nil || len(pair) != 2 {
				t.Errorf("%s: sequence %v", name, b[k])
			}
		default:
			if a[k] != b[k] && !(read && k == "snapshot") {
				t.Errorf("%s: source.%s is %v, Debezium %v", name, k, b[k], a[k])
			}
		}
	}
	if read {
		return
	}
	x, y := theirs["transaction"].(map[string]any), ours["transaction"].(map[string]any)
	if x["total_order"] != y["total_order"] || x["data_collection_order"] != y["data_collection_order"] || len(x) != len(y) {
		t.Errorf("%s: transaction %v, Debezium %v", name, y, x)
	}
}

func compareRow(t *testing.T, name string, theirs, ours any) {
	t.Helper()
	a, _ := theirs.(map[string]any)
	b, _ := ours.(map[string]any)
	if (a == nil) != (b == nil) {
		t.Errorf("%s: %v, Debezium %v", name, ours, theirs)
	}
	for k, v := range a {
		if f := differs[k]; f != nil && v != nil {
			if !f(v, b[k]) {
				t.Errorf("%s: %s is %v, Debezium %v", name, k, b[k], v)
			}
			continue
		}
		if k == "name" && v == "x" && b[k] == nil && strings.HasSuffix(name, "before") {
			continue // Debezium shows a default for what was not sent
		}
		if !sameJSON(v, b[k]) {
			t.Errorf("%s: %s is %v, Debezium %v", name, k, b[k], v)
		}
	}
	for k := range b {
		if _, ok := a[k]; !ok {
			t.Errorf("%s: Debezium has no %s", name, k)
		}
	}
}

// sameJSON compares values; numbers by what they mean.
func sameJSON(a, b any) bool {
	x, ok1 := a.(json.Number)
	y, ok2 := b.(json.Number)
	if ok1 && ok2 {
		if x == y {
			return true
		}
		f, err1 := strconv.ParseFloat(string(x), 64)
		g, err2 := strconv.ParseFloat(string(y), 64)
		return err1 == nil && err2 == nil && f == g && strings.ContainsAny(string(x), ".eE")
	}
	switch v := a.(type) {
	case map[string]any:
		w, ok := b.(map[string]any)
		if !ok || len(v) != len(w) {
			return false
		}
		for k := range v {
			if !sameJSON(v[k], w[k]) {
				return false
			}
		}
		return true
	case []any:
		w, ok := b.([]any)
		if !ok || len(v) != len(w) {
			return false
		}
		for i := range v {
			if !sameJSON(v[i], w[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(a, b)
}
