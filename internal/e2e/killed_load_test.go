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

// TestKillsOfALoad kills the program at random moments of a first load while
// clients write. Each time it goes on where it was: what was copied stays, and in
// the end both sides are equal.
func TestKillsOfALoad(t *testing.T) {
	t.Parallel()
	majors, kills, rows := []int{rig.Newest}, 3, 3000
	if full() {
		majors, kills, rows = []int{16, 17, 18}, 20, 40000
	}
	for _, mode := range []string{"incremental", "consistent"} {
		for _, major := range majors {
			t.Run(fmt.Sprintf("%s/%d", mode, major), func(t *testing.T) {
				t.Parallel()
				killLoad(t, mode, major, kills, rows)
			})
		}
	}
}

func killLoad(t *testing.T, mode string, major, kills, rows int) {
	// The load is to take about a second for each kill.
	rate := rows * 2000 / kills
	p := newPair(t, plan{source: rig.Shared(t, major), schema: fmt.Sprintf(killedSchema, rows),
		options: func(o *blackbox.Options, _ *pair) {
			o.Extra += fmt.Sprintf("snapshot: {mode: %s, rate: %d, parallel: 2}\n", mode, rate)
		}})
	stop := churn(t, p, rows)
	rng := rand.New(rand.NewPCG(1, uint64(major)))
	copied, killed := 0, 0
	complete := func() bool {
		n, err := p.target.Server.TryQuery(p.target.Name, "SELECT count(consistent_from) FROM millrace.job")
		return err == nil && n == "1"
	}
	for range kills {
		p.Start(t, "--bootstrap")
		before := copied
		rig.Eventually(t, patience, func() bool {
			copied = max(copied, loadedRows(p))
			return copied > before || !p.Running() || complete()
		}, "the load goes on")
		if killed > 0 && complete() {
			break // sooner than it was meant to be: the machine was slow to kill it
		}
		rig.Linger(t, time.Duration(rng.IntN(400))*time.Millisecond, "a random moment of the load")
		if !p.Running() {
			t.Fatalf("the program ended with code %d\n%s", p.ExitCode(), p.Log(20))
		}
		p.Kill(t)
		killed++
		now := loadedRows(p)
		// The exported snapshot is gone with the process, and with it the tables
		// that were not complete; from the second time on nothing goes.
		if now < copied && (mode != "consistent" || killed > 1) {
			t.Errorf("%d rows were copied before, now %d are", copied, now)
		}
		copied = now
	}
	t.Attr("kills", strconv.Itoa(killed))
	if !p.Running() {
		p.Start(t, "--bootstrap")
	}
	rig.Eventually(t, 3*patience, func() bool { return p.record(t, "state") == "streaming" }, "the job streams")
	stop()
	p.finish(t)
	if got := p.target.Query(t, "SELECT count(*), bool_and(convalidated) FROM pg_constraint WHERE contype = 'f'"); got != "1|t" {
		t.Errorf("foreign keys: %s", got)
	}
	if got := p.target.Query(t, "SELECT count(*) FROM millrace.chunk"); got != "0" {
		t.Errorf("%s marks are left", got)
	}
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
			id, to := 1+rng.IntN(rows), rows+1+rng.IntN(1000)
			sql := fmt.Sprintf(`BEGIN; UPDATE a SET n = n + 1 WHERE id BETWEEN %[1]d AND %[1]d + 20;
				DELETE FROM a WHERE id = %[1]d + 3;
				INSERT INTO a VALUES (%[2]d, 1, repeat('x', 2000)) ON CONFLICT (id) DO UPDATE SET n = a.n + 1;
				UPDATE b SET v = v + 100000 WHERE name = 'name%[3]d' AND v < 100000; UPDATE b SET n = n + 1 WHERE name = 'name%[4]d';
				INSERT INTO b SELECT 'new' || %[2]d, random(), 0, %[2]d; UPDATE c SET n = n + 1 WHERE k = %[5]d; COMMIT`,
				id, to, rng.IntN(900), rng.IntN(900), rng.IntN(50))
			if _, err := p.source.Server.TryQuery(p.source.Name, sql); err != nil {
				t.Error(err)
				return
			}
		}
	})
	stop = sync.OnceFunc(func() { close(over); wg.Wait() })
	t.Cleanup(stop)
	return stop
}
