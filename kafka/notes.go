package kafka

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/record"
)

// notes are what is newly known of tables and goes into the control topic with
// the next Kafka transaction, so that only the job's owner writes it. What is lost
// of them in a crash is found out again by the source, which comes to the same
// description once more.
type notes struct {
	mu     sync.Mutex
	tables []record.Table
}

// UpdateTable has recorded what is newly known of a table: its name, and Filenode
// and Shape where they are not zero. Any goroutine may call it, at any time.
func (s *Sink) UpdateTable(t record.Table) {
	s.notes.mu.Lock()
	defer s.notes.mu.Unlock()
	s.notes.tables = append(s.notes.tables, t)
}

// noted are the records of what was noted.
func (w *writer) noted() []*kgo.Record {
	if w.notes == nil {
		return nil
	}
	w.notes.mu.Lock()
	defer w.notes.mu.Unlock()
	var records []*kgo.Record
	for _, n := range w.notes.tables {
		for i := range w.tables {
			t := &w.tables[i]
			if t.OID != n.OID {
				continue
			}
			t.Name = n.Name
			if n.Filenode != 0 {
				t.Filenode = n.Filenode
			}
			if n.Shape != "" {
				t.Shape = n.Shape
			}
			records = append(records, w.opt.Endpoint.table(t))
		}
	}
	w.notes.tables = nil
	return records
}
