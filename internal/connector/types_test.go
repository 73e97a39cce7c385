package connector

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/rig"
)

const (
	typesBegin = "<!-- of TestTypesTable; rewrite with go test ./internal/connector -run TestTypesTable -update -->\n"
	typesEnd   = "<!-- end -->\n"
)

// TestTypesTable holds the table of types in docs/types.md: the schemas are those
// that discover gives, and the values those of a record.
func TestTypesTable(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, rig.Shared(t, rig.Newest), everyType()+rows(100))
	p.makeSlot(t)
	p.discover(t)
	row := byID(p.sync(t))[100]
	schemas := p.schemas(t)
	var table strings.Builder
	table.WriteString(typesBegin + "| PostgreSQL | JSON schema | a value |\n|---|---|---|\n")
	cell := strings.NewReplacer("|", `\|`, "`", "'")
	names := map[string]string{}
	for line := range strings.SplitSeq(p.source.Query(t, `SELECT string_agg(attname || ':' || format_type(atttypid, atttypmod), E'\n')
		FROM pg_attribute WHERE attrelid = 'v'::regclass AND attnum > 1`), "\n") {
		column, name, _ := strings.Cut(line, ":")
		names[column] = name
	}
	for _, c := range valueColumns() {
		if row[c.name] == "" || len(schemas[c.name]) == 0 {
			t.Errorf("no value or schema of %s", c.sql)
		}
		if !c.added {
			fmt.Fprintf(&table, "| `%s` | `%s` | `%s` |\n", names[c.name], cell.Replace(string(schemas[c.name])), cell.Replace(row[c.name]))
		}
	}
	const file = "../../docs/types.md"
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(doc), typesBegin)
	old, tail, ok2 := strings.Cut(rest, typesEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
	if *update {
		if err := os.WriteFile(file, []byte(head+table.String()+typesEnd+tail), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(typesBegin+old, "\n"), strings.Split(table.String(), "\n")); diff != "" {
		t.Errorf("the table in %s is not true (-file +now):\n%s", file, diff)
	}
}
