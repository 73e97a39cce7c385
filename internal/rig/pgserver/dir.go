package pgserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Dir is where binaries, templates and the data of running servers are:
// $MILLRACE_RIG, or a directory that fits the user.
func Dir() string {
	if d := os.Getenv("MILLRACE_RIG"); d != "" {
		return d
	}
	if os.Geteuid() == 0 {
		// Not below /root: the servers' account has to get there.
		return "/var/tmp/millrace-rig"
	}
	if d, err := os.UserCacheDir(); err == nil {
		return filepath.Join(d, "millrace-rig")
	}
	return filepath.Join(os.TempDir(), "millrace-rig-"+strconv.Itoa(os.Geteuid()))
}

// debian15 is where Debian's postgresql-15 package has its programs.
const debian15 = "/usr/lib/postgresql/15/bin"

// BinDir is the directory with the programs of one major version. It need not
// exist: see [Have].
func BinDir(major int) string {
	fetched := filepath.Join(Dir(), "pg", strconv.Itoa(major), "bin")
	if major == 15 && !executable(filepath.Join(fetched, "postgres")) {
		return debian15
	}
	return fetched
}

// ICUMajor is the version of which there may be a second build, which knows the collations of
// ICU, as those of distributions do. It consists of the server alone; clients are the other one's.
const ICUMajor = 18

// ICUDir is where that build is.
func ICUDir() string { return filepath.Join(Dir(), "pg", strconv.Itoa(ICUMajor)+"-icu") }

// HaveICU tells whether it can be started.
func HaveICU() bool {
	return Have(ICUMajor) && executable(filepath.Join(ICUDir(), "bin", "postgres")) && executable(filepath.Join(ICUDir(), "bin", "initdb"))
}

// Have tells whether servers of the major version can be started.
func Have(major int) bool {
	return executable(filepath.Join(BinDir(major), "postgres")) && executable(filepath.Join(BinDir(major), "initdb"))
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

// libraryPath is the environment entry that the server needs to load its own
// libraries: the contrib modules carry no run path and would pick up an older
// libpq of the system ("undefined symbol: PQcancelStart").
func libraryPath(bin string) string {
	if bin == debian15 {
		return ""
	}
	return "LD_LIBRARY_PATH=" + filepath.Join(filepath.Dir(bin), "lib")
}

// makeDirs creates the directories below Dir. The one for data belongs to the
// account, the locks to whoever starts servers.
func makeDirs(acc *account) error {
	for _, sub := range []string{"", "pg", "lock", "data", "template"} {
		d := filepath.Join(Dir(), sub)
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
		if sub == "data" || sub == "template" {
			if err := acc.own(d); err != nil {
				return err
			}
		}
	}
	return acc.canReach(Dir())
}

// lock takes an exclusive lock on a file below Dir()/lock and waits for it. The
// kernel gives it back when the process dies; a child does not inherit it.
func lock(name string) (*os.File, error) { return flock(name, syscall.LOCK_EX) }

// tryLock is lock without waiting: it returns nil, nil if somebody else has it.
func tryLock(name string) (*os.File, error) {
	f, err := flock(name, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, nil
	}
	return f, err
}

func flock(name string, how int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(Dir(), "lock", name), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close() // only the lock mattered
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}
