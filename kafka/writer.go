package kafka

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
	"github.com/millrace/millrace/record"
)

// writer is a claimed job: a producer that is fenced by its transactional id,
// the batch in preparation, and an executor that commits the other one.
type writer struct {
	opt     *Options
	cl      *kgo.Client
	timeout time.Duration // of cl's transactions
	admin   *kgo.Client   // for topics; belongs to the Sink
	pos     *positions
	q       *queue
	stats   *counters

	// Of the goroutine that writes.
	dests     map[string]*dest
	rels      map[*millrace.Relation]*route
	limit     int // bytes of a record that every topic takes
	skip      millrace.LSN
	open      *open
	batch     *batch // while open is
	emit      func(*krecord.Record) error
	of        changeOf // that emit is called for
	slot      open     // what open points to
	packed    []byte   // a buffer, like those that follow
	scratch   []byte
	passing   []kgo.RecordHeader
	markBuf   []byte
	history   []kgo.RecordHeader // of historyOf
	historyOf millrace.History
	marksTo   string            // the transaction topic
	known     map[string]uint32 // the topics that the Sink knows of
	notes     *notes
	from      millrace.History
	ended     int64 // the number of the last transaction that was ended
	epoch     int64 // and chunks number what is loaded beside the stream
	chunks    int

	// What is recorded of the job. Of the executor, once it was claimed.
	job     record.Job
	tables  []record.Table
	loading map[uint32]*millrace.Mark // of tables that are loaded beside the stream

	// Of the executor.
	cp       millrace.Checkpoint
	recorded int64 // the number of the last transaction before it
	heights  heights
	stop     context.CancelFunc
	done     chan struct{}
}

// route is where the changes of one relation go.
type route struct {
	to  *dest
	key []int
}

// changeOf is a change of one relation on its way to records.
type changeOf struct {
	change *millrace.Change
	rel    *millrace.Relation
	to     *route
}

var errFailed = errors.New("the sink has failed") // positions has the reason

// The client's limits. A Kafka transaction must end within the timeout, or the
// coordinator aborts it; a process that dies in one holds up readers for as long.
const (
	transactionTimeout = 60 * time.Second
	deliverWithin      = 30 * time.Second
	maxBatch           = 1_000_012 // bytes; what brokers take by default
)

// producer makes the client that writes the job's transactions; held is the
// memory that it may take for records.
func (e *Endpoint) producer(limit int, timeout time.Duration, held int64) (*kgo.Client, error) {
	return e.client(
		kgo.TransactionalID(transactionalID(e.Prefix, e.Job)),
		kgo.TransactionTimeout(timeout),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.WithCompressor(&compressor{}),
		kgo.ProducerBatchMaxBytes(int32(limit)),
		// A flush follows the last record of a batch, so that lingering costs no
		// time and fills requests.
		kgo.ProducerLinger(50*time.Millisecond),
		kgo.RecordDeliveryTimeout(deliverWithin),
		kgo.MaxBufferedRecords(1<<20),
		kgo.MaxBufferedBytes(int(max(held, 8<<20))),
	)
}

func (w *writer) start() {
	ctx, cancel := context.WithCancel(context.Background())
	w.stop, w.done = cancel, make(chan struct{})
	go func() {
		defer close(w.done)
		w.run(ctx)
	}()
}

func (w *writer) close() {
	w.stop()
	<-w.done
	w.dropOpen()
	w.cl.Close()
}

// run is the executor.
func (w *writer) run(ctx context.Context) {
	var b *batch
	for {
		if b = w.q.next(ctx, b); b == nil {
			return
		}
		began := time.Now()
		err := w.commit(ctx, b)
		w.stats.busy.Add(int64(time.Since(began)))
		if b.large != nil {
			_ = b.large.Drop() // the next start removes what is left
		}
		if err != nil {
			w.pos.fail(w.opt.Endpoint.wrap("write to Kafka", w.revised(ctx, err)))
			return
		}
		w.pos.advance(w.cp.Acked)
		for _, stored := range b.stored {
			stored(true)
		}
	}
}

