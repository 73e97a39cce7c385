package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// early has the source's database send what is open as early as it can, and the
// job take it.
func early(t *testing.T) (setup func(*blackbox.Options, *pair), spool string) {
	t.Helper()
	spool = t.TempDir()
	return func(o *blackbox.Options, p *pair) {
		o.SourceKeys = "streaming: on"
		o.Extra = fmt.Sprintf("resources: {retry_backoff: {min: 50ms, max: 500ms}, spool: {dir: %q}}\nsafety: {heartbeat_interval: 1s}\n", spool)
		p.source.SQL(t, "ALTER DATABASE "+p.source.Name+" SET logical_decoding_work_mem = '64kB'")
	}, spool
}

// spooled are the files of transactions.
func spooled(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.spool", "*.txn"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestKilledWithinOpenTransaction kills the program while it holds a part of a
// transaction that is open, and the source's slot has moved beyond that part.
// What it held is thrown away, and comes again.
func TestKilledWithinOpenTransaction(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		t.Parallel()
		setup, spool := early(t)
		p := running(t, plan{source: pg, schema: "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)", options: setup})
		conn, err := pgx.Connect(t.Context(), p.source.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		exec := func(sql string) {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		exec("BEGIN")
		var left []string
		for round := range 3 {
			exec(fmt.Sprintf("SAVEPOINT s%d", round))
			exec(fmt.Sprintf("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(%d, %d) i", round*100_000, round*100_000+9_999))
			p.source.SQL(t, fmt.Sprintf("INSERT INTO u VALUES (%d)", round))
			rig.Eventually(t, patience, func() bool { return len(spooled(t, spool)) > 0 }, "a part of the open transaction on disk")
			p.sync(t)
			acked := p.record(t, "acked_lsn")
			rig.Eventually(t, patience, func() bool { return p.slot(t, "confirmed_flush_lsn >= '"+acked+"'") == "t" }, "the slot to follow")
			p.Kill(t)
			left = spooled(t, spool)
			p.Start(t)
			rig.Eventually(t, patience, func() bool { return !exists(left) }, "what was left behind to be removed")
		}
		exec("ROLLBACK TO s2")
		exec("COMMIT")
		p.finish(t)
		if n := p.target.Query(t, "SELECT count(*) FROM t"); n != "20000" {
			t.Errorf("%s rows", n)
		}
		if left, err := os.ReadDir(spool); err != nil || len(left) != 1 { // the lock
			t.Errorf("the spool holds %v, %v", left, err)
		}
	})
}

func exists(files []string) bool {
	for _, f := range files {
		if _, err := os.Stat(f); err == nil {
			return true
		}
	}
	return false
}

// TestMeasureStreaming measures what docs/adr has about source.postgres.streaming and apply.eager.
// It asserts only that the rows are the same.
func TestMeasureStreaming(t *testing.T) {
	if !full() {
		t.Skip("a measurement, for make soak")
	}
	const rows = 1_000_000
	source := rig.Start(t, rig.Newest, "shared_buffers=512MB", "max_wal_size=8GB", "fsync=off", "autovacuum=off")
	target := rig.Start(t, rig.Newest, "shared_buffers=512MB", "max_wal_size=8GB", "fsync=off", "autovacuum=off")
	pairs := map[string]*pair{}
	modes := []string{"off", "on", "eager"}
	for _, mode := range modes {
		pairs[mode] = running(t, plan{source: source, target: target, schema: `CREATE TABLE t (id int PRIMARY KEY, kind int, name text, price numeric, at timestamptz);
			CREATE TABLE marker (id int PRIMARY KEY)`,
			options: func(o *blackbox.Options, _ *pair) {
				o.SourceKeys = "streaming: " + mode
				switch mode {
				case "on":
					o.Extra += "apply: {eager: off}\n"
				case "eager":
					o.SourceKeys = "streaming: on"
				}
			}})
	}
	for round := range 4 {
		for _, mode := range modes {
			p := pairs[mode]
			for _, work := range []struct{ name, sql string }{
				{"insert 1M", fmt.Sprintf("INSERT INTO t SELECT i, i %% 1000, 'item ' || i, i * 1.5, now() FROM generate_series(1, %d) i", rows)},
				{"update 500k", "UPDATE t SET kind = kind + 1, at = now() WHERE id % 2 = 0"},
				{"delete 1M", "DELETE FROM t"},
			} {
				measure(t, p, round, mode, work.name, work.sql)
			}
		}
	}
	for _, p := range pairs {
		p.finish(t)
	}
}

func measure(t *testing.T, p *pair, round int, mode, name, sql string) {
	t.Helper()
	walsender, err := strconv.Atoi(p.slot(t, "active_pid"))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), p.source.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	p.source.SQL(t, "DELETE FROM marker")
	p.sync(t)
	sender, program := cpu(t, walsender), cpu(t, p.PID())
	began := time.Now()
	if _, err := conn.Exec(t.Context(), "BEGIN; "+sql+"; INSERT INTO marker VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	statement := time.Since(began)
	if _, err := conn.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	committed := time.Now()
	rig.Eventually(t, 3*time.Minute, func() bool { return p.target.Query(t, "SELECT count(*) FROM marker") == "1" }, "the transaction")
	visible := time.Since(committed)
	t.Logf("round %d streaming %-5s %-11s: statement %5.2fs, commit to visible %5.2fs, both %5.2fs, CPU of walsender %5.2fs, of millrace %5.2fs, peak %d MiB", round, mode, name,
		statement.Seconds(), visible.Seconds(), (statement + visible).Seconds(), cpu(t, walsender)-sender, cpu(t, p.PID())-program, p.peak(t)>>20)
}

// cpu is what a process has used, in seconds.
func cpu(t *testing.T, pid int) float64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if os.IsNotExist(err) {
		t.Skip("only Linux says what a process has used")
	}
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var ticks float64
	for _, s := range f[11:13] { // utime, stime
		n, err := strconv.ParseFloat(s, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return ticks / 100
}
