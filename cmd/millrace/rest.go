package main

import (
	"time"

	"github.com/millrace/millrace/record"
)

// rest is a pause of what is loaded beside the stream.
type rest struct {
	since time.Time // zero: it goes on
	why   string
}

// restLoad has what is loaded beside the stream rest, or go on, and tells whether
// it rests: there may be nothing to load. The stream goes on either way.
func (r *runner) restLoad(on bool, why string) bool {
	r.mu.Lock()
	e, was := r.engine, r.resting
	r.mu.Unlock()
	if e == nil || e.backfill == nil {
		return false
	}
	left := len(e.backfill.Progress())
	if on && left == 0 {
		return false
	}
	now := rest{}
	if on {
		now = rest{since: time.Now(), why: restReason + why}
	}
	r.mu.Lock()
	r.resting = now
	r.mu.Unlock()
	e.backfill.Pause(on)
	switch {
	case on:
		r.log.Warn("the load rests", "tables_left", left, "cause", why)
		r.keeper.swap(record.CatchingUp, besideTheStream, record.Paused, now.why)
	case left > 0:
		r.log.Info("the load goes on", "tables_left", left, "rested_seconds", time.Since(was.since).Seconds())
		fallthrough
	default:
		r.keeper.swap(record.Paused, was.why, record.CatchingUp, besideTheStream)
	}
	return on
}

const restReason = "the load rests and the stream goes on: "
