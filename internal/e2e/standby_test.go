package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// behindStandby is a job that reads from a hot standby of its source. With attrs
// its connection string names the primary as well.
func behindStandby(t *testing.T, major int, schema, attrs string) (p *pair, standby *rig.Postgres) {
	t.Helper()
	primary, standby := rig.Pair(t, major)
	p = newPair(t, plan{source: primary, schema: schema, options: func(o *blackbox.Options, p *pair) {
		o.SourceURL = standby.URL(p.source.Name)
		if attrs != "" {
			o.SourceURL = rig.URLs(p.source.Name, attrs, primary, standby)
		}
	}})
	standby.AwaitReplay(t, primary)
	return p, standby
}

// TestStandbyLoadsBesideTheStream: from a standby tables are loaded in chunks, over a
// kill and under writes, and one is added later; nobody writes to the standby.
func TestStandbyLoadsBesideTheStream(t *testing.T) {
	t.Parallel()
	const rows = 1500
	primary, standby := rig.Pair(t, rig.Newest)
	p := newPair(t, plan{source: primary, schema: fmt.Sprintf(killedSchema, rows), options: func(o *blackbox.Options, p *pair) {
		o.SourceURL = rig.URLs(p.source.Name, "standby", primary, standby)
		o.Tables = []string{"public.a", "public.c"}
		o.Extra += fmt.Sprintf("snapshot: {mode: incremental, rate: %d}\n", rows*500)
	}})
	standby.AwaitReplay(t, primary)
	stop := churn(t, p, rows)
	p.Start(t, "--bootstrap")
	rig.Eventually(t, patience, func() bool { return loadedRows(p) > 0 }, "something is loaded")
	p.Kill(t)
	before := loadedRows(p)
	p.Start(t, "--bootstrap")
	p.loaded(t, "a c")
	if now := loadedRows(p); now < before {
		t.Errorf("%d rows were copied before, now %d are", before, now)
	}
	if r := p.Run(t, "table", "add", "public.b"); r.Code != blackbox.Done {
		t.Fatalf("table add: exit code %d\n%s", r.Code, r.Stderr)
	}
	p.loaded(t, "a b c")
	stop()
	p.sync(t)
	for _, table := range []string{"a", "b", "c"} {
		sum := fmt.Sprintf(`SELECT count(*) || ' ' || md5(string_agg(x::text, ',' ORDER BY x::text COLLATE "C")) FROM %s x`, table)
		if want, got := p.source.Query(t, sum), p.target.Query(t, sum); got != want {
			t.Errorf("table %s: the source has %s, the target %s", table, want, got)
		}
	}
}

// TestStandbySource: the first load and the stream from a standby, while the
// primary commits. Whatever commits while the slot and its snapshot are made is
// either in the snapshot or in the stream.
func TestStandbySource(t *testing.T) {
	t.Parallel()
	for _, major := range []int{16, 17, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			p, standby := behindStandby(t, major, bankSchema+eventsSchema, "standby")
			ctx, stop := context.WithCancel(t.Context())
			var writers sync.WaitGroup
			for w := range 4 { // one row a transaction, so that each is in or out
				writers.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						_, err := p.source.Server.TryQuery(p.source.Name, fmt.Sprintf(
							"INSERT INTO events VALUES (%d, 'w%d'); UPDATE t SET v = v + 1 WHERE id = %d", n, w, 1+(4*n+w)%100))
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			p.Start(t, "--bootstrap")
			p.sync(t)
			stop()
			writers.Wait()
			p.moveMoney(t, 60)
			p.finish(t)
			if n := standby.Query(t, "postgres", "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '"+p.slotName()+"'"); n != "1" {
				t.Errorf("%s slots on the standby", n)
			}
			if n := p.slot(t, "1"); n != "" {
				t.Error("there is a slot on the primary")
			}
			if r := p.Run(t, "cleanup", "--yes"); r.Code != blackbox.Done {
				t.Errorf("cleanup: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
			}
			if n := standby.Query(t, "postgres", "SELECT count(*) FROM pg_replication_slots"); n != "0" {
				t.Errorf("cleanup leaves %s slots", n)
			}
		})
	}
}

// goesTo makes a standby that was promoted the source.
func (p *pair) goesTo(standby *rig.Postgres) {
	p.source = &rig.DB{Server: standby, Name: p.source.Name}
	p.Follow(p.source)
}

