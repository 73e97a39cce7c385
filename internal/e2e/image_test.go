package e2e

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/internal/rig"
)

// slimImage is what the slim image of deploy/Containerfile has: a root with the program,
// the certificates, and the mounted configuration, nothing of which its user may write.
type slimImage struct {
	root   string
	binary string
	uid    uint32
	entry  []string // ENTRYPOINT
	cmd    []string // CMD
}

var (
	stage = regexp.MustCompile(`(?ms)^FROM scratch AS slim\n(.*?)^FROM`)
	user  = regexp.MustCompile(`(?m)^USER (\d+):\d+$`)
)

func newImage(t *testing.T, config string) *slimImage {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "Containerfile"))
	if err != nil {
		t.Fatal(err)
	}
	slim := stage.FindStringSubmatch(string(text))
	if slim == nil {
		t.Fatal("deploy/Containerfile has no stage slim")
	}
	i := &slimImage{root: filepath.Join(t.TempDir(), "root")}
	list := func(word string, to *[]string) {
		m := regexp.MustCompile(`(?m)^` + word + ` (\[.+\])$`).FindStringSubmatch(slim[1])
		if m == nil {
			t.Fatalf("no %s", word)
		}
		if err := json.Unmarshal([]byte(m[1]), to); err != nil {
			t.Fatal(err)
		}
	}
	list("ENTRYPOINT", &i.entry)
	list("CMD", &i.cmd)
	id, err := strconv.ParseUint(user.FindStringSubmatch(slim[1])[1], 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	i.uid = uint32(id)
	i.build(t, string(text))
	i.put(t, "/etc/ssl/certs/ca-certificates.crt", nil, 0o644)
	i.put(t, i.cmd[len(i.cmd)-1], []byte(config), 0o644)
	return i
}

// build builds the program as the Containerfile does.
func (i *slimImage) build(t *testing.T, text string) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .*) -o /millrace (\./cmd/millrace)$`).FindStringSubmatch(text)
	if line == nil {
		t.Fatal("deploy/Containerfile does not build the program")
	}
	i.binary = filepath.Join(i.root, "millrace")
	c := exec.CommandContext(t.Context(), "sh", "-c", line[1]+` -o "$OUT" `+line[2])
	c.Dir, c.Env = filepath.Join("..", ".."), append(os.Environ(), "OUT="+i.binary, "VERSION=container")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line[1], err, out)
	}
	program, err := elf.Open(i.binary)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close() //nolint:errcheck // it was only read
	if libraries, err := program.ImportedLibraries(); err != nil || len(libraries) > 0 {
		t.Errorf("the program needs %q %v", libraries, err)
	}
}

func (i *slimImage) put(t *testing.T, path string, content []byte, mode fs.FileMode) {
	t.Helper()
	path = filepath.Join(i.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // the user of the image reads it
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, mode); err != nil {
		t.Fatal(err)
	}
}

// command is a process of the image, with an environment of its own.
func (i *slimImage) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), i.entry[0], append(slices.Clone(i.entry[1:]), args...)...)
	c.Dir, c.Env = "/", []string{"PATH=/"}
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: i.root, Credential: &syscall.Credential{Uid: i.uid, Gid: i.uid}, Pdeathsig: syscall.SIGKILL}
	return c
}

// files lists all that is in the root.
func (i *slimImage) files(t *testing.T) []string {
	t.Helper()
	var all []string
	if err := filepath.WalkDir(i.root, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, strings.TrimPrefix(path, i.root))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestImage: what the slim image holds is enough. The program is static, runs as a
// user that has no name and may write nothing, with the image's own command line,
// replicates, answers probes, and stops when it is told to.
func TestImage(t *testing.T) {
	if !full() {
		t.Skip("compiles the program and all that it needs once more: MILLRACE_SOAK=1")
	}
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("to change the root, as a container's runtime does, takes root on Linux")
	}
	t.Parallel()
	table := "CREATE TABLE t (id int PRIMARY KEY, v text);"
	p := newPair(t, plan{schema: table + "INSERT INTO t VALUES (1, 'a')", before: table})
	i := newImage(t, fmt.Sprintf("job: %s\nsource: {postgres: {url: %q, tables: [public.t]}}\ndestination: {postgres: {url: %q, schema: existing}}\n"+
		"http: {listen: '127.0.0.1:0'}\nsafety: {heartbeat_interval: 1s}\n", p.Name, p.source.URL(), p.target.URL()))
	before := i.files(t)
	config := i.cmd[len(i.cmd)-1]
	if out, err := i.command(t, "--version").Output(); err != nil || strings.TrimSpace(string(out)) != "millrace container" {
		t.Errorf("--version: %s %v", out, err)
	}
	for _, args := range [][]string{{"check", "-c", config}, {"bootstrap", "-c", config}} {
		if out, err := i.command(t, args...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	var log bytes.Buffer
	run := i.command(t, i.cmd...)
	run.Stdout, run.Stderr = &log, &log
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	p.source.SQL(t, "INSERT INTO t VALUES (2, 'b')")
	var address string
	rig.Eventually(t, patience, func() bool {
		address, _ = p.target.Server.TryQuery(p.target.Name, "SELECT http FROM millrace.runtime") // tried again
		return p.target.Query(t, "SELECT count(*) FROM t") == "2" && address != ""
	}, "the image replicates")
	rig.Eventually(t, patience, func() bool { return probe(t, address, "/readyz") == http.StatusOK }, "it is ready")
	if code := probe(t, address, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
	if err := run.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := run.Wait(); err != nil {
		t.Errorf("%v\n%s", err, log.String())
	}
	if after := i.files(t); !slices.Equal(before, after) {
		t.Errorf("it has written: %q, before %q", after, before)
	}
	if out, err := i.command(t, "cleanup", "--yes", "-c", config).CombinedOutput(); err != nil {
		t.Errorf("cleanup: %v\n%s", err, out)
	}
}

// probe asks as an orchestrator does.
func probe(t *testing.T, address, path string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}
