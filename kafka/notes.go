package kafka

import (
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
)

// notes are what is newly known of tables and goes into the control topic with
// the next Kafka transaction, so that only the job's owner writes it. What is lost
// of them in a crash is found out again by the source, which comes to the same
// description once more.
type notes struct {
	mu         sync.Mutex
	tables     []record.Table
	consistent millrace.LSN // from here on; 0: nothing is noted of that
	mode       string       // of the load from now on; ""
}

// UpdateTable has recorded what is newly known of a table: its name, and Filenode
// and Shape where they are not zero. Any goroutine may call it, at any time.
func (s *Sink) UpdateTable(t record.Table) {
	s.notes.mu.Lock()
	defer s.notes.mu.Unlock()
	s.notes.tables = append(s.notes.tables, t)
}

// Complete has recorded that the destination is consistent from a position on, once it
// has what was loaded beside the stream. It does not wait for that, and may be called
// again.
func (s *Sink) Complete(from millrace.LSN) {
	s.notes.mu.Lock()
	s.notes.consistent = from
	s.notes.mu.Unlock()
	if w := s.w.Load(); w != nil {
		w.q.note()
	}
}

// modeBeside is the mode of a job whose tables, or some, are loaded beside the stream.
const modeBeside = "incremental"

// modeNone is the mode of a job whose first load copies no rows.
const modeNone = "none"

// Beside has recorded that the rest of the first load is done beside the stream: mode
// is that of such a load. It goes with what was written before, or behind it.
func (s *Sink) Beside(mode string) {
	s.notes.mu.Lock()
	s.notes.mode = mode
	s.notes.mu.Unlock()
	if w := s.w.Load(); w != nil {
		w.q.note()
	}
}

// marked are the records of tables whose load has come further with the batch.
func (w *writer) marked(b *batch) []*kgo.Record {
	var records []*kgo.Record
	for _, m := range b.marks {
		i := slices.IndexFunc(w.tables, func(t record.Table) bool { return t.OID == m.OID })
		if i < 0 {
			continue
		}
		t := &w.tables[i]
		t.Rows, t.Bytes, t.Copied = m.Rows, m.Bytes, m.Done
		if w.loading[m.OID] = &m; m.Done {
			delete(w.loading, m.OID)
		}
		records = append(records, w.opt.Endpoint.tableMark(t, w.loading[m.OID]))
	}
	return records
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
			records = append(records, w.opt.Endpoint.tableMark(t, w.loading[t.OID]))
		}
	}
	if w.notes.consistent != 0 && w.job.ConsistentFrom == 0 {
		w.job.ConsistentFrom = w.notes.consistent
		records = append(records, w.opt.Endpoint.control(keyJob, jobRecord(&w.job, w.opt.Layout)))
	}
	if w.notes.mode != "" {
		// Whatever else the job was loaded by, rows come beside the stream from here on.
		w.job.Early = w.job.Early || w.job.Mode != w.notes.mode
		w.job.Mode = w.notes.mode
		records = append(records, w.opt.Endpoint.control(keyJob, jobRecord(&w.job, w.opt.Layout)))
	}
	w.notes.tables, w.notes.consistent, w.notes.mode = nil, 0, ""
	return records
}
