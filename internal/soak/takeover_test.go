package soak

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// TestTakeover: an instance that stands still, as on a machine that swaps or is
// moved, loses its slot to one that waits behind it. When it wakes up it still
// has its target transaction in mind, and must not be able to write.
func TestTakeover(t *testing.T) {
	rounds := 2
	if full() {
		rounds = 10
	}
	p := plan{from: 18, to: 18, scale: 1, rate: 1000, length: 5 * time.Minute, sourceSettings: []string{
		// How long the source waits for an instance that does not answer.
		"wal_sender_timeout=1500ms",
	}, config: "safety: {heartbeat_interval: 1s}\n"}
	s := p.prepare(t)
	s.job.Start(t, "--bootstrap")
	if err := s.job.Wait(3 * time.Minute); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), p.length)
	defer cancel()
	w := watch{soak: s, t: t, failed: cancel}
	var together sync.WaitGroup
	together.Go(func() { s.load(ctx, t) })
	together.Go(func() { w.totals(ctx) })
	together.Go(func() { w.slot(ctx) })
	for range rounds {
		if ctx.Err() == nil {
			s.job = s.takeOver(t)
		}
	}
	cancel()
	together.Wait()
	w.report(nil)
	if !t.Failed() {
		s.compare(t)
	}
}

// takeOver stops the process of the job in its tracks, has another one take over
// and wakes the first, which has to find out and end.
func (s *soak) takeOver(t *testing.T) *blackbox.Job {
	t.Helper()
	old, next := s.job, s.job.Twin(t)
	pause(t.Context(), time.Duration(s.rng.Int64N(int64(time.Second))))
	old.Signal(t, syscall.SIGSTOP)
	next.Start(t, "--standby")
	if err := next.Wait(time.Minute); err != nil {
		t.Fatal(err)
	}
	old.Signal(t, syscall.SIGCONT)
	rig.Eventually(t, time.Minute, func() bool { return !old.Running() }, "the former instance ends")
	if code := old.ExitCode(); code != blackbox.No {
		t.Errorf("the former instance ended with code %d, want %d", code, blackbox.No)
	}
	return next
}
