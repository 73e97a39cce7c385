//go:build unix

package spool

import (
	"errors"
	"os"
	"syscall"
)

// errLocked says that another process, or another spool of this one, has the
// lock.
var errLocked = errors.New("locked")

// lock is a locked file. The system unlocks it when its process ends, however
// that ends.
type lock struct{ file *os.File }

// acquire locks a file, which it makes if need be; with wait as soon as nobody
// else has it.
func acquire(path string, wait bool) (*lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close() // nothing was written
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return &lock{file: f}, nil
}

func (l *lock) release() { _ = l.file.Close() } // nothing was written

// trusted tells whether only root and this user can rename what is in the
// directory.
func trusted(dir string) bool {
	st, err := os.Stat(dir)
	if err != nil {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && (sys.Uid == 0 || int(sys.Uid) == os.Geteuid())
}
