package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/blackbox"
)

// budget is the default of resources.memory_budget.
const budget = 128 << 20

// TestMemory: the peak of the process's resident memory, as the kernel counts
// it, while much passes.
func TestMemory(t *testing.T) {
	t.Parallel()
	rows, backlog, load := 500_000, 20_000, 300_000
	if full() {
		rows, backlog, load = 5_000_000, 200_000, 20_000_000
	}
	wait := patience
	if full() {
		wait = 15 * time.Minute
	}
	p := newPair(t, plan{schema: `CREATE TABLE wide (id int PRIMARY KEY, a text, b numeric, c timestamptz);
		CREATE TABLE loaded (id int PRIMARY KEY, v text)`,
		options: func(o *blackbox.Options, _ *pair) { o.Extra = "" }})
	p.long(t, fmt.Sprintf("INSERT INTO loaded SELECT i, repeat(md5(i::text), 8) FROM generate_series(1, %d) i", load))
	report := func(what string) {
		peak := p.peak(t)
		t.Logf("%s: peak %d MiB", what, peak>>20)
		t.Attr("peak_after_"+strings.ReplaceAll(what, " ", "_"), strconv.FormatInt(peak>>20, 10)+" MiB")
		if peak > budget {
			t.Errorf("after %s the peak of resident memory is %d MiB, the budget %d", what, peak>>20, budget>>20)
		}
	}
	await := func() {
		if err := p.Wait(wait); err != nil {
			t.Fatal(err)
		}
	}
	p.Start(t, "--bootstrap")
	await()
	report("the first load")

	p.long(t, fmt.Sprintf("INSERT INTO wide SELECT i, repeat(md5(i::text), 4), i / 3.0, now() FROM generate_series(1, %d) i", rows))
	await()
	report("a large transaction of inserts")
	p.long(t, "UPDATE wide SET b = b + 1")
	await()
	report("a large transaction of updates")
	if code := p.Stop(t); code != blackbox.Done {
		t.Errorf("exit code %d", code)
	}

	p.long(t, fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP
		UPDATE wide SET a = 'n' || i, c = clock_timestamp() WHERE id = 1 + i %% 1000; INSERT INTO loaded VALUES (-i, repeat('y', 500)); COMMIT; END LOOP; END $$`, backlog))
	p.Start(t)
	await()
	report("a backlog of small transactions")
	p.long(t, "DELETE FROM wide")
	await()
	report("a large transaction of deletes")
	p.finish(t)
}

// long is for what takes longer at its full size than the rig gives a statement.
func (p *pair) long(t *testing.T, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), p.source.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

var vmHWM = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// peak is the most resident memory that the process has had.
func (p *pair) peak(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if os.IsNotExist(err) {
		t.Skip("only Linux says what a process's peak was")
	}
	m := vmHWM.FindSubmatch(b)
	if err != nil || m == nil {
		t.Fatalf("no peak: %v\n%s", err, b)
	}
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
