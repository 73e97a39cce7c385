package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/spool"
)

// Options say what a Sink writes to and how.
type Options struct {
	Endpoint *Endpoint
	Layout   string // LayoutTables or LayoutStream; "": LayoutTables
	Topics   TopicOptions
	// Encoder makes records of changes. It is used by one goroutine at a time.
	Encoder krecord.Encoder
	// Describe gives the version of a table that a relation is, for PREFIX.schema,
	// without Version and Commit; nil: no such records are written.
	Describe func(ctx context.Context, rel *millrace.Relation, key []int) (*krecord.TableVersion, error)
	// Keys are the columns of the record key, of tables that are not to have
	// those of the replica identity.
	Keys map[millrace.TableName][]string
	// Facts tells what the catalog says of a relation's table; nil, or a nil
	// result: nothing is known.
	Facts func(*millrace.Relation) *TableFacts
	// Spool keeps large transactions until their end has come.
	Spool *spool.Spool
	// OnClaim is told the checkpoint under which this instance writes; nil is
	// nobody.
	OnClaim func(millrace.Checkpoint)
	// Group 1 gives each source transaction a Kafka transaction of its own.
	Group int
	// MaxHeld bounds the memory of the records that wait and those being sent
	// together; 0 means 16 MiB. Each half is overrun by at most one Txn.
	MaxHeld int64
	// MaxTimeout is the longest Kafka transaction that the brokers allow; 0: they
	// are asked.
	MaxTimeout time.Duration
	Log        *slog.Logger // nil: none
}

// Sink is the Kafka destination. Open, Claim, Write, Flush, Drain and Close are
// called by one goroutine at a time; Durable and Stats by any.
type Sink struct {
	opt   Options
	stats counters
	ctl   *Control
	state *State
	// known are the topics of tables that are used and may not be pinned yet, with the
	// tables' OIDs.
	known map[string]uint32
	notes notes
	w     atomic.Pointer[writer]
}

