package connector

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/rig"
)

const flowHead = `# What the connector says to Estuary's runtime as the source changes: TestFlowStory
# makes this file of flow.sql (go test ./internal/connector -run TestFlowStory
# -update). What differs from run to run is in angle brackets, long values are cut.
# Of the checkpoints of one session only what they make of the state is here, and what
# is said of one table stands together.
`

// marker is a table that tells when all before it has come. It is not in the story.
const marker = `CREATE TABLE marker (id int PRIMARY KEY, n int); INSERT INTO marker VALUES (1, 0);`

// mark changes the marker and gives what tells that this was captured, and everything
// loaded.
func (r *runtime) mark(t *testing.T) (reached func() bool) {
	t.Helper()
	r.source.SQL(t, "UPDATE marker SET n = n + 1")
	n := r.source.Query(t, "SELECT n FROM marker")
	return func() bool { return string(r.docs["marker"]["1|"]["n"]) == n && r.loaded(t) }
}

// TestFlowStory compares the messages of a few sessions with testdata/flow.txt.
func TestFlowStory(t *testing.T) {
	t.Parallel()
	sql, err := os.ReadFile("testdata/flow.sql")
	if err != nil {
		t.Fatal(err)
	}
	r := &runtime{platform: newPlatform(t, rig.Shared(t, rig.Newest), ""), codec: "json", docs: map[string]map[string]document{}, keys: map[string][]string{}}
	out := bytes.NewBufferString(flowHead)
	for i, step := range strings.Split("\n"+string(sql), "\n-- ")[1:] {
		title, script, _ := strings.Cut(step, "\n")
		script = strings.TrimSpace(script)
		fmt.Fprintf(out, "\n== %s\n%s\n", title, script)
		r.source.Script(t, script)
		if i == 0 {
			r.source.SQL(t, marker)
			r.makeSlot(t)
			r.bind(t)
			s := r.session(t)
			s.send(t, map[string]any{"discover": map[string]any{"config": r.config}})
			x, _ := s.receive(t)
			fmt.Fprintf(out, "$ FLOW_RUNTIME_CODEC=json source-postgres-millrace flow\n< {\"discover\":…}\n")
			for _, b := range x.Discovered.Bindings {
				if b["recommendedName"] != "public/marker" {
					line, err := json.Marshal(map[string]any{"discovered": map[string]any{"bindings": []any{b}}})
					if err != nil {
						t.Fatal(err)
					}
					fmt.Fprintf(out, "> %s\n", line)
				}
			}
			s.end()
		}
		reached := r.mark(t)
		s := r.open(t)
		fmt.Fprintf(out, "$ FLOW_RUNTIME_CODEC=json source-postgres-millrace flow\n< {\"open\":…}\n> {\"opened\":{\"explicitAcknowledgements\":true}}\n")
		lines := make([][]string, len(r.bindings))
		for _, x := range r.capture(t, s, true, reached) {
			switch {
			case x.Captured != nil:
				lines[x.Captured.Binding] = append(lines[x.Captured.Binding], steadyFlow(string(x.line)))
			case x.Schema != nil:
				lines[x.Schema.Binding] = append(lines[x.Schema.Binding], steadyFlow(string(x.line)))
			}
		}
		for n, b := range r.bindings {
			if len(lines[n]) > 0 && b["table"] != "marker" {
				fmt.Fprintf(out, "> %s\n", strings.Join(lines[n], "\n> "))
			}
		}
		s.end()
		state, err := json.Marshal(r.state)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(out, "state %s\n", steadyFlow(string(state)))
	}
	compareFile(t, "testdata/flow.txt", out.Bytes())
}

var (
	unsteadyFlow = regexp.MustCompile(`"(ts_ms|txid|lsn|system_id|timeline|oid|filenode|shape)":("[^"]*"|[0-9]+)`)
	locOf        = regexp.MustCompile(`"loc":\[[0-9]+,([0-9]+),[0-9]+\]`)
	snapshotLoc  = regexp.MustCompile(`("snapshot":true,.*)"loc":\[[0-9]+,[0-9]+,0\]`)
)

