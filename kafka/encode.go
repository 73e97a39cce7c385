package kafka

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
)

// write adds one Txn to the batch in preparation.
func (w *writer) write(ctx context.Context, t *millrace.Txn) error {
	defer t.Release()
	if _, _, err := w.pos.get(); err != nil {
		return err
	}
	if t.Idle() {
		w.q.sign(t)
		return nil
	}
	if t.Chunk == nil && t.Commit <= w.skip {
		return nil // applied before
	}
	err := w.add(ctx, t)
	if err == nil {
		return nil
	}
	w.dropOpen()
	if errors.Is(err, errFailed) {
		_, _, err = w.pos.get()
		return err
	}
	if ctx.Err() != nil || millrace.KindOf(err) == millrace.KindRetry || errors.Is(err, millrace.ErrNeedText) {
		return err
	}
	// What came before it is delivered; it is what the job stops at.
	if _, drainErr := w.drain(ctx); drainErr != nil {
		return drainErr
	}
	return err
}

// add encodes a whole transaction or a part.
func (w *writer) add(ctx context.Context, t *millrace.Txn) error {
	if t.Part == 0 {
		if err := w.begin(ctx, t); err != nil {
			return err
		}
	}
	if w.open == nil {
		return fmt.Errorf("part %d of transaction %d comes without its beginning", t.Part, t.XID)
	}
	for i := range t.Changes {
		if err := w.change(ctx, &t.Changes[i]); err != nil {
			return w.locate(err, t)
		}
	}
	if !t.Last {
		return nil
	}
	return w.end(t)
}

// begin opens a source transaction. A large one, which comes in parts, goes to
// the spool: no Kafka transaction is opened before its end has come.
func (w *writer) begin(ctx context.Context, t *millrace.Txn) error {
	w.dropOpen()
	b, err := w.q.await(ctx, !t.Last, w.pos.failed)
	if err != nil {
		return err
	}
	id, commit := TransactionID(t.XID, t.Commit), t.Commit
	if t.Chunk != nil {
		id, commit = w.chunk(t)
	}
	o := w.begun(b, id, t.XID, commit, t.Time, t.From)
	o.first, o.size = len(b.records), b.size
	if !t.Last {
		if w.opt.Spool == nil {
			return errors.New("a transaction that comes in parts needs a spool")
		}
		o.large = w.opt.Spool.Begin()
		b.common = o.common
	}
	w.opt.Encoder.Begin(o.id, t)
	return nil
}

// chunk makes a transaction of a chunk that was read beside the stream: what it is
// called, and where it stands among the commits. That is where the stream was, and not
// where the chunk was read: a change that its snapshot does not see can lie below
// that, and comes later.
func (w *writer) chunk(t *millrace.Txn) (id string, commit millrace.LSN) {
	if t.From == nil {
		t.From = &w.from
	}
	if t.Time.IsZero() {
		t.Time = time.Now()
	}
	at := *t.Chunk
	at.Upto = t.End
	t.Chunk = &at
	w.chunks++
	return "chunk:" + t.Chunk.Table.Schema + "." + t.Chunk.Table.Name + ":" + strconv.FormatInt(w.epoch, 10) + "." + strconv.Itoa(w.chunks), t.End
}

// put takes a record whose bytes are its own.
func (w *writer) put(r *kgo.Record) error {
	o, b := w.open, w.batch
	if o.large != nil {
		w.packed = pack(w.packed[:0], r, len(o.common))
		return o.large.Append(o.xid, w.packed)
	}
	b.records = append(b.records, *r)
	b.size += int64(len(r.Key)+len(r.Value)) + recordSize
	return nil
}

// change encodes one change.
func (w *writer) change(ctx context.Context, c *millrace.Change) error {
	rels := []*millrace.Relation{c.Rel}
	switch c.Op {
	case millrace.Truncate:
		rels = c.Truncated.Rels
	case millrace.Message:
		return nil // it belongs to no table
	}
	for _, rel := range rels {
		if err := w.changeOf(ctx, c, rel); err != nil {
			return err
		}
	}
	return w.endChange()
}

func (w *writer) changeOf(ctx context.Context, c *millrace.Change, rel *millrace.Relation) error {
	w.open.seq = c.Seq
	to, err := w.route(ctx, rel)
	if err != nil {
		return err
	}
	w.batch.changes++
	if w.opt.stream() {
		return w.streamed(c, rel, to)
	}
	if w.emit == nil {
		w.emit = w.emitted
	}
	w.of = changeOf{c, rel, to}
	return w.opt.Encoder.Encode(c, rel, to.key, w.emit)
}

