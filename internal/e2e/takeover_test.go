package e2e

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// patientRetry makes it certain that the standby was woken: by itself it would
// try again after ten minutes.
const patientRetry = "resources: {retry_backoff: {min: 10m, max: 10m}}\nsafety: {heartbeat_interval: 1s}\n"

// TestHotStandby: an instance waits behind a living one and takes over as soon
// as that is gone, killed under load. The long form does it more often, and with
// an instance that stands still: then it takes the source's wal_sender_timeout,
// which the connection string can set. It logs how long it took.
func TestHotStandby(t *testing.T) {
	t.Parallel()
	rounds := 1
	if full() {
		rounds = 10
	}
	p := newPair(t, plan{schema: eventsSchema, options: func(o *blackbox.Options, x *pair) {
		o.SourceURL = x.source.URL() + "&options=-c%20wal_sender_timeout%3D3s"
		o.Extra = patientRetry
	}})
	p.Start(t, "--bootstrap")
	p.sync(t)
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		var took []time.Duration
		for range rounds {
			took = append(took, p.takeOver(t, how))
		}
		slices.Sort(took)
		t.Logf("after %v: median %v, longest %v of %d", how, took[len(took)/2], took[len(took)-1], len(took))
	}
	p.finish(t)
}

// takeOver starts a standby, sends the signal to the one that streams, and gives
// the time from then until a transaction that was committed after it is held.
func (p *pair) takeOver(t *testing.T, how syscall.Signal) time.Duration {
	t.Helper()
	old := p.Job
	p.Job = old.Twin(t)
	p.Start(t, "--standby")
	waiting := fmt.Sprintf("SELECT condition FROM millrace.runtime WHERE job = '%s' AND pid = %d", p.Name, p.PID())
	rig.Eventually(t, patience, func() bool { return p.target.Query(t, waiting) == "waiting_for_slot" }, "the standby waits")
	p.source.SQL(t, "INSERT INTO events SELECT i, 'before' FROM generate_series(1, 2000) i; UPDATE t SET v = v + 1")
	begun := time.Now()
	old.Signal(t, how)
	p.source.SQL(t, "INSERT INTO events SELECT i, 'after' FROM generate_series(1, 10) i; UPDATE t SET v = v + 1")
	p.sync(t)
	took := time.Since(begun).Round(10 * time.Millisecond)
	if how == syscall.SIGSTOP {
		old.Signal(t, syscall.SIGKILL)
	}
	rig.Eventually(t, patience, func() bool { return !old.Running() }, "the former instance ends")
	return took
}
