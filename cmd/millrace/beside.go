package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/bootstrap"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/web"
)

// errLoaded ends a run that was to last until the first load is complete.
var errLoaded = errors.New("the first load is complete")

const besideTheStream = "the first load goes on beside the stream"

// offerLoaded says from where on the destination holds everything, once all tables
// are loaded. Only the first position counts.
func (e *engine) offerLoaded(at millrace.LSN) {
	select {
	case e.loaded <- at:
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
	var at millrace.LSN
	select {
	case at = <-e.loaded:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := r.awaitMarks(ctx); err != nil {
		return err
	}
	o := r.loadOptions(&r.flags.bootstrapFlags, r.keeper.instance())
	if err := r.retry(ctx, func() error { return bootstrap.Finish(ctx, o, at) }); err != nil {
		return err
	}
	if err := r.reread(ctx); err != nil {
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

// awaitMarks waits until the destination has committed the end of all loads.
func (r *runner) awaitMarks(ctx context.Context) error {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		left := 0
		if err := r.retry(ctx, func() error {
			_, cp, err := r.readLedger(ctx)
			left = len(cp.Tables)
			return err
		}); err != nil || left == 0 {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
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

// showLoads adds what is loaded beside the stream to the tables of a status.
func (e *engine) showLoads(st *web.Status) {
	if e.backfill == nil {
		return
	}
	left := map[string]int{}
	for i := range st.Tables {
		left[st.Tables[i].Table] = i
	}
	n := 0
	for _, p := range e.backfill.Progress() {
		i, ok := left[p.Name.String()]
		if !ok {
			continue
		}
		n++
		t := &st.Tables[i]
		t.State, t.RowsCopied, t.BytesCopied = "copying", web.Known(p.Rows), web.Known(p.Bytes)
	}
	if n > 0 && st.State == string(record.CatchingUp) && st.Reason == besideTheStream {
		st.Reason = fmt.Sprintf("%s: %d of %d tables are left", besideTheStream, n, len(st.Tables))
	}
}
