package soak

import (
	"context"
	"fmt"
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
	rounds := 3
	if full() {
		rounds = 12
	}
	p := plan{from: 18, to: 18, scale: 1, rate: 1000, length: 5 * time.Minute, sourceSettings: []string{
		// How long the source waits for an instance that does not answer.
		"wal_sender_timeout=3s",
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
	standby := false // whether the instance that streams was started with --standby
	for i := 0; i < rounds && ctx.Err() == nil; i++ {
		s.takeOver(t, standby, i%2 == 1)
		standby = i%2 == 1
	}
	cancel()
	together.Wait()
	w.report(nil)
	if !t.Failed() {
		s.compare(t)
	}
}

// takeOver stops the process of the job in its tracks, has another one take over
// and wakes the first, which has to find out that it lost the slot to an
// instance that lives. Then it ends, unless it was told to stand by.
func (s *soak) takeOver(t *testing.T, oldStandsBy, nextStandsBy bool) {
	t.Helper()
	old, next := s.job, s.job.Twin(t)
	s.job = next
	pause(t.Context(), time.Duration(s.rng.Int64N(int64(time.Second))))
	old.Signal(t, syscall.SIGSTOP)
	var args []string
	if nextStandsBy {
		args = []string{"--standby"}
	}
	next.Start(t, args...)
	if err := next.Wait(time.Minute); err != nil {
		t.Fatal(err)
	}
	old.Signal(t, syscall.SIGCONT)
	if oldStandsBy {
		s.awaitWaiting(t, old)
		if code := old.Stop(t); code != blackbox.Done {
			t.Errorf("an instance that waits ended with code %d on SIGTERM", code)
		}
		return
	}
	rig.Eventually(t, time.Minute, func() bool { return !old.Running() }, "the former instance ends")
	if code := old.ExitCode(); code != blackbox.No {
		t.Errorf("the former instance ended with code %d, want %d", code, blackbox.No)
	}
}

// awaitWaiting waits until the instance says that it waits for the slot, and
// then for as long as it takes one that was not told so to see that the other
// lives.
func (s *soak) awaitWaiting(t *testing.T, j *blackbox.Job) {
	t.Helper()
	var seen string
	rig.Eventually(t, time.Minute, func() bool {
		seen = s.runtime(t, "condition", j)
		return seen == "waiting_for_slot"
	}, "the former instance waits for the slot, its condition is", &seen)
	for range 3 {
		beat := s.runtime(t, "heartbeat_at", s.job)
		rig.Eventually(t, time.Minute, func() bool { return s.runtime(t, "heartbeat_at", s.job) != beat }, "the heartbeat moves")
	}
}

func (s *soak) runtime(t *testing.T, column string, j *blackbox.Job) string {
	t.Helper()
	return s.targetDB.Query(t, fmt.Sprintf("SELECT %s FROM millrace.runtime WHERE job = '%s' AND pid = %d", column, j.Name, j.PID()))
}
