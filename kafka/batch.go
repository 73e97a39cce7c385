package kafka

import (
	"bytes"
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
	size    int64 // memory that it holds
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
	stored []func()                             // called once it is committed

	large   *spool.Txn // its records, before those of the batch
	control []*kgo.Record
}

// recordSize is what a record takes beside its bytes: the struct, its headers,
// and the client's note of it.
const recordSize = 400

// reset empties the batch and keeps its memory, unless that has grown beyond
// what batches usually are.
func (b *batch) reset() {
	records, mem := b.records, b.memory
	if cap(records) > 1<<17 {
		records = nil
	}
	clear(records)
	mem.reset()
	*b = batch{records: records[:0], memory: mem}
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
		a.blocks = a.blocks[:64]
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
	counts map[slot]int
	order  []slot // the keys of counts, as they came
	tables map[millrace.TableName]int
	names  []millrace.TableName
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

func (o *open) count(topic string, partition int32) {
	s := slot{topic, partition}
	if o.counts[s]++; o.counts[s] == 1 {
		o.order = append(o.order, s)
	}
}

func (o *open) event(table millrace.TableName) {
	if o.tables[table]++; o.tables[table] == 1 {
		o.names = append(o.names, table)
	}
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

func commonHeaders(commit millrace.LSN, xid uint32, h *millrace.History) []kgo.RecordHeader {
	return []kgo.RecordHeader{
		{Key: headerCommit, Value: []byte(commit.String())},
		{Key: headerXID, Value: strconv.AppendUint(nil, uint64(xid), 10)},
		{Key: headerSystem, Value: []byte(h.System)},
		{Key: headerTimeline, Value: strconv.AppendInt(nil, int64(h.Timeline), 10)},
		{Key: headerGeneration, Value: strconv.AppendInt(nil, h.Generation, 10)},
	}
}

// headers gives those of one record, with its ordinal.
func (o *open) headers(special []kgo.RecordHeader, seq uint64) []kgo.RecordHeader {
	all := make([]kgo.RecordHeader, 0, len(special)+len(o.common)+1)
	for _, h := range special { // whose bytes are the encoder's
		all = append(all, kgo.RecordHeader{Key: h.Key, Value: bytes.Clone(h.Value)})
	}
	all = append(all, o.common...)
	return append(all, kgo.RecordHeader{Key: headerSeq, Value: strconv.AppendUint(nil, seq, 10)})
}
