package backfill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// Stream is the source that chunks are put between the transactions of.
type Stream interface {
	millrace.Source
	Queued() bool
	RequestPosition()
	UseText()
	// LeftAt tells where the source's history left the timeline of the checkpoint that
	// Start was given, 0 if it did not.
	LeftAt() millrace.LSN
}

// Options say how tables are loaded beside the stream.
type Options struct {
	Stream   Stream
	Endpoint *session.Endpoint // of the source
	Parallel int               // chunks that are read at the same time; 0: 2
	Rate     int64             // bytes a second; 0: no limit
	Keys     catalog.Keys      // chosen for some tables
	// ChunkBytes bounds what one chunk has in memory; 0: 2 MiB.
	ChunkBytes int64
	// CutBytes is the size from which a part of a table is worth a reader of its own;
	// 0: 32 MiB.
	CutBytes int64
	// Early lets changes of what is not read yet pass at once, for destinations
	// that take any change; the row follows as it is then. Otherwise, and where a
	// table has no key, they wait for their chunk.
	Early bool
	// Staging names the table of the destination in which the rows of one that is read
	// again are kept until they take the place of its own. Nil: the destination takes
	// the new rows as they come.
	Staging func(oid uint32) millrace.TableName
	// OnDone is called when all tables are loaded and the stream has passed all
	// that they show: whoever has applied what was given away up to now is
	// consistent. It must not block.
	OnDone func()
	Log    *slog.Logger
}

// Source implements millrace.Source.
type Source struct {
	opt   Options
	log   *slog.Logger
	limit *snapshot.Limiter
	text  atomic.Bool
	busy  atomic.Bool // there are loads
	// failed: err is set.
	failed atomic.Bool

	mu        sync.Mutex
	asker     *pgx.Conn        // compares keys
	loads     map[uint32]*load // by OID
	order     []*load
	delivered []uint32     // transactions that no snapshot is known to see
	floor     uint64       // what a snapshot has to see everything below of
	passed    millrace.LSN // the commit records below it were delivered
	history   *millrace.History
	noted     map[*load]bool // whose mark goes with the transaction that is open
	ready     []*pending
	whole     *pending // a table that is being given away in one piece
	paused    bool
	deciding  int           // chunks that wait for the stream before they are given away
	standby   bool          // the source is one
	err       error         // of a reader; Next returns it
	resting   int           // readers that have nothing to read
	idle      chan struct{} // closed and made anew to wake those who read chunks
	ranged    time.Time     // when a range was given to a reader, or came back from it, last

	// Of the goroutine that calls Next:
	open   bool  // between the parts of a transaction
	turn   int64 // bytes of the stream since the last chunk
	parent context.Context
	waking context.Context

	wakeNext context.CancelFunc // under mu
	cancel   context.CancelFunc // ends the readers
	readers  sync.WaitGroup
}

