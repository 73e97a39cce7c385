package kafka

import (
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
)

// slab is memory that the rows of some transactions share: most are much smaller
// than what is worth asking for. It is used again when the last of them was
// released.
type slab struct {
	krecord.Memory
	users atomic.Int32 // transactions, and slabs while it is the newest
}

// slabFull is how much goes into one, in bytes: less than what it takes at once,
// which alone it keeps.
const slabFull = 48 << 10

// slabs hands them out. take is called by one goroutine, releases come from any.
type slabs struct {
	newest *slab

	mu   sync.Mutex
	free []*slab
}

// take gives memory for the rows of t, until t is released.
func (s *slabs) take(t *millrace.Txn) *krecord.Memory {
	m := s.newest
	if m == nil || m.Size() >= slabFull {
		if m != nil {
			s.leave(m)
		}
		m = s.get()
		s.newest = m
	}
	m.users.Add(1)
	t.OnRelease(func(*millrace.Txn) { s.leave(m) })
	return &m.Memory
}

func (s *slabs) get() *slab {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &slab{}
	if n := len(s.free); n > 0 {
		m, s.free = s.free[n-1], s.free[:n-1]
	}
	m.users.Store(1)
	return m
}

// leave gives up a share of the slab. Only few are kept: what a burst needed is
// the collector's.
func (s *slabs) leave(m *slab) {
	if m.users.Add(-1) > 0 {
		return
	}
	m.Reset()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) < 32 {
		s.free = append(s.free, m)
	}
}