// TestIdlePrimary: a slot on a standby waits for its primary. The program says
// so, can be stopped meanwhile, and goes on once somebody has done what it says.
func TestIdlePrimary(t *testing.T) {
	t.Parallel()
	for _, major := range []int{16, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			p, standby := behindStandby(t, major, eventsSchema, "")
			for _, stop := range []bool{true, false} {
				p.Start(t, "--bootstrap")
				rig.Eventually(t, patience, func() bool { return strings.Contains(p.Log(100), "creating a slot on a standby") }, "it says what it waits for")
				wants(t, "the log", p.Log(100), "SELECT pg_log_standby_snapshot() there", "does not name the primary")
				waits := p.record(t, "consistent_point IS NULL")
				rig.Eventually(t, patience, func() bool {
					return waits != "t" || strings.Contains(p.record(t, "reason || hint"), "pg_log_standby_snapshot()") || p.record(t, "consistent_point IS NULL") != "t"
				}, "the record says so too")
				if stop {
					p.stopsLoading(t)
					rig.Eventually(t, patience, func() bool {
						return standby.Query(t, "postgres", "SELECT count(*) FROM pg_replication_slots") == "0"
					}, "no slot is left on the standby")
				}
			}
			rig.Eventually(t, patience, func() bool {
				p.source.SQL(t, "SELECT pg_log_standby_snapshot()")
				return p.record(t, "consistent_from IS NOT NULL") == "t"
			}, "the first load is done")
			p.source.SQL(t, "INSERT INTO events SELECT i, 'streamed' FROM generate_series(1, 100) i")
			p.finish(t)
		})
	}
}

// TestStandbySourceIsPromoted: walsenders of a standby live through its
// promotion. What comes behind it belongs to the new timeline.
func TestStandbySourceIsPromoted(t *testing.T) {
	t.Parallel()
	p, standby := behindStandby(t, rig.Newest, eventsSchema, "prefer-standby")
	primary := p.source.Server
	p.Start(t, "--bootstrap")
	p.source.SQL(t, "INSERT INTO events SELECT i, 'before' FROM generate_series(1, 100) i")
	p.sync(t)
	// The primary, which then answers, does not have the slot. That is no loss.
	standby.Crash(t)
	p.source.SQL(t, "INSERT INTO events SELECT i, 'while it was away' FROM generate_series(1, 100) i")
	rig.Eventually(t, patience, func() bool { return p.status(t, "condition") == "source_unreachable" }, "the slot is waited for")
	standby.Restart(t)
	p.sync(t)
	primary.Stop(t)
	standby.Promote(t)
	p.goesTo(standby)
	p.source.SQL(t, "INSERT INTO events SELECT i, 'after' FROM generate_series(1, 100) i; UPDATE t SET v = v + 1")
	p.sync(t)
	p.equal(t)
	if got := p.record(t, "timeline"); got != "2" {
		t.Errorf("the record is on timeline %s, want 2", got)
	}
	p.Kill(t)
	p.source.SQL(t, "INSERT INTO events SELECT i, 'later' FROM generate_series(1, 100) i")
	p.Start(t)
	p.finish(t)
}

// TestInvalidatedSlotOnStandby: without feedback the primary removes what the
// slot needs.
func TestInvalidatedSlotOnStandby(t *testing.T) {
	t.Parallel()
	p, standby := behindStandby(t, rig.Newest, eventsSchema, "standby")
	p.Start(t, "--bootstrap")
	p.sync(t)
	if code := p.Stop(t); code != blackbox.Done {
		t.Errorf("exit code %d", code)
	}
	standby.Configure(t, "hot_standby_feedback=off")
	standby.Reload(t)
	rig.Eventually(t, patience, func() bool {
		return p.source.Query(t, "SELECT count(*) FROM pg_replication_slots WHERE catalog_xmin IS NOT NULL") == "0"
	}, "the primary knows of it")
	rig.Eventually(t, patience, func() bool {
		p.source.SQL(t, "CREATE TABLE x ()")
		p.source.SQL(t, "DROP TABLE x")
		p.source.SQL(t, "VACUUM pg_class")
		return standby.Query(t, "postgres", "SELECT invalidation_reason FROM pg_replication_slots") == "rows_removed"
	}, "the slot is invalidated")
	p.Start(t)
	r := p.refusal(t)
	if r.state != "resync_required" {
		t.Errorf("state %s, want resync_required", r.state)
	}
	wants(t, "the reason", r.reason, "rows_removed")
	wants(t, "the hint", r.hint, "bootstrap --restart-snapshot --yes")
	again := func(want int) string {
		t.Helper()
		res := p.Run(t, "bootstrap", "--restart-snapshot", "--yes")
		if res.Code != want {
			t.Errorf("exit code %d, want %d\n%s", res.Code, want, res.Stderr)
		}
		return res.Stderr
	}
	wants(t, "without feedback", again(blackbox.No), "hot_standby_feedback = off", "ALTER SYSTEM SET hot_standby_feedback = on")
	standby.Configure(t, "hot_standby_feedback=on")
	standby.Reload(t)
	again(blackbox.Done)
	p.Start(t)
	p.finish(t)
}

