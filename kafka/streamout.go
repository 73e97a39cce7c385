package kafka

import (
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
)

// The layouts of a job's topics.
const (
	LayoutTables = "tables" // one topic a table
	LayoutStream = "stream" // one topic for all, of whole transactions in order
)

// The headers that records of layout stream have beside those of all.
const (
	headerPart     = "part"     // 1, 2, … in the transaction
	headerEnd      = "end"      // "true" on the last part, else "false"
	headerFragment = "fragment" // "2/3": the second of three parts that are one value, cut anywhere
)

// stream is the part of a transaction in preparation, in layout stream.
type stream struct {
	unit []byte // the records of the change in hand, which must not be torn apart
	// body is the part: its head, and the changes that are complete.
	body    []byte
	seq     uint64 // of the first change in body; 0: there is none
	head    krecord.PartHead
	parts   int // that were given away
	unitSeq uint64
}

// element adds one record to the change in hand.
func (s *stream) element(to *dest, e *krecord.Record, seq uint64) (err error) {
	if len(s.unit) > 0 {
		s.unit = append(s.unit, ',')
	}
	s.unitSeq = seq
	s.unit, err = krecord.AppendElement(s.unit, to.name, to.schema, seq, e)
	return err
}

// Room for the headers of a part beside those of all records, and for its tail.
const (
	partHeaders = 150
	partTail    = 100
)

// room is how many bytes the value of a part may have.
func (w *writer) room(o *open) int {
	r := kgo.Record{Key: o.key, Headers: o.common}
	return w.limit - recordBytes(&r) - partHeaders
}

// endChange adds the change in hand to the part, or begins another part with it.
func (w *writer) endChange() error {
	o := w.open
	s := &o.stream
	if len(s.unit) == 0 {
		return nil
	}
	if s.seq != 0 && len(s.body)+1+len(s.unit)+partTail > w.room(o) {
		if err := w.cutPart(false, 0); err != nil {
			return err
		}
	}
	if s.seq == 0 {
		s.body, s.seq = krecord.AppendPartHead(s.body[:0], &s.head), s.unitSeq
	} else {
		s.body = append(s.body, ',')
	}
	s.body = append(s.body, s.unit...)
	s.unit = s.unit[:0]
	if cap(s.unit) > keepBuffer {
		s.unit = nil
	}
	return nil
}

// keepBuffer is how large a buffer may be to be kept for what comes next.
const keepBuffer = 4 << 20

// cutPart gives the part away as a record, or as several if one row is larger
// than a record.
func (w *writer) cutPart(last bool, end millrace.LSN) error {
	o := w.open
	s := &o.stream
	if s.seq == 0 {
		s.body = krecord.AppendPartHead(s.body[:0], &s.head)
	}
	if last {
		s.body = krecord.AppendLastTail(s.body, end, o.events)
	} else {
		s.body = krecord.AppendPartTail(s.body)
	}
	room := w.room(o)
	n := (len(s.body) + room - 1) / room
	for i := range n {
		value := s.body[i*room : min((i+1)*room, len(s.body))]
		s.parts++
		headers := append(w.headers(nil, max(s.seq, 1)),
			kgo.RecordHeader{Key: headerPart, Value: strconv.AppendInt(nil, int64(s.parts), 10)},
			kgo.RecordHeader{Key: headerEnd, Value: strconv.AppendBool(nil, last && i == n-1)})
		if last && i == n-1 {
			headers = w.numbered(headers)
		}
		if n > 1 {
			headers = append(headers, kgo.RecordHeader{Key: headerFragment, Value: []byte(strconv.Itoa(i+1) + "/" + strconv.Itoa(n))})
		}
		r := kgo.Record{Topic: streamTopic(w.opt.Endpoint.Prefix), Key: o.key, Value: value, Headers: headers}
		if o.large == nil {
			r.Value = w.batch.memory.copy(value)
		}
		if err := w.put(&r); err != nil {
			return err
		}
	}
	s.seq = 0
	if s.body = s.body[:0]; cap(s.body) > keepBuffer {
		s.body = nil
	}
	return nil
}

// begun opens a transaction whose records go to b.
func (w *writer) begun(b *batch, id string, xid uint32, commit millrace.LSN, at time.Time, from *millrace.History) *open {
	was := w.slot // whose buffers it takes
	w.scratch = appendIDKey(w.scratch[:0], id)
	w.slot = open{id: id, key: b.memory.copy(w.scratch), xid: xid, commit: commit, counts: was.counts.empty(), tables: was.tables.empty(),
		described: was.described[:0]}
	o := &w.slot
	o.common = w.common(b, commit, xid, from)
	o.stream = stream{unit: was.stream.unit[:0], body: was.stream.body[:0],
		head: krecord.PartHead{ID: id, XID: xid, Commit: commit, Time: at}}
	w.open, w.batch = o, b
	return o
}

// finish writes what ends a transaction: its last part, or in the other layout its
// marks.
func (w *writer) finish(o *open, at time.Time, pos Position) error {
	if !w.opt.stream() {
		return w.marks(o, at, pos)
	}
	return w.cutPart(true, pos.End)
}

// streamed encodes one change for layout stream. It is as little torn apart as in
// the other layout: records with one seq are in one part.
func (w *writer) streamed(c *millrace.Change, rel *millrace.Relation, to *route) error {
	return w.opt.Encoder.Encode(c, rel, to.key, func(e *krecord.Record) error {
		if !e.Event {
			return nil // a tombstone ends nothing here
		}
		w.open.event(rel.Name)
		markEarly(c, e)
		return w.open.stream.element(to.to, e, c.Seq)
	})
}

func (o *Options) stream() bool { return o.Layout == LayoutStream }