// emitted makes a record of what the encoder has made of the change in hand.
func (w *writer) emitted(e *krecord.Record) error {
	rel, to := w.of.rel, w.of.to
	markEarly(w.of.change, e)
	partition := partitionOf(e.Canonical, to.to.partitions)
	r := kgo.Record{Topic: to.to.name, Partition: partition, Key: e.Key, Value: e.Value, Headers: w.headers(e.Headers, w.of.change.Seq)}
	if r.Key == nil && w.opt.Topics.Compact {
		r.Key = truncateKey // a compacted topic takes no record without one
	}
	if size := recordBytes(&r); size > w.limit {
		return w.tooLarge(rel, to.key, e.Row, size)
	}
	w.open.counts.add(slot{r.Topic, partition})
	if e.Event {
		w.open.event(rel.Name)
	}
	if w.open.large == nil {
		r.Key, r.Value = w.batch.memory.copy(r.Key), w.batch.memory.copy(e.Value)
	}
	return w.put(&r)
}

// markEarly says in a record that its table is loaded beside the stream.
func markEarly(c *millrace.Change, e *krecord.Record) {
	if c.Early {
		e.Headers = append(e.Headers, kgo.RecordHeader{Key: krecord.HeaderEarly, Value: earlyTrue})
	}
}

var earlyTrue = []byte("true")

// truncateKey is the key of the record of a TRUNCATE in a compacted topic, where
// everything needs one. The newest stays, and says all that those before it did.
var truncateKey = []byte(`{"truncate":true}`)

// batchOverhead is what a batch of one record takes beside it.
const batchOverhead = 100

func recordBytes(r *kgo.Record) int {
	n := len(r.Key) + len(r.Value) + batchOverhead
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value) + 4
	}
	return n
}

func (w *writer) tooLarge(rel *millrace.Relation, key []int, row millrace.Row, size int) error {
	return &millrace.Error{Kind: millrace.KindData, Op: "write to Kafka", Peer: millrace.PeerDestination, Table: rel.Name,
		Key: keyText(rel, key, row),
		Err: fmt.Errorf("its record has %d bytes, the topics take %d", size, w.limit),
		Hint: fmt.Sprintf("raise max.message.bytes of the job's topics beyond %d (kafka-configs.sh --alter --entity-type topics …), and replica.fetch.max.bytes of the brokers; "+
			"everything before this transaction was delivered, and the next run goes on with it", size)}
}

// fits makes sure that a record of ours, which is no row, can be written.
func (w *writer) fits(r *kgo.Record, what string) error {
	size := recordBytes(r)
	if size <= w.limit {
		return nil
	}
	return &millrace.Error{Kind: millrace.KindData, Op: "write to Kafka", Peer: millrace.PeerDestination, LSN: w.open.commit,
		Err: fmt.Errorf("%s has %d bytes, the topics take %d", what, size, w.limit),
		Hint: fmt.Sprintf("raise max.message.bytes of the job's topics beyond %d; everything before this transaction was delivered, "+
			"and the next run goes on with it", size)}
}

// keyText names a row as Error.Key does.
func keyText(rel *millrace.Relation, key []int, row millrace.Row) string {
	if row == nil || len(key) == 0 {
		return ""
	}
	names, values := make([]string, len(key)), make([]string, len(key))
	for i, k := range key {
		names[i], values[i] = millrace.DisplayIdent(rel.Columns[k].Name), "null"
		if row[k].Kind == millrace.Text {
			v := row[k].Raw
			values[i] = string(v[:min(len(v), 100)])
		}
	}
	return "(" + strings.Join(names, ",") + ")=(" + strings.Join(values, ",") + ")"
}

// locate adds what an error of the format can't know.
func (w *writer) locate(err error, t *millrace.Txn) error {
	var e *millrace.Error
	if !errors.As(err, &e) {
		return &millrace.Error{Kind: millrace.KindData, Op: "encode", LSN: t.Commit, Err: err}
	}
	if e.LSN == 0 {
		e.LSN = t.Commit
	}
	return err
}

// end completes the source transaction.
func (w *writer) end(t *millrace.Txn) error {
	o, b := w.open, w.batch
	if t.Chunk == nil || len(o.counts.entries) > 0 || o.events > 0 { // some chunks are nothing but a mark
		if err := w.finish(o, t.Time, Position{t.XID, o.commit, t.End}); err != nil {
			return w.locate(err, t)
		}
		w.complete(b)
	}
	if t.Chunk != nil {
		b.idle = max(b.idle, t.End)
		b.chunks++
		if stored := t.Stored(); stored != nil {
			b.stored = append(b.stored, stored)
		}
	} else {
		b.commit, b.end, b.xid, b.time = t.Commit, t.End, t.XID, t.Time
		b.txns++
	}
	b.history, b.large = t.From, o.large
	if len(t.Marks) > 0 {
		if b.marks == nil {
			b.marks = map[millrace.TableName]millrace.Mark{}
		}
		maps.Copy(b.marks, t.Marks)
	}
	w.open, w.batch = nil, nil
	w.q.done()
	return nil
}

