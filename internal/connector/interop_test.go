package connector

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/rig"
)

// airbytePython gives MILLRACE_AIRBYTE, a Python with Airbyte's packages; make
// interop sets it.
func airbytePython(t *testing.T) string {
	t.Helper()
	python := os.Getenv("MILLRACE_AIRBYTE")
	if python == "" {
		t.Skip("no Python with PyAirbyte: make interop makes one and sets MILLRACE_AIRBYTE")
	}
	return python
}

// foreign runs a script of testdata/airbyte with the connector, the configuration
// and a directory that is the same in every call, and gives what it prints.
func (p *platform) foreign(t *testing.T, python, script string, into any) {
	t.Helper()
	// The name by which the platform runs it, which makes it the connector alone.
	link := filepath.Join(p.dir, "source-postgres-millrace")
	if err := os.Symlink(p.binary, link); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	dir := filepath.Join(p.dir, script)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, filepath.Join("testdata", "airbyte", script), link, p.file(t, "config.json", p.config), dir)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, lastBytes(stderr.String(), 6000))
	}
	if err := json.Unmarshal(stdout.Bytes(), into); err != nil {
		t.Fatalf("%s: %v\n%.500s", script, err, stdout.String())
	}
}

func lastBytes(s string, n int) string { return s[max(0, len(s)-n):] }

// TestInteropModels: Airbyte's own models and the parser of its CDK take every
// message, in a first sync and in one that goes on.
func TestInteropModels(t *testing.T) {
	t.Parallel()
	python := airbytePython(t)
	for _, decimal := range []string{"string", "number"} {
		t.Run(decimal, func(t *testing.T) {
			t.Parallel()
			p := newPlatform(t, rig.Shared(t, rig.Newest), shop)
			p.source.Script(t, everyType()+rows(100))
			p.config["decimal"] = decimal
			p.makeSlot(t)
			var sync struct {
				Records map[string]int `json:"records"`
				States  int            `json:"states"`
			}
			p.foreign(t, python, "models.py", &sync)
			if diff := cmp.Diff(map[string]int{"orders": 500, "items": 898, "log": 2, "v": valueRows()}, sync.Records); diff != "" {
				t.Errorf("the first sync (-want +got):\n%s", diff)
			}
			p.source.Script(t, rows(200))
			p.source.SQL(t, "UPDATE orders SET id = id + 1000 WHERE id = 7; DELETE FROM items WHERE orders = 200")
			clear(sync.Records)
			p.foreign(t, python, "models.py", &sync)
			if diff := cmp.Diff(map[string]int{"orders": 2, "items": 3, "log": 2, "v": valueRows()}, sync.Records); diff != "" {
				t.Errorf("the second sync (-want +got):\n%s", diff)
			}
		})
	}
}

// loadable has values that PyAirbyte's loader can take: DuckDB's dates, and no
// infinity. The names in it are those of DuckDB's types.
const loadable = `
CREATE TABLE kinds (id bigint PRIMARY KEY, flag bool, small smallint, big bigint, real8 float8, amount numeric, words text, day date, clock time,
	stamp timestamp, moment timestamptz, code uuid, doc jsonb, list int[], raw bytea, mood text);
CREATE TABLE pairs (a int, b text, n int, PRIMARY KEY (a, b));
CREATE TABLE keyless (line text);
INSERT INTO keyless VALUES ('one'), ('two');
INSERT INTO pairs SELECT g / 10, 'b' || g, g FROM generate_series(1, 2000) g;
INSERT INTO kinds (id) VALUES (-9223372036854775808);
`

const loadableRow = `INSERT INTO kinds VALUES (%d, true, -32768, 9223372036854775807, 0.1, 12345678901234567890.123456789, E'a"\\\n\tü,''€ 😀', '2024-02-29', '23:59:59.999999',
	'2024-02-29 12:34:56.789012', '2024-02-29 12:34:56.789012+05:30', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"z": [1, null], "a": "x"}', '{1,NULL,3}', '\x00ff', '')`

// asDuckDB gives each column of a table of loadable in the text form that DuckDB
// has for what was loaded.
var asDuckDB = map[string]string{
	"kinds": `SELECT json_build_object('id', id::text, 'flag', flag::text, 'small', small::text, 'big', big::text, 'real8', real8::text, 'amount', amount::text,
		'words', words, 'day', day::text, 'clock', clock::text, 'stamp', stamp::text, 'moment', (moment AT TIME ZONE 'UTC')::text, 'code', code::text,
		'doc', doc::text, 'list', replace(to_json(list)::text, ' ', ''), 'raw', encode(raw, 'base64'), 'mood', mood) FROM kinds`,
	"pairs":   `SELECT json_build_object('a', a::text, 'b', b, 'n', n::text) FROM pairs`,
	"keyless": `SELECT json_build_object('line', line) FROM keyless`,
}

// TestInteropDuckDB: PyAirbyte loads the tables into DuckDB; its second sync has
// only what changed, and then DuckDB has the source's rows again.
func TestInteropDuckDB(t *testing.T) {
	t.Parallel()
	python := airbytePython(t)
	p := newPlatform(t, rig.Shared(t, rig.Newest), loadable)
	p.source.SQL(t, fmt.Sprintf(loadableRow, 1))
	p.config["state_type"] = "stream" // PyAirbyte keeps no global state
	p.makeSlot(t)
	var sync struct {
		Records int                             `json:"records"`
		Tables  map[string][]map[string]*string `json:"tables"`
	}
	compare := func(when string, records int) {
		t.Helper()
		clear(sync.Tables)
		p.foreign(t, python, "pyairbyte.py", &sync)
		if sync.Records != records {
			t.Errorf("%s: %d records, want %d", when, sync.Records, records)
		}
		for table, sql := range asDuckDB {
			var want []map[string]*string
			if err := json.Unmarshal([]byte(p.source.Query(t, "SELECT json_agg(x.row) FROM ("+sql+") AS x (row)")), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(present(t, want), present(t, sync.Tables[table])); diff != "" {
				t.Errorf("%s: table %s (-source +DuckDB):\n%.3000s", when, table, diff)
			}
		}
	}
	compare("first sync", 2+2000+2)
	p.source.SQL(t, fmt.Sprintf(loadableRow, 2))
	p.source.SQL(t, "UPDATE kinds SET words = 'later', doc = NULL WHERE id = 1; DELETE FROM pairs WHERE n = 5; UPDATE pairs SET b = 'moved' WHERE n = 6; UPDATE pairs SET n = 0 WHERE n = 7")
	compare("second sync", 2+4+2)
}

// present gives the rows that are not deleted, in order: PyAirbyte keeps a deleted
// row with the time of its deletion.
func present(t *testing.T, rows []map[string]*string) []string {
	t.Helper()
	var found []string
	for _, row := range rows {
		if row["_ab_cdc_deleted_at"] != nil {
			continue
		}
		maps.DeleteFunc(row, func(column string, _ *string) bool { return strings.HasPrefix(column, "_ab_cdc_") })
		text, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, string(text))
	}
	slices.Sort(found)
	return found
}
