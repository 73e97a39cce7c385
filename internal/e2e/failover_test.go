package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// withFailover is a job at a primary whose standby keeps a copy of the slot.
func withFailover(t *testing.T, major int) (p *pair, standby *rig.Postgres) {
	t.Helper()
	primary, standby := rig.Pair(t, major)
	p = newPair(t, plan{source: primary, schema: bankSchema + eventsSchema, options: func(o *blackbox.Options, p *pair) {
		o.SourceURL = rig.URLs(p.source.Name, "read-write", primary, standby)
	}})
	return p, standby
}

// TestFailover: the primary dies under load and its standby is promoted. The
// job goes on there, and loses nothing.
func TestFailover(t *testing.T) {
	t.Parallel()
	rounds := 1
	if full() {
		rounds = 10
	}
	for _, major := range []int{17, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			for range rounds {
				failOver(t, major)
			}
		})
	}
}

func failOver(t *testing.T, major int) {
	p, standby := withFailover(t, major)
	primary := p.source.Server
	primary.HoldBack(t, standby)
	p.Start(t, "--bootstrap")
	p.sync(t)
	standby.AwaitSlotCopy(t, primary, p.slotName())
	if r := p.Run(t, "check"); r.Code != blackbox.Done || strings.Contains(r.Stdout, "failover") || strings.Contains(r.Stdout, "standby") {
		t.Errorf("check: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	p.moveMoney(t, 30)
	p.sync(t)
	early := p.history(t) + p.position(t)
	// It writes until the primary is gone.
	ended := make(chan int)
	go func() {
		for n := 0; ; n++ {
			sql := fmt.Sprintf("BEGIN; INSERT INTO events VALUES (%d, 'under load'); UPDATE t SET v = v + 1 WHERE id = %d; COMMIT", n, 1+n%100)
			if _, err := primary.TryQuery(p.source.Name, sql); err != nil {
				ended <- n
				return
			}
		}
	}()
	rig.Eventually(t, patience, func() bool {
		return p.target.Query(t, "SELECT count(*) > 50 FROM events") == "t"
	}, "the load arrives")
	primary.Kill(t)
	written := <-ended
	standby.Promote(t)
	p.goesTo(standby)
	p.source.SQL(t, "INSERT INTO events SELECT i, 'after' FROM generate_series(1, 100) i; UPDATE t SET v = v + 1")
	p.moveMoney(t, 60)
	p.sync(t)
	p.equal(t)
	t.Logf("%d transactions were committed at the old primary, %s of them are at the new one", written,
		p.source.Query(t, "SELECT count(*) FROM events WHERE what = 'under load'"))
	if got := p.record(t, "timeline"); got != "2" {
		t.Errorf("the record is on timeline %s, want 2", got)
	}
	p.ask(t, http.StatusOK, "lsn", early)
	p.ask(t, http.StatusOK, "lsn", p.history(t)+p.position(t))
	head := strings.Split(p.history(t), ":")
	p.ask(t, http.StatusConflict, "lsn", head[0]+":1:"+head[2]+":"+p.position(t))
	if p.Run(t, "check").Code != blackbox.Done {
		t.Error("check after the promotion")
	}
	p.finish(t)
}

// TestFailoverInALoad: the primary goes in the middle of a load beside the stream, when the standby has
// all that was loaded. The load goes on there: what is complete stays.
func TestFailoverInALoad(t *testing.T) {
	t.Parallel()
	const rows = 2500
	versions := []int{18}
	if full() {
		versions = []int{17, 18}
	}
	for _, major := range versions {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			primary, standby := rig.Pair(t, major)
			p := newPair(t, plan{source: primary, schema: fmt.Sprintf(killedSchema, rows), options: func(o *blackbox.Options, p *pair) {
				o.SourceURL = rig.URLs(p.source.Name, "read-write", primary, standby)
				o.Extra += fmt.Sprintf("snapshot: {mode: incremental, rate: %d}\n", rows*150)
			}})
			primary.HoldBack(t, standby)
			stop := churn(t, p, rows)
			p.Start(t, "--bootstrap")
			rig.Eventually(t, patience, func() bool { return loadedRows(p) > 300 }, "something is loaded")
			standby.AwaitSlotCopy(t, primary, p.slotName())
			if p.record(t, "consistent_from IS NULL") != "t" {
				t.Error("the load was over too soon")
			}
			p.Kill(t) // so that what it has loaded is ahead of what it holds, if it ever is
			gone(t, p.Job, p.source)
			stop()
			standby.AwaitReplay(t, primary)
			primary.Stop(t)
			standby.Promote(t)
			p.goesTo(standby)
			stop = churn(t, p, rows)
			p.Start(t, "--bootstrap")
			rig.Eventually(t, 2*patience, func() bool { return p.record(t, "state") == "streaming" || !p.Running() }, "the load is complete")
			stop()
			if got := p.record(t, "timeline"); got != "2" {
				t.Errorf("the record is on timeline %s, want 2", got)
			}
			p.finish(t)
		})
	}
}

// TestFailoverBehind: the standby that is promoted lacks what was delivered.
func TestFailoverBehind(t *testing.T) {
	t.Parallel()
	for _, major := range []int{17, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			p, standby := withFailover(t, major)
			primary := p.source.Server
			p.Start(t, "--bootstrap")
			p.sync(t)
			standby.AwaitSlotCopy(t, primary, p.slotName())
			wants(t, "check", p.Run(t, "check").Stdout, "synchronized_standby_slots is empty", "ALTER SYSTEM SET synchronized_standby_slots = '"+standby.StandbySlot()+"'")
			standby.Stop(t)
			p.source.SQL(t, "INSERT INTO events VALUES (1, 'the standby never had it')")
			p.sync(t)
			held := p.record(t, "acked_lsn")
			primary.Kill(t)
			standby.Restart(t)
			standby.Promote(t)
			p.goesTo(standby)
			p.source.SQL(t, "INSERT INTO events SELECT i, 'on the new timeline' FROM generate_series(1, 10000) i")
			for range 2 { // a restart changes nothing
				r := p.refusal(t)
				if r.state != "resync_required" {
					t.Errorf("state %s, want resync_required: %s", r.state, r.reason)
				}
				wants(t, "the reason", r.reason, "left timeline 1 at", held)
				wants(t, "the hint", r.hint, "bootstrap --restart-snapshot --yes")
				p.Start(t)
			}
			p.refusal(t)
			if got := p.target.Query(t, "SELECT string_agg(what, ',') FROM events"); got != "the standby never had it" {
				t.Errorf("the target has %q", got)
			}
			if got := p.slot(t, "confirmed_flush_lsn <= '"+held+"'"); got != "t" {
				t.Error("the slot has moved")
			}
			// A new first load is the cure.
			if r := p.Run(t, "bootstrap", "--restart-snapshot", "--yes"); r.Code != blackbox.Done {
				t.Fatalf("bootstrap --restart-snapshot: exit code %d\n%s", r.Code, r.Stderr)
			}
			p.Start(t)
			p.finish(t)
		})
	}
}
