package apply

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

// Options say what a Sink writes to and how.
type Options struct {
	Endpoint *session.Endpoint
	Job      string
	Instance string
	// Group is apply.group: 0 groups source transactions while they queue up, 1
	// gives each a target transaction of its own.
	Group int
	// MaxBatchRows and MaxBatchBytes bound one statement; 0 means 4000 rows and
	// 4 MiB.
	MaxBatchRows  int
	MaxBatchBytes int64
	// MaxHeld bounds the memory of the transactions that are held, executed and
	// in preparation together, with what folding adds to them; 0 means 16 MiB.
	// Each half is overrun by at most one Txn. Beside it a sink needs one
	// statement (MaxBatchBytes, or its largest row) and some 20 MiB that it
	// keeps from batch to batch.
	MaxHeld int64
	// TruncateAsDelete applies TRUNCATE as DELETE, which older snapshots of
	// readers survive.
	TruncateAsDelete bool
	// TwoPhase carries transactions that are prepared at the source as prepared
	// ones, if the target's max_prepared_transactions permits.
	TwoPhase bool
	// OnFallback is told of batches whose sets failed. It must not block; nil
	// is nobody.
	OnFallback func(Fallback)
	// OnClaim is told of each claim, before anything is written under it. It
	// must not block; nil is nobody.
	OnClaim func(millrace.Checkpoint)
	Log     *slog.Logger // nil: none
}

// Sink is the PostgreSQL destination. Open, Claim, Write, Flush, Drain and Close
// are called by one goroutine at a time; Durable, Visible and Stats by any.
type Sink struct {
	opt   Options
	stats counters

	side *pgx.Conn // from Open to Claim
	w    atomic.Pointer[writer]
	// redo is a large transaction that goes row by row when it comes again.
	redo     atomic.Uint64
	twoPhase atomic.Bool // found by Open
	// clashes counts chunks of loads that were refused, see executor.mayClash.
	clashes atomic.Int32
	// aheadFailed is the transaction that was applied ahead and could not be committed last.
	// No other one can be the next to fail before it is committed.
	aheadFailed atomic.Uint32
}

// New makes a Sink. It connects in Open.
func New(opt Options) *Sink {
	if opt.MaxBatchRows <= 0 {
		opt.MaxBatchRows = defaultBatchRows
	}
	if opt.MaxBatchBytes <= 0 {
		opt.MaxBatchBytes = defaultBatchBytes
	}
	if opt.MaxHeld <= 0 {
		opt.MaxHeld = 16 << 20
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	return &Sink{opt: opt}
}

// Open implements millrace.Sink.
func (s *Sink) Open(ctx context.Context) (millrace.Checkpoint, error) {
	if err := s.Close(); err != nil {
		s.opt.Log.Debug("close the destination", "cause", err)
	}
	if err := s.connectSide(ctx); err != nil {
		return millrace.Checkpoint{}, err
	}
	job, cp, err := record.Read(ctx, s.side, s.opt.Job)
	if err == nil && job == nil {
		err = &millrace.Error{Kind: millrace.KindData, Op: "open the destination", Peer: millrace.PeerDestination,
			Err: record.ErrNoJob, Hint: "millrace bootstrap records a job"}
	}
	if err == nil {
		var can bool
		can, err = s.canPrepare(ctx, &cp)
		s.twoPhase.Store(can)
	}
	return cp, err
}

func (s *Sink) connectSide(ctx context.Context) (err error) {
	if s.side == nil || s.side.IsClosed() {
		s.side, err = s.opt.Endpoint.Connect(ctx, session.Watch)
	}
	return err
}

// Claim implements millrace.Claimer.
func (s *Sink) Claim(ctx context.Context) (millrace.Checkpoint, error) {
	var none millrace.Checkpoint
	if err := s.stop(); err != nil {
		s.opt.Log.Debug("close the destination", "cause", err)
	}
	if err := s.connectSide(ctx); err != nil {
		return none, err
	}
	conn, err := s.opt.Endpoint.Connect(ctx, session.Apply)
	if err != nil {
		return none, err
	}
	_, cp, err := record.Claim(ctx, conn, s.opt.Job, s.opt.Instance)
	if err != nil {
		conn.Close(ctx)
		return none, err
	}
	if s.opt.OnClaim != nil {
		s.opt.OnClaim(cp)
	}
	w, err := s.newWriter(ctx, conn, cp)
	if err != nil {
		conn.Close(ctx)
		return none, err
	}
	s.w.Store(w)
	s.side = nil // w's now
	return cp, nil
}

var errNotClaimed = &millrace.Error{Kind: millrace.KindRetry, Op: "apply", Peer: millrace.PeerDestination,
	Err: errors.New("the destination is not open")}

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
	return w.pos.wait(ctx, after, (*positions).heldDurable)
}

// Visible is Durable for what new queries see, some of which a crash of the
// target may take back for a while.
func (s *Sink) Visible(ctx context.Context, after millrace.LSN) (millrace.LSN, error) {
	w := s.w.Load()
	if w == nil {
		return 0, errNotClaimed
	}
	return w.pos.wait(ctx, after, (*positions).heldVisible)
}

// Drain implements millrace.Drainer.
func (s *Sink) Drain(ctx context.Context) (millrace.LSN, error) {
	w := s.w.Load()
	if w == nil {
		return 0, errNotClaimed
	}
	return w.drain(ctx)
}

// Close implements millrace.Sink.
func (s *Sink) Close() error {
	err := s.stop()
	if s.side != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		s.side.Close(ctx)
		s.side = nil
	}
	return err
}

func (s *Sink) stop() error {
	w := s.w.Swap(nil)
	if w == nil {
		return nil
	}
	return w.close()
}

// Stats gives the counters since New.
func (s *Sink) Stats() Stats {
	st := s.stats.read()
	if w := s.w.Load(); w != nil {
		st.Held = w.q.hold()
	}
	return st
}