// New makes a Source. It does not connect.
func New(opt Options) *Source {
	if opt.Parallel <= 0 {
		opt.Parallel = 2
	}
	if opt.ChunkBytes <= 0 {
		opt.ChunkBytes = 2 << 20
	}
	if opt.CutBytes <= 0 {
		opt.CutBytes = 32 << 20
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	return &Source{opt: opt, log: opt.Log, limit: snapshot.NewLimiter(opt.Rate), idle: make(chan struct{})}
}

// Start implements millrace.Source.
func (s *Source) Start(ctx context.Context, from millrace.Checkpoint) error {
	s.stop()
	s.mu.Lock()
	s.loads, s.order, s.noted = map[uint32]*load{}, nil, map[*load]bool{}
	s.delivered, s.ready, s.whole, s.err = nil, nil, nil, nil
	s.failed.Store(false)
	s.passed, s.history = from.Acked, nil
	s.open, s.turn, s.resting = false, 0, 0
	s.idle = make(chan struct{})
	s.mu.Unlock()
	if err := s.opt.Stream.Start(ctx, from); err != nil {
		return err
	}
	if err := s.takeUp(ctx, from); err != nil {
		_ = s.opt.Stream.Close() // the first error is the one that matters
		return err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	for range s.opt.Parallel {
		s.readers.Go(func() { s.work(running) })
	}
	s.readers.Go(func() { s.ask(running) })
	return nil
}

// takeUp goes on with the loads that the destination has marks of.
func (s *Source) takeUp(ctx context.Context, from millrace.Checkpoint) error {
	marks := from.Tables
	s.busy.Store(len(marks) > 0)
	if len(marks) == 0 {
		return nil
	}
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	server, err := catalog.ReadServer(ctx, conn)
	if err != nil {
		return session.Wrap("look at the source", millrace.PeerSource, err)
	}
	s.standby = server.InRecovery
	floor, err := nextXID(ctx, conn)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.floor = floor
	for name, m := range marks {
		if err := s.addLocked(ctx, conn, name, m); err != nil {
			return err
		}
	}
	return s.checkTimeline(from)
}

// checkTimeline refuses to go on at a promoted standby if rows were loaded that may show
// transactions which its history does not have: no stream would ever take them back.
func (s *Source) checkTimeline(from millrace.Checkpoint) error {
	left := s.opt.Stream.LeftAt()
	if left == 0 {
		return nil
	}
	for _, l := range s.order {
		if at := l.shows(); at > left {
			return &millrace.Error{Kind: millrace.KindResync, Op: "start", Peer: millrace.PeerSource, Table: l.name,
				Err:  fmt.Errorf("the source left timeline %d at %v, and rows were loaded that may show what came after that, up to %v", from.Timeline, left, at),
				Hint: "start over with `millrace bootstrap --restart-snapshot --yes`"}
		}
	}
	return nil
}

func (s *Source) addLocked(ctx context.Context, conn *pgx.Conn, name millrace.TableName, m millrace.Mark) error {
	l, err := newLoad(name, m)
	if err != nil {
		return err
	}
	if l.table, err = snapshot.DescribeChunks(ctx, conn, l.oid, !s.text.Load(), s.opt.Keys); err != nil {
		return err
	}
	if err := l.reform(); err != nil {
		return markError(name, err)
	}
	l.forget(s.passed)
	s.loads[l.oid] = l
	s.order = append(s.order, l)
	return nil
}

func (s *Source) connect(ctx context.Context) (*pgx.Conn, error) {
	return s.opt.Endpoint.Connect(ctx, session.Watch)
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = conn.Close(ctx) // nothing depends on it
}

// nextXIDSQL gives the number of the next transaction without taking it: age()
// counts from there. The snapshot's xmax would be too low: what is committed and
// not visible yet can lie behind it.
const nextXIDSQL = `SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8, pg_catalog.age('3'::pg_catalog.xid)::int8`

func nextXID(ctx context.Context, conn *pgx.Conn) (uint64, error) {
	var xmax, age int64
	if err := conn.QueryRow(ctx, nextXIDSQL).Scan(&xmax, &age); err != nil {
		return 0, session.Wrap("read the next transaction's number", millrace.PeerSource, err)
	}
	next := uint32(int32(age)) + 3
	return uint64(xmax) + uint64(int64(int32(next-uint32(xmax)))), nil
}

// Next implements millrace.Source.
func (s *Source) Next(ctx context.Context) (*millrace.Txn, error) {
	for {
		if !s.open && (s.busy.Load() || s.failed.Load()) {
			if t, err := s.chunk(ctx); t != nil || err != nil {
				return t, err
			}
		}
		t, err := s.opt.Stream.Next(s.wakeable(ctx))
		if err != nil {
			if ctx.Err() == nil && errors.Is(err, context.Canceled) {
				continue
			}
			return nil, err
		}
		if !s.busy.Load() {
			s.open = !t.Last && !t.Idle()
			return t, nil
		}
		if err := s.take(ctx, t); err != nil {
			t.Release()
			return nil, err
		}
		return t, nil
	}
}

// wakeable gives a context that ends when somebody has something for Next.
func (s *Source) wakeable(ctx context.Context) context.Context {
	if s.parent != ctx || s.waking == nil || s.waking.Err() != nil {
		s.mu.Lock()
		if s.wakeNext != nil {
			s.wakeNext()
		}
		s.parent = ctx
		s.waking, s.wakeNext = context.WithCancel(ctx)
		if !s.open && s.dueLocked() {
			s.wakeNext() // it came in between
		}
		s.mu.Unlock()
	}
	return s.waking
}

// dueLocked tells whether there is something else to give away than the stream.
func (s *Source) dueLocked() bool {
	return len(s.ready) > 0 || s.err != nil || s.whole != nil && !s.whole.begun ||
		slices.ContainsFunc(s.order, func(l *load) bool { return l.emptying })
}

// wakeLocked has Next look for chunks.
func (s *Source) wakeLocked() {
	if s.wakeNext != nil {
		s.wakeNext()
	}
}

// take judges what the stream gives.
func (s *Source) take(ctx context.Context, t *millrace.Txn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn += t.Size
	if t.From != nil {
		s.history = t.From
	}
	if t.Idle() {
		s.passLocked(t.End)
		return nil
	}
	if t.Phase == millrace.Prepared || t.Phase == millrace.RollbackPrepared {
		return &millrace.Error{Kind: millrace.KindData, Op: "load beside the stream", Peer: millrace.PeerSource, LSN: t.Commit,
			Err:  errors.New("a transaction was prepared, which is not available in this version while tables are loaded"),
			Hint: "start over with `millrace bootstrap --restart-snapshot --yes`"}
	}
	if t.Part == 0 {
		s.passLocked(t.Commit)
		s.deliver(t.XID)
	}
	s.open = !t.Last
	if err := s.sift(ctx, t); err != nil {
		return err
	}
	if !t.Last {
		return nil
	}
	s.passLocked(t.End)
	for l := range s.noted {
		if t.Marks == nil {
			t.Marks = map[millrace.TableName]millrace.Mark{}
		}
		t.Marks[l.name] = l.mark()
	}
	clear(s.noted)
	return nil
}

// mostDelivered is how many transactions are remembered one by one. While loads rest,
// nobody looks which of them are visible.
const mostDelivered = 1 << 16

// deliver remembers a transaction that snapshots have to see. Of too many it is
// required that everything up to the newest of them is visible, which can take
// longer.
func (s *Source) deliver(xid uint32) {
	s.delivered = append(s.delivered, xid)
	if len(s.delivered) <= mostDelivered {
		return
	}
	from := s.floor
	for _, x := range s.delivered {
		s.floor = max(s.floor, from+1+uint64(int64(int32(x-uint32(from)))))
	}
	s.delivered = nil
}

func (s *Source) passLocked(at millrace.LSN) {
	if at <= s.passed {
		return
	}
	s.passed = at
	for _, l := range s.order {
		l.forget(at)
	}
}

// note has the load's mark stored with the transaction that is open.
func (s *Source) note(l *load) { s.noted[l] = true }

// chunk gives a chunk or the end of a load, if it is its turn.
func (s *Source) chunk(ctx context.Context) (*millrace.Txn, error) {
	for {
		s.mu.Lock()
		err, whole := s.err, s.whole
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if whole != nil {
			if t, err := s.piece(ctx, whole); t != nil || err != nil {
				return t, err
			}
			continue
		}
		if t := s.emptied(); t != nil {
			return t, nil
		}
		if t := s.ended(); t != nil {
			return t, nil
		}
		s.mu.Lock()
		stalled := s.stalledLocked()
		if len(s.ready) == 0 || !stalled && s.turn < s.opt.ChunkBytes && s.opt.Stream.Queued() {
			s.mu.Unlock()
			if !stalled {
				return nil, nil
			}
			// The stream has to wait for holes to be read, unless who reads waits for it.
			waiting, cancel := context.WithTimeout(s.wakeable(ctx), stalledFor)
			<-waiting.Done()
			cancel()
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			continue
		}
		p := s.ready[0]
		s.ready = s.ready[1:]
		t, err := s.inject(ctx, p)
		s.mu.Unlock()
		p.taken <- t != nil
		if err != nil {
			return nil, err
		}
		if t != nil {
			t.OnStored(func(bool) { close(p.stored) })
			s.turn = 0
			return t, nil
		}
	}
}

// mostHoles is how many keys of a table may wait to be read on their own before
// the stream waits for them, and how often it looks whether it still has to.
const (
	mostHoles  = 256
	stalledFor = 50 * time.Millisecond
)

// stalledLocked counts those holes only that are to be read: the others go when the
// stream goes on. It has to go on as well while a chunk that was read waits for it.
func (s *Source) stalledLocked() bool {
	if s.deciding > 0 {
		return false
	}
	for _, l := range s.order {
		n := 0
		for _, h := range l.holes {
			if h.state == unread {
				n++
			}
		}
		if n > mostHoles {
			return true
		}
	}
	return false
}

// emptied gives the emptying of a table that is read from its beginning again.
func (s *Source) emptied() *millrace.Txn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.order {
		if !l.emptying {
			continue
		}
		l.reset()
		s.wakeWorkers()
		changes := []millrace.Change{{Op: millrace.Truncate, Seq: 1, Early: s.opt.Early, Truncated: &millrace.Truncation{Rels: []*millrace.Relation{l.table.Rel}}}}
		s.redirect(changes)
		return &millrace.Txn{Chunk: &millrace.Chunk{Table: l.name}, From: s.history, Last: true, End: s.passed, Changes: changes,
			Marks: map[millrace.TableName]millrace.Mark{l.name: l.mark()}}
	}
	return nil
}

// ended gives the last mark of a load that is over.
func (s *Source) ended() *millrace.Txn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, l := range s.order {
		if !l.isDone() || s.noted[l] {
			continue
		}
		s.order = append(s.order[:i:i], s.order[i+1:]...)
		delete(s.loads, l.oid)
		s.log.Info("the table is loaded", "table", l.name, "rows", l.rows, "lsn", s.passed)
		m := millrace.Mark{OID: l.oid, Done: true, Rows: l.rows, Bytes: l.bytes}
		if len(s.order) == 0 {
			s.busy.Store(false)
			if s.opt.OnDone != nil {
				s.opt.OnDone()
			}
		}
		return &millrace.Txn{Chunk: &millrace.Chunk{Table: l.name}, From: s.history, Last: true, End: s.passed, Changes: s.merged(l),
			Marks: map[millrace.TableName]millrace.Mark{l.name: m}}
	}
	return nil
}

