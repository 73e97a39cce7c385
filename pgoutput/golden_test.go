package pgoutput_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }

var update = flag.Bool("update", false, "record testdata anew from real servers")

// recordings are the sets of golden bytes: what each server made of
// testdata/scenario.sql, one message in hexadecimal a line.
var recordings = []struct {
	name  string
	major int
	// publication and plugin are the options beyond the plain ones.
	publication, plugin string
}{
	{"pg15-text", 15, "", "'binary', 'false'"},
	{"pg15-binary", 15, "", "'binary', 'true'"},
	{"pg16-text", 16, "", "'binary', 'false'"},
	{"pg16-binary", 16, "", "'binary', 'true'"},
	{"pg17-text", 17, "", "'binary', 'false'"},
	{"pg17-binary", 17, "", "'binary', 'true'"},
	{"pg18-text", 18, "", "'binary', 'false'"},
	{"pg18-binary", 18, "", "'binary', 'true'"},
	{"pg18-generated", 18, "WITH (publish_generated_columns = stored)", "'binary', 'false'"},
}

func TestGolden(t *testing.T) {
	for _, rec := range recordings {
		t.Run(rec.name, func(t *testing.T) {
			if *update {
				record(t, rec.name, rec.major, rec.publication, rec.plugin)
			}
			var got strings.Builder
			for _, msg := range readHex(t, rec.name) {
				fmt.Fprintln(&got, render(t, msg))
			}
			file := filepath.Join("testdata", rec.name+".txt")
			if *update {
				write(t, file, got.String())
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		})
	}
}

// record runs the scenario on a server and keeps what its plugin made of it.
func record(t *testing.T, name string, major int, publication, plugin string) {
	db := rig.Shared(t, major).NewDB(t)
	scenario, err := os.ReadFile("testdata/scenario.sql")
	if err != nil {
		t.Fatal(err)
	}
	slot := db.Name
	db.SQL(t, "CREATE PUBLICATION everything FOR ALL TABLES "+publication)
	db.SQL(t, "SELECT pg_create_logical_replication_slot('"+slot+"', 'pgoutput')")
	db.Script(t, string(scenario))
	out := db.Query(t, `SELECT encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('`+slot+`', NULL, NULL,
		'proto_version', '1', 'publication_names', 'everything', 'messages', 'true', `+plugin+`)`)
	write(t, filepath.Join("testdata", name+".hex"), out+"\n")
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// readHex reads the messages of one recording.
func readHex(t testing.TB, name string) [][]byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var msgs [][]byte
	for line := range bytes.Lines(b) {
		msg, err := hex.DecodeString(string(bytes.TrimSpace(line)))
		if err != nil {
			t.Fatal(err)
		}
		msgs = append(msgs, msg)
	}
	return msgs
}
