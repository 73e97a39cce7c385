package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/bootstrap"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/hooks"
	"github.com/millrace/millrace/kafka"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/relay"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/web"
)

const (
	// lastWrite bounds the last write to the record: within the 10 s of a stop,
	// of which draining may take 6.
	lastWrite = 1200 * time.Millisecond
	// lastWriteOfError is for an error, which must not be lost over a
	// connection that is just being made anew.
	lastWriteOfError = 10 * time.Second
)

const restartHint = "millrace bootstrap --restart-snapshot --yes empties the tables that were copied and starts over"

// otherSystem begins the reason of a resync_required that may be a wrong URL:
// it is looked at again at the next start, the others are not.
const otherSystem = "the source is another system"

// runner is one millrace run.
type runner struct {
	*app
	*settings
	flags runFlags

	progress  *relay.Progress
	keeper    *keeper
	watch     *sourceWatch
	applies   *targetWatch
	governor  *governor
	server    *web.Server
	listening chan struct{} // closed once the address is known
	closeHTTP func()
	engine    *engine
	errors    errorCounts
	hooks     *hooks.Teller

	mu      sync.Mutex
	record  *record.Job // nil until there is one
	cp      millrace.Checkpoint
	load    *load // nil unless this process does or did the first load
	loading bool  // what the record says of the end is the load's to write
	reached bool  // the source's position at the start
	resting rest  // of what is loaded beside the stream

	// reading is held from when the record is read until it is remembered, so that
	// no older one is remembered after it.
	reading sync.Mutex

	taken atomic.Int64                                               // number of the set of tables that the stream has taken up; -1: none yet
	facts atomic.Pointer[func(*millrace.Relation) *kafka.TableFacts] // of the tables of the set, into Kafka
}

func newRunner(a *app, s *settings, f runFlags) *runner {
	r := &runner{app: a, settings: s, flags: f, progress: relay.NewProgress(), closeHTTP: func() {},
		listening: make(chan struct{})}
	r.keeper = newKeeper(s)
	r.keeper.standby, r.keeper.onState = f.standby, r.tellState
	r.governor = newGovernor(s, s.log)
	r.governor.onAlarm, r.governor.rest = r.tellAlarm, r.restLoad
	r.taken.Store(-1)
	r.watch = &sourceWatch{source: s.source, slotName: s.Slot(), progress: r.progress, governor: r.governor, log: s.log,
		wake: make(chan struct{}, 1), onFree: r.takeOver}
	r.applies = &targetWatch{target: s.target, progress: r.progress, log: s.log}
	return r
}

// run does the job until ctx ends, and writes how it ended.
func (r *runner) run(ctx context.Context) error {
	r.log.Info("started", "job", r.Job, "version", version(), "instance", r.keeper.instance(),
		"source", r.sourceServer(), "destination", r.destinationServer())
	if err := r.serve(); err != nil {
		return err
	}
	r.hooks = newTeller(r.settings)
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r.keeper.onRival = func(other record.Runtime) { stop(rivalError(other)) }
	r.governor.stop = stop
	err := r.work(running)
	var told *millrace.Error // by the keeper or the governor
	switch cause := context.Cause(running); {
	case errors.As(cause, &told):
		err = told
	case interrupted(ctx) && (errors.Is(err, context.Canceled) || errors.Is(err, errSignal) || millrace.KindOf(err) == millrace.KindRetry):
		err = nil
	}
	return r.end(ctx, err)
}

// serve starts the HTTP server, first of all, so that whoever supervises the
// process sees it wait for its databases.
func (r *runner) serve() error {
	address, configured := r.Listen()
	l, err := web.Listen(address, configured, r.log)
	if err != nil {
		return err
	}
	token, err := r.HTTP.Token.Get()
	if err != nil {
		return err
	}
	o := web.Options{Job: r.Job, Version: version(), Progress: r.progress, Status: r.status,
		Numbers: r.numbers, WALSizes: r.watch.sizes, HeldOn: r.heldOn, Token: token, Journal: r.journal, Log: r.log}
	if r.HTTP.Actions {
		o.Tables = r.changeTables
	}
	r.server = web.New(o)
	r.keeper.setHTTP(reachable(l.Addr()))
	close(r.listening)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.server.Serve(l); err != nil {
			r.log.Error("HTTP ended", "cause", err)
		}
	}()
	r.closeHTTP = func() {
		_ = r.server.Close() // waiting clients were answered
		<-done
	}
	return nil
}

// reachable is the address as the record shows it: a server that listens
// everywhere is reached at loopback on its own machine.
func reachable(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if ok && tcp.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", portOf(a))
	}
	return a.String()
}

func portOf(a net.Addr) string {
	_, port, _ := net.SplitHostPort(a.String())
	return port
}