// New makes a Sink. It connects in Open.
func New(opt Options) *Sink {
	if opt.Layout == "" {
		opt.Layout = LayoutTables
	}
	if opt.MaxHeld <= 0 {
		opt.MaxHeld = 16 << 20
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	return &Sink{opt: opt, known: map[string]uint32{}}
}

// Open implements millrace.Sink.
func (s *Sink) Open(ctx context.Context) (millrace.Checkpoint, error) {
	var none millrace.Checkpoint
	if err := s.Close(); err != nil {
		s.opt.Log.Debug("close the destination", "cause", err)
	}
	ctl, err := s.opt.Endpoint.OpenControl()
	if err != nil {
		return none, err
	}
	s.ctl = ctl
	state, err := ctl.Read(ctx)
	if err != nil {
		return none, err
	}
	if state.Job == nil {
		return none, noJob("open the destination")
	}
	if err := s.opt.SameLayout(state); err != nil {
		return none, err
	}
	s.state = state
	return state.Checkpoint, nil
}

// SameLayout refuses a job whose records are in the other layout.
func (o *Options) SameLayout(s *State) error {
	if s.Layout == cmp.Or(o.Layout, LayoutTables) {
		return nil
	}
	return &millrace.Error{Kind: millrace.KindConfig, Op: "open the destination", Peer: millrace.PeerDestination,
		Err:  fmt.Errorf("the job's records are in layout %s, and destination.kafka.layout is %s", s.Layout, cmp.Or(o.Layout, LayoutTables)),
		Hint: "set layout: " + s.Layout + "; another layout needs another prefix"}
}

// Undecided tells whether the topic holds a newer checkpoint than Open gave, of a
// transaction that may be committed: a commit is confirmed before its marker is
// in the topic.
func (s *Sink) Undecided() bool { return s.state != nil && s.state.undecided }

func noJob(op string) error {
	return &millrace.Error{Kind: millrace.KindData, Op: op, Peer: millrace.PeerDestination, Err: record.ErrNoJob,
		Hint: "millrace bootstrap records a job"}
}

var errNotClaimed = &millrace.Error{Kind: millrace.KindRetry, Op: "write to Kafka", Peer: millrace.PeerDestination,
	Err: errors.New("the destination is not open")}

// Claim implements millrace.Claimer. Getting a producer id fences the former
// writer and ends its transaction, one way or the other; only then the control
// topic is read, to the high watermark that it has now.
func (s *Sink) Claim(ctx context.Context) (millrace.Checkpoint, error) {
	var none millrace.Checkpoint
	if s.ctl == nil {
		return none, errNotClaimed
	}
	if err := s.stop(); err != nil {
		s.opt.Log.Debug("close the destination", "cause", err)
	}
	e := s.opt.Endpoint
	dests, limit, err := s.prepare(ctx)
	if err != nil {
		return none, err
	}
	cl, err := e.producer(limit, transactionTimeout, s.opt.MaxHeld)
	if err != nil {
		return none, err
	}
	state, err := fence(ctx, e, cl)
	if err != nil {
		cl.Close()
		return none, e.wrap("claim the job", err)
	}
	if state.Job == nil {
		cl.Close()
		return none, noJob("claim the job")
	}
	ended, err := s.ctl.takeUp(ctx, cl, s.opt.marks()[0], state)
	if err != nil {
		cl.Close()
		return none, e.wrap("claim the job", err)
	}
	w := &writer{ended: ended, recorded: ended, opt: &s.opt, cl: cl, timeout: transactionTimeout, admin: s.ctl.cl, stats: &s.stats, dests: dests, limit: limit,
		rels: map[*millrace.Relation]*route{}, known: s.known, notes: &s.notes, tables: state.Job.Tables,
		job: *state.Job, from: state.Checkpoint.History, loading: map[uint32]*millrace.Mark{}, skip: state.Checkpoint.Commit, cp: state.Checkpoint}
	for _, m := range state.Checkpoint.Tables {
		w.loading[m.OID] = &m
	}
	w.cp.Epoch++
	w.epoch = w.cp.Epoch
	w.pos = newPositions(w.cp.Acked)
	w.q = newQueue(s.opt.MaxHeld/2, s.opt.Group == 1, &w.cp)
	// The first transaction says whose the job is now, and moves nothing else.
	w.cp.Seq--
	if err := w.commit(ctx, &batch{control: w.claiming(state)}); err != nil {
		cl.Close()
		return none, e.wrap("claim the job", err)
	}
	if s.opt.OnClaim != nil {
		s.opt.OnClaim(w.cp)
	}
	w.start()
	s.state = state
	s.w.Store(w)
	return w.cp, nil
}

// claiming are the records of a claim: the job's state under the new epoch, and
// pins of what has none yet.
func (w *writer) claiming(s *State) []*kgo.Record {
	e := w.opt.Endpoint
	own := stateKey(w.cp.Generation, w.cp.Epoch)
	records := []*kgo.Record{e.control(own, stateJSON{string(s.Job.State), s.Job.Reason, s.Job.Hint})}
	for key := range s.states {
		if key != own {
			records = append(records, e.control(key, nil))
		}
	}
	for _, n := range w.opt.marks() {
		if _, ok := s.Topics[n]; !ok {
			records = append(records, w.pin(w.dests[n], millrace.TableName{}))
		}
	}
	return records
}

// marks are the topics of a job that are no table's.
func (o *Options) marks() []string {
	if o.stream() {
		return []string{streamTopic(o.Endpoint.Prefix), schemaTopic(o.Endpoint.Prefix)}
	}
	return []string{transactionTopic(o.Endpoint.Prefix), schemaTopic(o.Endpoint.Prefix)}
}

// prepare makes what is missing of the topics and reads their limits, before
// anybody is fenced.
func (s *Sink) prepare(ctx context.Context) (map[string]*dest, int, error) {
	e := s.opt.Endpoint
	names, pinned, virtual := s.opt.marks(), []string{}, map[string]*dest{}
	for n, pin := range s.state.Topics {
		if pin.ID == "" {
			virtual[n] = &dest{name: n, partitions: 1}
		} else if pinned = append(pinned, n); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	maps.DeleteFunc(s.known, func(_ string, oid uint32) bool { // dropped since
		return !slices.ContainsFunc(s.state.Job.Tables, func(t record.Table) bool { return t.OID == oid })
	})
	for n := range s.known {
		switch {
		case s.opt.stream():
			virtual[n] = &dest{name: n, partitions: 1}
		case !slices.Contains(names, n):
			names = append(names, n)
		}
	}
	if len(pinned) > 0 {
		now, err := topics(ctx, s.ctl.cl, pinned...)
		if err != nil {
			return nil, 0, e.wrap("describe topics", err)
		}
		if err := e.checkPins(s.state.Topics, now); err != nil {
			return nil, 0, err
		}
	}
	dests, err := e.ensure(ctx, s.ctl.cl, &s.opt.Topics, names)
	if err != nil {
		return nil, 0, err
	}
	limit := maxRecord
	for _, d := range dests {
		limit = min(limit, d.limit)
	}
	if len(dests) == len(s.opt.marks()) && !s.opt.stream() {
		limit = min(limit, maxBatch) // the topics of tables are yet to be made
	}
	maps.Copy(dests, virtual)
	for n, pin := range s.state.Topics {
		dests[n].schema, dests[n].shape, dests[n].key = pin.Schema, pin.Shape, pin.Key
	}
	if s.opt.MaxTimeout == 0 {
		s.opt.MaxTimeout = maxTimeout(ctx, kadm.NewClient(s.ctl.cl))
	}
	return dests, limit, nil
}

// maxRecord bounds a batch of the client's, whatever the topics would take.
const maxRecord = 64 << 20

// maxTimeout asks a broker how long a transaction may take; where that is not
// ours to know, it is the default.
func maxTimeout(ctx context.Context, adm *kadm.Client) time.Duration {
	const byDefault = 15 * time.Minute
	brokers, err := adm.ListBrokers(ctx)
	if err != nil || len(brokers) == 0 {
		return byDefault
	}
	configs, err := adm.DescribeBrokerConfigs(ctx, brokers[0].NodeID)
	if err != nil {
		return byDefault
	}
	for _, c := range configs {
		for _, kv := range c.Configs {
			if kv.Key != "transaction.max.timeout.ms" {
				continue
			}
			if ms, err := strconv.ParseInt(kv.MaybeValue(), 10, 64); err == nil && ms > 0 {
				return time.Duration(ms) * time.Millisecond
			}
		}
	}
	return byDefault
}

// Write implements millrace.Sink.
func (s *Sink) Write(ctx context.Context, t *millrace.Txn) error {
	w := s.w.Load()
	if w == nil {
		t.Release()
		return errNotClaimed
	}
	return w.write(ctx, t)
}

// Flush implements millrace.Sink.
func (s *Sink) Flush() {
	if w := s.w.Load(); w != nil {
		w.q.flush()
	}
}

// Durable implements millrace.Sink.
func (s *Sink) Durable(ctx context.Context, after millrace.LSN) (millrace.LSN, error) {
	w := s.w.Load()
	if w == nil {
		return 0, errNotClaimed
	}
	return w.pos.wait(ctx, after)
}

// Drain implements millrace.Drainer.
func (s *Sink) Drain(ctx context.Context) (millrace.LSN, error) {
	w := s.w.Load()
	if w == nil {
		return 0, errNotClaimed
	}
	return w.drain(ctx)
}

// Close implements millrace.Sink. A Kafka transaction that is open is given up:
// whoever claims the job next ends it.
func (s *Sink) Close() error {
	err := s.stop()
	if s.ctl != nil {
		s.ctl.Close()
		s.ctl = nil
	}
	return err
}

func (s *Sink) stop() error {
	if w := s.w.Swap(nil); w != nil {
		w.close()
	}
	return nil
}

// Stats are counters since New.
type Stats struct {
	Transactions int64 // source transactions
	Commits      int64 // Kafka transactions
	Records      int64
	Busy         time.Duration // in Kafka transactions
	Held         int64         // bytes of records in preparation, now
}

type counters struct{ transactions, commits, records, busy atomic.Int64 }

func (c *counters) committed(b *batch) {
	c.commits.Add(1)
	c.records.Add(int64(len(b.records)))
	c.transactions.Add(int64(b.txns))
}

// Stats gives the counters since New.
func (s *Sink) Stats() Stats {
	st := Stats{Transactions: s.stats.transactions.Load(), Commits: s.stats.commits.Load(), Records: s.stats.records.Load(),
		Busy: time.Duration(s.stats.busy.Load())}
	if w := s.w.Load(); w != nil {
		st.Held = w.q.hold()
	}
	return st
}

// String names the destination in logs.
func (s *Sink) String() string { return fmt.Sprint(s.opt.Endpoint) }
