package schema

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace"
)

// Program is a pg_dump that was found on this machine.
type Program struct {
	Path  string
	Major int
}

func (p Program) String() string { return fmt.Sprintf("%d (%s)", p.Major, p.Path) }

const findHint = "install the client programs of PostgreSQL %d (Debian: postgresql-client-%d), " +
	"or name one with --pg-dump PATH, or create the tables yourself and use destination.postgres.schema: existing"

// Find looks for a pg_dump that can read a server of the major version: at
// least as new, and the oldest of those, since the target is mostly older than
// the newest one. With path it takes that program or directory and no other.
func Find(ctx context.Context, path string, major int) (Program, error) {
	candidates := []string{path}
	if path == "" {
		candidates = usualPlaces()
	} else if st, err := os.Stat(path); err == nil && st.IsDir() {
		candidates = []string{filepath.Join(path, "pg_dump")}
	}
	var found []Program
	var failed error
	for _, c := range candidates {
		v, err := versionOf(ctx, c)
		if err != nil {
			failed = err
			continue
		}
		found = append(found, Program{Path: c, Major: v})
	}
	if p, ok := choose(found, major); ok {
		return p, nil
	}
	return Program{}, &millrace.Error{
		Kind: millrace.KindPreflight,
		Op:   "find pg_dump",
		Err:  notFound(path, major, found, failed),
		Hint: fmt.Sprintf(findHint, major, major),
	}
}

// choose takes the oldest program that is new enough; the earlier in the list
// wins among equals.
func choose(found []Program, major int) (Program, bool) {
	var best Program
	for _, p := range found {
		if p.Major >= major && (best.Major == 0 || p.Major < best.Major) {
			best = p
		}
	}
	return best, best.Major != 0
}

func notFound(path string, major int, found []Program, failed error) error {
	switch {
	case path != "" && failed != nil:
		return failed
	case len(found) == 0:
		return fmt.Errorf("none on this machine, and the source is PostgreSQL %d", major)
	}
	var names []string
	for _, p := range found {
		names = append(names, p.String())
	}
	return fmt.Errorf("the source is PostgreSQL %d, which needs pg_dump %d or newer; found: %s",
		major, major, strings.Join(names, ", "))
}

// usualPlaces lists the programs named pg_dump that may be there: that of PATH
// first, then those of the packages of several versions side by side.
func usualPlaces() []string {
	var all []string
	if p, err := exec.LookPath("pg_dump"); err == nil {
		all = append(all, p)
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin/pg_dump",                          // Debian, Ubuntu
		"/usr/pgsql-*/bin/pg_dump",                                   // Red Hat, SUSE
		"/opt/homebrew/opt/postgresql@*/bin/pg_dump",                 // Homebrew
		"/opt/homebrew/opt/libpq/bin/pg_dump",                        //
		"/usr/local/opt/postgresql@*/bin/pg_dump",                    // Homebrew on Intel
		"/usr/local/opt/libpq/bin/pg_dump",                           //
		"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin/pg_dump",    //
		"/Applications/Postgres.app/Contents/Versions/*/bin/pg_dump", //
		"/usr/local/pgsql/bin/pg_dump",                               // built from source
		"/usr/libexec/postgresql*/pg_dump",                           // Alpine
	} {
		matches, err := filepath.Glob(pattern)
		if err != nil {
			continue // the patterns are fixed: it cannot happen
		}
		slices.Sort(matches)
		all = append(all, matches...)
	}
	return append(all, fetchedPrograms()...)
}

// fetchedPrograms are those of the directory that `make rig` fills. It may lie
// where anybody can write, so it counts only where nobody but root and this
// user had a hand in it.
func fetchedPrograms() []string {
	dir := os.Getenv("MILLRACE_RIG")
	if dir == "" && os.Geteuid() == 0 {
		dir = "/var/tmp/millrace-rig"
	}
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return nil
		}
		dir = filepath.Join(cache, "millrace-rig")
	}
	matches, err := filepath.Glob(filepath.Join(dir, "pg", "*", "bin", "pg_dump"))
	if err != nil {
		return nil // a pattern character in the directory's name
	}
	slices.Sort(matches)
	return slices.DeleteFunc(matches, func(p string) bool {
		for q := p; len(q) >= len(dir); q = filepath.Dir(q) {
			if !ownedByUs(q) {
				return true
			}
		}
		return false
	})
}

var versionText = regexp.MustCompile(`\(PostgreSQL\)\D* (\d+)`)

func versionOf(ctx context.Context, path string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("run %s --version: %w", path, err)
	}
	m := versionText.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("run %s --version: %w", path, errors.New("this is not pg_dump"))
	}
	return strconv.Atoi(string(m[1]))
}