// work brings the job from whatever it is to streaming and streams.
func (r *runner) work(ctx context.Context) error {
	if err := r.begin(ctx); err != nil {
		return err
	}
	watchCtx, stopWatch := context.WithCancel(ctx)
	var watching sync.WaitGroup
	if r.prefix != nil {
		watching.Go(func() { r.watchPrefix(watchCtx) })
	} else {
		watching.Go(func() { r.watch.run(watchCtx) })
	}
	if r.kafka == nil {
		watching.Go(func() { r.applies.run(watchCtx) })
	}
	defer watching.Wait()
	defer stopWatch()
	if !r.loaded() {
		if err := r.firstLoad(ctx); err != nil {
			return err
		}
		why := behindTheStart
		if !r.loaded() {
			why = besideTheStream
		}
		r.keeper.set(record.CatchingUp, why)
	}
	return r.stream(ctx)
}

const behindTheStart = "the source's position at the start is not reached yet"

// begin reads the record, writes the state before anything else, and starts the
// heartbeat. It takes as long as the destination can't be reached.
func (r *runner) begin(ctx context.Context) error {
	return r.retry(ctx, func() error {
		book, err := r.openLedger(ctx)
		if err != nil {
			return err
		}
		r.reading.Lock()
		defer r.reading.Unlock()
		j, cp, err := book.Read(ctx)
		if err == nil {
			err = r.mayRun(j)
		}
		if err == nil {
			r.remember(j, cp)
			if j != nil && j.ConsistentFrom != 0 {
				r.keeper.set(record.CatchingUp, behindTheStart)
			}
			err = r.keeper.start(ctx, book)
		}
		if err != nil {
			_ = book.Close(context.WithoutCancel(ctx)) // nothing depends on it
		}
		return err
	})
}

// loaded tells whether the first load is complete.
func (r *runner) loaded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record != nil && r.record.ConsistentFrom != 0
}

// mayRun refuses what no run can do.
func (r *runner) mayRun(j *record.Job) error {
	switch {
	case j == nil && !r.flags.bootstrap:
		e := noJob(r.settings).(*millrace.Error) //nolint:errorlint,forcetypeassert // made there
		e.Hint = "millrace bootstrap copies the tables first; run --bootstrap does both"
		return e
	case j == nil:
		return nil
	case j.State == record.ResyncRequired && !strings.HasPrefix(j.Reason, otherSystem):
		return &millrace.Error{Kind: millrace.KindResync, Op: "run job " + j.Name, Err: errors.New(or(j.Reason, "it needs a new first load")),
			Hint: or(j.Hint, restartHint)}
	}
	return nil
}

