package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
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

// taking is what one partition has of the transaction that is collected.
type taking struct {
	p     *partition
	left  int         // records that are still to come
	head  *kgo.Record // the next of them, if it was looked at
	seq   uint64      // of head
	until int64
	sure  bool // until is what ListOffsets said
	pages int  // of the partition, when END was read
	// unsent: a change takes values from the row that was there before.
	unsent bool
}

// tableReader reads the records of a table.
type tableReader struct {
	version *krecord.TableVersion
	decoder *krecord.Decoder
	skip    bool // not selected
	// keyed is set if the topic is compacted: the relation with the records' key.
	keyed *millrace.Relation
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

// readVersions reads the descriptions of tables that come before the cursor.
func (r *Reader) readVersions(ctx context.Context) error {
	p := r.parts[slot{schemaTopic(r.opt.Endpoint.Prefix), 0}]
	if r.stream != nil {
		p.used = p.first // all of them, whatever the cursor says: a part names those that it needs
		return r.moreVersions(ctx)
	}
	if p.used == 0 {
		return nil
	}
	r.old = true
	defer func() { r.old = false }()
	_, err := r.f.readAll(ctx, p.topic, p.first, func(page) int64 { return p.used }, func(rec *kgo.Record) error {
		if rec.Offset < p.used && rec.Value != nil {
			return r.take(ctx, rec)
		}
		return nil
	})
	return err
}

// take takes up the description of a table.
func (r *Reader) take(ctx context.Context, rec *kgo.Record) error {
	v, err := krecord.ParseTableVersion(rec.Value)
	if err != nil {
		return &millrace.Error{Kind: millrace.KindData, Op: "read Kafka", Peer: r.opt.Endpoint.Peer, Err: err,
			Hint: "use a version of Millrace that is at least as new as the one that writes"}
	}
	t := &tableReader{version: v, skip: r.opt.Match != nil && !r.opt.Match(v.Name())}
	if !t.skip {
		if t.decoder, err = newTableReader(v); err != nil {
			return unreadable(r.opt.Endpoint, v, err)
		}
		if r.opt.Described != nil && !r.old {
			if err := r.opt.Described(ctx, v); err != nil {
				return err
			}
		}
	}
	r.tables[v.Topic] = t
	return nil
}

func newTableReader(v *krecord.TableVersion) (*krecord.Decoder, error) {
	rel, key, o, err := v.Relation()
	if err != nil {
		return nil, err
	}
	return krecord.NewDecoder(o, rel, key)
}

func unreadable(e *Endpoint, v *krecord.TableVersion, err error) error {
	return &millrace.Error{Kind: millrace.KindPreflight, Op: "read Kafka", Peer: e.Peer, Table: v.Name(), Err: err,
		Hint: "write the topics with format: json, json-inline, json-schema or avro, which hold whole rows, or exclude the table"}
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

// beginHead is what a BEGIN begins with; one that does not is found out all the same.
var beginHead = []byte(`{"status":"` + statusBegin + `"`)

// nextEnd takes one record of the transaction topic, which may be an END.
func (r *Reader) nextEnd(ctx context.Context) error {
	rec := r.order().pop(r)
	if bytes.HasPrefix(rec.Value, beginHead) {
		return nil
	}
	e := &r.ending
	if err := parseEnd(rec.Value, e); err != nil {
		return r.malformed(rec, err)
	}
	if e.Status != statusEnd {
		return nil
	}
	if err := r.follow(rec); err != nil {
		return err
	}
	if old, err := r.judge(e.Position.Commit); old || err != nil {
		return err
	}
	if err := r.counted(rec); err != nil {
		return err
	}
	r.end, r.endTime, r.part, r.seq, r.sources = e, time.UnixMilli(e.TS), 0, 0, r.sources[:0]
	for _, x := range e.Partitions {
		if !r.wants(x.Topic, x.Partition) {
			continue
		}
		p, err := r.partition(ctx, x.Topic, x.Partition)
		if err != nil {
			return err
		}
		// The page that p has may be older than END: only one that is fetched from
		// here on has the high watermark that counts.
		p.cut = p.cut && p.used < p.first
		r.sources = append(r.sources, &taking{p: p, left: x.Count, until: -1, pages: p.pages})
	}
	return nil
}

// judge holds a transaction's history against the one that is wanted.
func (r *Reader) judge(at millrace.LSN) (old bool, err error) {
	want := r.opt.History
	if want == nil {
		return false, nil
	}
	got := r.history
	if got.System == want.System && got.Generation <= want.Generation {
		return got.Generation < want.Generation, nil
	}
	return false, otherHistory(r.opt.Endpoint, got, want, at)
}

// otherHistory is the error of a prefix that goes on with another history.
func otherHistory(e *Endpoint, got, want *millrace.History, at millrace.LSN) error {
	m := &millrace.Error{Kind: millrace.KindResync, Op: "read Kafka", Peer: e.Peer, LSN: at,
		Hint: "millrace bootstrap --restart-snapshot --yes, of the job that reads, empties its tables and starts over with what the prefix holds now"}
	if got.System != want.System {
		m.Err = fmt.Errorf("the prefix holds changes of another database: of system %s, and the job follows %s", got.System, want.System)
		m.Hint = "point the source at the prefix that the job was loaded from; or start over: " + m.Hint
		return m
	}
	m.Err = fmt.Errorf("the job that writes to the prefix was started over: its records are of generation %d, and the job follows %d",
		got.Generation, want.Generation)
	return m
}

// follow takes note of the history that a transaction belongs to.
func (r *Reader) follow(rec *kgo.Record) error {
	h := millrace.History{System: string(krecord.Header(rec, headerSystem))}
	timeline, err := strconv.ParseInt(string(krecord.Header(rec, headerTimeline)), 10, 32)
	if err != nil {
		return r.malformed(rec, err)
	}
	if h.Generation, err = strconv.ParseInt(string(krecord.Header(rec, headerGeneration)), 10, 64); err != nil {
		return r.malformed(rec, err)
	}
	h.Timeline = int32(timeline)
	if r.history == nil || *r.history != h {
		r.history = &h
	}
	return nil
}

func (r *Reader) malformed(rec *kgo.Record, err error) error {
	return &millrace.Error{Kind: millrace.KindData, Op: "read Kafka", Peer: r.opt.Endpoint.Peer,
		Err:  fmt.Errorf("the record at offset %d of %s [%d] can't be read: %w", rec.Offset, rec.Topic, rec.Partition, err),
		Hint: "somebody else has written to the topic: start over in an empty prefix"}
}

// collect gives the rest of the transaction, or a part of it.
func (r *Reader) collect(ctx context.Context) (*millrace.Txn, error) {
	e := r.end
	t := &millrace.Txn{XID: e.XID, Commit: e.Commit, Time: r.endTime, From: r.history, Part: r.part}
	if name, ok := strings.CutPrefix(e.ID, "chunk:"); ok {
		t.XID, t.Commit, t.Chunk = 0, 0, &millrace.Chunk{Table: r.chunkTable(name)}
	}
	mem := r.slabs.take(t)
	var pending *millrace.Change // the last change, to which records with the same seq may belong
	for {
		rec, seq, err := r.first(ctx)
		if err != nil {
			return nil, err
		}
		if rec == nil {
			break
		}
		if t.Size >= r.opt.PartBytes && seq != r.seq {
			r.part++
			r.putBack(rec)
			r.loosen(t)
			return t, nil
		}
		r.seq = seq
		if pending, err = r.add(ctx, t, pending, rec, seq, mem); err != nil {
			return nil, err
		}
	}
	r.end = nil
	t.Last = true
	r.loosen(t)
	if t.Chunk == nil {
		t.End = e.Position.End
	}
	t.Cursor = r.cursor()
	return t, nil
}

// chunkTable gives the table of a chunk by its name, which is that of the table and
// a number.
func (r *Reader) chunkTable(name string) (table millrace.TableName) {
	for _, tr := range r.tables {
		if strings.HasPrefix(name, tr.version.Schema+"."+tr.version.Table+":") {
			table = tr.version.Name()
		}
	}
	return table
}

// add decodes a record and adds it to the transaction: as a change of its own,
// or to the one before, of which it is the other half.
func (r *Reader) add(ctx context.Context, t *millrace.Txn, last *millrace.Change, rec *kgo.Record, seq uint64, mem *krecord.Memory) (*millrace.Change, error) {
	t.Size += int64(len(rec.Key)+len(rec.Value)) + recordSize
	if rec.Topic == r.schemas {
		return last, r.take(ctx, rec)
	}
	tr := r.tables[rec.Topic]
	switch {
	case tr == nil:
		return last, r.malformed(rec, errors.New("the table has no description in the schema topic"))
	case tr.skip:
		return last, nil
	}
	keyed := r.from != nil && (r.from.p.compact || r.opt.Share != nil)
	if keyed && tr.keyed == nil {
		if err := tr.byKey(r.opt.Endpoint); err != nil {
			return last, err
		}
		if !r.from.p.compact && !tr.uniqueKey() { // the other ones were looked at by who writes
			return last, severalRows(r.opt.Endpoint, tr.version)
		}
	}
	c, kind, err := tr.decoder.Decode(rec, mem)
	if err != nil {
		return last, err
	}
	c.Seq = seq
	r.early.note(rec, &c)
	if keyed && c.Truncated == nil {
		return r.addKeyed(t, last, rec, &c, kind, mem)
	}
	if keyed {
		if err := r.truncatedByKey(r.from.p.topic); err != nil {
			return last, err
		}
	}
	same := last != nil && last.Seq == seq
	switch {
	case kind == krecord.Tombstone:
		return last, nil
	case kind == krecord.NewHalf && same && last.Op == millrace.Delete:
		krecord.Join(last, &c)
		*last = c
		return last, nil
	case kind == krecord.OldHalf && same && last.Op == millrace.Update:
		krecord.Join(&c, last)
		return last, nil
	case c.Op == millrace.Truncate && same && last.Op == millrace.Truncate:
		krecord.JoinTruncate(last, &c)
		return last, nil
	}
	t.Changes = append(t.Changes, c)
	return &t.Changes[len(t.Changes)-1], nil
}

// first takes the record with the lowest seq of those that are left of the
// transaction; nil when none is. What is needed next of each partition has to be
// there for that.
func (r *Reader) first(ctx context.Context) (*kgo.Record, uint64, error) {
	var best *taking
	var bestSeq uint64
	for _, s := range r.sources {
		rec, err := r.head(ctx, s)
		if err != nil {
			return nil, 0, err
		}
		if rec == nil {
			continue
		}
		seq := s.seq
		// A description has the seq of the change that it comes before.
		if best == nil || seq < bestSeq || seq == bestSeq && s.p.topic.name == r.schemas {
			best, bestSeq = s, seq
		}
	}
	if best == nil {
		return nil, 0, nil
	}
	best.left--
	best.head = nil
	r.from = best
	return best.p.pop(r), bestSeq, nil
}

// head gives the next record of the transaction in a partition, or nil if there
// is none.
func (r *Reader) head(ctx context.Context, s *taking) (*kgo.Record, error) {
	if s.left == 0 {
		return nil, nil
	}
	for {
		if len(s.p.queue) > 0 {
			rec := s.p.queue[0]
			if rec == s.head {
				return rec, nil
			}
			at, err := r.positionOf(rec)
			switch {
			case err != nil:
				return nil, err
			case at.commit == r.end.Commit && at.generation == r.history.Generation && at.xid == r.end.XID:
				s.head, s.seq = rec, at.seq
				return rec, nil
			case at.generation < r.history.Generation:
				s.p.pop(r) // its END was passed over
				continue
			case at.generation == r.history.Generation && at.commit < r.end.Commit:
				return nil, r.malformed(rec, fmt.Errorf("it belongs to transaction %d:%d, whose END did not name the partition", at.xid, uint64(at.commit)))
			}
			return nil, r.missing(s) // it belongs to a later one
		}
		if s.until >= 0 && s.p.next >= s.until {
			if s.sure {
				return nil, r.missing(s)
			}
			if err := r.confirm(ctx, s); err != nil {
				return nil, err
			}
			continue
		}
		if err := r.poll(ctx, s.p); err != nil {
			return nil, err
		}
		if s.until < 0 && s.p.pages > s.pages {
			s.until = s.p.high // of a page that was fetched behind END
		}
	}
}

// confirm asks how far the partition has to be read, with the request that a new
// leader does not answer before it knows (KIP-207): the high watermark of a page
// may be behind what the leader before has confirmed.
func (r *Reader) confirm(ctx context.Context, s *taking) error {
	all, err := offsets(ctx, r.cl, -1, s.p.topic)
	if leaderMoved(err) {
		return r.refresh(ctx, s.p)
	}
	if err != nil {
		return err
	}
	for n, at := range all[s.p.topic] {
		if int32(n) == s.p.n {
			s.until, s.sure = max(s.until, at), true
		}
	}
	return nil
}

// missing judges records that did not come although their partition was read
// far enough.
func (r *Reader) missing(s *taking) error {
	if s.p.compact {
		return r.hole(s)
	}
	e := &millrace.Error{Kind: millrace.KindResync, Op: "read Kafka", Peer: r.opt.Endpoint.Peer, LSN: r.end.Commit,
		Err:  fmt.Errorf("%d records of the transaction are missing in %s [%d]", s.left, s.p.topic.name, s.p.n),
		Hint: "the topic was changed by somebody else: start over from a new first load, `millrace bootstrap --restart-snapshot --yes`, at both ends"}
	if s.p.first > s.p.used {
		e.Err = fmt.Errorf("history expired: %s [%d] begins at offset %d, and the transaction's records were before", s.p.topic.name, s.p.n, s.p.first)
		e.Hint = expiredHint
	}
	return e
}

// putBack undoes what first has taken last.
func (r *Reader) putBack(rec *kgo.Record) {
	for _, s := range r.sources {
		if s.p.topic.name == rec.Topic && s.p.n == rec.Partition {
			s.p.queue = slices.Insert(s.p.queue, 0, rec)
			n := recordMemory(rec)
			s.p.bytes += n
			r.held += n
			s.left++
			return
		}
	}
}
