package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// smallest is the least budget that the configuration takes for rows of so many MiB.
func smallest(message int) (budget int64, extra string) {
	mib := max(48, 36+1+1+4*message)
	return int64(mib) << 20, fmt.Sprintf("resources: {memory_budget: %dMiB, max_inflight: 1MiB, buffer_size: 4KiB, max_message: %dMiB, max_replication_lag: 4MiB}\n"+
		"snapshot: {parallel: 1}\napply: {max_batch_bytes: 64KiB}\nsafety: {heartbeat_interval: 1s}\n", mib, message)
}

// TestSmallestBudget passes rows of max_message, among small ones and in
// transactions that come while they are open, with the smallest budget that the
// configuration takes for them: nobody waits for memory that nobody gives back, and
// the process stays within it.
func TestSmallestBudget(t *testing.T) {
	for _, message := range []int{2, 7} {
		t.Run(fmt.Sprintf("%d MiB", message), func(t *testing.T) {
			t.Parallel()
			budget, extra := smallest(message)
			size := message<<20 - 100 // and what is around it
			setup, _ := early(t)
			p := running(t, plan{target: aside(t), schema: "CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
				options: func(o *blackbox.Options, p *pair) {
					setup(o, p)
					o.Extra = extra
				}})
			for i := range 3 {
				p.source.SQL(t, fmt.Sprintf("INSERT INTO t SELECT i, 'small' FROM generate_series(%d, %d) i", i*10000, i*10000+4999))
				p.source.SQL(t, fmt.Sprintf("INSERT INTO t VALUES (%d, repeat('x', %d))", i*10000+9000, size))
				p.source.SQL(t, fmt.Sprintf("BEGIN; INSERT INTO t SELECT i, 'more' FROM generate_series(%d, %d) i; UPDATE t SET v = repeat('y', %d) WHERE id = %d; COMMIT",
					i*10000+5000, i*10000+8999, size, i*10000+9000))
			}
			ahead := p.largeAhead(t, size)
			p.sync(t)
			if n := p.committedAhead(t); n < ahead {
				t.Errorf("%d transactions were applied ahead", n)
			}
			t.Logf("%d transactions were applied ahead", p.committedAhead(t))
			p.within(t, budget)
			p.finish(t)
			// The two enlarge one table side by side, and wait for each other's moments.
			if strings.Contains(p.Log(1000), `"lock":"extend"`) {
				t.Error("it was given up for a lock that nobody holds for long")
			}
		})
	}
}

// largeAhead has a transaction with rows of nearly a mebibyte applied ahead, while others
// pass that are as large as rows can be.
func (p *pair) largeAhead(t *testing.T, size int) (transactions int) {
	t.Helper()
	exec := session(t, p.source)
	n := 0
	for began, tries := false, 0; !began; tries++ {
		if tries == 5 {
			t.Fatal("no open transaction stays on the target")
		}
		exec("BEGIN; INSERT INTO t SELECT i, repeat('z', 1000000) FROM generate_series(100000, 100009) i")
		rig.Eventually(t, patience, func() bool {
			n++
			p.source.SQL(t, fmt.Sprintf("INSERT INTO t VALUES (%d, repeat('x', %d))", -n, size))
			p.sync(t)
			began = p.ahead(t)
			return began || n%10 == 0
		}, "the open transaction on the target")
		if !began {
			exec("ROLLBACK") // it gave way to somebody on that server, for good
		}
	}
	for range 2 {
		n++
		exec("UPDATE t SET v = v || 'y' WHERE id >= 100000; INSERT INTO t SELECT i, 'few' FROM generate_series(" + fmt.Sprintf("%d, %[1]d + 5000", 200000+n*10000) + ") i")
		p.source.SQL(t, fmt.Sprintf("INSERT INTO t VALUES (%d, repeat('x', %d))", -n, size))
	}
	exec("COMMIT")
	return 1
}

// within holds the peak of resident memory against the budget. The collector is told
// of the budget, and comes a little late where others have the processors.
func (p *pair) within(t *testing.T, budget int64) {
	t.Helper()
	peak := p.peak(t)
	t.Logf("the peak of resident memory is %d MiB, the budget %d MiB", peak>>20, budget>>20)
	if peak > budget+budget/16 {
		t.Error("that is too much")
	}
}

// TestSlowSink locks the target's table while the source writes on, in transactions
// that are committed and in one that is open: the process takes no more memory, the
// source keeps the rest, an alarm says so, and all of it comes in the end. The source has a server of
// its own: what others write to one is what this job lags behind as well.
func TestSlowSink(t *testing.T) {
	t.Parallel()
	budget, extra := smallest(2)
	setup, _ := early(t)
	p := running(t, plan{source: rig.Start(t, rig.Newest), target: aside(t), schema: eagerTables, options: func(o *blackbox.Options, p *pair) {
		setup(o, p)
		o.Extra = extra
	}})
	alarms := func() string {
		_, body := p.get(t, "/metrics", nil)
		var all []string
		for _, line := range lines(body) {
			if strings.HasPrefix(line, `millrace_alarm{alarm="slow_sink"`) {
				all = append(all, line)
			}
		}
		return strings.Join(all, "\n")
	}
	lock := session(t, p.target)
	lock("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
	exec := session(t, p.source)
	exec("BEGIN; INSERT INTO u SELECT i, repeat(md5(i::text), 4) FROM generate_series(1, 100000) i")
	for i := range 20 {
		p.source.SQL(t, fmt.Sprintf("INSERT INTO t SELECT i, repeat(md5(i::text), 4) FROM generate_series(%d, %d) i", i*5000, i*5000+4999))
	}
	exec("COMMIT")
	rig.Eventually(t, patience, func() bool { return alarms() != "" }, "the alarm")
	if kept := p.slot(t, "pg_current_wal_lsn() - restart_lsn > 20 * 1024 * 1024"); kept != "t" {
		t.Errorf("the slot does not keep what is written: %s", kept)
	}
	p.within(t, budget)
	lock("COMMIT")
	p.sync(t)
	rig.Eventually(t, patience, func() bool { return alarms() == "" }, "the end of the alarm")
	p.within(t, budget)
	p.finish(t)
}
