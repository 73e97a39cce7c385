package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// graceful is how long a stopped process has: a stop is promised within 10 s.
const graceful = 9 * time.Second

// sameSignal is how soon after the first one a signal is not taken for a second
// one: timeout(1) sends its signal to the process and then to its group.
const sameSignal = 50 * time.Millisecond

// errSignal is the cause of a context that a signal has ended.
var errSignal = errors.New("interrupted")

// stopIsDone is set by the verbs for which a stop is a way to end well: see
// [withSignals].
var stopIsDone atomic.Bool

// catchSignals gives the context of everything that the process does, which the
// first SIGTERM or SIGINT ends. It is called before anything else: a signal that
// comes while the process still starts is then a stop like any other, and does
// not end it with a code that a supervisor takes for a crash. A second signal
// ends the process at once with exit code 1. A process that has not ended in
// time after the first is ended.
func catchSignals() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		cancel(errSignal)
		first, late := time.Now(), time.After(graceful)
		for {
			select {
			case <-signals:
				if time.Since(first) > sameSignal {
					os.Exit(exitFailed)
				}
			case <-late:
				if stopIsDone.Load() {
					os.Exit(exitDone)
				}
				os.Exit(exitFailed)
			}
		}
	}()
	return ctx
}

// withSignals is for verbs that stop gracefully. If that takes too long they end
// with exit code 0 all the same: what is durable is recorded, and what is not
// comes again.
func withSignals(parent context.Context) (context.Context, context.CancelFunc) {
	stopIsDone.Store(true)
	return context.WithCancel(parent)
}

// interrupted tells whether a signal has ended ctx.
func interrupted(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errSignal) }
