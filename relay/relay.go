// Package relay is the engine: it pumps transactions forward from a Source to
// a Sink, carries acknowledgements back, tries again after a lost connection
// and drains at the end.
//
// It knows neither what a source reads nor what a sink writes. The invariant it
// owns: nothing is acknowledged to the source that the sink has not reported as
// durable. What waits for a position asks [Progress].
package relay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace/millrace"
)

// State is a job's state as far as the engine decides it.
type State string

// The states that the engine reports.
const (
	CatchingUp State = "catching_up"
	Streaming  State = "streaming"
)

// The conditions that are shown while something is tried again.
const (
	SourceUnreachable      = "source_unreachable"
	DestinationUnreachable = "destination_unreachable"
	WaitingForSlot         = "waiting_for_slot"
	ChangingTables         = "changing_tables" // a table verb is under way, or was interrupted
)

// Converging is the condition of a destination whose rows are right one by one and not
// together, since the source has lost changes that later ones have made void.
const Converging = "converging"

// drainWithin bounds the end of a stopped run: a stop is promised within 10 s,
// and closing both ends and writing the state take the rest.
const drainWithin = 6 * time.Second

// Options say what a Relay connects and whom it tells.
type Options struct {
	Source millrace.Source
	Sink   millrace.Sink
	// Progress is published to; nil makes a new one.
	Progress *Progress
	Backoff  Backoff
	// Goal gives the position that the source has now. It is asked once in a
	// run, as soon as the source is reached: behind it the job catches up, past
	// it the job streams. Nil: the job streams at once.
	Goal func(context.Context) (millrace.LSN, error)
	// Until ends the run once everything committed before it is durable, and
	// nothing committed at it or behind it is applied. Zero: no end.
	Until millrace.LSN
	// UntilGoal takes the position that Goal gave as Until.
	UntilGoal bool
	// OnState is called when the state changes, OnCondition when a condition
	// comes or, with "", goes. None of the three may block for long; all may be nil.
	OnState     func(State)
	OnCondition func(condition string, cause error)
	// OnSession is called when a session is established, before OnCondition:
	// the stream and the job are this instance's.
	OnSession func(millrace.Checkpoint)
	Log       *slog.Logger
}

// Relay is one run of one job.
type Relay struct {
	source   millrace.Source
	sink     millrace.Sink
	progress *Progress
	opt      Options
	log      *slog.Logger
	stats    Stats

	goal     millrace.LSN // zero until it is known
	streamed bool         // a session was established in this run
	text     bool         // the source was told to send text
	wake     chan struct{}
	side     sync.WaitGroup
}

// New makes a Relay. Source and Sink are opened by Run, and closed and opened
// again by every reconnect.
func New(opt Options) *Relay {
	if opt.Progress == nil {
		opt.Progress = NewProgress()
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	opt.Backoff = opt.Backoff.withDefaults()
	return &Relay{source: opt.Source, sink: opt.Sink, progress: opt.Progress, opt: opt, log: opt.Log,
		wake: make(chan struct{}, 1)}
}

// Progress tells what is held, and waits for more.
func (r *Relay) Progress() *Progress { return r.progress }

// Stats gives the counters of this run.
func (r *Relay) Stats() *Stats { return &r.stats }

// Wake ends the pause before the next try, at once or when it begins: somebody
// saw that what it waits for is there. It may be called at any time.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run streams until ctx is cancelled or the position of Until is held, and
// returns nil then. Lost and refused connections are tried again without end;
// any other error ends the run. Run may be called once.
func (r *Relay) Run(ctx context.Context) error {
	r.state(CatchingUp)
	ctx, cancel := context.WithCancel(ctx)
	defer r.side.Wait()
	defer cancel()
	retry := newRetry(r.opt.Backoff, r.log, r.wake)
	for {
		err := r.session(ctx, retry)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, millrace.ErrStartAnew) && ctx.Err() == nil:
			r.log.Info("the source starts anew", "cause", err)
			continue
		case errors.Is(err, millrace.ErrNeedText) && r.useText():
			r.log.Info("the source starts anew and sends text", "cause", err)
			continue
		case ctx.Err() != nil && (r.retryable(err) || errors.Is(err, context.Canceled)):
			return nil
		case !r.retryable(err):
			return err
		}
		peer := peerOf(err)
		r.stats.reconnected(peer)
		r.condition(conditionOf(err), err)
		if !retry.wait(ctx, err) {
			return nil
		}
	}
}

// useText has the source send text from the next start on. It is false when
// that was done before or can't be done.
func (r *Relay) useText() bool {
	s, ok := r.source.(interface{ UseText() })
	if !ok || r.text {
		return false
	}
	s.UseText()
	r.text = true
	return true
}

func (r *Relay) state(s State) {
	if r.opt.OnState != nil {
		r.opt.OnState(s)
	}
}

func (r *Relay) condition(c string, cause error) {
	if r.opt.OnCondition != nil {
		r.opt.OnCondition(c, cause)
	}
}

// retryable tells whether trying again can help. A refused password ends a run
// at its start; later it is one that was changed, and the credentials are read
// anew for each connection.
func (r *Relay) retryable(err error) bool {
	if millrace.KindOf(err) == millrace.KindRetry {
		return true
	}
	return r.streamed && passwordRefused(err)
}

func passwordRefused(err error) bool {
	var e interface{ SQLState() string }
	if !errors.As(err, &e) {
		return false
	}
	return e.SQLState() == "28P01" || e.SQLState() == "28000"
}

func peerOf(err error) millrace.Peer {
	var e *millrace.Error
	if errors.As(err, &e) {
		return e.Peer
	}
	return ""
}

// conditionOf names what status shows while err is tried again. An error that
// carries no condition, such as a deadlock, shows none.
func conditionOf(err error) string {
	var e *millrace.Error
	if !errors.As(err, &e) {
		return ""
	}
	switch {
	case e.Condition != "":
		return e.Condition
	case !passwordRefused(err):
		return ""
	case e.Peer == millrace.PeerSource:
		return SourceUnreachable
	}
	return DestinationUnreachable
}
