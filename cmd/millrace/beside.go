package main

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/bootstrap"
	"github.com/millrace/millrace/record"
)

// errLoaded ends a run that was to last until the first load is complete.
var errLoaded = errors.New("the first load is complete")

const besideTheStream = "the first load goes on beside the stream"

// tellLoaded tells that all tables are loaded, once the destination has what was
// given away.
func (e *engine) tellLoaded() {
	select {
	case e.loaded <- struct{}{}:
	default:
	}
}

// streamAndLoad is stream for a job whose first load is not complete: when all
// tables are loaded, it completes that while the stream goes on.
func (r *runner) streamAndLoad(ctx context.Context, e *engine) error {
	r.progress.Loading(true)
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	completed := make(chan struct{})
	go func() {
		defer close(completed)
		err := r.complete(running, e)
		switch {
		case err != nil && running.Err() == nil:
			stop(err)
		case err == nil && r.flags.untilLoaded:
			stop(errLoaded)
		case err == nil && e.from == nil:
			r.followLoads(running, e)
		}
	}()
	err := e.run(running)
	cause := context.Cause(running) // nil when the stream ended by itself
	stop(nil)
	<-completed
	if err != nil || cause == nil || ctx.Err() != nil || errors.Is(cause, errLoaded) {
		return err
	}
	return cause
}

// complete waits until all rows are at the destination, and makes it consistent.
func (r *runner) complete(ctx context.Context, e *engine) error {
	select {
	case <-e.loaded:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	at, err := r.awaitMarks(ctx)
	if err != nil {
		return err
	}
	if err := r.finish(ctx, e, at); err != nil {
		return err
	}
	r.progress.Loading(false)
	r.mu.Lock()
	reached := r.reached
	r.mu.Unlock()
	if reached {
		r.keeper.set(record.Streaming, reachedTheStart)
	} else {
		r.keeper.set(record.CatchingUp, behindTheStart)
	}
	return nil
}

// finish records that the destination is consistent.
func (r *runner) finish(ctx context.Context, e *engine, at millrace.LSN) error {
	if e.kafka == nil {
		o := r.loadOptions(&r.flags.bootstrapFlags, r.keeper.instance())
		finish := func() error { return bootstrap.Finish(ctx, o, at) }
		if e.from != nil {
			finish = func() error { return bootstrap.FinishFromKafka(ctx, o, at, e.from.described()) }
		}
		if err := r.retry(ctx, finish); err != nil {
			return err
		}
		return r.reread(ctx)
	}
	for {
		e.kafka.Complete(at) // again, if the transaction that was to bring it has failed
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := r.reread(ctx); err != nil || r.loaded() {
			return err
		}
	}
}

// awaitMarks waits until the destination has committed the end of all loads, and
// gives a position up to which it holds everything then. What was the position when
// the loads ended would not do: a session that ends before that is committed loads
// again, up to a later one.
func (r *runner) awaitMarks(ctx context.Context) (at millrace.LSN, err error) {
	ended := false
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		left := 0
		if err := r.retry(ctx, func() error {
			_, cp, err := r.readLedger(ctx)
			left, at = len(cp.Tables), cp.Acked
			return err
		}); err != nil {
			return 0, err
		}
		switch {
		case left == 0 && at == 0: // nothing is committed: there was no table to be marked
		case left == 0 && ended:
			return at, nil
		case left == 0: // the marks can be read after the position: once more
			ended = true
			continue
		}
		ended = false
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// setReached takes note that the source's position at the start is reached. The
// job streams then, if its first load is complete.
func (r *runner) setReached() {
	r.mu.Lock()
	r.reached = true
	loaded := r.record != nil && r.record.ConsistentFrom != 0
	r.mu.Unlock()
	if loaded {
		r.keeper.set(record.Streaming, reachedTheStart)
	}
}

const reachedTheStart = "the source's position at the start was reached"