// steadyFlow takes out of a message what differs from run to run. Of a place within
// a transaction it leaves the number.
func steadyFlow(line string) string {
	line = snapshotLoc.ReplaceAllString(line, `$1"loc":[<lsn>,<n>,0]`)
	line = locOf.ReplaceAllString(line, `"loc":[<lsn>,$1,<lsn>]`)
	line = unsteadyFlow.ReplaceAllString(line, `"$1":<$1>`)
	return longValue.ReplaceAllStringFunc(line, func(value string) string {
		return fmt.Sprintf(`"%.15s… (%d characters)"`, value[1:], utf8.RuneCountInString(value)-2)
	})
}

// compareFile compares a transcript with the one that is checked in.
func compareFile(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("the messages differ from %s (-file +now):\n%s", file, diff)
	}
}

// flowLoad writes to all tables of the shop.
func (r *runtime) flowLoad(t *testing.T, i int) {
	t.Helper()
	r.source.SQL(t, fmt.Sprintf(`INSERT INTO orders VALUES (%d, 'n', 1) ON CONFLICT DO NOTHING; UPDATE orders SET total = total + 1 WHERE id %% 30 = %d; DELETE FROM items WHERE orders = %d;
		UPDATE items SET line = line + 100 WHERE orders = %d; INSERT INTO log VALUES ('l%d'); UPDATE log SET line = line || '.' WHERE line LIKE 'one%%'`, 2000+i, i%30, i+50, i+150, i))
}

// TestFlowEveryCheckpoint: from whatever checkpoint a capture goes on, with the
// documents up to it, it comes to the source's tables. To go on from one acknowledges
// it; those behind it never were.
func TestFlowEveryCheckpoint(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, "json")
	r.source.SQL(t, marker)
	r.bind(t)
	for i := range 20 {
		r.flowLoad(t, i)
	}
	s := r.open(t)
	all := r.capture(t, s, false, r.mark(t))
	s.end()
	checkpoints := 0
	for i, x := range all {
		if x.Checkpoint == nil {
			continue
		}
		checkpoints++
		again := r.fresh()
		for _, x := range all[:i+1] {
			again.take(t, x)
		}
		s := again.open(t)
		r.flowLoad(t, 20+checkpoints)
		again.capture(t, s, false, again.mark(t))
		s.end()
		again.isSource(t)
	}
	if checkpoints < 3 {
		t.Errorf("only %d checkpoints", checkpoints)
	}
}

// fresh is the same capture before it has begun.
func (r *runtime) fresh() *runtime {
	f := &runtime{platform: r.platform, codec: r.codec, bindings: r.bindings, keys: r.keys, docs: map[string]map[string]document{}}
	for name := range r.docs {
		f.docs[name] = map[string]document{}
	}
	return f
}

// TestFlowKilled: the connector is killed at any message, again and again, while rows
// are written. What was committed with checkpoints goes on to the source's tables.
func TestFlowKilled(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, "proto")
	r.source.SQL(t, marker)
	r.bind(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	kills := 6
	if os.Getenv("MILLRACE_SOAK") != "" {
		kills = 60
	}
	for kill := range kills {
		s := r.open(t)
		for i := range 1 + random.IntN(500) {
			if i%20 == 0 {
				r.flowLoad(t, 1000*kill+i)
			}
			x, ok := s.receive(t)
			if !ok {
				t.Fatalf("the connector ended by itself with code %d", s.proc.ExitCode())
			}
			if r.take(t, x) && random.IntN(2) == 0 {
				s.acknowledge(t)
			}
		}
		if err := s.proc.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		s.end()
		r.pending = nil // the runtime commits them with a checkpoint only
	}
	s := r.open(t)
	r.capture(t, s, true, r.mark(t))
	s.end()
	r.isSource(t)
}