// commit makes a batch durable: its records and the checkpoint behind them in
// one Kafka transaction. After any error the outcome is unknown: whoever starts
// next finds out by fencing this producer and reading the control topic.
func (w *writer) commit(ctx context.Context, b *batch) error {
	cp := w.after(b)
	cl := w.cl
	if b.large != nil {
		timeout, err := w.timeoutFor(b.large.Bytes())
		if err != nil {
			return err
		}
		if timeout > transactionTimeout {
			if err := w.reopen(ctx, timeout); err != nil {
				return err
			}
			cl = w.cl
		}
	}
	if err := cl.BeginTransaction(); err != nil {
		return err
	}
	p := &promises{heights: &w.heights}
	if b.large != nil {
		if err := w.produceSpooled(ctx, cl, b, p); err != nil {
			return err
		}
	}
	var now time.Time // else the client looks at the clock for each
	var stamps stamps
	for i := range b.records {
		if stamps.due(len(b.records[i].Value)) {
			now = time.Now()
		}
		b.records[i].Timestamp = now
		cl.Produce(ctx, &b.records[i], p.done)
	}
	for _, r := range slices.Concat(b.control, w.marked(b), w.noted()) {
		cl.Produce(ctx, r, p.done)
	}
	ended := max(w.recorded, b.ended)
	cl.Produce(ctx, w.opt.Endpoint.checkpoint(&cp, ended), p.done)
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	if err := p.first(); err != nil {
		giveUp(ctx, cl, err)
		return w.explain(err)
	}
	end, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	if err := cl.EndTransaction(end, kgo.TryCommit); err != nil {
		return fmt.Errorf("whether the transaction was committed is not known: %w", err)
	}
	w.cp, w.recorded = cp, ended
	w.stats.committed(b)
	if w.timeout != transactionTimeout {
		return w.reopen(ctx, transactionTimeout)
	}
	return nil
}

// giveUp ends the transaction of a job that stops for good: nobody comes next who would, and
// readers would have to wait until it times out.
func giveUp(ctx context.Context, cl *kgo.Client, err error) {
	if millrace.KindOf(err) != millrace.KindResync {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, giveUpWithin)
	defer cancel()
	_ = cl.EndTransaction(ctx, kgo.TryAbort) // it times out otherwise
}

const giveUpWithin = 5 * time.Second

// after gives the checkpoint behind the batch.
func (w *writer) after(b *batch) millrace.Checkpoint {
	cp := w.cp
	cp.Seq++
	if b.history != nil {
		cp.History = *b.history
	}
	if b.commit != 0 {
		cp.Commit, cp.End, cp.LastXID, cp.LastTime = b.commit, b.end, b.xid, b.time.UnixMicro()
	}
	cp.Acked = max(cp.Acked, cp.End, b.idle)
	return cp
}

// promises collects what became of the records of a batch.
type promises struct {
	heights *heights // of the goroutine that calls done
	mu      sync.Mutex
	err     error
}

func (p *promises) done(r *kgo.Record, err error) {
	if err == nil {
		err = p.heights.take(r)
	}
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
}

func (p *promises) first() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// explain says what cures a refused record.
func (w *writer) explain(err error) error {
	if errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) {
		return &millrace.Error{Kind: millrace.KindData, Op: "write to Kafka", Peer: millrace.PeerDestination, Err: err,
			Hint: "a topic's max.message.bytes was lowered while the job ran; start it again, it reads the limits then"}
	}
	return err
}

// produceSpooled reads a large transaction back and produces it. The client's
// limit of buffered bytes bounds its memory: those of one partition that wait for their
// leader keep the pieces that they share with others, which are small for that reason.
func (w *writer) produceSpooled(ctx context.Context, cl *kgo.Client, b *batch, p *promises) error {
	r, err := b.large.Read()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // it was only read
	u := unpacker{common: b.common}
	var now time.Time
	var stamps stamps
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		data := rec.Data
		if !rec.Owned {
			data = u.own(data)
		}
		out, err := u.record(data)
		if err != nil {
			return err
		}
		if stamps.due(len(data)) { // as often as something may have failed as well
			if err := p.first(); err != nil {
				return w.explain(err)
			}
			now = time.Now()
		}
		out.Timestamp = now
		cl.Produce(ctx, out, p.done)
	}
}

// drain waits until everything that was written is durable.
func (w *writer) drain(ctx context.Context) (millrace.LSN, error) {
	w.dropOpen()
	w.q.urge()
	for {
		at, moved, err := w.pos.get()
		if err != nil {
			return at, err
		}
		if w.q.quiet() {
			return at, nil
		}
		select {
		case <-moved:
		case <-time.After(5 * time.Millisecond): // the executor has just become idle
		case <-ctx.Done():
			return at, ctx.Err()
		}
	}
}

// pin notes in the control topic what must not change about a topic.
func (w *writer) pin(d *dest, table millrace.TableName) *kgo.Record {
	return w.opt.Endpoint.control(keyTopic+d.name, d.pin(table))
}

func (d *dest) pin(table millrace.TableName) Topic {
	t := Topic{Partitions: int(d.partitions), Schema: d.schema, Shape: d.shape, Key: d.key}
	if d.id != [16]byte{} {
		t.ID = hex.EncodeToString(d.id[:])
	}
	if table != (millrace.TableName{}) {
		t.Table = table.String()
	}
	return t
}
