package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// eventsSchema has a table without a key: what is written twice is there twice.
const eventsSchema = `CREATE TABLE events (n int, what text); CREATE TABLE t (id int PRIMARY KEY, v int);
	INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i`

// TestSecondInstance: while an instance lives, a second one does not start.
func TestSecondInstance(t *testing.T) {
	t.Parallel()
	p := running(t, plan{schema: eventsSchema})
	rig.Eventually(t, patience, func() bool { return p.record(t, "state") == "streaming" }, "the job streams")
	second := p.Twin(t)
	second.Start(t)
	rig.Eventually(t, patience, func() bool { return !second.Running() }, "the second instance ends")
	if code := second.ExitCode(); code != blackbox.No {
		t.Errorf("the second instance ended with code %d, want %d", code, blackbox.No)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	wants(t, "what it printed", second.Log(5), host, "pid "+strconv.Itoa(p.PID()), "hint:")
	if state := p.record(t, "state"); state != "streaming" {
		t.Errorf("after that the job is in state %s", state)
	}
	p.source.SQL(t, "INSERT INTO events SELECT i, 'after' FROM generate_series(1, 10) i")
	if n := p.metric(t, "reconnects_total"); n != 0 {
		t.Errorf("the first instance had to connect again %v times", n)
	}
	p.finish(t)
}

// TestStalledInstanceIsFenced: an instance stands still in the middle of a
// target transaction and loses its slot to another one. When it wakes up it
// must not write what the other one has written already.
func TestStalledInstanceIsFenced(t *testing.T) {
	t.Parallel()
	for _, sent := range []bool{false, true} {
		t.Run(fmt.Sprintf("all statements sent %v", sent), func(t *testing.T) {
			t.Parallel()
			stalledInstance(t, sent)
		})
	}
}

func stalledInstance(t *testing.T, sent bool) {
	p := running(t, plan{schema: eventsSchema})
	first := p.Job
	insert := func(what string) {
		p.source.SQL(t, "INSERT INTO events SELECT i, '"+what+"' FROM generate_series(1, 500) i; UPDATE t SET v = v + 1")
	}
	insert("before")
	p.sync(t)
	// A lock holds the first instance inside of its transaction.
	release := p.lock(t, "t")
	insert("in the transaction")
	p.awaitBlocked(t)
	first.Signal(t, syscall.SIGSTOP)
	if sent {
		release() // its backend goes on with what was sent; COMMIT was not
	}
	insert("while it stands still")
	p.source.SQL(t, fmt.Sprintf("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = '%s'", p.slotName()))
	p.Job = first.Twin(t)
	p.Start(t)
	if !sent {
		// Claim has ended the backend that waits for the lock; the second
		// instance comes to wait for it.
		rig.Eventually(t, patience, func() bool { return p.record(t, "epoch") == "2" }, "the second instance claims the job")
		release()
	}
	p.sync(t)
	first.Signal(t, syscall.SIGCONT)
	insert("after it woke up")
	rig.Eventually(t, patience, func() bool { return !first.Running() }, "the first instance ends")
	if code := first.ExitCode(); code != blackbox.No {
		t.Errorf("the first instance ended with code %d, want %d", code, blackbox.No)
	}
	wants(t, "what it printed", first.Log(5), "pid "+strconv.Itoa(p.PID()))
	insert("after it has ended")
	p.finish(t)
	if rows, want := p.target.Query(t, "SELECT count(*), count(DISTINCT (n, what)) FROM events"), "2500|2500"; rows != want {
		t.Errorf("events on the target (rows|different): %s, want %s", rows, want)
	}
}

// lock takes an ACCESS EXCLUSIVE lock on a table of the target until release is
// called. The session that holds it ends by itself at the test's end.
func (p *pair) lock(t *testing.T, table string) (release func()) {
	t.Helper()
	mark := fmt.Sprintf("lock of %s for %s", table, p.Name)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Ended by release with an error.
		_, _ = p.target.Server.TryQuery(p.target.Name, fmt.Sprintf(
			"SET application_name = '%s'; BEGIN; LOCK TABLE %s IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(110)", mark, table))
	}()
	rig.Eventually(t, patience, func() bool {
		return p.target.Query(t, fmt.Sprintf("SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.application_name = '%s' AND l.mode = 'AccessExclusiveLock' AND l.granted AND l.relation = '%s'::regclass", mark, table)) == "1"
	}, "the lock is taken")
	released := false
	release = func() {
		if !released {
			released = true
			p.target.SQL(t, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = '"+mark+"'")
			<-done
		}
	}
	t.Cleanup(release)
	return release
}

// awaitBlocked waits until the job waits for a lock of the target.
func (p *pair) awaitBlocked(t *testing.T) {
	t.Helper()
	rig.Eventually(t, patience, func() bool { now := p.blocked(t); return now != "" && now != p.former }, "the job waits for the lock")
}

// blocked is the backend of the job that waits for a lock, if there is one. That
// of an instance which has ended waits until the next one claims the job.
func (p *pair) blocked(t *testing.T) string {
	t.Helper()
	return p.target.Query(t, fmt.Sprintf("SELECT string_agg(pid::text, ' ') FROM pg_stat_activity WHERE application_name LIKE 'millrace:%s:%%' AND wait_event_type = 'Lock'", p.Name))
}

// walsender is the process that serves the slot.
func (p *pair) walsender(t *testing.T) string { t.Helper(); return p.slot(t, "active_pid") }

// TestLockedTarget: the source waits for four seconds for an answer; the target
// is locked for longer, with more waiting than the job takes into memory.
func TestLockedTarget(t *testing.T) {
	t.Parallel()
	p := running(t, plan{source: rig.Start(t, rig.Newest, "wal_sender_timeout=4s"), schema: eventsSchema})
	sender := p.walsender(t)
	release := p.lock(t, "events")
	held := p.record(t, "acked_lsn")
	for range 20 { // 40 MB, against 16 MiB that may be in flight
		p.source.SQL(t, "INSERT INTO events SELECT i, repeat('x', 2000) FROM generate_series(1, 1000) i")
	}
	p.awaitBlocked(t)
	rig.Linger(t, 12*time.Second, "three times wal_sender_timeout")
	if now := p.walsender(t); now != sender {
		t.Errorf("the connection to the source was lost: walsender %q, before %q", now, sender)
	}
	if got := p.record(t, "acked_lsn"); got != held {
		t.Errorf("the record has moved from %s to %s while the target was locked", held, got)
	}
	if got := p.slot(t, "confirmed_flush_lsn <= '"+held+"'"); got != "t" {
		t.Error("the slot has moved while the target was locked")
	}
	release()
	p.sync(t)
	if n := p.metric(t, "reconnects_total"); n != 0 {
		t.Errorf("%v reconnects", n)
	}
	p.finish(t)
}

// TestServersAway: servers that are down for a while are waited for.
func TestServersAway(t *testing.T) {
	t.Parallel()
	p := newPair(t, plan{source: rig.Start(t, rig.Newest), target: rig.Start(t, rig.Newest), schema: eventsSchema})
	p.Start(t, "--bootstrap")
	p.sync(t)
	p.get(t, "/healthz", nil) // its address is in the record, which goes away
	for _, away := range []struct {
		condition string
		server    *rig.Postgres
		how       func(testing.TB)
	}{
		{"destination_unreachable", p.target.Server, p.target.Server.Stop},
		{"source_unreachable", p.source.Server, p.source.Server.Stop},
		{"destination_unreachable", p.target.Server, p.target.Server.Crash},
		{"source_unreachable", p.source.Server, p.source.Server.Crash},
	} {
		p.source.SQL(t, "INSERT INTO events SELECT i, 'before' FROM generate_series(1, 100) i; UPDATE t SET v = v + 1")
		away.how(t)
		rig.Eventually(t, patience, func() bool { return p.status(t, "condition") == away.condition }, "condition", away.condition)
		if away.server == p.target.Server {
			p.source.SQL(t, "INSERT INTO events SELECT i, 'meanwhile' FROM generate_series(1, 100) i; UPDATE t SET v = v + 1")
		}
		away.server.Restart(t)
		p.sync(t)
		p.equal(t)
		rig.Eventually(t, patience, func() bool { return p.status(t, "condition") == "" }, "no condition any more")
	}
	p.finish(t)
	if log := p.Log(1000); strings.Count(log, "WARN") > 12 {
		t.Errorf("an outage is logged again and again:\n%s", log)
	}
}
