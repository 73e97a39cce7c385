package kafka

import (
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/spool"
)

// batch is what becomes one Kafka transaction: whole source transactions as
// records, or one large one whose records are in the spool.
type batch struct {
	records []kgo.Record
	memory  arena
	headers headerArena // of records
	size    int64       // memory that it holds
	changes int
	txns    int // source transactions
	started time.Time

	// The last whole transaction, and a sign of life behind it.
	commit, end millrace.LSN
	xid         uint32
	time        time.Time
	history     *millrace.History
	idle        millrace.LSN

	chunks int                                  // and marks of loads beside the stream
	marks  map[millrace.TableName]millrace.Mark // how far these loads have come
	stored []func(committed bool)               // called once it is committed
	ended  int64                                // the number of the last transaction in it; 0: none

	large   *spool.Txn         // its records, before those of the batch
	common  []kgo.RecordHeader // that those have in common
	control []*kgo.Record
}

// recordSize is what a record takes beside its bytes: the struct, its headers,
// and the client's note of it.
const recordSize = 400

// reset empties the batch and keeps its memory, unless that has grown beyond
// what batches usually are.
func (b *batch) reset() {
	records, mem, headers := b.records, b.memory, b.headers
	if cap(records) > 1<<17 {
		records = nil
	}
	clear(records)
	mem.reset()
	headers.reset()
	*b = batch{records: records[:0], memory: mem, headers: headers}
}

// stamps tells which records of a run need another time than the one before. The client
// counts from that time how long a record waits, be it only for the room that large ones before it
// take.
type stamps struct{ records, bytes int }

// How much is produced, at most, between two looks at the clock.
const (
	stampRecords = 16
	stampBytes   = 1 << 20
)

// due takes the next record, of so many bytes.
func (s *stamps) due(bytes int) bool {
	s.bytes += bytes
	due := s.records == 0 || s.bytes > stampBytes
	if due {
		*s = stamps{}
	}
	s.records = (s.records + 1) % stampRecords
	return due
}

// arena keeps bytes until the batch is done with.
type arena struct {
	blocks [][]byte
	at     int
}

const arenaBlock = 256 << 10

func (a *arena) copy(b []byte) []byte {
	if b == nil {
		return nil
	}
	if len(b) > arenaBlock/4 {
		return append([]byte{}, b...)
	}
	for a.at < len(a.blocks) {
		block := a.blocks[a.at]
		if n := len(block); cap(block)-n >= len(b) {
			a.blocks[a.at] = append(block, b...)
			return a.blocks[a.at][n:len(a.blocks[a.at]):len(a.blocks[a.at])]
		}
		a.at++
	}
	a.blocks = append(a.blocks, append(make([]byte, 0, arenaBlock), b...))
	return a.blocks[a.at][:len(b):len(b)]
}

func (a *arena) reset() {
	for i := range a.blocks {
		a.blocks[i] = a.blocks[i][:0]
	}
	if len(a.blocks) > 64 {
		clear(a.blocks[64:])
		a.blocks = a.blocks[:64]
	}
	a.at = 0
}

// headerArena keeps the headers of records until the batch is done with: they were
// most of what the collector had to look at.
type headerArena struct {
	blocks [][]kgo.RecordHeader
	at     int
}

// headerBlock is how many headers are asked for at once.
const headerBlock = 4 << 10

// take gives an empty slice with room for n.
func (a *headerArena) take(n int) []kgo.RecordHeader {
	if n > headerBlock/4 {
		return make([]kgo.RecordHeader, 0, n)
	}
	for ; a.at < len(a.blocks); a.at++ {
		block := a.blocks[a.at]
		if used := len(block); cap(block)-used >= n {
			a.blocks[a.at] = block[:used+n]
			return block[used : used : used+n]
		}
	}
	a.blocks = append(a.blocks, make([]kgo.RecordHeader, n, headerBlock))
	return a.blocks[a.at][0:0:n]
}

func (a *headerArena) reset() {
	if len(a.blocks) > 64 {
		clear(a.blocks[64:])
		a.blocks = a.blocks[:64]
	}
	for i := range a.blocks {
		clear(a.blocks[i])
		a.blocks[i] = a.blocks[i][:0]
	}
	a.at = 0
}

// open is a source transaction on its way into a batch.
type open struct {
	id     string
	key    []byte // of records that belong to it and to no row
	first  int    // of its records in the batch
	size   int64  // of the batch before it
	xid    uint32
	commit millrace.LSN
	common []kgo.RecordHeader // what all its records have in common
	counts tally[slot]        // records
	tables tally[millrace.TableName]
	events int
	seq    uint64 // of the change that is being encoded
	large  *spool.Txn
	// described are the tables that have got a record in PREFIX.schema.
	described []describedRoute
	stream    stream // in layout stream
}

// slot is a partition of a topic.
type slot struct {
	topic     string
	partition int32
}

func (o *open) event(table millrace.TableName) {
	o.tables.add(table)
	o.events++
}

// The headers of every record, in this order.
const (
	headerCommit     = "commit_lsn"
	headerSeq        = "seq"
	headerXID        = "xid"
	headerSystem     = "system"
	headerTimeline   = "timeline"
	headerGeneration = "generation"
)

// common are the headers that all records of a transaction have; they live as long as
// the batch, since its marks have them as they are.
func (w *writer) common(b *batch, commit millrace.LSN, xid uint32, h *millrace.History) []kgo.RecordHeader {
	if len(w.history) == 0 || w.historyOf != *h {
		w.historyOf = *h
		w.history = []kgo.RecordHeader{
			{Key: headerSystem, Value: []byte(h.System)},
			{Key: headerTimeline, Value: strconv.AppendInt(nil, int64(h.Timeline), 10)},
			{Key: headerGeneration, Value: strconv.AppendInt(nil, h.Generation, 10)},
		}
	}
	all := b.headers.take(2 + len(w.history))
	w.scratch, _ = commit.AppendText(w.scratch[:0]) // never an error
	all = append(all, kgo.RecordHeader{Key: headerCommit, Value: b.memory.copy(w.scratch)})
	w.scratch = strconv.AppendUint(w.scratch[:0], uint64(xid), 10)
	all = append(all, kgo.RecordHeader{Key: headerXID, Value: b.memory.copy(w.scratch)})
	return append(all, w.history...)
}

// headers gives those of one record of the open transaction, with its ordinal. Those of
// a large one, which is on its way into the spool, are good until the next call.
func (w *writer) headers(special []kgo.RecordHeader, seq uint64) []kgo.RecordHeader {
	o := w.open
	w.scratch = strconv.AppendUint(w.scratch[:0], seq, 10)
	if o.large != nil {
		all := append(append(w.passing[:0], special...), o.common...)
		w.passing = append(all, kgo.RecordHeader{Key: headerSeq, Value: w.scratch})
		return w.passing
	}
	all := w.batch.headers.take(len(special) + len(o.common) + 1)
	for _, h := range special { // whose bytes are the encoder's
		all = append(all, kgo.RecordHeader{Key: h.Key, Value: w.batch.memory.copy(h.Value)})
	}
	all = append(all, o.common...)
	return append(all, kgo.RecordHeader{Key: headerSeq, Value: w.batch.memory.copy(w.scratch)})
}
