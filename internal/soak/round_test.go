package soak

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

const killIn fault = "kill of the program that writes to Kafka"

// roundPlan is how much of what happens on the way through Kafka.
type roundPlan struct {
	plan
	nodes int
}

// TestRoundKills: pgbench's tables with foreign keys go through Kafka into another
// database, while both programs, brokers and the target are killed. A reader of the
// target sees nothing but states of the source, and in the end both are equal.
func TestRoundKills(t *testing.T) {
	if !full() {
		t.Skip("make soak; TestRoundTripUnderKills is the short form")
	}
	length := minutes(4)
	roundPlan{nodes: 3, plan: plan{from: rig.Newest, to: rig.Newest, length: length, scale: 2, rate: 300, faults: map[fault]int{
		killIn: 10, killJob: 10, crashTarget: 6, killBroker: 5, stopBroker: 3, pauseBroker: 2, moveLeaders: 4}}}.run(t)
}

// roundSoak: the job of the soak is the one that reads the topics.
type roundSoak struct {
	*soak
	*cluster
	in *blackbox.Job
}

func (p roundPlan) run(t *testing.T) {
	s := p.prepare(t)
	ctx, cancel := context.WithTimeout(t.Context(), 6*p.length+5*time.Minute)
	defer cancel()
	loading, stopLoad := context.WithCancel(ctx)
	var together sync.WaitGroup
	together.Go(func() { s.load(loading, t) })
	s.in.Start(t, "--bootstrap")
	s.job.Start(t, "--bootstrap")
	if err := s.job.Wait(8 * time.Minute); err != nil { // with the load beside it
		t.Fatal(err)
	}
	w := watch{soak: s.soak, t: t, failed: cancel}
	together.Go(func() { w.totals(loading) })
	done := s.spread(ctx, t, p.faults, p.length, []*blackbox.Job{s.in, s.job}, func(f fault) {
		switch f {
		case killIn:
			s.in.Kill(t)
			s.in.Start(t)
		case killJob, crashTarget:
			s.do(t, f)
		default:
			s.fail(ctx, t, f)
		}
	})
	stopLoad()
	together.Wait()
	t.Attr("soak", fmt.Sprintf("%v, %d totals checked", done, w.totalsSeen))
	t.Logf("%v; %d totals checked", done, w.totalsSeen)
	if t.Failed() {
		return
	}
	if !maps.Equal(done, p.faults) || w.totalsSeen < 20 {
		t.Errorf("%v of %v, and %d totals", done, p.faults, w.totalsSeen)
	}
	if !s.in.Running() {
		t.Fatalf("the program that writes to Kafka ended by itself with code %d", s.in.ExitCode())
	}
	s.compare(t)
	if code := s.in.Stop(t); code != 0 {
		t.Errorf("the program that writes to Kafka ended with code %d on SIGTERM", code)
	}
	t.Logf("%s rows of history came through", s.targetDB.Query(t, "SELECT count(*) FROM pgbench_history"))
}

func (p roundPlan) prepare(t *testing.T) *roundSoak {
	t.Helper()
	s := &roundSoak{soak: &soak{plan: p.plan}, cluster: startCluster(t, p.nodes)}
	s.soak.rng = s.cluster.rng
	s.source, s.target = rig.Start(t, p.from), rig.Start(t, p.to)
	s.sourceDB, s.targetDB = s.source.NewDB(t), s.target.NewDB(t)
	s.initialize(t)
	s.sourceDB.SQL(t, "CREATE PUBLICATION millrace_"+s.sourceDB.Name+" FOR ALL TABLES")
	prefix := fmt.Sprintf(`brokers: ["%s"], prefix: round`, strings.Join(s.k.Brokers(), `", "`))
	const extra = "resources: {retry_backoff: {min: 100ms, max: 1s}}\n"
	s.in = blackbox.NewJob(t, blackbox.Options{Name: s.sourceDB.Name, Source: s.sourceDB, Extra: extra,
		Kafka: fmt.Sprintf(`{%s, partitions: 3, replication: %d}`, prefix, p.nodes)})
	s.job = blackbox.NewJob(t, blackbox.Options{Name: "back_" + s.sourceDB.Name, Source: s.sourceDB, Target: s.targetDB, Extra: extra, From: "{" + prefix + "}"})
	return s
}
