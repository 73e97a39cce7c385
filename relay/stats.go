package relay

import (
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace"
)

// Stats counts what passed through the pump. All methods may be called from
// any goroutine.
type Stats struct {
	transactions atomic.Int64
	bytes        atomic.Int64
	ops          [5]atomic.Int64

	mu         sync.Mutex
	tables     map[uint32]*TableStats
	reconnects map[millrace.Peer]int64
}

// TableStats counts the changes of one table.
type TableStats struct {
	Name    millrace.TableName
	Changes int64
}

var ops = [...]millrace.Op{millrace.Insert, millrace.Update, millrace.Delete, millrace.Truncate, millrace.Message}

// Transactions counts the complete source transactions received.
func (s *Stats) Transactions() int64 { return s.transactions.Load() }

// Bytes counts the memory that the received parts took.
func (s *Stats) Bytes() int64 { return s.bytes.Load() }

// Changes counts the received changes by operation.
func (s *Stats) Changes() map[millrace.Op]int64 {
	m := make(map[millrace.Op]int64, len(ops))
	for i, op := range ops {
		m[op] = s.ops[i].Load()
	}
	return m
}

// Tables gives the changes received for each table, by its OID at the source.
func (s *Stats) Tables() map[uint32]TableStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := make(map[uint32]TableStats, len(s.tables))
	for oid, t := range s.tables {
		m[oid] = *t
	}
	return m
}

// Reconnects counts the lost and refused connections.
func (s *Stats) Reconnects() map[millrace.Peer]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := map[millrace.Peer]int64{millrace.PeerSource: 0, millrace.PeerDestination: 0}
	for peer, n := range s.reconnects {
		m[peer] = n
	}
	return m
}

func (s *Stats) reconnected(peer millrace.Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reconnects == nil {
		s.reconnects = make(map[millrace.Peer]int64)
	}
	s.reconnects[peer]++
}

// count takes up one part. The lock is taken once per part and the map is
// looked up only where the table changes.
func (s *Stats) count(t *millrace.Txn) {
	if t.Idle() {
		return
	}
	if t.Chunk != nil {
		return // a transaction of ours, not of the source
	}
	if t.Last {
		s.transactions.Add(1)
	}
	s.bytes.Add(t.Size)
	var n [len(ops)]int64
	var last *millrace.Relation
	var table *TableStats
	s.mu.Lock()
	for i := range t.Changes {
		c := &t.Changes[i]
		n[opIndex(c.Op)]++
		switch {
		case c.Truncated != nil:
			for _, rel := range c.Truncated.Rels {
				s.table(rel).Changes++
			}
		case c.Rel == nil:
		case c.Rel == last:
			table.Changes++
		default:
			last, table = c.Rel, s.table(c.Rel)
			table.Changes++
		}
	}
	for i := range t.Tally { // of what was applied while the transaction was open
		c := &t.Tally[i]
		s.table(c.Rel).Changes += c.Inserts + c.Updates + c.Deletes
		s.bytes.Add(c.Bytes)
		n[opIndex(millrace.Insert)] += c.Inserts
		n[opIndex(millrace.Update)] += c.Updates
		n[opIndex(millrace.Delete)] += c.Deletes
	}
	s.mu.Unlock()
	for i, n := range n {
		if n > 0 {
			s.ops[i].Add(n)
		}
	}
}

func (s *Stats) table(rel *millrace.Relation) *TableStats {
	t := s.tables[rel.OID]
	if t == nil {
		if s.tables == nil {
			s.tables = make(map[uint32]*TableStats)
		}
		t = &TableStats{}
		s.tables[rel.OID] = t
	}
	t.Name = rel.Name
	return t
}

// opIndex gives the place of an operation. What is put may have been there or not.
func opIndex(op millrace.Op) int {
	switch op {
	case millrace.Put, millrace.Amend:
		op = millrace.Update
	case millrace.Remove:
		op = millrace.Delete
	}
	for i, o := range ops {
		if o == op {
			return i
		}
	}
	return len(ops) - 1
}
