package connector

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/rig"
)

// TestValues: a row has the same form whether it was read or streamed, obeys the
// schema that discover gives, and has the form of testdata/values.txt, for values
// of every type that a column can have.
func TestValues(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, rig.Shared(t, rig.Newest), everyType())
	p.makeSlot(t)
	p.isEveryType(t)
	p.source.Script(t, rows(100))
	p.discover(t)
	read := byID(p.sync(t))
	p.source.Script(t, rows(200))
	streamed := byID(p.sync(t))
	for i := range valueRows() {
		a, b := read[100+i], streamed[200+i]
		if a == nil || b == nil {
			t.Fatalf("rows are missing: %v, %v", a == nil, b == nil)
		}
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("row %d differs (-read +streamed):\n%s", i, diff)
		}
	}
	schemas := p.schemas(t)
	var forms strings.Builder
	for _, c := range valueColumns() {
		for i, v := range c.values {
			got := read[100+i][c.name]
			if got == "null" || !allowed(schemas[c.name], got) {
				t.Errorf("%s: %s is %s, with the schema %s", c.sql, v, got, schemas[c.name])
			}
			fmt.Fprintf(&forms, "%s | %s | %s\n", c.sql, shortened(v), shortened(got))
		}
		if got := read[100+valueRows()-1][c.name]; got != "null" {
			t.Errorf("%s: NULL is %s", c.sql, got)
		}
	}
	file := filepath.Join("testdata", "values.txt")
	if *update {
		if err := os.WriteFile(file, []byte(forms.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file) //nolint:gosec // of the repository
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(forms.String(), "\n")); diff != "" {
		t.Errorf("other forms than in %s (-file +now):\n%s", file, diff)
	}
}

func shortened(s string) string {
	s = strings.NewReplacer("\n", `\n`).Replace(s)
	if len(s) > 500 {
		return fmt.Sprintf("%s… (%d bytes)", s[:60], len(s))
	}
	return s
}

// isEveryType holds the types of the table against those that the server has: each
// is a column's, or it is said why there can be no values of it.
func (p *platform) isEveryType(t *testing.T) {
	t.Helper()
	// Row types of the catalog's own tables are composites as pair is.
	names := strings.Fields(p.source.Query(t, `SELECT string_agg(t.typname, ' ' ORDER BY t.typname) FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
		WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype NOT IN ('p', 'c') AND coalesce(e.typtype, 'b') NOT IN ('p', 'c')
		AND t.oid NOT IN (SELECT atttypid FROM pg_attribute WHERE attrelid = 'v'::regclass AND attnum > 0)`))
	missing := map[string]bool{}
	for _, name := range names {
		missing[name] = true
		if noValues[strings.TrimPrefix(name, "_")] == "" {
			t.Errorf("type %s can be a column's: add it to kinds, or to noValues with the reason", name)
		}
	}
	for name := range noValues {
		if !missing[name] {
			t.Errorf("type %s is in noValues, and is a column's or does not exist", name)
		}
	}
}

// schemas gives the JSON schema of each column.
func (p *platform) schemas(t *testing.T) map[string]json.RawMessage {
	t.Helper()
	var stream struct {
		Schema struct {
			Properties map[string]json.RawMessage `json:"properties"`
		} `json:"json_schema"`
	}
	text, err := json.Marshal(p.streams[0]["stream"])
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &stream); err != nil {
		t.Fatal(err)
	}
	return stream.Schema.Properties
}

// allowed tells whether a value is of a JSON type that a schema names.
func allowed(schema json.RawMessage, value string) bool {
	var s struct {
		Type []string `json:"type"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return false
	}
	var v any
	if json.Unmarshal([]byte(value), &v) != nil {
		return false
	}
	is := ""
	switch v.(type) {
	case bool:
		is = "boolean"
	case string:
		is = "string"
	case []any:
		is = "array"
	case map[string]any:
		is = "object"
	case float64:
		is = "number"
		if !strings.ContainsAny(value, ".eE") && !slices.Contains(s.Type, "number") {
			is = "integer"
		}
	}
	return slices.Contains(s.Type, is)
}

func byID(messages []message) map[int]map[string]string {
	found := map[int]map[string]string{}
	for _, m := range messages {
		if m.Type != "RECORD" {
			continue
		}
		var id int
		if json.Unmarshal(m.Record.Data["id"], &id) != nil {
			continue
		}
		row := map[string]string{}
		for column, value := range m.Record.Data {
			switch column {
			case "id", "_ab_cdc_lsn", "_ab_cdc_cursor", "_ab_cdc_updated_at":
			default:
				row[column] = string(value)
			}
		}
		found[id] = row
	}
	return found
}
