package connector

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestInstalledName: under its other name the program is the connector alone, as a
// copy and as a link.
func TestInstalledName(t *testing.T) {
	t.Parallel()
	p := shopWithSlot(t, nil)
	program, err := os.ReadFile(p.binary)
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"copy", "link"} {
		path := filepath.Join(t.TempDir(), "source-postgres-millrace")
		if how == "link" {
			err = os.Symlink(p.binary, path)
		} else {
			err = os.WriteFile(path, program, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
		config := p.file(t, "config.json", p.config)
		for verb, args := range map[string][]string{
			"SPEC": {"spec"}, "CONNECTION_STATUS": {"check", "--config", config}, "CATALOG": {"discover", "--config", config},
			"RECORD": append([]string{"read", "--config", config}, p.readArgs(t)...),
		} {
			out, err := exec.CommandContext(t.Context(), path, args...).Output()
			if err != nil {
				t.Fatalf("%s: %s: %v", how, args[0], err)
			}
			found := false
			for _, m := range parse(t, out) {
				found = found || m.Type == verb
			}
			if !found {
				t.Errorf("%s: %s gave no %s", how, args[0], verb)
			}
		}
		if out, err := exec.CommandContext(t.Context(), path, "bootstrap").CombinedOutput(); err == nil {
			t.Errorf("%s: it has the engine's verbs: %s", how, out)
		}
	}
}

// TestFlowStopsBeforeOpen: a SIGTERM ends a process that waits for a request.
func TestFlowStopsBeforeOpen(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, "json")
	s := r.session(t)
	s.send(t, map[string]any{"spec": map[string]any{}})
	if x, ok := s.receive(t); !ok || x.Spec == nil {
		t.Fatal("no spec")
	}
	began := time.Now()
	if err := s.proc.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-s.proc.Done()
	if code, took := s.proc.ExitCode(), time.Since(began); code != 0 || took > 8*time.Second { // 9 s end it by force
		t.Errorf("exit code %d after %v", code, took)
	}
}