// retry tries again while connections are lost or refused.
func (r *runner) retry(ctx context.Context, do func() error) error {
	pause := r.Resources.RetryBackoff.Min
	var logged time.Time
	for {
		err := do()
		if err == nil {
			if !logged.IsZero() {
				r.keeper.setCondition("", "")
			}
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if millrace.KindOf(err) != millrace.KindRetry {
			return err
		}
		r.errors.count(err)
		var e *millrace.Error
		if errors.As(err, &e) {
			r.keeper.setCondition(e.Condition, err.Error())
		}
		if time.Since(logged) >= time.Minute {
			logged = time.Now()
			r.log.Warn("trying again", "cause", err, "hint", millrace.HintOf(err))
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, r.Resources.RetryBackoff.Max)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unfinished tells whether run alone can take up a first load that is not
// complete: it copies nothing that bootstrap has not begun to keep.
func (r *runner) unfinished() error {
	r.mu.Lock()
	j := r.record
	r.mu.Unlock()
	for i := range j.Tables {
		if j.Tables[i].Copied {
			return nil
		}
	}
	if j.Mode == bootstrap.ModeIncremental && !j.LoadStarted.IsZero() {
		return nil
	}
	r.mu.Lock()
	r.loading = true // what the record says of it is more than we know
	r.mu.Unlock()
	return &millrace.Error{Kind: millrace.KindPreflight, Op: "run job " + j.Name, Err: errors.New("the first load is not complete"),
		Hint: "millrace bootstrap does it; run --bootstrap does both"}
}

func (r *runner) remember(j *record.Job, cp millrace.Checkpoint) {
	if j != nil {
		if r.prefix != nil {
			r.watch.know(&catalog.Server{SystemID: j.SystemID, Timeline: j.Timeline, PageSize: j.PageSize, SegmentSize: j.SegmentSize, MaxSlotWALKeep: -1})
		}
		r.watch.follows(j.Slot)
		r.keeper.know(j.Generation, j.Epoch)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record, r.cp = j, cp
}

// reread takes over what a first load has written.
func (r *runner) reread(ctx context.Context) error {
	return r.retry(ctx, func() error {
		r.reading.Lock()
		defer r.reading.Unlock()
		j, cp, err := r.readLedger(ctx)
		if err != nil {
			return err
		}
		if j == nil {
			return noJob(r.settings)
		}
		r.remember(j, cp)
		return nil
	})
}

// sourcePosition gives the position that the source has now, and makes sure
// before that its WAL's sizes are known: tokens need them.
func (r *runner) sourcePosition(ctx context.Context) (millrace.LSN, error) {
	if r.prefix != nil {
		return r.prefixPosition(ctx)
	}
	conn, err := r.source.Connect(ctx, session.Watch)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	server, err := catalog.ReadServer(ctx, conn)
	if err != nil {
		return 0, session.Wrap("read the source", millrace.PeerSource, err)
	}
	r.watch.know(server)
	at, err := catalog.Position(ctx, conn)
	return at, session.Wrap("read the source's position", millrace.PeerSource, err)
}

// stream runs the engine.
func (r *runner) stream(ctx context.Context) error {
	r.mu.Lock()
	j := r.record
	r.mu.Unlock()
	e, err := newEngine(ctx, r, j)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.engine = e
	r.mu.Unlock()
	side, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	watching.Go(func() { r.watchSet(side, e) })
	if r.loaded() {
		watching.Go(func() { r.followLoads(side, e) })
		return r.judge(ctx, j, e.run(ctx))
	}
	return r.judge(ctx, j, r.streamAndLoad(ctx, e))
}

// takeOver ends the pause of an instance that waits for the slot: it is free.
func (r *runner) takeOver() {
	if rt, _, _, _ := r.keeper.current(); rt.Condition != relay.WaitingForSlot {
		return
	}
	r.mu.Lock()
	e := r.engine
	r.mu.Unlock()
	if e != nil {
		e.relay.Wake()
	}
}

// judge looks closer at a source that was refused. The slot of a loaded job that
// does not exist was dropped, and with it the changes since: no later run can
// help. Another system can be the right one at the next start, if the URL is
// wrong.
func (r *runner) judge(ctx context.Context, j *record.Job, err error) error {
	kind := millrace.KindOf(err)
	if err == nil || r.prefix != nil || kind != millrace.KindPreflight && kind != millrace.KindResync {
		return err
	}
	conn, e := r.source.Connect(ctx, session.Watch)
	if e != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	server, e := catalog.ReadServer(ctx, conn)
	if e != nil {
		return err
	}
	refused := &millrace.Error{Kind: millrace.KindResync, Peer: millrace.PeerSource, Hint: restartHint}
	if server.SystemID != j.SystemID {
		refused.Op = otherSystem
		refused.Err = fmt.Errorf("it is %s, the job follows %s", server.SystemID, j.SystemID)
		refused.Hint = "point the source's URL at the server that the job was loaded from; if that is gone: " + restartHint
		return refused
	}
	slot, e := catalog.ReadSlot(ctx, conn, j.Slot)
	if e != nil || slot != nil || server.InRecovery { // it can be the wrong host
		return err
	}
	refused.Op, refused.Err = "run job "+r.Job, fmt.Errorf("slot %s is gone, and with it the changes since", j.Slot)
	return refused
}

func (r *runner) relayOptions() relay.Options {
	return relay.Options{
		Progress: r.progress,
		Backoff:  relay.Backoff{Min: r.Resources.RetryBackoff.Min, Max: r.Resources.RetryBackoff.Max},
		Goal:     r.sourcePosition,
		Until:    r.flags.untilLSN, UntilGoal: r.flags.untilCurrent,
		OnState: func(s relay.State) {
			if s == relay.Streaming {
				r.setReached()
			}
		},
		OnCondition: func(condition string, cause error) {
			why := ""
			if cause != nil {
				r.errors.count(cause)
				why = cause.Error()
			}
			if condition == relay.SourceUnreachable {
				r.watch.forget()
			}
			r.keeper.setCondition(condition, why)
		},
		OnSession: func(cp millrace.Checkpoint) {
			r.mu.Lock()
			r.cp = cp
			r.mu.Unlock()
			r.keeper.own()
			r.watch.lookNow()
		},
		Log: r.log,
	}
}

// verdict is what the record is to say about the end of a run.
func (r *runner) verdict(ctx context.Context, err error) (state record.State, reason, hint string) {
	r.mu.Lock()
	exists := r.record != nil && !r.loading
	r.mu.Unlock()
	switch {
	case !exists:
		return "", "", ""
	case err == nil && !interrupted(ctx):
		return record.Stopped, "the end that was asked for is reached", "millrace run goes on from there"
	case err == nil:
		return record.Stopped, "stopped by a signal", "millrace run takes the job up again"
	}
	reason, hint = oneLine(err.Error()), oneLine(millrace.HintOf(err))
	switch millrace.KindOf(err) {
	case millrace.KindResync:
		return record.ResyncRequired, reason, or(hint, restartHint)
	case millrace.KindPreflight, millrace.KindConfig, millrace.KindRetry:
		return record.Stopped, reason, or(hint, "cure what the reason says, then start millrace run again")
	}
	return record.Failed, reason, or(hint, "cure it, and start millrace run again: it goes on at the same transaction")
}

// heldOn answers /wait for tokens of an earlier timeline.
func (r *runner) heldOn(ctx context.Context, timeline int32, at millrace.LSN) (bool, error) {
	book, err := r.openLedger(ctx)
	if err != nil {
		return false, err
	}
	defer book.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it was only read
	return book.HeldOn(ctx, timeline, at)
}
