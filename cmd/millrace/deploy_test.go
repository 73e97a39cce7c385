package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace/web"
)

var deployed = filepath.Join("..", "..", "deploy")

// TestUnit keeps the unit one that systemd takes, with a command line that the
// program takes.
func TestUnit(t *testing.T) {
	path := filepath.Join(deployed, "systemd", "millrace@.service")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^ExecStart=(.+)$`).FindStringSubmatch(string(text))
	if line == nil {
		t.Fatal("no ExecStart")
	}
	if err := parse(call(line[1])); err != nil {
		t.Errorf("%s: %v", line[1], err)
	}
	if !strings.Contains(string(text), "\nRestartPreventExitStatus=2 3\n") {
		t.Error("errors that a restart does not cure must not be repeated")
	}
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze to verify the unit with")
	}
	// It wants the program to be there, and an instance's name.
	unit := filepath.Join(t.TempDir(), "millrace@shop.service")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	there := strings.ReplaceAll(string(text), "/usr/local/bin/millrace", self)
	if err := os.WriteFile(unit, []byte(there), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), verify, "verify", "--man=no", unit).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

// TestContainerfile keeps the images' commands ones that the program takes.
func TestContainerfile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(deployed, "Containerfile"))
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile(`(?m)^CMD (\[.+\])$`).FindAllStringSubmatch(string(text), -1)
	if len(commands) != 2 {
		t.Fatalf("%d commands", len(commands))
	}
	for _, c := range commands {
		var args []string
		if err := json.Unmarshal([]byte(c[1]), &args); err != nil {
			t.Fatal(err)
		}
		if err := parse(args); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
	if !strings.Contains(string(text), "http://"+web.DefaultListen+"/healthz") {
		t.Errorf("the health check does not ask %s, where the program listens by default", web.DefaultListen)
	}
	users := regexp.MustCompile(`(?m)^USER 65532:65532$`).FindAllString(string(text), -1)
	if len(users) != 2 {
		t.Error("an image runs as root")
	}
}
