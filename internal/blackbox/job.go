package blackbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/internal/rig/child"
)

// Options describe a job by what stands in its configuration file.
type Options struct {
	Name   string
	Source *rig.DB
	Target *rig.DB
	// SourceURL and TargetURL, when set, are used instead of the databases'
	// own addresses: a proxy's, or another role's.
	SourceURL, TargetURL string
	Tables               []string // none: all
	Existing             bool     // schema: existing
	Token                string   // of HTTP; none: no token
	HTTP                 string   // more keys of http, such as "actions: true"
	SourceKeys           string   // more keys of source.postgres, such as "streaming: on"
	Extra                string   // more lines of YAML
	Kafka                string   // what stands below destination.kafka, in braces; Target may be nil then
	From                 string   // what stands below source.kafka, in braces; Source is where tokens come from then
}

// Job is one job of the program: its configuration and its latest process.
type Job struct {
	Name    string
	source  *rig.DB
	target  *rig.DB
	binary  string
	config  string
	logPath string
	env     []string
	token   string
	proc    *child.Process
}

// NewJob writes the configuration. Nothing runs yet; what runs at the test's
// end is stopped then.
func NewJob(t testing.TB, o Options) *Job {
	t.Helper()
	dir := t.TempDir()
	j := &Job{
		Name: o.Name, source: o.Source, target: o.Target, binary: Binary(t),
		config: filepath.Join(dir, o.Name+".yaml"), logPath: filepath.Join(dir, o.Name+".log"),
		env: append(environment(o.Source), "CACHE_DIRECTORY="+dir), token: o.Token,
	}
	if err := os.WriteFile(j.config, []byte(o.yaml()), 0o600); err != nil {
		t.Fatal(err)
	}
	j.stopAtEnd(t)
	return j
}

// Follow says that another server is the source now.
func (j *Job) Follow(source *rig.DB) { j.source = source }

// Twin is another instance of the same job: the same configuration, a process
// and a log of its own.
func (j *Job) Twin(t testing.TB) *Job {
	t.Helper()
	twin := *j
	twin.proc = nil
	twin.logPath = filepath.Join(t.TempDir(), j.Name+"-twin.log")
	twin.stopAtEnd(t)
	return &twin
}

func (j *Job) stopAtEnd(t testing.TB) {
	t.Cleanup(func() {
		if j.Running() {
			j.Signal(t, syscall.SIGCONT)
			j.end(t, syscall.SIGTERM)
		}
		if t.Failed() {
			t.Logf("log of job %s ends with:\n%s", j.Name, j.Log(40))
		}
	})
}

func (o Options) yaml() string {
	source, target, schema := o.SourceURL, o.TargetURL, "create"
	if source == "" {
		source = o.Source.URL()
	}
	if target == "" && o.Kafka == "" {
		target = o.Target.URL()
	}
	if o.Existing {
		schema = "existing"
	}
	tables := o.Tables
	if tables == nil {
		tables = []string{"*.*"}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "job: %s\n", o.Name)
	keys := o.SourceKeys
	if keys != "" {
		keys = ", " + keys
	}
	if o.From != "" {
		fmt.Fprintf(&b, "source:\n  kafka: %s\n", o.From)
	} else {
		fmt.Fprintf(&b, "source:\n  postgres: {url: %s, tables: %s%s}\n", quote(source), quote(tables), keys)
	}
	if o.Kafka != "" {
		fmt.Fprintf(&b, "destination:\n  kafka: %s\n", o.Kafka)
	} else {
		fmt.Fprintf(&b, "destination:\n  postgres: {url: %s, schema: %s}\n", quote(target), schema)
	}
	more := o.HTTP
	if more != "" {
		more = ", " + more
	}
	fmt.Fprintf(&b, "http: {listen: \"127.0.0.1:0\", token: %s%s}\n%s", quote(o.Token), more, o.Extra)
	return b.String()
}

// quote gives JSON, which is YAML.
func quote(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and lists of strings
	}
	return string(b)
}

