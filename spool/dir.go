package spool

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A process has a directory of its own, JOB.NUMBER.spool, with a lock that it
// holds while it lives. A second lock, JOB.lock, is held by whoever makes or
// removes directories of the job, so that a directory that is not locked yet is
// not taken for one that was left behind.
const (
	dirSuffix = ".spool"
	suffix    = ".txn"
	lockName  = "lock"
)

var jobName = regexp.MustCompile(`^[a-z0-9_]+$`)

// claim makes and locks the process's directory, after it has removed those
// that were left behind.
func claim(base, job string) (string, *lock, error) {
	if !jobName.MatchString(job) {
		return "", nil, fmt.Errorf("job %q can't be part of a file's name", job)
	}
	if err := os.MkdirAll(base, 0o700); err != nil {
		return "", nil, err
	}
	if !trusted(base) {
		return "", nil, fmt.Errorf("%s belongs to another user, who could change what is in it", base)
	}
	gate, err := acquire(filepath.Join(base, job+".lock"), true)
	if err != nil {
		return "", nil, err
	}
	defer gate.release()
	if err := clean(base, job); err != nil {
		return "", nil, err
	}
	var number [8]byte
	_, _ = rand.Read(number[:]) // never fails
	dir := filepath.Join(base, job+"."+hex.EncodeToString(number[:])+dirSuffix)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", nil, err
	}
	held, err := acquire(filepath.Join(dir, lockName), false)
	if err != nil {
		return "", nil, err
	}
	return dir, held, nil
}

// clean removes the job's directories that nobody holds.
func clean(base, job string) error {
	own := regexp.MustCompile(`^` + job + `\.[0-9a-f]{16}\` + dirSuffix + `$`)
	entries, err := os.ReadDir(base)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || !own.MatchString(e.Name()) {
			continue
		}
		dir := filepath.Join(base, e.Name())
		held, err := acquire(filepath.Join(dir, lockName), false)
		if errors.Is(err, errLocked) {
			continue
		}
		if err != nil {
			return err
		}
		if err := held.remove(dir); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a directory that the lock is in, with the files that spools
// make. Another file is left there, and the directory with it.
func (l *lock) remove(dir string) error {
	defer l.release()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	others := false
	for _, e := range entries {
		switch {
		case strings.HasSuffix(e.Name(), suffix) && e.Type().IsRegular():
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		case e.Name() != lockName:
			others = true
		}
	}
	if others {
		return nil
	}
	if err := os.Remove(filepath.Join(dir, lockName)); err != nil {
		return err
	}
	return os.Remove(dir)
}
