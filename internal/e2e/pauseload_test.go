package e2e

import (
	"strconv"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// TestPauseLoad: a first load beside the stream rests while the slot keeps too much,
// the stream goes on meanwhile, and so does the load once that is over. What the slot
// keeps is held by an open transaction, at less than what would be blamed on it.
func TestPauseLoad(t *testing.T) {
	t.Parallel()
	const rows = 30000
	p := newPair(t, plan{source: rig.Start(t, rig.Newest), schema: `CREATE TABLE live (id int PRIMARY KEY); INSERT INTO live VALUES (1);
		CREATE TABLE big (id int PRIMARY KEY, filler text);
		INSERT INTO big SELECT i, repeat('x', 180) FROM generate_series(1, ` + strconv.Itoa(rows) + `) i`,
		options: func(o *blackbox.Options, _ *pair) {
			o.Extra = "resources: {retry_backoff: {min: 50ms, max: 500ms}, wal_retention_alarm: 24MiB}\n" +
				"safety: {heartbeat_interval: 1s, wal_retention_action: pause_load}\n" +
				"snapshot: {mode: incremental, rate: 256KiB}\n"
		}})
	loaded := func(table string) int {
		n, err := strconv.Atoi(p.target.Query(t, "SELECT count(*) FROM "+table))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	p.Start(t, "--bootstrap")
	rig.Eventually(t, patience, func() bool {
		there, err := p.target.Server.TryQuery(p.target.Name, "SELECT to_regclass('big') IS NOT NULL AND to_regclass('millrace.job') IS NOT NULL")
		return err == nil && there == "t" && loaded("live") == 1 && loaded("big") > 0
	}, "the load has begun")

	elsewhere := p.source.Server.NewDB(t)
	holder, _ := openSession(t, elsewhere, "BEGIN", "CREATE TABLE written ()")
	fill(t, elsewhere, 40)
	rig.Eventually(t, patience, func() bool { return p.status(t, "state") == "paused" }, "the load rests")
	resting, since := loaded("big"), time.Now()
	rig.Eventually(t, patience, func() bool { // what was being read still comes
		if n := loaded("big"); n != resting {
			resting, since = n, time.Now()
		}
		return time.Since(since) > 3*time.Second
	}, "nothing more is loaded")
	if resting == rows {
		t.Fatal("the load went on to its end")
	}
	p.source.SQL(t, "INSERT INTO live VALUES (2); UPDATE live SET id = 3 WHERE id = 1")
	rig.Eventually(t, patience, func() bool {
		return p.target.Query(t, "SELECT string_agg(id::text, ' ' ORDER BY id) FROM live") == "2 3"
	}, "the stream goes on")
	wants(t, "the reason", p.status(t, "reason"), "the load rests", "slot "+p.slotName()+" keeps", "more than 24.0 MiB")
	wants(t, "the record", p.record(t, "state"), "paused")
	if p.status(t, "load_paused_at") == "" || p.metric(t, "load_paused") != 1 {
		t.Error("status and metrics do not say that the load rests")
	}
	wants(t, "millrace status", p.Run(t, "status").Stdout, "paused", "load rests")
	if code, _ := p.get(t, "/readyz", nil); code != 503 {
		t.Errorf("/readyz: %d while the load rests", code)
	}

	if _, err := holder.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, patience, func() bool {
		// restart_lsn moves with what the server logs of its transactions.
		p.source.SQL(t, "SELECT pg_log_standby_snapshot()")
		return p.status(t, "state") != "paused"
	}, "the pause is over")
	rig.Eventually(t, patience, func() bool { return loaded("big") > resting }, "the load goes on")
	if code := p.Stop(t); code != blackbox.Done {
		t.Errorf("exit code %d", code)
	}
}
