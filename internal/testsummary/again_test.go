package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAgain runs a module whose tests fail the first time in several ways: only those
// that waited for too long get another chance.
func TestAgain(t *testing.T) {
	for name, c := range map[string]struct {
		body string // of a test that runs for the first time
		ok   bool
		last string
	}{
		"a wait":             {`t.Fatal("not within 1s: the moon")`, true, "late: late.TestIt: waited for too long beside other tests, and passed alone"},
		"a wait in a part":   {`t.Run("a", func(t *testing.T) { t.Fatal("not within 1s: the moon") })`, true, "late: late.TestIt: waited for too long beside other tests, and passed alone"},
		"a wrong value":      {`t.Error("1 row is missing")`, false, "failed: late.TestIt"},
		"a wait and a value": {`t.Run("a", func(t *testing.T) { t.Fatal("not within 1s: the moon") }); t.Run("b", func(t *testing.T) { t.Error("1 row is missing") })`, false, "failed: late.TestIt/b"},
		"a panic":            {`panic("x")`, false, "failed: late.TestIt"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir)
			t.Setenv("GOFLAGS", "")
			write(t, "go.mod", "module "+modulePath+"\n\ngo 1.26\n")
			write(t, "late/late_test.go", `package late

import ("os"; "testing")

func TestIt(t *testing.T) {
	if f, err := os.OpenFile("ran", os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		_ = f.Close()
		`+c.body+`
	}
}

func TestOther(*testing.T) {}
`)
			var out strings.Builder
			ok, err := run(t.Context(), []string{"-count=1", "./..."}, &out)
			if err != nil || ok != c.ok || !strings.Contains(out.String(), c.last+"\n") {
				t.Errorf("ok=%v, %v\n%s", ok, err, &out)
			}
		})
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
