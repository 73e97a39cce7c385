package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/millrace/millrace"
)

// maxClaims bounds how often one session starts over since the checkpoint
// moved between reading and claiming it. It moves once per takeover; more means
// that two instances fight.
const maxClaims = 5

// errEnd ends a session whose Until was reached.
var errEnd = errors.New("the position of the end was reached")

// session connects both ends, streams and closes them again. Nil means that
// the run is over: ctx was cancelled and what the sink held was drained, or
// the end was reached.
func (r *Relay) session(ctx context.Context, retry *retry) error {
	defer r.close()
	cp, err := r.connect(ctx)
	if err != nil {
		return err
	}
	if err := r.findGoal(ctx); err != nil {
		return err
	}
	r.source.Ack(cp.Acked)
	first := !r.streamed
	r.streamed = true
	r.progress.begin(cp)
	retry.connected()
	if r.opt.OnSession != nil {
		r.opt.OnSession(cp)
	}
	r.condition("", nil)
	if first {
		r.log.Info("streaming from", "lsn", cp.Acked, "commit_lsn", cp.Commit, "goal", r.goal)
		r.side.Go(func() { r.reportStreaming(ctx) })
	}
	return r.stream(ctx, cp, retry)
}

// close closes both ends. The source goes last: it tells the server the last
// acknowledgement. A Close that fails can't lose anything, so it is only logged.
func (r *Relay) close() {
	if err := r.sink.Close(); err != nil {
		r.log.Debug("close the destination", "cause", err)
	}
	if err := r.source.Close(); err != nil {
		r.log.Debug("close the source", "cause", err)
	}
}

// connect opens the sink, acquires the stream and claims the job, in this
// order: the fence is raised only by the owner of the stream. Between reading
// the checkpoint and owning the stream a former instance may have written; then
// it starts over with the checkpoint as it is.
func (r *Relay) connect(ctx context.Context) (millrace.Checkpoint, error) {
	cp, err := r.sink.Open(ctx)
	if err != nil {
		return cp, err
	}
	claimer, claims := r.sink.(millrace.Claimer)
	for range maxClaims {
		if err := r.source.Start(ctx, cp); err != nil {
			if cp, err = r.moved(ctx, err, cp); err != nil {
				return cp, err
			}
			continue
		}
		if !claims {
			return cp, nil
		}
		now, err := claimer.Claim(ctx)
		if err != nil {
			return cp, err
		}
		if samePosition(now, cp) {
			return now, nil
		}
		r.log.Info("the checkpoint moved while the stream was acquired", "from", cp.Acked, "to", now.Acked)
		cp = now
		if err := r.source.Close(); err != nil {
			r.log.Debug("close the source", "cause", err)
		}
	}
	return cp, &millrace.Error{Kind: millrace.KindRetry, Op: "claim the job", Peer: millrace.PeerDestination,
		Err:  errors.New("the checkpoint keeps moving"),
		Hint: "another instance works on this job: stop it"}
}

// moved looks at a start that was refused as beyond repair. The slot was
// compared with a checkpoint that is older than the slot's acquisition: when a
// former instance has moved both meanwhile, the refusal means nothing. Nor does it
// while the destination does not show yet what it has confirmed.
func (r *Relay) moved(ctx context.Context, cause error, old millrace.Checkpoint) (millrace.Checkpoint, error) {
	if millrace.KindOf(cause) != millrace.KindResync {
		return old, cause
	}
	r.close()
	now, err := r.sink.Open(ctx)
	switch u, ok := r.sink.(interface{ Undecided() bool }); {
	case err != nil && r.retryable(err):
		return old, err
	case err != nil:
		return old, cause
	case !samePosition(now, old):
		return now, nil
	case ok && u.Undecided():
		return old, &millrace.Error{Kind: millrace.KindRetry, Op: "read the checkpoint", Peer: millrace.PeerDestination,
			Err: fmt.Errorf("a transaction with a newer one has not ended yet: %s", cause.Error())}
	}
	return old, cause
}

// samePosition compares what streaming starts from; a claim raises the epoch. The
// sequence number tells of marks that were written without a move; those of a table
// that is to be read again come without a number.
func samePosition(a, b millrace.Checkpoint) bool {
	return a.History == b.History && a.Seq == b.Seq && a.Commit == b.Commit && a.End == b.End && a.Acked == b.Acked &&
		string(a.Cursor) == string(b.Cursor) && maps.EqualFunc(a.Tables, b.Tables, sameMark)
}

func sameMark(a, b millrace.Mark) bool { return a.OID == b.OID && string(a.State) == string(b.State) }

// findGoal asks once per run where the source is.
func (r *Relay) findGoal(ctx context.Context) error {
	if r.streamed || r.opt.Goal == nil {
		return nil
	}
	goal, err := r.opt.Goal(ctx)
	if err != nil {
		return err
	}
	r.goal = goal
	if r.opt.UntilGoal {
		r.opt.Until = goal
	}
	return nil
}

