package pgserver

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Every cluster has a directory Dir()/data/NAME and a file Dir()/lock/data-NAME
// that its owner keeps locked for as long as it lives. A directory whose lock
// is free was left behind by a process that died.

// The registry lock is held while a cluster's lock file is made and while
// leftovers are looked for, so that nobody takes a new one for a leftover.
const registry = "registry"

// home is the place of one cluster.
type home struct {
	dir  string // Dir()/data/NAME, with the data directory and the log in it
	lock *os.File
}

func newHome(acc *account, name string) (*home, error) {
	r, err := lock(registry)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	dir, err := os.MkdirTemp(filepath.Join(Dir(), "data"), name+"-")
	if err != nil {
		return nil, err
	}
	l, err := lock("data-" + filepath.Base(dir))
	if err != nil {
		return nil, err
	}
	h := &home{dir: dir, lock: l}
	return h, errors.Join(os.Chmod(dir, 0o755), acc.own(dir))
}

func (h *home) remove() error {
	err := os.RemoveAll(h.dir)
	return errors.Join(err, os.Remove(h.lock.Name()), h.lock.Close())
}

var sweepOnce = sync.OnceValue(sweep)

// sweep ends the servers and removes the files of processes that died without
// doing so themselves.
func sweep() error {
	r, err := lock(registry)
	if err != nil {
		return err
	}
	defer r.Close()
	// By the lock files, not by the directories: one that has none is not ours.
	locks, err := filepath.Glob(filepath.Join(Dir(), "lock", "data-*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range locks {
		dir := filepath.Join(Dir(), "data", strings.TrimPrefix(filepath.Base(name), "data-"))
		l, err := tryLock(filepath.Base(name))
		if err != nil {
			errs = append(errs, err)
		}
		if l == nil {
			continue
		}
		h := &home{dir: dir, lock: l}
		errs = append(errs, endOrphan(filepath.Join(dir, "data")), h.remove())
	}
	return errors.Join(errs...)
}

// endOrphan stops the postmaster that runs on a data directory, if one does.
// The kernel has sent it a signal when its owner died; this is for the one that
// could not act on it, being stopped for instance.
func endOrphan(data string) error {
	pid := postmasterPID(data)
	if pid == 0 || !worksIn(pid, data) {
		return nil
	}
	for _, child := range children(pid) {
		_ = syscall.Kill(child, syscall.SIGKILL) // may be gone already
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	for range 200 {
		if !worksIn(pid, data) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("an orphaned postmaster on " + data + " does not end")
}

// postmasterPID reads the first line of postmaster.pid; 0 if there is none.
func postmasterPID(data string) int {
	b, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid < 2 {
		return 0
	}
	return pid
}

// worksIn tells whether the process has the directory as its working directory,
// as a postmaster has its data directory: a process number alone proves
// nothing, since numbers are used again.
func worksIn(pid int, dir string) bool {
	cwd, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/cwd")
	if err != nil {
		return false
	}
	want, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	return cwd == want
}

// children lists the processes whose parent is pid.
func children(pid int) []int {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	var found []int
	for _, s := range stats {
		b, err := os.ReadFile(s)
		if err != nil {
			continue // ended meanwhile
		}
		// pid (comm) state ppid …; comm may contain blanks and parentheses.
		_, rest, ok := strings.Cut(string(b[max(0, strings.LastIndexByte(string(b), ')')):]), " ")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 2 || fields[1] != strconv.Itoa(pid) {
			continue
		}
		if child, err := strconv.Atoi(filepath.Base(filepath.Dir(s))); err == nil {
			found = append(found, child)
		}
	}
	return found
}
