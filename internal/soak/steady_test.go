package soak

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/rig"
)

// budget is the default of resources.memory_budget.
const budget = 128 << 20

// TestSteady runs a mixed load for 20 minutes, or MILLRACE_SOAK_LENGTH: small
// transactions, savepoints at any depth, documents, and large transactions that are
// open for a while, of which every third is rolled back. The resident memory stays
// within the budget and does not grow any more, and everything is the same on both sides.
func TestSteady(t *testing.T) {
	if !full() {
		t.Skip("20 minutes, for make soak")
	}
	length := 20 * time.Minute
	if v := os.Getenv("MILLRACE_SOAK_LENGTH"); v != "" {
		var err error
		if length, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	for _, eager := range []string{"off", "on"} {
		t.Run("eager "+eager, func(t *testing.T) {
			p := plan{from: 18, to: 18, length: length / 2, scale: 5, rate: 300, config: "apply: {eager: " + eager + "}\n",
				sourceSettings: []string{"logical_decoding_work_mem=1MB"}}
			p.steady(t)
		})
	}
}

func (p plan) steady(t *testing.T) {
	s := p.prepare(t)
	s.sourceDB.SQL(t, `CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text);
		CREATE TABLE documents (id int PRIMARY KEY, d jsonb); CREATE TABLE big (id int PRIMARY KEY, v text)`)
	s.job.Start(t, "--bootstrap")
	if err := s.job.Wait(3 * time.Minute); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), p.length)
	defer cancel()
	var together sync.WaitGroup
	together.Go(func() { s.load(ctx, t) })
	for i, work := range []func(context.Context, *pgx.Conn, int) error{documents, large} {
		together.Go(func() { s.repeat(ctx, t, i, work) })
	}
	for i := range 2 {
		together.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), uint64(i)))
			err := rig.RandomSession(ctx, s.sourceDB.URL(), rng, i, 1<<30, 50)
			if ctx.Err() == nil {
				t.Errorf("a session ended: %v", err)
			}
		})
	}
	var sizes []int64
	for pause(ctx, time.Second) {
		n, err := resident(s.job.PID())
		if err != nil {
			t.Error(err)
			cancel()
			break
		}
		sizes = append(sizes, n)
	}
	together.Wait()
	judge(t, sizes)
	s.compare(t)
	for _, table := range []string{"t", "u", "documents", "big"} {
		q := "SELECT count(*), sum(hashtextextended(x::text, 0)) FROM " + table + " x"
		if want, got := s.sourceDB.Query(t, q), s.targetDB.Query(t, q); want != got {
			t.Errorf("%s: the source has %s (rows|hash), the target %s", table, want, got)
		}
	}
}

// repeat does the work over and over, numbered.
func (s *soak) repeat(ctx context.Context, t *testing.T, seed int, work func(context.Context, *pgx.Conn, int) error) {
	conn, err := pgx.Connect(ctx, s.sourceDB.URL())
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for n := 1; ctx.Err() == nil; n++ {
		if err := work(ctx, conn, n); err != nil && ctx.Err() == nil {
			t.Errorf("work %d: %v", seed, err)
			return
		}
	}
}

// documents writes some that are stored out of line, and changes what is not.
func documents(ctx context.Context, conn *pgx.Conn, n int) error {
	_, err := conn.Exec(ctx, fmt.Sprintf(`INSERT INTO documents SELECT i, jsonb_build_object('n', i, 'text', (SELECT string_agg(md5((i * j)::text), '') FROM generate_series(1, 300) j))
		FROM generate_series(%d, %d) i ON CONFLICT (id) DO UPDATE SET d = documents.d || '{"again": true}'; SELECT pg_sleep(0.05)`, n%2000*5, n%2000*5+9))
	return err
}

// large holds 100,000 rows open for a while. Every third is rolled back.
func large(ctx context.Context, conn *pgx.Conn, n int) error {
	end := "COMMIT"
	if n%3 == 0 {
		end = "ROLLBACK"
	}
	_, err := conn.Exec(ctx, `BEGIN; DELETE FROM big WHERE id % 2 = 0;
		INSERT INTO big SELECT i, md5(i::text) FROM generate_series(1, 100000) i ON CONFLICT (id) DO UPDATE SET v = big.v || 'x'`)
	if err == nil && pause(ctx, 3*time.Second) {
		_, err = conn.Exec(ctx, end)
	}
	return err
}

// resident is the memory of a process, in bytes.
func resident(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(string(bytes.Fields(b)[1]), 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// judge compares the medians of the last two quarters.
func judge(t *testing.T, sizes []int64) {
	t.Helper()
	if len(sizes) < 40 {
		t.Fatalf("%d samples of the memory are too few", len(sizes))
	}
	var medians []int64
	quarter := len(sizes) / 4
	for i := range 4 {
		part := slices.Sorted(slices.Values(sizes[i*quarter : (i+1)*quarter]))
		medians = append(medians, part[len(part)/2]>>20)
	}
	most := slices.Max(sizes)
	t.Logf("resident memory, medians of the quarters: %d MiB, at most %d MiB", medians, most>>20)
	t.Attr("resident_medians", fmt.Sprint(medians))
	if most > budget {
		t.Errorf("%d MiB at most, the budget is %d", most>>20, budget>>20)
	}
	// It fills up to what max_inflight and the collector's goal allow in the first minutes.
	if medians[3] > medians[2]+medians[2]/10+4 {
		t.Errorf("the memory grows: %d MiB", medians)
	}
}
