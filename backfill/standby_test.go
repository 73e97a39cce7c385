package backfill

import (
	"fmt"
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
			var slow sync.WaitGroup
			var over atomic.Bool
			for range 2 { // one runs while the other commits
				slow.Go(func() {
					for !over.Load() {
						if _, err := b.src.Server.TryQuery(b.src.Name, "BEGIN; INSERT INTO apart VALUES (1); SELECT pg_sleep(0.3); COMMIT"); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			stop := b.write(t, 2, true)
			b.run(t)
			b.loaded(t)
			over.Store(true)
			slow.Wait()
			stop()
			b.same(t, "ints", "names", "fulls", "apart")
		})
	}
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
