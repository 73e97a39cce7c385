package soak

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// watch looks at both sides while everything fails.
type watch struct {
	*soak
	t      *testing.T
	failed context.CancelFunc // ends the run: the rest would say nothing

	totalsSeen, slotsSeen int
}

// totalsQuery is one statement, so that it has one snapshot: the state after
// some source transaction. Each transaction adds the same amount to an account,
// a teller and a branch, and a row with it to the history.
const totalsQuery = `SELECT
	(SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
	(SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history),
	(SELECT count(*) FROM pgbench_history), pg_postmaster_start_time()`

// briefQuery looks at the two small tables: cheap enough to be asked often.
const briefQuery = `SELECT (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT sum(bbalance) FROM pgbench_branches)`

// totals asks the target again and again, now and then for everything. While
// the target is down there is no answer, which is all right; a wrong one never
// is.
func (w *watch) totals(ctx context.Context) {
	longest, server := 0, ""
	for i := 0; pause(ctx, 10*time.Millisecond); i++ {
		began, q := time.Now(), briefQuery
		if i%8 == 0 {
			q = totalsQuery
		}
		row, err := w.target.TryQuery(w.targetDB.Name, q)
		if err != nil {
			continue
		}
		w.totalsSeen++
		f := strings.Split(row, "|")
		if len(f) < 2 || len(slices.Compact(slices.Clone(f[:min(4, len(f))]))) != 1 {
			w.t.Errorf("a reader saw a broken total: %s\n%s", row, q)
			w.failed()
			return
		}
		if q == totalsQuery && !w.grows(&longest, &server, f[4], f[5]) {
			return
		}
		// At most half of the time: what is watched needs the machine too.
		pause(ctx, time.Since(began))
	}
}

// grows checks that the history only gets longer while one server runs. A crash
// takes commits that were visible and not yet durable.
func (w *watch) grows(longest *int, server *string, rows, since string) bool {
	if since != *server {
		*longest, *server = 0, since
	}
	n, err := strconv.Atoi(rows)
	if err != nil || n < *longest {
		w.t.Errorf("the history went back from %d rows to %s: %v", *longest, rows, err)
		w.failed()
		return false
	}
	*longest = n
	return true
}

// slot checks that the source never forgets what the target could still need:
// confirmed_flush_lsn is read first, so that the record, read later, can only
// be further.
func (w *watch) slot(ctx context.Context) {
	for pause(ctx, 50*time.Millisecond) {
		confirmed, err := w.source.TryQuery("postgres",
			"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'millrace_"+w.sourceDB.Name+"'")
		if err != nil || confirmed == "" {
			continue
		}
		row, err := w.target.TryQuery(w.targetDB.Name,
			fmt.Sprintf("SELECT acked_lsn >= '%s', acked_lsn FROM millrace.job WHERE job = '%s'", confirmed, w.sourceDB.Name))
		if err != nil {
			continue
		}
		w.slotsSeen++
		if !strings.HasPrefix(row, "t|") {
			w.t.Errorf("the slot was confirmed up to %s, the record says %q", confirmed, row)
			w.failed()
			return
		}
	}
}

// report fails the test if less happened, or was looked at, than was planned.
func (w *watch) report(done map[fault]int) {
	w.t.Helper()
	w.t.Logf("%v; %d totals and %d positions checked", done, w.totalsSeen, w.slotsSeen)
	w.t.Attr("soak", fmt.Sprintf("%v, %d totals and %d positions checked", done, w.totalsSeen, w.slotsSeen))
	if w.t.Failed() {
		return
	}
	if !maps.Equal(done, w.faults) {
		w.t.Errorf("the time was too short for all faults: %v of %v", done, w.faults)
	}
	const fewest = 20
	if w.totalsSeen < fewest || w.slotsSeen < fewest {
		w.t.Errorf("only %d totals and %d positions were checked", w.totalsSeen, w.slotsSeen)
	}
}

// compare ends the run: with the load gone the target must reach the source,
// and hold the same rows.
func (s *soak) compare(t *testing.T) {
	t.Helper()
	if !s.job.Running() {
		t.Fatalf("the program ended by itself with code %d", s.job.ExitCode())
	}
	if err := s.job.Wait(10 * time.Minute); err != nil {
		t.Fatal(err)
	}
	tables := map[string]struct{ part, order string }{
		"pgbench_accounts": {"aid / 50000", "aid"},
		"pgbench_tellers":  {"0", "tid"},
		"pgbench_branches": {"0", "bid"},
		// Without a key: the rows in the order of their text.
		"pgbench_history": {"tid", `x::text COLLATE "C"`},
	}
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		c := tables[name]
		q := fmt.Sprintf(`SELECT %s, count(*), md5(string_agg(x::text, E'\n' ORDER BY %s)) FROM %s x GROUP BY 1 ORDER BY 1`, c.part, c.order, name)
		if d := cmp.Diff(lines(s.sourceDB.Query(t, q)), lines(s.targetDB.Query(t, q))); d != "" {
			t.Errorf("%s differs (-source +target), each line a part with its rows and their md5:\n%s", name, d)
		}
	}
	if s.sourceDB.Query(t, "SELECT count(*) FROM pgbench_history") == "0" {
		t.Error("the load did nothing")
	}
	if code := s.job.Stop(t); code != 0 {
		t.Errorf("the program ended with code %d on SIGTERM", code)
	}
}

func lines(s string) []string { return strings.Split(s, "\n") }