// reportStreaming changes the state once the goal is held.
func (r *Relay) reportStreaming(ctx context.Context) {
	if r.goal != 0 {
		if _, err := r.progress.Wait(ctx, r.goal, false); err != nil {
			return
		}
	}
	r.state(Streaming)
}

// stream runs the two loops and ends them in order: first the pump, then, once
// the sink has drained, the acknowledger.
func (r *Relay) stream(ctx context.Context, cp millrace.Checkpoint, retry *retry) error {
	pumpCtx, stopPump := context.WithCancel(ctx)
	defer stopPump()
	ackCtx, stopAck := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAck()
	var side sync.WaitGroup
	defer side.Wait()
	defer stopAck() // before the wait
	pumped, acked := make(chan error, 1), make(chan error, 1)
	go func() { pumped <- r.pump(pumpCtx) }()
	go func() { acked <- r.acknowledge(ackCtx, cp.Acked, retry) }()
	side.Go(func() { r.ask(pumpCtx) })
	side.Go(func() { r.watchVisible(ackCtx) })

	var pumpErr, ackErr, drainErr error
	select {
	case pumpErr = <-pumped:
		stopPump()
	case ackErr = <-acked:
		stopPump()
		pumpErr = <-pumped
	}
	var failed sinkError
	if (ackErr == nil || errors.Is(ackErr, errEnd)) && !errors.As(pumpErr, &failed) {
		drainErr = r.drain(ctx)
	}
	stopAck()
	if ackErr == nil {
		ackErr = <-acked
	}
	return r.outcome(ctx, pumpErr, ackErr, drainErr)
}

// sinkError marks an error of the sink that came out of the pump.
type sinkError struct{ error }

func (e sinkError) Unwrap() error { return e.error }

// outcome picks the error that ended the session; a cancelled context and a
// reached end are none.
func (r *Relay) outcome(ctx context.Context, errs ...error) error {
	ended := ctx.Err() != nil
	for _, err := range errs {
		if errors.Is(err, errEnd) {
			ended = true
		}
	}
	for _, err := range errs {
		if err == nil || errors.Is(err, errEnd) || errors.Is(err, context.Canceled) {
			continue
		}
		if ended && (r.retryable(err) || errors.Is(err, context.DeadlineExceeded)) {
			r.log.Warn("stopped before all that was received was applied; it comes again at the next start", "cause", err)
			continue
		}
		return err
	}
	if ended {
		return nil
	}
	return &millrace.Error{Kind: millrace.KindRetry, Op: "stream", Err: errors.New("the stream ended")}
}

// pump is the forward loop.
func (r *Relay) pump(ctx context.Context) error {
	queue, _ := r.source.(interface{ Queued() bool })
	for {
		t, err := r.source.Next(ctx)
		if err != nil {
			return err
		}
		end := r.opt.Until != 0 && t.Part == 0 && t.Commit >= r.opt.Until
		if end {
			// Everything committed before the end was written; say so, so that
			// the destination holds exactly that position.
			sign := &millrace.Txn{End: r.opt.Until, From: t.From, Last: true, Urgent: true}
			t.Release()
			t = sign
		}
		last := t.Last || t.Idle()
		r.stats.count(t)
		r.progress.written(t)
		err = r.sink.Write(ctx, t)
		r.progress.taken()
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return sinkError{err}
		}
		if end {
			return errEnd
		}
		if queue == nil && last || queue != nil && !queue.Queued() {
			r.sink.Flush()
		}
	}
}

// acknowledge is the backward loop.
func (r *Relay) acknowledge(ctx context.Context, after millrace.LSN, retry *retry) error {
	if r.opt.Until != 0 && after >= r.opt.Until {
		return errEnd
	}
	for {
		durable, err := r.sink.Durable(ctx, after)
		if err != nil {
			return err
		}
		if durable <= after {
			continue
		}
		after = durable
		r.source.Ack(durable)
		r.progress.durable(durable)
		retry.progressed()
		if r.opt.Until != 0 && durable >= r.opt.Until {
			return errEnd
		}
	}
}

// drain has the sink apply the complete transactions that it holds. Once ctx
// is cancelled it has drainWithin for it.
func (r *Relay) drain(ctx context.Context) error {
	d, ok := r.sink.(millrace.Drainer)
	if !ok {
		return nil
	}
	drainCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(drainWithin, cancel)
		context.AfterFunc(drainCtx, func() { timer.Stop() })
	})
	defer stop()
	reached, err := d.Drain(drainCtx)
	if err != nil {
		if drainCtx.Err() != nil {
			return context.DeadlineExceeded
		}
		return err
	}
	if reached != 0 {
		r.source.Ack(reached)
		r.progress.durable(reached)
	}
	return nil
}
