// Package soak runs the built program under load while it, the source, the
// target and the network between them fail at random moments, and looks all the
// while at what a reader of the target sees.
package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

func TestMain(m *testing.M) { blackbox.Main(m) }

// plan is how much of what happens.
type plan struct {
	from, to int // majors
	length   time.Duration
	scale    int // of pgbench
	rate     int // transactions per second, 0: as many as go
	faults   map[fault]int

	sourceSettings []string // of the server
	config         string   // more lines of the configuration
}

// fault is one kind of failure.
type fault string

const (
	killJob     fault = "kill of the program"  // SIGKILL, started again at once
	crashTarget fault = "crash of the target"  // immediate shutdown, started again
	crashSource fault = "crash of the source"  // the same
	cutSource   fault = "cut to the source"    // all connections reset
	cutTarget   fault = "cut to the target"    // the same
	tearSource  fault = "torn from the source" // all reset in the middle of a message
	tearTarget  fault = "torn from the target" // the same: work done, answer lost
)

func full() bool { return os.Getenv("MILLRACE_SOAK") != "" }

// TestKills: every kill loses what is in memory. Whatever had been
// acknowledged must be on the target, and nothing may come twice.
//
// The servers run with fsync=off: an immediate shutdown ends processes and
// leaves the machine running, so that what they had written is there afterwards.
// What they had not written, such as the WAL of an asynchronous commit, is lost.
func TestKills(t *testing.T) {
	plans := []plan{{from: 17, to: 18, length: 25 * time.Second, scale: 2, rate: 1000,
		faults: map[fault]int{killJob: 6, crashTarget: 1, crashSource: 1}}}
	if full() {
		faults := map[fault]int{killJob: 34, crashTarget: 5, crashSource: 5}
		plans = []plan{
			{from: 17, to: 18, length: 2 * time.Minute, scale: 20, faults: faults},
			{from: 16, to: 17, length: 2 * time.Minute, scale: 20, faults: faults},
		}
	}
	runPlans(t, plans)
}

// TestCuts: a connection that breaks leaves it open whether the last statement,
// or the last COMMIT, was done.
func TestCuts(t *testing.T) {
	plans := []plan{{from: 18, to: 18, length: 12 * time.Second, scale: 1, rate: 1000,
		faults: map[fault]int{cutSource: 2, cutTarget: 3, tearSource: 2, tearTarget: 4}}}
	if full() {
		faults := map[fault]int{cutSource: 15, cutTarget: 20, tearSource: 15, tearTarget: 30, killJob: 5}
		plans = []plan{
			{from: 18, to: 18, length: 2 * time.Minute, scale: 5, faults: faults},
			{from: 16, to: 18, length: 2 * time.Minute, scale: 5, faults: faults},
		}
	}
	runPlans(t, plans)
}

func runPlans(t *testing.T, plans []plan) {
	t.Helper()
	for _, p := range plans {
		t.Run(fmt.Sprintf("%dto%d", p.from, p.to), func(t *testing.T) { p.run(t) })
	}
}

// soak is one run of a plan.
type soak struct {
	plan
	rng                          *rand.Rand
	source, target               *rig.Postgres
	sourceDB, targetDB           *rig.DB
	towardsSource, towardsTarget *rig.Proxy
	job                          *blackbox.Job
}

func (p plan) run(t *testing.T) {
	s := p.prepare(t)
	s.job.Start(t, "--bootstrap")
	if err := s.job.Wait(3 * time.Minute); err != nil {
		t.Fatal(err)
	}
	// On a busy machine the faults take longer than planned.
	ctx, cancel := context.WithTimeout(t.Context(), 4*p.length+time.Minute)
	defer cancel()
	began := time.Now()
	w := watch{soak: s, t: t, failed: cancel}
	var together sync.WaitGroup
	together.Go(func() { s.load(ctx, t) })
	together.Go(func() { w.totals(ctx) })
	together.Go(func() { w.slot(ctx) })
	done := s.inject(ctx, t)
	pause(ctx, time.Until(began.Add(p.length)))
	cancel()
	together.Wait()
	w.report(done)
	if !t.Failed() {
		s.compare(t)
	}
}

