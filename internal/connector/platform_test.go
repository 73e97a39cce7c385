package connector

import (
	"bufio"
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
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

func TestMain(m *testing.M) { blackbox.Main(m) }

// patience is for a machine that is busy with everything else.
const patience = 2 * time.Minute

// platform is a data platform with one connection: the configuration, the catalog
// and the state as it would keep them.
type platform struct {
	source  *rig.DB
	binary  string
	dir     string
	config  map[string]any
	streams []map[string]any  // configured
	states  map[string]string // the last committed STATE of each stream, or under "" of all
}

func newPlatform(t *testing.T, server *rig.Postgres, schema string) *platform {
	t.Helper()
	p := &platform{source: server.NewDB(t), binary: blackbox.Binary(t), dir: t.TempDir(), states: map[string]string{}}
	p.source.Script(t, schema)
	p.config = map[string]any{"url": p.source.URL(), "schemas": []string{"public"}}
	return p
}

type config map[string]any

// shopWithSlot is a platform that has discovered the shop and can begin, configured
// beyond the defaults.
func shopWithSlot(t *testing.T, beyond config) *platform {
	t.Helper()
	p := newPlatform(t, rig.Shared(t, rig.Newest), shop)
	maps.Copy(p.config, beyond)
	p.makeSlot(t)
	p.discover(t)
	return p
}

// makeSlot is what an operator does before the first sync.
func (p *platform) makeSlot(t *testing.T) {
	t.Helper()
	p.source.SQL(t, "CREATE PUBLICATION "+p.slot()+" FOR ALL TABLES")
	p.source.SQL(t, "SELECT pg_create_logical_replication_slot('"+p.slot()+"', 'pgoutput')")
}

func (p *platform) slot() string { return "millrace_" + p.source.Name }

// message is any message, as far as the tests look into it.
type message struct {
	Type   string `json:"type"`
	Record struct {
		Namespace string                     `json:"namespace"`
		Stream    string                     `json:"stream"`
		Data      map[string]json.RawMessage `json:"data"`
	} `json:"record"`
	State  json.RawMessage `json:"state"`
	Status struct {
		Status  string `json:"status"`
		Message string `json:"message"`
	} `json:"connectionStatus"`
	Catalog struct {
		Streams []map[string]any `json:"streams"`
	} `json:"catalog"`
	Trace struct {
		Type  string `json:"type"`
		Error struct {
			Message     string `json:"message"`
			FailureType string `json:"failure_type"`
			Stream      struct {
				Name string `json:"name"`
			} `json:"stream_descriptor"`
		} `json:"error"`
		Status struct {
			Stream struct {
				Name string `json:"name"`
			} `json:"stream_descriptor"`
			Status string `json:"status"`
		} `json:"stream_status"`
	} `json:"trace"`
	Spec json.RawMessage `json:"spec"`
}

func (p *platform) file(t *testing.T, name string, v any) string {
	t.Helper()
	data, ok := v.([]byte)
	if !ok {
		var err error
		if data, err = json.Marshal(v); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(p.dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs a verb to its end.
func (p *platform) run(t *testing.T, verb string, args ...string) (messages []message, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	args = append([]string{"connector", verb, "--config", p.file(t, "config.json", p.config)}, args...)
	cmd := exec.CommandContext(ctx, p.binary, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // it says where it hangs
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("%s: %v\n%s", verb, errors.Join(err, ctx.Err()), stderr.String())
	}
	return parse(t, stdout.Bytes()), cmd.ProcessState.ExitCode()
}

func parse(t *testing.T, out []byte) (messages []message) {
	t.Helper()
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatalf("a line is no message: %v\n%.300s", err, lines.Text())
		}
		messages = append(messages, m)
	}
	return messages
}

// discover configures every stream: incrementally where that is offered.
func (p *platform) discover(t *testing.T) {
	t.Helper()
	messages, code := p.run(t, "discover")
	if code != 0 {
		t.Fatalf("discover: exit code %d", code)
	}
	p.streams = nil
	for _, m := range messages {
		for _, s := range m.Catalog.Streams {
			mode := "full_refresh"
			if slices.Contains(s["supported_sync_modes"].([]any), any("incremental")) {
				mode = "incremental"
			}
			p.streams = append(p.streams, map[string]any{"stream": s, "sync_mode": mode, "destination_sync_mode": "append_dedup"})
		}
	}
}

// only takes other streams out of the catalog.
func (p *platform) only(names ...string) {
	p.streams = slices.DeleteFunc(p.streams, func(s map[string]any) bool {
		return !slices.Contains(names, s["stream"].(map[string]any)["name"].(string))
	})
}

// readArgs are the arguments of read with the state that the platform has.
func (p *platform) readArgs(t *testing.T) []string {
	t.Helper()
	state := "[" + strings.Join(slices.Sorted(maps.Values(p.states)), ",") + "]"
	return []string{"--catalog", p.file(t, "catalog.json", map[string]any{"streams": p.streams}), "--state", p.file(t, "state.json", []byte(state))}
}

// sync reads once; the state that comes last is committed.
func (p *platform) sync(t *testing.T) []message {
	t.Helper()
	messages, code := p.run(t, "read", p.readArgs(t)...)
	if code != 0 {
		t.Fatalf("read: exit code %d: %s", code, failure(messages))
	}
	for _, m := range messages {
		p.commit(m)
	}
	return messages
}

// commit keeps a STATE.
func (p *platform) commit(m message) {
	if m.Type != "STATE" {
		return
	}
	var of struct {
		Stream struct {
			Descriptor struct {
				Name string `json:"name"`
			} `json:"stream_descriptor"`
		} `json:"stream"`
	}
	if json.Unmarshal(m.State, &of) == nil {
		p.states[of.Stream.Descriptor.Name] = string(m.State)
	}
}

// failure is what a TRACE says about an error.
func failure(messages []message) string {
	for _, m := range messages {
		if m.Trace.Type == "ERROR" {
			return m.Trace.Error.FailureType + ": " + m.Trace.Error.Message
		}
	}
	return "no TRACE ERROR"
}

// reader keeps the newest record of each key, as a destination that deduplicates
// does, and forgets those that are deleted.
type reader struct {
	keys   map[string][]string // of each stream
	rows   map[string]map[string]string
	cursor map[string]map[string]int64 // of the newest record of each key
}

func (p *platform) reader() *reader {
	r := &reader{keys: map[string][]string{}, rows: map[string]map[string]string{}, cursor: map[string]map[string]int64{}}
	for _, s := range p.streams {
		stream := s["stream"].(map[string]any)
		name := stream["name"].(string)
		r.rows[name], r.cursor[name] = map[string]string{}, map[string]int64{}
		key, chosen := s["primary_key"].([]any)
		if !chosen {
			key, _ = stream["source_defined_primary_key"].([]any)
		}
		for _, path := range key {
			r.keys[name] = append(r.keys[name], path.([]any)[0].(string))
		}
	}
	return r
}

// take reads messages. Of each key the record counts that has the highest cursor, in
// whatever order they come; where there is none, the last one.
func (r *reader) take(messages []message) {
	for _, m := range messages {
		if m.Type != "RECORD" {
			continue
		}
		name, data := m.Record.Stream, m.Record.Data
		var key strings.Builder
		for _, column := range r.keys[name] {
			fmt.Fprintf(&key, "%s|", data[column])
		}
		if text := data["_ab_cdc_cursor"]; text != nil {
			var cursor int64
			if json.Unmarshal(text, &cursor) != nil || cursor <= r.cursor[name][key.String()] {
				continue
			}
			r.cursor[name][key.String()] = cursor
		}
		if deleted := data["_ab_cdc_deleted_at"]; deleted != nil && string(deleted) != "null" {
			delete(r.rows[name], key.String())
			continue
		}
		var row strings.Builder
		for _, column := range slices.Sorted(maps.Keys(data)) {
			if !strings.HasPrefix(column, "_ab_cdc_") {
				fmt.Fprintf(&row, "%s=%s ", column, data[column])
			}
		}
		r.rows[name][key.String()] = row.String()
	}
}

// table gives the rows of a stream in order.
func (r *reader) table(name string) []string {
	return slices.Sorted(maps.Values(r.rows[name]))
}

// equals compares the reader with one that reads everything anew from the database.
func (p *platform) equals(t *testing.T, r *reader) {
	t.Helper()
	p.whole(t).equals(t, r)
}

// whole reads everything anew, by way of another slot.
func (p *platform) whole(t *testing.T) *reader {
	t.Helper()
	fresh := &platform{source: p.source, binary: p.binary, dir: t.TempDir(), states: map[string]string{}, streams: p.streams, config: maps.Clone(p.config)}
	fresh.config["replication_method"] = map[string]any{"replication_slot": p.slot() + "_x", "publication": p.slot()}
	p.source.SQL(t, "SELECT pg_create_logical_replication_slot('"+p.slot()+"_x', 'pgoutput')")
	defer p.source.SQL(t, "SELECT pg_drop_replication_slot('"+p.slot()+"_x')")
	want := p.reader()
	want.take(fresh.sync(t))
	return want
}

// equals compares what the source has with a reader.
func (r *reader) equals(t *testing.T, got *reader) {
	t.Helper()
	for name := range got.rows {
		if diff := cmp.Diff(r.table(name), got.table(name)); diff != "" {
			t.Errorf("stream %s differs from the source (-source +reader):\n%.3000s", name, diff)
		}
	}
}
