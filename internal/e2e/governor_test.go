package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// pager is who is told by a webhook.
type pager struct {
	*httptest.Server
	mu     sync.Mutex
	events []map[string]any
}

func newPager(t *testing.T) *pager {
	p := &pager{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var e map[string]any
		if err == nil {
			err = json.Unmarshal(body, &e)
		}
		if err != nil || r.Header.Get("Authorization") != "Bearer pager" {
			t.Errorf("%v: %q %v", err, body, r.Header)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.events = append(p.events, e)
	}))
	t.Cleanup(p.Close)
	return p
}

// got gives the newest event of which each of the members has that value, as
// JSON; "" if there is none.
func (p *pager) got(members ...string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.events) - 1; i >= 0; i-- {
		matches := true
		for _, m := range members {
			name, value, _ := strings.Cut(m, "=")
			matches = matches && p.events[i][name] == value
		}
		if matches {
			b, err := json.Marshal(p.events[i])
			if err != nil {
				panic(err) // it was JSON
			}
			return string(b)
		}
	}
	return ""
}

// fill makes the server write about that many MiB of WAL in a database that is
// not the job's.
func fill(t *testing.T, db *rig.DB, mib int) {
	t.Helper()
	db.SQL(t, fmt.Sprintf("SELECT count(pg_logical_emit_message(false, 'fill', repeat('x', 1048576))) FROM generate_series(1, %d)", mib))
}

// TestGovernor: what the slot keeps raises an alarm; where a transaction of the
// source holds it the alarm says which, and the job goes on although it is to
// stop. Hooks are told of states and alarms, and nothing of a row.
func TestGovernor(t *testing.T) {
	t.Parallel()
	pages := newPager(t)
	file := filepath.Join(t.TempDir(), "told")
	hook := filepath.Join(t.TempDir(), "hook")
	if err := os.WriteFile(hook, []byte("#!/bin/sh\necho \"$MILLRACE_EVENT $MILLRACE_STATE\" >> \"$1\"\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	p := newPair(t, plan{source: rig.Start(t, rig.Newest), schema: eventsSchema,
		options: func(o *blackbox.Options, _ *pair) {
			o.Extra = fmt.Sprintf("resources: {retry_backoff: {min: 50ms, max: 500ms}, wal_retention_alarm: 70MiB}\n"+
				"safety: {heartbeat_interval: 1s, wal_retention_action: stop}\n"+
				"hooks: {webhook: {url: %q, authorization: Bearer pager}, command: [%q, %q]}\n", pages.URL, hook, file)
		}})
	elsewhere := p.source.Server.NewDB(t)
	p.Start(t, "--bootstrap")
	p.sync(t)
	rig.Eventually(t, patience, func() bool { return pages.got("event=state", "state=streaming") != "" }, "the state is told")

	// A transaction that has written and stays open.
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = p.source.Server.TryQuery(elsewhere.Name, "SET application_name = 'forgotten'; BEGIN; CREATE TABLE written (); SELECT pg_sleep(300)") // ended below
	}()
	var pid string
	rig.Eventually(t, patience, func() bool {
		pid = p.source.Query(t, "SELECT pid FROM pg_stat_activity WHERE application_name = 'forgotten' AND backend_xid IS NOT NULL")
		return pid != ""
	}, "the transaction is open")
	fill(t, elsewhere, 100)
	var alarm string
	rig.Eventually(t, patience, func() bool {
		alarm = pages.got("event=alarm", "alarm=wal_retention_alarm")
		return contains(alarm, "held by pid "+pid+" (user postgres, forgotten", "not by this job")
	}, "the alarm is told with the transaction", &alarm)
	rig.Eventually(t, patience, func() bool {
		_, body := p.get(t, "/status", nil)
		return contains(body, `"name":"wal_retention_alarm"`, "held by pid "+pid+" (user postgres, forgotten", "not by this job")
	}, "the status names the transaction")
	p.source.SQL(t, "SELECT pg_terminate_backend("+pid+", 5000)")
	<-done
	rig.Eventually(t, patience, func() bool {
		// restart_lsn moves with what the server logs of its transactions.
		p.source.SQL(t, "SELECT pg_log_standby_snapshot()")
		p.sync(t)
		return pages.got("event=alarm_ended", "alarm=wal_retention_alarm") != ""
	}, "the end of the alarm is told")

	// An error is told without the key of the row.
	p.target.SQL(t, "DELETE FROM t WHERE id = 77")
	p.source.SQL(t, "UPDATE t SET v = 1 WHERE id = 77")
	r := p.refusal(t)
	wants(t, "the record", r.reason, "(id)=(77)")
	told := pages.got("event=state", "state=error")
	wants(t, "the event", told, `"job":"`+p.Name+`"`, "the row is missing", "public.t")
	if strings.Contains(told, "(77)") || strings.Contains(told, "(id)") {
		t.Errorf("the event names the row: %s", told)
	}
	lines, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	wants(t, "what the command was told", string(lines), "state streaming\n", "alarm streaming\n", "alarm_ended streaming\n", "state error\n")
}

// TestGovernorStops: where the configuration wants it, a job that keeps too much
// WAL and does not get on ends with an error, and its slot stays. It takes the
// minute that the governor waits.
func TestGovernorStops(t *testing.T) {
	if !full() {
		t.Skip("takes more than a minute: MILLRACE_SOAK=1")
	}
	t.Parallel()
	p := newPair(t, plan{source: rig.Start(t, rig.Newest), schema: eventsSchema, options: func(o *blackbox.Options, _ *pair) {
		o.Extra = "resources: {wal_retention_alarm: 70MiB}\nsafety: {heartbeat_interval: 1s, wal_retention_action: stop}\n"
	}})
	elsewhere := p.source.Server.NewDB(t)
	p.Start(t, "--bootstrap")
	p.sync(t)
	release := p.lock(t, "t")
	p.source.SQL(t, "UPDATE t SET v = v + 1")
	p.awaitBlocked(t)
	fill(t, elsewhere, 100)
	rig.Eventually(t, 3*patience, func() bool { return !p.Running() }, "the job ends by itself")
	release()
	r := p.refusal(t)
	wants(t, "the reason", r.reason, "slot "+p.slotName()+" keeps", "wal_retention_action is stop")
	wants(t, "the hint", r.hint, "start it again")
	if got := p.slot(t, "active, wal_status"); got != "f|reserved" && got != "f|extended" {
		t.Errorf("the slot (active|wal_status): %s", got)
	}
	p.Start(t)
	p.finish(t)
}