// dropOpen takes an incomplete source transaction out again.
func (w *writer) dropOpen() {
	o, b := w.open, w.batch
	if o == nil {
		return
	}
	clear(b.records[o.first:])
	b.records, b.size = b.records[:o.first], o.size
	if o.large != nil {
		_ = o.large.Drop() // the next start removes what is left
	}
	for _, d := range slices.Backward(o.described) { // a table may be there twice
		d.to.schema, d.to.shape, d.to.key = d.schema, d.shape, d.key
		delete(w.rels, d.rel)
		b.control = append(b.control, w.pin(d.to, d.rel.Name)) // in place of the one before
	}
	w.open, w.batch = nil, nil
	w.q.done()
}

// route finds or makes the topic of a relation, and decides about its key.
func (w *writer) route(ctx context.Context, rel *millrace.Relation) (*route, error) {
	if r := w.rels[rel]; r != nil {
		return r, nil
	}
	name := topicName(w.opt.Endpoint.Prefix, rel.Name, w.opt.Topics.Names)
	d := w.dests[name]
	if d == nil {
		var err error
		if d, err = w.addTopic(ctx, rel, name); err != nil {
			return nil, err
		}
	}
	key, err := w.opt.key(rel, d)
	if err != nil {
		return nil, err
	}
	r := &route{to: d, key: key}
	was := describedRoute{rel, d, d.schema, d.shape, d.key}
	w.open.described = append(w.open.described, was)
	d.key = namesOf(rel, key)
	if err := w.describe(ctx, rel, r); err != nil {
		return nil, err
	}
	if d.schema != was.schema || was.key == nil || !slices.Equal(d.key, was.key) {
		w.batch.control = append(w.batch.control, w.pin(d, rel.Name))
	}
	w.rels[rel] = r
	return r, nil
}

// addTopic makes the topic of a table that the job has not written to.
func (w *writer) addTopic(ctx context.Context, rel *millrace.Relation, name string) (*dest, error) {
	w.known[name] = rel.OID
	if w.opt.stream() {
		w.dests[name] = &dest{name: name, partitions: 1}
		return w.dests[name], nil
	}
	made, err := w.opt.Endpoint.ensure(ctx, w.admin, &w.opt.Topics, []string{name})
	if err != nil {
		return nil, err
	}
	d := made[name]
	if d.limit < w.limit {
		return nil, &millrace.Error{Kind: millrace.KindRetry, Op: "write to Kafka", Peer: millrace.PeerDestination, Table: rel.Name,
			Err: fmt.Errorf("topic %s takes smaller records than the others: the limits are read anew", name)}
	}
	w.dests[name] = d
	w.batch.control = append(w.batch.control, w.pin(d, rel.Name))
	return d, nil
}

// describe writes a record to PREFIX.schema if the table has another shape than
// the newest one there, before the first record of that shape and in the same
// transaction, with the seq of the change that has it: a transaction may change
// the table between two of its changes.
func (w *writer) describe(ctx context.Context, rel *millrace.Relation, r *route) error {
	if w.opt.Describe == nil {
		return nil
	}
	v, err := w.opt.Describe(ctx, rel, r.key)
	if err != nil {
		return err
	}
	v.Version, v.Commit = 0, 0
	_, plain, err := v.Marshal()
	if err != nil {
		return err
	}
	sum := sha256.Sum256(plain)
	shape := hex.EncodeToString(sum[:8])
	if shape == r.to.shape {
		return nil
	}
	v.Version, v.Commit = r.to.schema+1, w.open.commit
	key, value, err := v.Marshal()
	if err != nil {
		return err
	}
	rec := kgo.Record{Topic: schemaTopic(w.opt.Endpoint.Prefix), Key: key, Value: value, Headers: w.headers(nil, w.open.seq)}
	if err := w.fits(&rec, "the description of table "+rel.Name.String()); err != nil {
		return err
	}
	w.open.counts.add(slot{rec.Topic, 0})
	r.to.schema, r.to.shape = v.Version, shape
	return w.put(&rec)
}

// describedRoute is what a source transaction that is given up has changed.
type describedRoute struct {
	rel    *millrace.Relation
	to     *dest
	schema int
	shape  string
	key    []string
}
