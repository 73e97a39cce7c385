package spool

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/millrace/millrace"
)

// DefaultLimit is the limit where Options has none.
const DefaultLimit = 10 << 30

// maxBuffers is how many frames are filled at the same time, for all
// transactions together: 2 MiB.
const maxBuffers = 16

// Options say where a spool is and how large it may become.
type Options struct {
	Dir   string // "": DefaultDir; made if it does not exist
	Job   string // of the characters a-z, 0-9 and _
	Limit int64  // bytes on disk, of all transactions together; 0: DefaultLimit
}

// Spool is a directory with transactions. It is safe for concurrent use; each
// Txn of it is for one goroutine at a time.
type Spool struct {
	dir   string
	limit int64
	lock  *lock
	used  atomic.Int64 // bytes on disk

	mu      sync.Mutex
	closed  bool
	next    int               // number of the next transaction
	txns    map[*Txn]struct{} // not dropped
	filling []*Txn            // those that have a buffer, at most maxBuffers
	free    [][]byte          // buffers without a transaction
	stored  []byte            // a frame as it is written
}

// Open makes a spool and removes what earlier processes of the job left.
func Open(opt Options) (*Spool, error) {
	if opt.Dir == "" {
		opt.Dir = DefaultDir()
	}
	if opt.Limit <= 0 {
		opt.Limit = DefaultLimit
	}
	dir, lock, err := claim(opt.Dir, opt.Job)
	if err != nil {
		e := diskError("make the spool", err).(*millrace.Error) //nolint:errorlint,forcetypeassert // made there
		e.Kind = millrace.KindPreflight
		return nil, e
	}
	return &Spool{dir: dir, limit: opt.Limit, lock: lock, txns: map[*Txn]struct{}{}}, nil
}

// DefaultDir is where spools are when nothing is configured: the directory that
// systemd made for the unit (CacheDirectory=), else /var/tmp, which unlike /tmp
// is not kept in memory.
func DefaultDir() string {
	if dirs := filepath.SplitList(os.Getenv("CACHE_DIRECTORY")); len(dirs) > 0 && dirs[0] != "" {
		return dirs[0]
	}
	base := "/var/tmp"
	if st, err := os.Stat(base); err != nil || !st.IsDir() {
		base = os.TempDir()
	}
	return filepath.Join(base, "millrace-"+strconv.Itoa(os.Getuid()))
}

// Bytes is what the spool takes on disk.
func (s *Spool) Bytes() int64 { return s.used.Load() }

// Limit is what it may take.
func (s *Spool) Limit() int64 { return s.limit }

// Dir is where its files are.
func (s *Spool) Dir() string { return s.dir }

// Begin makes an empty transaction. It takes no disk space before it has filled
// a frame.
func (s *Spool) Begin() *Txn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	t := &Txn{spool: s, file: filepath.Join(s.dir, strconv.Itoa(s.next)+suffix)}
	if s.closed {
		t.err = errClosed
		return t
	}
	s.txns[t] = struct{}{}
	return t
}

var errClosed = errors.New("the spool is closed")

// Close drops all transactions and removes the directory.
func (s *Spool) Close() error {
	s.mu.Lock()
	s.closed = true
	var errs []error
	for t := range s.txns {
		errs = append(errs, t.drop())
		t.err = errClosed
	}
	s.free, s.stored = nil, nil
	s.mu.Unlock()
	return diskError("remove the spool", errors.Join(append(errs, s.lock.remove(s.dir))...))
}

// buffer gives the transaction a frame to fill. If all are in use, the fullest
// is written.
func (s *Spool) buffer(t *Txn) error {
	if n := len(s.free); n > 0 {
		t.buf, s.free = s.free[n-1], s.free[:n-1]
	} else if len(s.filling) < maxBuffers {
		t.buf = make([]byte, 0, frameSize)
	} else {
		fullest := slices.MaxFunc(s.filling, func(a, b *Txn) int { return cmp.Compare(len(a.buf), len(b.buf)) })
		if err := fullest.flush(); err != nil {
			return err
		}
		return s.buffer(t)
	}
	s.filling = append(s.filling, t)
	return nil
}

// unbuffer takes the frame back.
func (s *Spool) unbuffer(t *Txn) {
	if t.buf == nil {
		return
	}
	s.free = append(s.free, t.buf[:0])
	t.buf = nil
	s.filling = slices.DeleteFunc(s.filling, func(o *Txn) bool { return o == t })
}

// reserve counts n more bytes on disk, or says that they are too many.
func (s *Spool) reserve(n int64) error {
	if used := s.used.Add(n); used > s.limit {
		s.used.Add(-n)
		return &millrace.Error{
			Kind: millrace.KindData,
			Op:   "spool",
			Err:  fmt.Errorf("transactions that are not complete need more than the %d bytes of resources.spool.limit", s.limit),
			Hint: "raise resources.spool.limit, and see that resources.spool.dir has the room; nothing was lost: the source sends the transaction again",
		}
	}
	return nil
}

// diskError says which setting cures an error of the file system.
func diskError(op string, err error) error {
	if err == nil {
		return nil
	}
	hint := "see that the directory of resources.spool.dir can be written by this process, or name another one"
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		hint = "make room on the disk of resources.spool.dir, or name another one; nothing was lost: the source sends the transaction again"
	}
	return &millrace.Error{Kind: millrace.KindData, Op: op, Err: err, Hint: hint}
}
