package e2e

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// killedSchema has keys whose order is known to the program, and one of which
// only the server knows it, a table without a key, and a foreign key.
const killedSchema = `
CREATE TABLE a (id bigint PRIMARY KEY, n int NOT NULL DEFAULT 0, big text);
CREATE TABLE b (name varchar(20), v numeric, n int NOT NULL DEFAULT 0, a bigint REFERENCES a ON DELETE CASCADE, PRIMARY KEY (name, v));
CREATE TABLE c (k int, n int NOT NULL DEFAULT 0);
ALTER TABLE c REPLICA IDENTITY FULL;
INSERT INTO a SELECT i, 0, repeat(md5(i::text), 20) FROM generate_series(1, %[1]d) i;
INSERT INTO b SELECT 'name' || i %% 900, i / 7.0, 0, i FROM generate_series(1, %[1]d) i;
INSERT INTO c SELECT i %% 50, i FROM generate_series(1, 300) i;`

// wideSchema has a table whose rows have half a page each, of which not all is sent
// with a change.
const wideSchema = `
CREATE TABLE wide (id bigint PRIMARY KEY, n int NOT NULL DEFAULT 0, pad text);
ALTER TABLE wide ALTER pad SET STORAGE EXTERNAL;
INSERT INTO wide SELECT i, 0, repeat(md5(i::text), 140) FROM generate_series(1, %[1]d) i;
ANALYZE wide;`

// wideChanges change some rows of it, and move others to the other end of its key.
func wideChanges(rows int) func(*rand.Rand) string {
	return func(rng *rand.Rand) string {
		return fmt.Sprintf(`UPDATE wide SET n = n + 1 WHERE id BETWEEN %[1]d AND %[1]d + 5; DELETE FROM wide WHERE id = %[1]d + 7;
			UPDATE wide SET id = -id WHERE id = %[1]d + 2; UPDATE wide SET id = -id WHERE id = -%[2]d;`, 1+rng.IntN(rows), 1+rng.IntN(rows))
	}
}

// sizes are the rows of the tables: of a and b, and of wide.
type sizes struct{ rows, wide int }

// bytes is about what a load of them reads.
func (s sizes) bytes() int { return s.rows*800 + s.wide*4600 }

func (s sizes) schema() string {
	return fmt.Sprintf(killedSchema, s.rows) + fmt.Sprintf(wideSchema, s.wide)
}

// TestKillsOfALoad kills the program at random moments of a first load while
// clients write. Each time it goes on where it was: what was copied stays, no more than
// two chunks for each reader are read again, and in the end both sides are equal.
//
// In the long form the wide table is so large that several readers share it: beside the
// stream from 64 MiB on, and under one snapshot, by ranges of its key, from 1 GiB on.
func TestKillsOfALoad(t *testing.T) {
	t.Parallel()
	majors, kills := []int{rig.Newest}, 3
	if full() {
		majors, kills = []int{16, 17, 18}, 20
	}
	for _, mode := range []string{"incremental", "consistent"} {
		size := sizes{3000, 300}
		switch {
		case full() && mode == "consistent":
			size = sizes{10_000, 260_000}
		case full():
			size = sizes{10_000, 30_000}
		}
		for _, major := range majors {
			t.Run(fmt.Sprintf("%s/%d", mode, major), func(t *testing.T) {
				if !full() {
					t.Parallel()
				}
				killLoad(t, mode, major, kills, size)
			})
		}
	}
}

func killLoad(t *testing.T, mode string, major, kills int, size sizes) {
	// The load is to take about a second for each kill, and twice that in the long form,
	// where it must not be over before the last one.
	rate, readers := size.bytes()/kills, 2
	if full() {
		rate, readers = rate/2, 3
	}
	p := newPair(t, plan{source: rig.Shared(t, major), schema: size.schema(),
		options: func(o *blackbox.Options, _ *pair) {
			o.Extra += fmt.Sprintf("snapshot: {mode: %s, rate: %d, parallel: %d}\n", mode, rate, readers)
		}})
	counted := countRepeats(t, p.source, readers)
	stop := churnAnd(t, p, size.rows, wideChanges(size.wide))
	rng := rand.New(rand.NewPCG(1, uint64(major)))
	copied := 0
	complete := func() bool {
		n, err := p.target.Server.TryQuery(p.target.Name, "SELECT count(consistent_from) FROM millrace.job")
		return err == nil && n == "1"
	}
	for counted.kills < kills {
		p.Start(t, "--bootstrap")
		before := copied
		rig.Eventually(t, patience, func() bool {
			copied = max(copied, loadedRows(p))
			return copied > before || !p.Running() || complete()
		}, "the load goes on")
		if counted.kills > 0 && complete() {
			break // sooner than it was meant to be: the machine was slow to kill it
		}
		rig.Linger(t, time.Duration(rng.IntN(400))*time.Millisecond, "a random moment of the load")
		if !p.Running() {
			t.Fatalf("the program ended with code %d\n%s", p.ExitCode(), p.Log(20))
		}
		p.Kill(t)
		gone(t, p.Job, p.source)
		gone(t, p.Job, p.target)
		// The exported snapshot is gone with the process, and with it the tables
		// that were not complete, unless they are copied by ranges; from the second time on nothing goes.
		now, first := loadedRows(p), mode == "consistent" && counted.kills == 0
		if now < copied && !first {
			t.Errorf("%d rows were copied before, now %d are", copied, now)
		}
		copied = now
		if first {
			counted.pieceKilled(t, p.target)
		} else {
			counted.killed(t, p.marks(t))
		}
	}
	counted.report(t)
	if full() && (counted.kills < kills || counted.ranges < 2) {
		t.Errorf("too little happened: %d kills of %d, %d readers of a table at once", counted.kills, kills, counted.ranges)
	}
	if !p.Running() {
		p.Start(t, "--bootstrap")
	}
	rig.Eventually(t, 10*patience, func() bool { return p.record(t, "state") == "streaming" }, "the job streams")
	stop()
	p.finish(t)
	if got := p.target.Query(t, "SELECT count(*), bool_and(convalidated) FROM pg_constraint WHERE contype = 'f'"); got != "1|t" {
		t.Errorf("foreign keys: %s", got)
	}
	if got := p.target.Query(t, "SELECT count(*) FROM millrace.chunk"); got != "0" {
		t.Errorf("%s marks are left", got)
	}
}

