package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/rig"
)

var update = flag.Bool("update", false, "rewrite golden files")

// shared runs the tests with the servers that the scripts share.
type shared struct{ m *testing.M }

func (s shared) Run() int { return rig.Run(s.m) }

func TestMain(m *testing.M) {
	testscript.Main(shared{m}, map[string]func(){"millrace": main})
}

// The versions between which the scripts replicate.
const (
	sourceMajor = 17
	targetMajor = 18
)

// TestScripts runs testdata/script. Each script has two databases: the source
// in $MILLRACE_FROM and the target in $MILLRACE_TO, and a job, $JOB, named
// after the source.
func TestScripts(t *testing.T) { runScripts(t, "script", "") }

// TestKafkaScripts runs testdata/kafka, with the address of a broker in $BROKER.
func TestKafkaScripts(t *testing.T) {
	if !rig.HaveKafka() {
		t.Skip("no Kafka: make rig fetches it")
	}
	runScripts(t, "kafka", rig.SharedKafka(t).Brokers()[0])
}

func runScripts(t *testing.T, dir, broker string) {
	t.Helper()
	source, target := rig.Shared(t, sourceMajor), rig.Shared(t, targetMajor)
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", dir),
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			tb := e.T().(testing.TB) //nolint:forcetypeassert // testscript.Run was given a *testing.T
			from, to := source.NewDB(tb), target.NewDB(tb)
			for _, name := range []string{"MILLRACE_FROM", "SOURCE_URL"} {
				e.Setenv(name, from.URL())
			}
			for _, name := range []string{"MILLRACE_TO", "TARGET_URL"} {
				e.Setenv(name, to.URL())
			}
			e.Setenv("OTHER_SERVER", target.URL("postgres"))
			e.Setenv("JOB", from.Name)
			e.Setenv("BROKER", broker)
			e.Setenv("SOURCE_PORT", strconv.Itoa(source.Port()))
			e.Setenv("TARGET_PORT", strconv.Itoa(target.Port()))
			e.Setenv("TARGET_DB", to.Name)
			e.Setenv("PGBIN", filepath.Dir(source.Bin("psql")))
			e.Setenv("PATH", e.Getenv("PATH")+string(filepath.ListSeparator)+filepath.Dir(source.Bin("psql")))
			e.Values["psql"] = source.Bin("psql")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"sql":       sqlCommand,
			"await":     awaitCommand,
			"exits":     exitsCommand,
			"consume":   consumeCommand,
			"laststate": lastStateCommand,
			"expand": func(ts *testscript.TestScript, _ bool, args []string) {
				text := os.Expand(ts.ReadFile(args[0]), ts.Getenv)
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
			},
			"envfile": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
			},
		},
	})
}

func url(ts *testscript.TestScript, which string) string {
	switch which {
	case "source":
		return ts.Getenv("SOURCE_URL")
	case "target":
		return ts.Getenv("TARGET_URL")
	}
	ts.Fatalf("want source or target, not %q", which)
	return ""
}

func psql(ts *testscript.TestScript, which, sql string) []string {
	return []string{ts.Value("psql").(string), "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", url(ts, which), "-c", sql} //nolint:forcetypeassert // set above
}

// sqlCommand is "sql source|target STATEMENTS": stdout is what they give, one
// row a line, columns separated by |.
func sqlCommand(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: sql source|target STATEMENTS")
	}
	call := psql(ts, args[0], args[1])
	if err := ts.Exec(call[0], call[1:]...); (err != nil) != neg {
		ts.Fatalf("sql %s: %v", args[0], err)
	}
}

// awaitCommand is "await source|target RESULT QUERY": it waits until the query
// gives the result.
func awaitCommand(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: await source|target RESULT QUERY")
	}
	call := psql(ts, args[0], args[2])
	deadline := time.Now().Add(patience)
	for {
		out, err := exec.Command(call[0], call[1:]...).CombinedOutput() //nolint:gosec // psql of the rig
		if got := strings.TrimSpace(string(out)); err == nil && got == args[1] {
			return
		} else if time.Now().After(deadline) {
			ts.Fatalf("await %s: got %q, want %q", args[0], got, args[1])
		}
		<-time.After(20 * time.Millisecond)
	}
}

// exitsCommand is "exits CODE PROGRAM ARGS…": the program must end with the code.
func exitsCommand(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS…")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// consumeCommand is "consume N TOPIC FILE": it writes the first N records of a topic
// that a read_committed consumer sees, one "KEY VALUE" a line.
func consumeCommand(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	cl, err := kgo.NewClient(kgo.SeedBrokers(ts.Getenv("BROKER")), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeTopics(args[1]), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ts.Check(err)
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out strings.Builder
	for n := 0; n < want; {
		fetches := cl.PollFetches(ctx)
		ts.Check(ctx.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			value := "null"
			if r.Value != nil {
				value = string(r.Value)
			}
			fmt.Fprintf(&out, "%s %s\n", r.Key, value)
			n++
		})
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), []byte(out.String()), 0o600))
}

// lastStateCommand is "laststate MESSAGES FILE": it writes what a platform gives
// back, the last STATE of a connector's messages, as a list.
func lastStateCommand(ts *testscript.TestScript, _ bool, args []string) {
	var last json.RawMessage
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		var m struct {
			Type  string          `json:"type"`
			State json.RawMessage `json:"state"`
		}
		ts.Check(json.Unmarshal([]byte(line), &m))
		if m.Type == "STATE" {
			last = m.State
		}
	}
	if last == nil {
		ts.Fatalf("no STATE in %s", args[0])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte("["+string(last)+"]"), 0o600))
}

// TestReference keeps docs/cli.md equal to what the binary says of itself.
func TestReference(t *testing.T) {
	a := &app{stdout: os.Stdout, stderr: os.Stderr}
	golden(t, filepath.Join("..", "..", "docs", "cli.md"), reference(a.root()))
}

// golden compares with a file; -update rewrites it.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil { //nolint:gosec // a document
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("%s is not what `millrace docs` prints: go test ./cmd/millrace -run %s -update", file, t.Name())
	}
}
