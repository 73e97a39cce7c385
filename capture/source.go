package capture

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/spool"
)

// Table is one table of the job's set, as the job's record has it.
type Table struct {
	OID      uint32
	Name     millrace.TableName
	Filenode uint32
	Shape    string // catalog.ShapeOf
	Adding   bool   // it is about to be taken into the set, and does not count yet
}

// Options say what to read, and from where.
type Options struct {
	Endpoint    *session.Endpoint
	Slot        string
	Publication string
	// Tables gives the job's set. It is called at every start.
	Tables func(ctx context.Context) ([]Table, error)
	// Recorded gives it as well, and is called when a table that is not in it turns
	// up; nil: there is no such table.
	Recorded func(ctx context.Context) ([]Table, error)
	// Match tells whether the job's patterns include a table.
	Match func(millrace.TableName) bool
	// MaxInflight is the memory of everything between the source and the
	// destination; half of it may wait in the queue.
	MaxInflight int64
	MaxMessage  int64 // the largest message of the stream that is taken
	BufferSize  int   // of one read
	// Spool takes large transactions while they are open at the source. Without
	// one, and once it has failed, the server sends them when they are committed.
	Spool *spool.Spool
	// Parallel asks for them by protocol 4, for which the source must be 16 or newer.
	Parallel bool
	// Ahead begins to apply a transaction while it is open; nil: none is. It waits
	// until what was applied ahead before is committed or given up.
	Ahead func(ctx context.Context, xid uint32) (millrace.Ahead, error)
	// AheadIdle is how long such a transaction is kept on the target without a further
	// change; 0: five minutes.
	AheadIdle time.Duration
	// TwoPhase tells at every start whether prepared transactions are to come as
	// such; nil says no. Once it was so the slot keeps to it.
	TwoPhase func() bool
	// LocalOnly leaves out what was written at the source by replication: a
	// transaction with an origin. The source must be 16 or newer.
	LocalOnly bool
	Log       *slog.Logger
	// OnShape records a table's new shape or file node. An error stops the
	// stream before the transaction that has the new shape.
	OnShape func(ctx context.Context, t Table) error
}

// Defaults for what Options leaves at zero; those of the configuration.
const (
	defaultInflight = 16 << 20
	defaultMessage  = 16 << 20
	defaultBuffer   = 256 << 10
)

// closeWithin bounds how long Close waits for the server.
const closeWithin = 3 * time.Second

// Source implements millrace.Source. It can be started again after it was
// closed, and after an error.
type Source struct {
	opt    Options
	log    *slog.Logger
	memory memory
	stats  counters
	text   atomic.Bool
	whole  atomic.Bool // the spool has failed: transactions come once they are committed
	acked  atomic.Uint64
	starts atomic.Int64
	left   atomic.Uint64 // see LeftAt

	twoPhase bool // found by the start that goes on
	cuts     cuts
	// finishing: the commit of a transaction that is applied ahead has come, and the
	// rest of it is being applied.
	finishing atomic.Bool

	mu   sync.Mutex
	feed *feed // nil unless started
}

// New makes a Source. It does not connect.
func New(opt Options) *Source {
	if opt.MaxInflight <= 0 {
		opt.MaxInflight = defaultInflight
	}
	if opt.MaxMessage <= 0 {
		opt.MaxMessage = defaultMessage
	}
	if opt.BufferSize <= 0 {
		opt.BufferSize = defaultBuffer
	}
	if opt.AheadIdle <= 0 {
		opt.AheadIdle = idleAhead
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	return &Source{opt: opt, log: opt.Log}
}

// UseText makes the next Start ask for values in text form only.
func (s *Source) UseText() { s.text.Store(true) }

// Start acquires the slot, checks that its stream continues the checkpoint,
// and starts to read. Nothing is reported as flushed before the first Ack.
func (s *Source) Start(ctx context.Context, from millrace.Checkpoint) error {
	_ = s.Close() // of a stream that ended, which is no error of this one
	f, err := s.acquire(ctx, from)
	if err != nil {
		return err
	}
	if s.starts.Add(1) > 1 {
		s.stats.reconnects.Add(1)
	}
	s.acked.Store(uint64(from.Acked))
	s.mu.Lock()
	s.feed = f
	s.mu.Unlock()
	f.start()
	return nil
}

func (s *Source) current() *feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.feed
}

// errNotStarted is what a Source says before Start and after Close.
var errNotStarted = errors.New("the source is not started")

// Next gives the next transaction, part or sign of life. An error comes after
// everything that was complete before it.
func (s *Source) Next(ctx context.Context) (*millrace.Txn, error) {
	f := s.current()
	if f == nil {
		return nil, errNotStarted
	}
	if f.guard != nil {
		return f.guard.next(ctx, f)
	}
	return f.queue.next(ctx)
}

// Queued tells whether Next would return at once.
func (s *Source) Queued() bool {
	f := s.current()
	return f != nil && (f.queue.queued() || f.guard.queued())
}

// Finishing tells whether the stream waits for the rest of a transaction that is
// applied ahead, whose commit has come.
func (s *Source) Finishing() bool { return s.finishing.Load() }

// LeftAt tells where the source's history left the timeline of the checkpoint that Start was
// given, 0 if it did not.
func (s *Source) LeftAt() millrace.LSN { return millrace.LSN(s.left.Load()) }

// Timeline is the one that the stream comes from, 0 before Start.
func (s *Source) Timeline() int32 {
	f := s.current()
	if f == nil {
		return 0
	}
	return f.line
}

// Ack reports the position to the server, soon.
func (s *Source) Ack(durable millrace.LSN) {
	for {
		old := s.acked.Load()
		if uint64(durable) <= old {
			break
		}
		if s.acked.CompareAndSwap(old, uint64(durable)) {
			break
		}
	}
	if f := s.current(); f != nil {
		f.stream.Ack(durable)
	}
}

// RequestPosition asks the server how far it is. The answer comes as an urgent
// sign of life, unless a transaction gets in between.
func (s *Source) RequestPosition() {
	if f := s.current(); f != nil {
		f.asked.Store(true)
		f.stream.RequestPosition()
	}
}

// Close tells the server the last Ack and gives the slot back. What is still
// queued comes again at the next Start.
func (s *Source) Close() error {
	s.mu.Lock()
	f := s.feed
	s.feed = nil
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	f.stop()
	f.guard.close()
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	err := f.stream.Close(ctx)
	if errors.Is(err, io.EOF) || ctx.Err() == nil && f.failed() {
		return nil // the connection was lost before, which Next has told
	}
	return session.Wrap("close the stream", millrace.PeerSource, err)
}
