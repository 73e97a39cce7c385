package main

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

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
func TestScripts(t *testing.T) {
	source, target := rig.Shared(t, sourceMajor), rig.Shared(t, targetMajor)
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			tb := e.T().(testing.TB) //nolint:forcetypeassert // testscript.Run was given a *testing.T
			from, to := source.NewDB(tb), target.NewDB(tb)
			e.Setenv("MILLRACE_FROM", from.URL())
			e.Setenv("MILLRACE_TO", to.URL())
			e.Setenv("OTHER_SERVER", target.URL("postgres"))
			e.Setenv("JOB", from.Name)
			e.Setenv("SOURCE_PORT", strconv.Itoa(source.Port()))
			e.Setenv("TARGET_PORT", strconv.Itoa(target.Port()))
			e.Setenv("TARGET_DB", to.Name)
			e.Setenv("PGBIN", filepath.Dir(source.Bin("psql")))
			e.Setenv("PATH", e.Getenv("PATH")+string(filepath.ListSeparator)+filepath.Dir(source.Bin("psql")))
			e.Values["psql"] = source.Bin("psql")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"sql":   sqlCommand,
			"await": awaitCommand,
			"exits": exitsCommand,
			"envfile": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
			},
		},
	})
}

func url(ts *testscript.TestScript, which string) string {
	switch which {
	case "source":
		return ts.Getenv("MILLRACE_FROM")
	case "target":
		return ts.Getenv("MILLRACE_TO")
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