// environment lets the program find pg_dump of the source's version, and none
// of the settings of whoever runs the tests.
func environment(source *rig.DB) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "PG") || strings.HasPrefix(kv, "MILLRACE_") || strings.HasPrefix(kv, "PATH=")
	})
	env = append(env, "NO_COLOR=1", "PATH="+filepath.Dir(source.Server.Bin("pg_dump"))+string(os.PathListSeparator)+os.Getenv("PATH"))
	if dir := os.Getenv(coverEnv); dir != "" {
		env = append(env, "GOCOVERDIR="+dir)
	}
	return env
}

// Start starts `run`; `--bootstrap` is for the arguments.
func (j *Job) Start(t testing.TB, args ...string) {
	t.Helper()
	if j.Running() {
		t.Fatalf("job %s runs already", j.Name)
	}
	log, err := os.OpenFile(j.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(j.binary, append([]string{"run", "-c", j.config}, args...)...)
	cmd.Env = j.env
	cmd.Stdout, cmd.Stderr = log, log
	if j.proc, err = child.Start(cmd, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// Running tells whether the process that Start started is there.
func (j *Job) Running() bool { return j.proc != nil && j.proc.Alive() }

// PID is the process number of the latest process.
func (j *Job) PID() int { return j.proc.PID() }

// ExitCode is that of the latest process; it waits for its end.
func (j *Job) ExitCode() int { return j.proc.ExitCode() }

// Kill ends the process with SIGKILL.
func (j *Job) Kill(t testing.TB) { t.Helper(); j.end(t, syscall.SIGKILL) }

// Stop ends it as an operator does and gives the exit code.
func (j *Job) Stop(t testing.TB) int { t.Helper(); j.end(t, syscall.SIGTERM); return j.ExitCode() }

// Signal sends a signal, such as SIGSTOP and SIGCONT.
func (j *Job) Signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := j.proc.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
}

// stopTimeout is what the program promises for SIGTERM, and some more for a
// machine that is busy with other tests.
const stopTimeout = 20 * time.Second

func (j *Job) end(t testing.TB, sig syscall.Signal) {
	t.Helper()
	j.Signal(t, sig)
	select {
	case <-j.proc.Done():
		return
	case <-time.After(stopTimeout):
	}
	_ = j.proc.Signal(syscall.SIGKILL) // the test fails all the same
	<-j.proc.Done()
	t.Errorf("job %s did not end within %v after %v", j.Name, stopTimeout, sig)
}

// Result is what a verb printed and how it ended.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Run runs a verb of the job to its end, such as "wait", "--now".
func (j *Job) Run(t testing.TB, verb string, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, j.binary, append([]string{verb, "-c", j.config}, args...)...)
	cmd.Env = j.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("%s: %v\n%s", verb, errors.Join(err, ctx.Err()), stderr.String())
	}
	return Result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// The exit codes of the contract.
const (
	Done  = 0
	No    = 1
	Usage = 2
	Stuck = 3 // error or resync_required
)

// Refusal is what the record of a job says that has ended by itself with the
// code for "a restart alone does not help", and an error if it has not, or if
// its record lacks a reason or a hint.
func (j *Job) Refusal(t testing.TB) (string, error) {
	t.Helper()
	rig.Eventually(t, stopTimeout, func() bool { return !j.Running() }, "the process ends by itself")
	if code := j.ExitCode(); code != Stuck {
		return "", fmt.Errorf("exit code %d, want %d", code, Stuck)
	}
	row := j.target.Query(t, "SELECT state, coalesce(reason, ''), coalesce(hint, '') FROM millrace.job WHERE job = '"+j.Name+"'")
	f := strings.SplitN(row, "|", 3)
	if len(f) != 3 || f[0] != "error" && f[0] != "resync_required" || f[1] == "" || f[2] == "" {
		return "", fmt.Errorf("the record says %q: want a state, a reason and a hint", row)
	}
	if !strings.Contains(j.Log(20), "hint:") {
		return "", errors.New("no hint was printed")
	}
	return f[0] + ": " + f[1], nil
}

// Log gives the last n lines that the processes printed.
func (j *Job) Log(n int) string {
	b, err := os.ReadFile(j.logPath)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