// TestSourceFollowsAnotherPrimary: the source is a standby behind a standby that
// is promoted. It stays one, and goes over to the new timeline.
func TestSourceFollowsAnotherPrimary(t *testing.T) {
	t.Parallel()
	for _, major := range []int{16, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			primary, middle := rig.Pair(t, major)
			last := rig.Standby(t, middle)
			p := newPair(t, plan{source: primary, schema: eventsSchema, options: func(o *blackbox.Options, p *pair) {
				o.SourceURL = rig.URLs(p.source.Name, "standby", primary, last)
			}})
			last.AwaitReplay(t, primary)
			p.Start(t, "--bootstrap")
			p.source.SQL(t, "INSERT INTO events SELECT i, 'before' FROM generate_series(1, 100) i")
			p.sync(t)
			primary.Stop(t)
			middle.Promote(t)
			p.goesTo(middle)
			p.source.SQL(t, "INSERT INTO events SELECT i, 'after' FROM generate_series(1, 100) i; UPDATE t SET v = v + 1")
			p.sync(t)
			p.equal(t)
			if got := p.record(t, "timeline") + " " + p.status(t, "source.timeline"); got != "2 2" {
				t.Errorf("the record and /status are on timeline %s, want 2", got)
			}
			p.Kill(t)
			p.source.SQL(t, "INSERT INTO events SELECT i, 'later' FROM generate_series(1, 100) i")
			p.Start(t)
			p.finish(t)
			if major == rig.Newest {
				intoKafkaFrom(t, p, last)
			}
		})
	}
}

// intoKafkaFrom loads into Kafka from a standby that has come to timeline 2 and whose
// control file does not say so yet.
func intoKafkaFrom(t *testing.T, p *pair, standby *rig.Postgres) {
	t.Helper()
	if got := standby.Query(t, "postgres", "SELECT timeline_id FROM pg_control_checkpoint()"); got != "1" {
		t.Logf("the standby's control file is on timeline %s already", got)
	}
	name := "k_" + p.target.Name
	p.source.SQL(t, "CREATE PUBLICATION millrace_"+name+" FOR ALL TABLES")
	standby.AwaitReplay(t, p.source.Server)
	j := blackbox.NewJob(t, blackbox.Options{Name: name, Source: p.source, SourceURL: standby.URL(p.source.Name), Tables: []string{"public.*"}, Extra: fast,
		Kafka: fmt.Sprintf("{brokers: [%q], prefix: %s}", rig.SharedKafka(t).Brokers()[0], name)})
	j.Start(t, "--bootstrap")
	p.source.SQL(t, "INSERT INTO events SELECT i, 'into Kafka' FROM generate_series(1, 100) i")
	rig.Eventually(t, patience, func() bool {
		r := j.Run(t, "status", "--json")
		return r.Code == blackbox.Done && strings.Contains(r.Stdout, `"streaming"`) && strings.Contains(r.Stdout, `"timeline":2`)
	}, "the job streams from timeline 2")
	if r := j.Run(t, "wait", "--now"); r.Code != blackbox.Done {
		t.Errorf("wait: %s%s", r.Stdout, r.Stderr)
	}
	if code := j.Stop(t); code != 0 {
		t.Errorf("stop: exit code %d", code)
	}
}
