package blackbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/rig"
)

// built is the program, built once for the test binary.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// coverEnv names a directory for coverage data: the program is then built so
// that each run which ends in order leaves its counters there.
const coverEnv = "MILLRACE_COVER"

// Main is the TestMain of packages that use this one; it does what rig.Main
// does and removes the program at the end.
func Main(m *testing.M) { os.Exit(rig.Run(cleaner{m})) }

type cleaner struct{ m *testing.M }

func (c cleaner) Run() int {
	code := c.m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir) // a temporary directory
	}
	return code
}

// Binary is the path of the program, which the first call builds.
func Binary(t testing.TB) string {
	t.Helper()
	built.once.Do(func() { built.dir, built.err = build() })
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "millrace")
}

func build() (string, error) {
	dir, err := os.MkdirTemp("", "millrace-test-")
	if err != nil {
		return "", err
	}
	args := []string{"build", "-o", filepath.Join(dir, "millrace")}
	if os.Getenv(coverEnv) != "" {
		args = append(args, "-cover", "-coverpkg="+module+"/...")
	}
	out, err := exec.Command("go", append(args, module+"/cmd/millrace")...).CombinedOutput()
	if err != nil {
		return "", errors.Join(fmt.Errorf("go build: %w\n%s", err, out), os.RemoveAll(dir))
	}
	return dir, nil
}

const module = "github.com/millrace/millrace"