// Queued tells whether Next would return at once.
func (s *Source) Queued() bool {
	if s.opt.Stream.Queued() {
		return true
	}
	if !s.busy.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ready) > 0
}

// Ack implements millrace.Source.
func (s *Source) Ack(durable millrace.LSN) { s.opt.Stream.Ack(durable) }

// RequestPosition asks the server how far it is.
func (s *Source) RequestPosition() { s.opt.Stream.RequestPosition() }

// UseText makes the next Start ask for values in text form only.
func (s *Source) UseText() {
	s.text.Store(true)
	s.opt.Stream.UseText()
}

// StartAnew has Next return an error for which the source is started anew, with
// the set of tables and the marks as they are then.
func (s *Source) StartAnew() {
	s.fail(fmt.Errorf("the set of tables is another one: %w", millrace.ErrStartAnew))
}

// Pause has the load rest, while the stream goes on.
func (s *Source) Pause(on bool) {
	s.mu.Lock()
	s.paused = on
	s.wakeWorkers()
	s.mu.Unlock()
}

// Close implements millrace.Source.
func (s *Source) Close() error {
	s.stop()
	return s.opt.Stream.Close()
}

// stop ends the readers.
func (s *Source) stop() {
	if s.cancel != nil {
		s.cancel()
		s.readers.Wait()
		s.cancel = nil
	}
	if s.asker != nil {
		closeConn(s.asker)
		s.asker = nil
	}
}

// TableProgress is where the load of a table stands.
type TableProgress struct {
	Name        millrace.TableName
	OID         uint32
	Rows, Bytes int64
	Estimated   int64 // rows of the table; -1: unknown
	Read        bool  // all of it; the stream has not passed all that it shows yet
}

// Progress tells where the loads stand that are not over.
func (s *Source) Progress() []TableProgress {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]TableProgress, 0, len(s.order))
	for _, l := range s.order {
		all = append(all, TableProgress{Name: l.name, OID: l.oid, Rows: l.rows, Bytes: l.bytes, Estimated: l.table.Rows, Read: l.allRead()})
	}
	return all
}
