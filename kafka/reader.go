package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
)

// ReaderOptions say what to read.
type ReaderOptions struct {
	Endpoint *Endpoint
	// Cursor is where to go on: that of the last transaction that was used. Nil is
	// the beginning.
	Cursor []byte
	// History is the one whose transactions are wanted: earlier generations of it
	// are passed over, a later one or another system is an error. Nil takes
	// whatever comes.
	History *millrace.History
	// Match selects tables; nil selects all.
	Match func(millrace.TableName) bool
	// Share is what is read, by the key of rows: nil is all, as whole transactions.
	Share *Share
	// Pinned tells which topic the job that writes has under a name, by its id in hexadecimal;
	// "" is none. One that it has dropped may be deleted. nil: it has dropped none.
	Pinned func(topic string) string
	// PartBytes is how much of a transaction comes at a time, in bytes of
	// records; 0 means 1 MiB.
	PartBytes int64
	// MaxHeld bounds what was fetched and not given out, of all partitions
	// together; 0 means 8 MiB. A partition whose next record is needed may
	// overrun it by one fetch.
	MaxHeld int64
	// Described is called with each version of a table that comes behind the
	// cursor, before the first change of it; nil: nobody is told.
	Described func(context.Context, *krecord.TableVersion) error
	Log       *slog.Logger // nil: none
}

// Reader gives the source transactions that a prefix of topics holds, whole and
// in commit order, across all topics and partitions: for each END in the
// transaction topic it collects the transaction's records from the partitions
// that END names. It is used by one goroutine.
//
// A record of a transaction is known to be missing only when its partition was
// read, read_committed, up to a high watermark that was taken after END was
// read: commit markers reach partitions one by one.
//
// Changes of a compacted topic come as Put and Remove, and may be missing for a while:
// see Torn.
//
// After an error a Reader gives nothing more: another one goes on from the cursor
// of the last transaction that was used.
type Reader struct {
	opt    ReaderOptions
	log    *slog.Logger
	cl     *kgo.Client
	f      *fetcher
	failed error
	slabs  slabs
	// old says that what is being read of the schema topic was there before.
	old bool

	topics  map[string]*topic
	parts   map[slot]*partition
	ordered *partition // the one that has the order of transactions; nil: look it up
	schemas string     // the schema topic
	held    int64
	flying  int64           // memory that pages are expected to take which are fetched ahead
	ctx     context.Context //nolint:containedctx // of fetches ahead, which outlive a call
	cancel  context.CancelFunc
	at      krecord.Position // of the record that was looked at last
	places  []cursorTopic    // of the cursor: all topics in the order of their names

	tables  map[string]*tableReader // by topic
	history *millrace.History
	last    number // of the transaction that was ended last; of -1: not known

	stream *streamReader // in layout stream; nil in the other

	compacted compacted
	early     early

	end     *End // being collected; nil between transactions
	ending  End  // what it points to
	endTime time.Time
	sources []*taking
	from    *taking // what was taken last
	part    int
	seq     uint64 // of what was given out last of it
}

// partition is one partition that is read.
type partition struct {
	topic   *topic
	n       int32
	next    int64         // to fetch
	used    int64         // behind the last record that was given out; 0 if none was
	queue   []*kgo.Record // fetched and not given out
	bytes   int64
	page    int64 // memory that the newest page has taken
	ahead   *ahead
	high    int64 // high watermark of the newest page
	stable  int64 // last stable offset of the newest page
	pages   int   // that came; a fetch may bring none, when the leader has moved
	first   int64 // log start of the newest page
	compact bool
	torn    bool // of a compacted one: records are missing, see compacted
	cut     bool // of a compacted one: the log begins behind used, so that records may be gone otherwise
	others  bool // another worker's
}

