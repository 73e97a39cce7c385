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
	// streamed: protocol version 2 and later, with testdata/streamed.sql.
	streamed bool
}{
	{"pg15-text", 15, "", "'binary', 'false'", false},
	{"pg15-binary", 15, "", "'binary', 'true'", false},
	{"pg16-text", 16, "", "'binary', 'false'", false},
	{"pg16-binary", 16, "", "'binary', 'true'", false},
	{"pg17-text", 17, "", "'binary', 'false'", false},
	{"pg17-binary", 17, "", "'binary', 'true'", false},
	{"pg18-text", 18, "", "'binary', 'false'", false},
	{"pg18-binary", 18, "", "'binary', 'true'", false},
	{"pg18-generated", 18, "WITH (publish_generated_columns = stored)", "'binary', 'false'", false},
	{"pg15-streamed", 15, "", "'binary', 'false', 'proto_version', '3', 'streaming', 'on', 'two_phase', 'on'", true},
	{"pg16-streamed", 16, "", "'binary', 'true', 'proto_version', '4', 'streaming', 'parallel', 'two_phase', 'on'", true},
	{"pg17-streamed", 17, "", "'binary', 'true', 'proto_version', '2', 'streaming', 'on'", true},
	{"pg18-streamed", 18, "", "'binary', 'true', 'proto_version', '4', 'streaming', 'parallel', 'two_phase', 'on'", true},
}

func TestGolden(t *testing.T) {
	for _, rec := range recordings {
		t.Run(rec.name, func(t *testing.T) {
			if *update {
				record(t, rec.name, rec.major, rec.publication, rec.plugin, rec.streamed)
			}
			var got strings.Builder
			inBlock(t, readHex(t, rec.name), func(xid uint32, msg []byte) {
				if xid != 0 {
					fmt.Fprintf(&got, "%d: ", xid)
				}
				fmt.Fprintln(&got, render(t, msg))
			})
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
// Servers before 16 stream only what outgrows logical_decoding_work_mem.
func record(t *testing.T, name string, major int, publication, plugin string, streamed bool) {
	db := rig.Shared(t, major).NewDB(t)
	file, set := "testdata/scenario.sql", ""
	if streamed {
		file = "testdata/streamed.sql"
		set = "SET logical_decoding_work_mem = '64kB'; "
		if major >= 16 {
			set += "SET debug_logical_replication_streaming = immediate; "
		}
	} else {
		plugin += ", 'proto_version', '1'"
	}
	scenario, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	slot := db.Name
	db.SQL(t, "CREATE PUBLICATION everything FOR ALL TABLES "+publication)
	db.SQL(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput', twophase => %t)", slot, strings.Contains(plugin, "two_phase")))
	db.Script(t, "\\set rows "+fmt.Sprint(map[bool]int{true: 1, false: 350}[major >= 16])+"\n"+string(scenario))
	out := db.Query(t, set+`SELECT encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('`+slot+`', NULL, NULL,
		'publication_names', 'everything', 'messages', 'true', `+plugin+`)`)
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
