package backfill

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/internal/rig"
)

// TestLoadsFromAStandby loads from a standby while all kinds of changes come in
// at its primary, and some transaction runs all the while, so that no snapshot is
// plain.
func TestLoadsFromAStandby(t *testing.T) {
	for _, major := range []int{16, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			primary, standby := rig.Pair(t, major)
			b := newBedAt(t, primary, standby, shopDDL+"CREATE TABLE apart (id int)", shopFill)
			small(b)
			end := b.neverQuiet(t, "INSERT INTO apart VALUES (%d)")
			stop := b.write(t, 2, true)
			b.run(t)
			b.loaded(t)
			end()
			stop()
			b.same(t, "ints", "names", "fulls", "apart")
		})
	}
}

// neverQuiet has a transaction run all the while, until the returned function is called. change is what they do, with a
// number for each that runs at the same time.
func (b *bed) neverQuiet(t *testing.T, change string) (end func()) {
	var slow sync.WaitGroup
	var over atomic.Bool
	for n := range 2 { // one runs while the other commits
		sql := "BEGIN; " + fmt.Sprintf(change, n+1) + "; SELECT pg_sleep(0.3); COMMIT"
		slow.Go(func() {
			for !over.Load() {
				if _, err := b.src.Server.TryQuery(b.src.Name, sql); err != nil && !strings.Contains(err.Error(), "deadlock") {
					t.Error(err)
					return
				}
			}
		})
	}
	return func() { over.Store(true); slow.Wait() }
}

// TestEarlyChangesFromAStandby: as TestEarlyChangesConverge, from a standby.
func TestEarlyChangesFromAStandby(t *testing.T) {
	primary, standby := rig.Pair(t, rig.Newest)
	b := newBedAt(t, primary, standby, earlyDDL, earlyFill)
	small(b)
	b.opt.Early, b.opt.Rate = true, 700<<10
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	end := b.neverQuiet(t, "UPDATE ints SET n = n + 100 WHERE id %% 40 = %[1]d; UPDATE uniq SET n = n + 100 WHERE id %% 40 = %[1]d")
	stop := b.writeSQL(t, 2, func(n int) func() string {
		rng := rand.New(rand.NewPCG(seed, uint64(n)))
		return func() string { return earlyChanges(rng, n == 0) + "; SELECT pg_sleep(0.002)" }
	})
	b.run(t)
	b.loaded(t)
	end()
	stop()
	b.same(t, "ints", "nums", "uniq", "fulls", "bare")
}

// TestLoadsFromTheStandbyOfAnIdlePrimary: the load is over only once the stream has
// passed what it shows, and the primary writes nothing by itself.
func TestLoadsFromTheStandbyOfAnIdlePrimary(t *testing.T) {
	primary, standby := rig.Pair(t, 17)
	b := newBedAt(t, primary, standby, shopDDL, shopFill)
	b.run(t)
	b.loaded(t)
	b.same(t, "ints", "names", "fulls")
}