// TestKillBehindASlowTarget: while the target stands still, no more chunks are read than
// may be read again after a kill.
func TestKillBehindASlowTarget(t *testing.T) {
	t.Parallel()
	const readers = 1
	p := newPair(t, plan{target: rig.Start(t, rig.Newest), schema: `CREATE TABLE a (id bigint PRIMARY KEY, big text);
			INSERT INTO a SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 30000) i`,
		options: func(o *blackbox.Options, _ *pair) {
			o.Extra += fmt.Sprintf("snapshot: {mode: incremental, rate: %d, parallel: %d}\n", 8<<20, readers)
		}})
	counted := countRepeats(t, p.source, readers)
	p.Start(t, "--bootstrap")
	rig.Eventually(t, patience, func() bool { return loadedRows(p) > 0 }, "the load goes on")
	p.target.Server.Pause(t)
	for before := -1; before != counted.asking(); {
		before = counted.asking()
		rig.Linger(t, 2*time.Second, "chunks are read as long as some may be under way")
	}
	p.Kill(t)
	p.target.Server.Continue(t)
	gone(t, p.Job, p.source)
	gone(t, p.Job, p.target)
	counted.killed(t, p.marks(t))
	counted.report(t)
	if counted.chunks == 0 {
		t.Error("nothing was under way when the program was killed")
	}
	p.Start(t, "--bootstrap")
	p.finish(t)
}

// loadedRows tells how many rows the record speaks of.
func loadedRows(p *pair) int {
	text, err := p.target.Server.TryQuery(p.target.Name, `SELECT (SELECT coalesce(sum(rows), 0) FROM millrace.job_table WHERE copied)
		+ (SELECT coalesce(sum(rows), 0) FROM millrace.chunk)`)
	n, bad := strconv.Atoi(text)
	if err != nil || bad != nil {
		return 0
	}
	return n
}

// churn changes rows of all tables until the returned function is called.
func churn(t *testing.T, p *pair, rows int) (stop func()) {
	t.Helper()
	return churnAnd(t, p, rows, func(*rand.Rand) string { return "" })
}

// churnAnd does so in the same transactions as more.
func churnAnd(t *testing.T, p *pair, rows int, more func(*rand.Rand) string) (stop func()) {
	t.Helper()
	return clients(t, p, func(rng *rand.Rand) string {
		id, to := 1+rng.IntN(rows), rows+1+rng.IntN(1000)
		return fmt.Sprintf(`UPDATE a SET n = n + 1 WHERE id BETWEEN %[1]d AND %[1]d + 20;
			DELETE FROM a WHERE id = %[1]d + 3;
			INSERT INTO a VALUES (%[2]d, 1, repeat('x', 2000)) ON CONFLICT (id) DO UPDATE SET n = a.n + 1;
			UPDATE b SET v = v + 100000 WHERE name = 'name%[3]d' AND v < 100000; UPDATE b SET n = n + 1 WHERE name = 'name%[4]d';
			INSERT INTO b SELECT 'new' || %[2]d, random(), 0, %[2]d; UPDATE c SET n = n + 1 WHERE k = %[5]d; %[6]s`,
			id, to, rng.IntN(900), rng.IntN(900), rng.IntN(50), more(rng))
	})
}

// clients writes to the source, a transaction after the other, until stop is called.
func clients(t *testing.T, p *pair, draw func(*rand.Rand) string) (stop func()) {
	t.Helper()
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(5, 6))
		for {
			select {
			case <-over:
				return
			default:
			}
			if _, err := p.source.Server.TryQuery(p.source.Name, "BEGIN; "+draw(rng)+" COMMIT"); err != nil {
				t.Error(err)
				return
			}
		}
	})
	stop = sync.OnceFunc(func() { close(over); wg.Wait() })
	t.Cleanup(stop)
	return stop
}
