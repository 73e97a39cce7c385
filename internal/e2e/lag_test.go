package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/web"
)

// shown asks /status.
func (p *pair) shown(t *testing.T) web.Status {
	t.Helper()
	code, body := p.get(t, "/status", nil)
	if code != http.StatusOK {
		t.Fatalf("/status: %d %s", code, body)
	}
	var st web.Status
	if err := json.Unmarshal([]byte(body), &st); err != nil {
		t.Fatalf("/status: %v in %s", err, body)
	}
	return st
}

// openSession opens a session that is closed at the test's end, and gives its pid.
func openSession(t *testing.T, db *rig.DB, statements ...string) (*pgx.Conn, int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(t.Context()) })
	for _, s := range statements {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	var pid int
	if err := conn.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	return conn, pid
}

// TestLagNamesTheLock: while a session of the target holds what the job needs,
// the status names it, for a lock on a table and for one on a row; afterwards
// the lag is gone. A role without any rights of supervision sees as much.
func TestLagNamesTheLock(t *testing.T) {
	t.Parallel()
	p := running(t, plan{schema: "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0)"})
	for kind, lock := range map[string]string{"table": "LOCK TABLE t IN SHARE MODE", "row": "UPDATE t SET v = -1 WHERE id = 1"} {
		holder, pid := openSession(t, p.target, "SET application_name = 'a_report'", "BEGIN", lock)
		p.source.SQL(t, "UPDATE t SET v = v + 1")
		var st web.Status
		rig.Eventually(t, patience, func() bool {
			st = p.shown(t)
			return st.Lag.WaitsFor != nil && *st.Lag.WaitsFor == "target_lock"
		}, "the status says that the lag waits for a lock ("+kind+")")
		if st.Lag.BlockingPID == nil || int(*st.Lag.BlockingPID) != pid {
			t.Errorf("%s: blocking pid %v, want %d", kind, st.Lag.BlockingPID, pid)
		}
		if d := st.Lag.WaitsDetail; d == nil || !strings.Contains(*d, "a_report") || !strings.Contains(*d, "public.t") {
			t.Errorf("%s: detail %v", kind, d)
		}
		if st.Lag.Seconds == nil || *st.Lag.Seconds == 0 || st.Lag.Transactions == nil || *st.Lag.Transactions == 0 {
			t.Errorf("%s: lag %+v while a transaction is not applied", kind, st.Lag)
		}
		r := p.Run(t, "status")
		wants(t, "millrace status", r.Stdout, "pid "+strconv.Itoa(pid), "a lock on the destination")
		if _, err := holder.Exec(t.Context(), "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		p.sync(t)
		rig.Eventually(t, patience, func() bool {
			l := p.shown(t).Lag
			return l.WaitsFor != nil && *l.WaitsFor != "target_lock" && l.BlockingPID == nil
		}, "the status no longer names the lock ("+kind+")")
	}
	// A transaction of the source that has written holds restart_lsn back.
	writer, pid := openSession(t, p.source, "BEGIN", "INSERT INTO t VALUES (2, 0)")
	rig.Eventually(t, patience, func() bool {
		o := p.shown(t).Source.OldestTransaction
		// On a shared server somebody else's may be older; ours is the oldest
		// once theirs have ended.
		return o != nil && int(o.PID) == pid && o.Seconds != nil && *o.Seconds > 0
	}, "the status names the open transaction of the source")
	if _, err := writer.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	p.finish(t)
}

// TestLagNamesTheNetwork: a stream that comes in drops is told from a source
// that has nothing to send.
func TestLagNamesTheNetwork(t *testing.T) {
	t.Parallel()
	var wire *rig.Proxy
	p := running(t, plan{
		schema: "CREATE TABLE t (id int PRIMARY KEY, v text)",
		options: func(o *blackbox.Options, p *pair) {
			wire = rig.NewProxy(t, p.source.Server)
			o.SourceURL = wire.URL(p.source.Name)
		},
	})
	wire.Delay(100 * time.Millisecond) // for each 32 KiB
	p.source.SQL(t, "INSERT INTO t SELECT i, repeat(md5(i::text), 30) FROM generate_series(1, 40000) i")
	rig.Eventually(t, patience, func() bool {
		l := p.shown(t).Lag
		return l.WaitsFor != nil && *l.WaitsFor == "network" && l.Bytes != nil && *l.Bytes > 0
	}, "the status says that the lag waits for the network")
	wire.Delay(0)
	p.sync(t)
	if n := p.target.Query(t, "SELECT count(*) FROM t"); n != "40000" {
		t.Errorf("%s rows", n)
	}
	p.finish(t)
}

// TestDashboard: the page of a running job and its stream, without a browser.
func TestDashboard(t *testing.T) {
	t.Parallel()
	p := running(t, plan{schema: `CREATE TABLE "odd <b>" (id int PRIMARY KEY); INSERT INTO "odd <b>" VALUES (1)`})
	st, body := p.shown(t), ""
	for _, want := range []string{"streaming", p.slotName(), *st.Source.Server, *st.Destination.Server, "odd &lt;b&gt;", "state changed", "started"} {
		rig.Eventually(t, patience, func() bool {
			var code int
			if code, body = p.get(t, "/", nil); code != http.StatusOK {
				t.Fatalf("/: %d %s", code, body)
			}
			return strings.Contains(body, want)
		}, want+" is on the page")
	}
	if strings.Contains(body, "<b>\"") {
		t.Error("a name of a table is taken for HTML")
	}
	p.source.SQL(t, `INSERT INTO "odd <b>" SELECT generate_series(2, 100)`)
	p.sync(t)
	rig.Eventually(t, patience, func() bool {
		_, body := p.get(t, "/", nil)
		return strings.Contains(body, fmt.Sprintf(`<td class="n">%d</td>`, 99))
	}, "the page counts the changes")
	p.finish(t)
}
