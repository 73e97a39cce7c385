package relay

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace"
)

// logEvery is how often a failure that goes on is logged.
const logEvery = time.Minute

// Backoff is the pause between two tries: Min after the first failure, doubled
// up to Max.
type Backoff struct {
	Min, Max time.Duration
}

func (b Backoff) withDefaults() Backoff {
	if b.Min <= 0 {
		b.Min = time.Second
	}
	if b.Max < b.Min {
		b.Max = max(30*time.Second, b.Min)
	}
	return b
}

// retry is a run of failures without progress in between.
type retry struct {
	backoff Backoff
	log     *slog.Logger
	pause   time.Duration
	since   time.Time // first failure, zero while all is well
	logged  time.Time
	told    bool // a failure was logged and its end was not
	wake    <-chan struct{}
	tries   int
	// advanced is set by the acknowledger, on another goroutine.
	advanced atomic.Bool
}

func newRetry(b Backoff, log *slog.Logger, wake <-chan struct{}) *retry {
	return &retry{backoff: b, log: log, pause: b.Min, wake: wake}
}

// progressed says that something became durable: the next failure is a new one.
func (r *retry) progressed() {
	if !r.advanced.Load() {
		r.advanced.Store(true)
	}
}

// connected says that a session stands. The pause stays as it is until there
// is progress: a session that always fails at once must not be hammered.
func (r *retry) connected() {
	if r.told {
		r.told = false
		r.log.Info("connected again", "tries", r.tries, "after_seconds", time.Since(r.since).Seconds())
	}
}

// wait logs err, unless it was logged within the last minute, and pauses until
// the time has come or somebody wakes it. It is false when ctx ends first.
func (r *retry) wait(ctx context.Context, err error) bool {
	now := time.Now()
	if r.advanced.Swap(false) {
		r.pause, r.tries, r.since, r.logged = r.backoff.Min, 0, time.Time{}, time.Time{}
	}
	if r.since.IsZero() {
		r.since = now
	}
	r.tries++
	if now.Sub(r.logged) >= logEvery {
		r.logged, r.told = now, true
		r.log.Warn("trying again", "cause", err, "hint", millrace.HintOf(err), "condition", conditionOf(err),
			"tries", r.tries, "since", r.since.UTC(), "pause_seconds", r.pause.Seconds())
	}
	timer := time.NewTimer(r.pause)
	defer timer.Stop()
	r.pause = min(2*r.pause, r.backoff.Max)
	select {
	case <-timer.C:
		return true
	case <-r.wake:
		return true
	case <-ctx.Done():
		return false
	}
}
