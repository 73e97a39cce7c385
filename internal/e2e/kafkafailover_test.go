package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// TestFailoverThroughKafka: the primary dies under load and its standby is promoted. The
// job that writes topics goes on there, after a kill as well, and who reads them follows
// to the new timeline, and is equal.
func TestFailoverThroughKafka(t *testing.T) {
	t.Parallel()
	if !full() {
		t.Skip("half a minute, for make soak; TestSourceFollowsAnotherPrimary in short")
	}
	primary, standby := rig.Pair(t, rig.Newest)
	k := rig.SharedKafka(t)
	r := &round{kafka: k}
	r.pair = newPair(t, plan{source: primary, schema: bankSchema + eventsSchema, options: func(o *blackbox.Options, p *pair) {
		r.prefix = "r" + strings.ReplaceAll(p.target.Name, "_", "-")
		r.in = blackbox.NewJob(t, blackbox.Options{Name: o.Name, Source: p.source, SourceURL: rig.URLs(p.source.Name, "read-write", primary, standby),
			Tables: o.Tables, Extra: fast, Kafka: fmt.Sprintf("{brokers: [%q], prefix: %s}", k.Brokers()[0], r.prefix)})
		o.Name, o.Tables = "back_"+o.Name, nil
		o.From = fmt.Sprintf("{brokers: [%q], prefix: %s}", k.Brokers()[0], r.prefix)
	}})
	primary.HoldBack(t, standby)
	r.start(t)
	standby.AwaitSlotCopy(t, primary, r.slotName())
	r.source.SQL(t, "INSERT INTO events SELECT i, 'before' FROM generate_series(1, 100) i")
	r.sync(t)
	ended := make(chan int)
	go func() {
		for n := 0; ; n++ {
			sql := fmt.Sprintf("BEGIN; INSERT INTO events VALUES (%d, 'under load'); UPDATE t SET v = v + 1 WHERE id = %d; COMMIT", n, 1+n%100)
			if _, err := primary.TryQuery(r.source.Name, sql); err != nil {
				ended <- n
				return
			}
		}
	}()
	rig.Eventually(t, patience, func() bool {
		return r.target.Query(t, "SELECT count(*) > 150 FROM events") == "t"
	}, "the load arrives")
	primary.Kill(t)
	<-ended
	standby.Promote(t)
	r.goesTo(standby)
	r.source.SQL(t, "INSERT INTO events SELECT i, 'after' FROM generate_series(1, 100) i; UPDATE t SET v = v + 1")
	r.sync(t)
	r.equal(t)
	if got := r.record(t, "timeline"); got != "2" {
		t.Errorf("the reader's record is on timeline %s, want 2", got)
	}
	// A second instance of the writer takes over from one that is killed.
	old := r.in
	r.in = old.Twin(t)
	r.in.Start(t, "--standby")
	rig.Eventually(t, patience, func() bool {
		s := old.Run(t, "status", "--json")
		return strings.Contains(s.Stdout, "waiting_for_slot")
	}, "the second instance waits")
	old.Signal(t, syscall.SIGKILL)
	r.source.SQL(t, "INSERT INTO events SELECT i, 'later' FROM generate_series(1, 100) i; UPDATE t SET v = v + 1")
	r.sync(t)
	r.equal(t)
	r.finish(t)
}
