package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// stopWithin is the promise for SIGTERM, and some time for a busy machine.
const stopWithin = 15 * time.Second

// TestStopInsideOfLargeTransaction: it is rolled back and not waited for.
func TestStopInsideOfLargeTransaction(t *testing.T) {
	t.Parallel()
	var proxy *rig.Proxy
	p := running(t, plan{schema: eventsSchema, options: func(o *blackbox.Options, p *pair) {
		proxy = rig.NewProxy(t, p.source.Server)
		o.SourceURL = proxy.URL(p.source.Name)
	}})
	// About 3 MB/s, of 65 MB: it is still inside when the signal comes.
	proxy.Delay(10 * time.Millisecond)
	p.source.SQL(t, "INSERT INTO events SELECT i, repeat('x', 200) FROM generate_series(1, 300000) i")
	p.awaitInside(t)
	p.stopsInTime(t)
	proxy.Delay(0)
	if n := p.target.Query(t, "SELECT count(*) FROM events"); n != "0" {
		t.Fatalf("the transaction was not rolled back: %s of its 300000 rows are there", n)
	}
	p.Start(t)
	p.finish(t)
}

// awaitInside waits until the job is in the middle of a target transaction that
// has a good part of its rows written.
func (p *pair) awaitInside(t *testing.T) {
	t.Helper()
	rig.Eventually(t, patience, func() bool {
		return p.target.Query(t, fmt.Sprintf(`SELECT count(*) FROM pg_stat_activity
			WHERE application_name = 'millrace:%s:apply' AND backend_xid IS NOT NULL AND now() - xact_start > '100 ms' AND pg_relation_size('events') > 4000000`, p.Name)) == "1"
	}, "the job is inside of the transaction")
}

// stopsInTime sends SIGTERM and checks what is promised for it.
func (p *pair) stopsInTime(t *testing.T) {
	t.Helper()
	began := time.Now()
	if code := p.Stop(t); code != blackbox.Done {
		t.Errorf("exit code %d after SIGTERM, want %d", code, blackbox.Done)
	}
	if took := time.Since(began); took > stopWithin {
		t.Errorf("the program ended %v after SIGTERM, which is more than %v", took, stopWithin)
	}
	if got := p.record(t, "state, reason"); got != "stopped|stopped by a signal" {
		t.Errorf("the record says %s", got)
	}
	p.former = p.blocked(t)
	if n := p.target.Query(t, "SELECT count(*) FROM millrace.runtime"); n != "0" {
		t.Errorf("%s instances are still in the record", n)
	}
	if r := p.Run(t, "status"); r.Code != blackbox.Done {
		t.Errorf("status: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// TestStopWhileTargetIsLocked: it does not wait for the lock, neither where it
// applies nor, with a table that it meets for the first time, where it looks
// the table up.
func TestStopWhileTargetIsLocked(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("table known %v", known), func(t *testing.T) {
			t.Parallel()
			p := running(t, plan{schema: eventsSchema})
			changes := 0
			change := func() {
				changes++
				p.source.SQL(t, "INSERT INTO events SELECT i, 'x' FROM generate_series(1, 100) i; UPDATE t SET v = v + 1")
			}
			if known {
				change()
				p.sync(t)
			}
			release := p.lock(t, "t")
			change()
			p.awaitBlocked(t)
			p.stopsInTime(t)
			change()
			p.Start(t)
			p.awaitBlocked(t)
			p.stopsInTime(t)
			release()
			p.Start(t)
			p.finish(t)
			if rows, want := p.target.Query(t, "SELECT count(*) FROM events"), fmt.Sprint(100*changes); rows != want {
				t.Errorf("%s events, want %s", rows, want)
			}
		})
	}
}

// TestStopWhileServersAreAway: nothing can be written then, and it ends all the
// same.
func TestStopWhileServersAreAway(t *testing.T) {
	t.Parallel()
	p := newPair(t, plan{target: rig.Start(t, rig.Newest), schema: eventsSchema})
	p.Start(t, "--bootstrap")
	p.sync(t)
	p.target.Server.Pause(t)
	p.source.SQL(t, "INSERT INTO events VALUES (1, 'x')")
	began := time.Now()
	if code := p.Stop(t); code != blackbox.Done && code != blackbox.No {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	if took := time.Since(began); took > stopWithin {
		t.Errorf("the program ended %v after SIGTERM, which is more than %v", took, stopWithin)
	}
	p.target.Server.Continue(t)
	p.Start(t)
	p.finish(t)
}

// TestIdlePositionBehindLargeTransaction: a sign of life that was not worth a
// progress row yet is still to be written when a large transaction begins, which
// then takes longer than signs of life wait. Nobody may see a part of it.
func TestIdlePositionBehindLargeTransaction(t *testing.T) {
	t.Parallel()
	const rows = 200_000
	var proxy *rig.Proxy
	p := running(t, plan{source: rig.Start(t, rig.Newest), schema: eventsSchema, options: func(o *blackbox.Options, p *pair) {
		proxy = rig.NewProxy(t, p.source.Server)
		o.SourceURL = proxy.URL(p.source.Name)
	}})
	p.sync(t)
	// What is not published moves the source's position.
	p.source.Server.SQL(t, "postgres", "CREATE TABLE elsewhere (v text); INSERT INTO elsewhere VALUES ('x')")
	p.source.SQL(t, fmt.Sprintf("INSERT INTO events SELECT i, repeat('x', 200) FROM generate_series(1, %d) i", rows))
	proxy.Delay(10 * time.Millisecond) // about 3 MB/s, of 45 MB
	began, n := time.Now(), ""
	rig.Eventually(t, 2*patience, func() bool {
		n = p.target.Query(t, "SELECT count(*) FROM events")
		if n != "0" && n != fmt.Sprint(rows) {
			t.Fatalf("a reader saw %s of %d rows of one transaction, %v after it", n, rows, time.Since(began))
		}
		return n != "0"
	}, "the transaction arrives")
	if took := time.Since(began); took < 11*time.Second {
		t.Errorf("it took %v only, which is no test of what happens after 10 s", took)
	}
	proxy.Delay(0)
	p.finish(t)
}