// prepare starts the servers, fills the source and writes the configuration.
func (p plan) prepare(t *testing.T) *soak {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if v, err := strconv.ParseUint(os.Getenv("MILLRACE_SEED"), 10, 64); err == nil {
		seed = v
	}
	t.Logf("MILLRACE_SEED=%d repeats the choice of moments", seed)
	t.Attr("seed", strconv.FormatUint(seed, 10))
	s := &soak{plan: p, rng: rand.New(rand.NewPCG(seed, 0))}
	s.source, s.target = rig.Start(t, p.from, p.sourceSettings...), rig.Start(t, p.to)
	s.sourceDB, s.targetDB = s.source.NewDB(t), s.target.NewDB(t)
	s.towardsSource, s.towardsTarget = rig.NewProxy(t, s.source), rig.NewProxy(t, s.target)
	s.initialize(t)
	name := s.sourceDB.Name
	s.sourceDB.SQL(t, "CREATE PUBLICATION millrace_"+name+" FOR ALL TABLES")
	o := blackbox.Options{Name: name, Source: s.sourceDB, Target: s.targetDB, Extra: "resources: {retry_backoff: {min: 100ms, max: 1s}}\n" + p.config}
	if p.faults[cutSource]+p.faults[cutTarget]+p.faults[tearSource]+p.faults[tearTarget] > 0 {
		// A crash needs no proxy, and a proxy takes a share of the machine.
		o.SourceURL, o.TargetURL = s.towardsSource.URL(name), s.towardsTarget.URL(s.targetDB.Name)
	}
	s.job = blackbox.NewJob(t, o)
	return s
}

// inject makes all faults of the plan happen, in random order at random
// moments, and gives how many of each did.
func (s *soak) inject(ctx context.Context, t *testing.T) map[fault]int {
	t.Helper()
	var order []fault
	for _, f := range []fault{killJob, crashTarget, crashSource, cutSource, cutTarget, tearSource, tearTarget} {
		for range s.faults[f] {
			order = append(order, f)
		}
	}
	s.rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	// A tenth of the time is left for the way back to normal.
	mean := s.length * 9 / 10 / time.Duration(len(order))
	done := map[fault]int{}
	next := time.Now()
	for _, f := range order {
		next = next.Add(mean)
		if !pause(ctx, s.moment(next, mean)) {
			break
		}
		if !s.job.Running() {
			t.Errorf("the program ended by itself with code %d before a %s", s.job.ExitCode(), f)
			return done
		}
		t.Logf("%s", f)
		s.do(t, f)
		done[f]++
	}
	return done
}

// moment is how long to wait for the next fault. One in four comes right after
// the one before, into the middle of a start or of a reconnect; the others are
// spread so that all fit.
func (s *soak) moment(due time.Time, mean time.Duration) time.Duration {
	if s.rng.IntN(4) == 0 {
		return time.Duration(s.rng.Int64N(int64(300 * time.Millisecond)))
	}
	return time.Until(due) - mean/2 + time.Duration(s.rng.Int64N(int64(mean)))
}

func (s *soak) do(t *testing.T, f fault) {
	t.Helper()
	switch f {
	case killJob:
		s.job.Kill(t)
		s.job.Start(t)
	case crashTarget:
		s.target.Crash(t)
		s.target.Restart(t)
	case crashSource:
		s.source.Crash(t)
		s.source.Restart(t)
	case cutSource:
		s.towardsSource.Cut()
	case cutTarget:
		s.towardsTarget.Cut()
	case tearSource:
		s.towardsSource.CutAfter(s.rng.Int64N(200_000))
	case tearTarget:
		s.towardsTarget.CutAfter(s.rng.Int64N(2_000))
	}
}

// pause waits, and says whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