// OpenReader connects and takes up the cursor.
func OpenReader(ctx context.Context, o ReaderOptions) (*Reader, error) {
	if o.PartBytes <= 0 {
		o.PartBytes = 1 << 20
	}
	if o.MaxHeld <= 0 {
		o.MaxHeld = 8 << 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	cl, err := o.Endpoint.client()
	if err != nil {
		return nil, err
	}
	r := &Reader{opt: o, log: o.Log, cl: cl, f: newFetcher(cl, true), topics: map[string]*topic{}, parts: map[slot]*partition{},
		tables: map[string]*tableReader{}, schemas: schemaTopic(o.Endpoint.Prefix), last: number{of: -1}}
	r.f.moved = r.adopt
	r.ctx, r.cancel = context.WithCancel(context.Background())
	if err := r.open(ctx); err != nil {
		r.Close()
		return nil, o.Endpoint.wrap("read Kafka", err)
	}
	return r, nil
}

// Close disconnects.
func (r *Reader) Close() {
	r.cancel()
	for _, p := range r.parts {
		if p.ahead != nil {
			<-p.ahead.done
		}
	}
	r.cl.Close()
}

func (r *Reader) open(ctx context.Context) error {
	prefix := r.opt.Endpoint.Prefix
	found, err := topics(ctx, r.cl, streamTopic(prefix), transactionTopic(prefix), schemaTopic(prefix))
	if err != nil {
		return err
	}
	names, err := r.layout(found)
	if err != nil {
		return err
	}
	if err := r.byKeyProblem(); err != nil {
		return err
	}
	for _, n := range names {
		if found[n] == nil {
			return &millrace.Error{Kind: millrace.KindRetry, Op: "read Kafka", Peer: r.opt.Endpoint.Peer, Condition: unreachable(r.opt.Endpoint.Peer),
				Err:  fmt.Errorf("there is no topic %s yet", n),
				Hint: "start the job that writes to the prefix; its topics are waited for"}
		}
	}
	if err := r.restore(ctx); err != nil {
		return err
	}
	for _, n := range names {
		if _, err := r.partition(ctx, n, 0); err != nil {
			return err
		}
	}
	return r.readVersions(ctx)
}

// Next gives the next transaction, or the next part of a large one. The caller
// releases it once it is done with it.
func (r *Reader) Next(ctx context.Context) (*millrace.Txn, error) {
	for {
		t, err := r.ready(ctx)
		if t != nil || err != nil {
			return t, err
		}
		if err := r.await(ctx); err != nil {
			return nil, err
		}
	}
}

// ready is Next, but gives nil once nothing that was fetched is left of the
// transaction topic.
func (r *Reader) ready(ctx context.Context) (*millrace.Txn, error) {
	if r.failed != nil {
		return nil, r.failed
	}
	if r.stream != nil {
		t, err := r.nextPart(ctx)
		return t, r.fail(err)
	}
	for r.end == nil {
		r.atHead()
		if r.compacted.torn {
			if err := r.mend(ctx); err != nil {
				return nil, r.fail(err)
			}
		}
		if r.Waiting() {
			r.atHead()
			return nil, nil
		}
		if err := r.nextEnd(ctx); err != nil {
			return nil, r.fail(err)
		}
	}
	t, err := r.collect(ctx)
	return t, r.fail(err)
}

// await fetches more of the transaction topic. It returns after a while even if
// nothing has come.
func (r *Reader) await(ctx context.Context) error {
	if r.failed != nil {
		return r.failed
	}
	return r.fail(r.poll(ctx, r.order()))
}

// fail remembers an error: records that were taken for a transaction that did not
// come about are gone.
func (r *Reader) fail(err error) error {
	if err != nil {
		r.failed = r.opt.Endpoint.wrap("read Kafka", err)
	}
	return r.failed
}

// order is the partition that has the order of transactions.
func (r *Reader) order() *partition {
	if r.ordered == nil {
		r.ordered = r.parts[slot{r.main(), 0}]
	}
	return r.ordered
}

// Waiting tells whether Next would have to wait for something new: nothing that
// was fetched is left of the transaction topic.
func (r *Reader) Waiting() bool {
	return r.end == nil && (r.stream == nil || r.stream.part == 0) && len(r.order().queue) == 0
}

// reached gives the offset behind all that is in the transaction topic now, and
// passed tells whether everything before an offset was given out.
func (r *Reader) reached(ctx context.Context) (int64, error) {
	p := r.order()
	all, err := offsets(ctx, r.cl, -1, p.topic)
	if leaderMoved(err) {
		return -1, r.fail(r.refresh(ctx, p))
	}
	if err != nil {
		return -1, r.fail(err)
	}
	return all[p.topic][0], nil
}

func (r *Reader) passed(offset int64) bool {
	return r.Waiting() && r.order().next >= offset && !r.compacted.torn
}

// Torn tells whether transactions lack changes that compaction has removed. Once all
// that have come were used, and it says no again, nothing is missing any more.
func (r *Reader) Torn() bool { return r.compacted.torn }

func (r *Reader) malformed(rec *kgo.Record, err error) error {
	return &millrace.Error{Kind: millrace.KindData, Op: "read Kafka", Peer: r.opt.Endpoint.Peer,
		Err:  fmt.Errorf("the record at offset %d of %s [%d] can't be read: %w", rec.Offset, rec.Topic, rec.Partition, err),
		Hint: "somebody else has written to the topic: start over in an empty prefix"}
}
