package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
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

// withSignals gives a context that the first SIGTERM or SIGINT ends. A second
// one ends the process at once with exit code 1. A process that has not ended
// gracefully in time after the first ends with exit code 0: what is durable is
// recorded, and what is not comes again.
func withSignals(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan struct{})
	go func() {
		select {
		case <-signals:
			cancel(errSignal)
		case <-done:
			return
		}
		first, late := time.Now(), time.After(graceful)
		for {
			select {
			case <-signals:
				if time.Since(first) > sameSignal {
					os.Exit(exitFailed)
				}
			case <-late:
				os.Exit(exitDone)
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel(nil)
	}
}

// interrupted tells whether a signal has ended ctx.
func interrupted(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errSignal) }
