package capture

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace"
)

// The memory that structs take, for the budget.
const (
	valueSize  = int64(unsafe.Sizeof(millrace.Value{}))
	changeSize = int64(unsafe.Sizeof(millrace.Change{}))
	txnSize    = int64(unsafe.Sizeof(millrace.Txn{}))
)

// Transactions are cut from blocks. A block serves consecutive ones, or a part
// of a large one, and consists of slabs: bytes, values, changes, transactions.
// It counts the transactions that live in it; when the last is released, its
// slabs go back to the pools, and so nothing on the path of a row allocates.
//
// Only the assembler cuts from a block, and only from the newest. What is cut
// is never moved, except that the changes of a transaction must be contiguous:
// when they outgrow a slab they are copied to a larger one.
const (
	blockBytes = 128 << 10 // a block that has given away that much is not used for another transaction
	byteSlab   = 64 << 10
	valueSlab  = 512
	txnSlab    = 32
)

// changeSlabs are the sizes of the slabs of changes. The largest holds a part.
var changeSlabs = [...]int{128, 512, 2048, maxChanges}

// slab is a piece of memory that is cut front to back.
type slab[T any] struct {
	all  []T
	used int
}

// cut takes n elements, or reports that there is no room.
func (s *slab[T]) cut(n int) ([]T, bool) {
	if s == nil || n > len(s.all)-s.used {
		return nil, false
	}
	v := s.all[s.used : s.used+n : s.used+n]
	s.used += n
	return v, true
}

// slabs are those of one kind in a block; the last is the one in use.
type slabs[T any] []*slab[T]

func (l slabs[T]) last() *slab[T] {
	if len(l) == 0 {
		return nil
	}
	return l[len(l)-1]
}

// memory is where blocks and slabs come from and go to.
type memory struct {
	held atomic.Int64 // Size of all transactions that are not released

	blocks, bytes, values, txns sync.Pool
	changes                     [len(changeSlabs)]sync.Pool
}

// get takes a slab from a pool or makes one.
func get[T any](pool *sync.Pool, size int) *slab[T] {
	if s, ok := pool.Get().(*slab[T]); ok {
		return s
	}
	return &slab[T]{all: make([]T, size)}
}

// block is a unit of memory that is released as a whole.
type block struct {
	memory *memory
	refs   atomic.Int64 // transactions not released, and one for the assembler
	free   func(*millrace.Txn)
	given  int64 // bytes cut

	bytes   slabs[byte]
	values  slabs[millrace.Value]
	changes slabs[millrace.Change]
	txns    slabs[millrace.Txn]
}

func (m *memory) block() *block {
	b, ok := m.blocks.Get().(*block)
	if !ok {
		b = &block{memory: m}
		b.free = func(t *millrace.Txn) {
			m.held.Add(-t.Size)
			b.unref()
		}
	}
	b.refs.Store(1)
	b.given = 0
	return b
}

// unref gives the block back when nothing lives in it any more.
func (b *block) unref() {
	if b.refs.Add(-1) == 0 {
		b.recycle()
	}
}

// recycle clears what was used, so that a slab in a pool keeps nothing alive
// and one that is used after its release shows it.
func (b *block) recycle() {
	m := b.memory
	for _, s := range b.bytes {
		s.used = 0 // bytes keep nothing alive
		m.bytes.Put(s)
	}
	for _, s := range b.values {
		if len(s.all) == valueSlab {
			put(&m.values, s)
		}
	}
	for _, s := range b.changes {
		for i, size := range changeSlabs {
			if len(s.all) == size {
				put(&m.changes[i], s)
			}
		}
	}
	for _, s := range b.txns {
		put(&m.txns, s)
	}
	clear(b.bytes)
	clear(b.values)
	clear(b.changes)
	clear(b.txns)
	b.bytes, b.values, b.changes, b.txns = b.bytes[:0], b.values[:0], b.changes[:0], b.txns[:0]
	m.blocks.Put(b)
}

func put[T any](pool *sync.Pool, s *slab[T]) {
	clear(s.all[:s.used])
	s.used = 0
	pool.Put(s)
}

// copy takes over the bytes of a message.
func (b *block) copy(src []byte) []byte {
	dst, ok := b.bytes.last().cut(len(src))
	switch {
	case ok:
	case len(src) > byteSlab:
		dst = make([]byte, len(src))
	default:
		s := get[byte](&b.memory.bytes, byteSlab)
		b.bytes = append(b.bytes, s)
		dst, _ = s.cut(len(src))
	}
	copy(dst, src)
	return dst
}

// moreValues gives memory for at least n values.
func (b *block) moreValues(n int) []millrace.Value {
	var s *slab[millrace.Value]
	if n <= valueSlab {
		s = get[millrace.Value](&b.memory.values, valueSlab)
	} else {
		s = &slab[millrace.Value]{all: make([]millrace.Value, n)}
	}
	s.used = len(s.all) // to be cleared
	b.values = append(b.values, s)
	return s.all
}

// txn makes a transaction that lives in the block.
func (b *block) txn() *millrace.Txn {
	v, ok := b.txns.last().cut(1)
	if !ok {
		s := get[millrace.Txn](&b.memory.txns, txnSlab)
		b.txns = append(b.txns, s)
		v, _ = s.cut(1)
	}
	b.refs.Add(1)
	t := &v[0]
	t.OnRelease(b.free)
	return t
}

// change appends an empty change to the transaction, which must be the last
// one made in the block.
func (b *block) change(t *millrace.Txn) *millrace.Change {
	n := len(t.Changes)
	s := b.changes.last()
	if _, ok := s.cut(1); ok {
		// The transaction's changes are the last that were cut from the slab.
		t.Changes = s.all[s.used-n-1 : s.used : s.used]
		return &t.Changes[n]
	}
	class := 0
	for changeSlabs[class] < 2*n && class < len(changeSlabs)-1 {
		class++
	}
	s = get[millrace.Change](&b.memory.changes[class], changeSlabs[class])
	b.changes = append(b.changes, s)
	s.used = n + 1
	copy(s.all, t.Changes)
	t.Changes = s.all[: n+1 : n+1]
	return &t.Changes[n]
}
