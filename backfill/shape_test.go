package backfill

import (
	"testing"

	"github.com/millrace/millrace/internal/rig"
)

// TestColumnAddedDuringLoad: a change of a row that is not read yet is dropped, since
// the chunk will show it. So the chunk must have the column that was added meanwhile.
func TestColumnAddedDuringLoad(t *testing.T) {
	b := newBed(t, rig.Shared(t, rig.Newest), "CREATE TABLE a (id int PRIMARY KEY, v int)", "INSERT INTO a SELECT g, 0 FROM generate_series(1, 10) g")
	b.paused = true
	b.run(t)
	rig.Eventually(t, patience, func() bool { return len(b.backfill.Progress()) > 0 }, "the run has begun")
	const add = "ALTER TABLE a ADD COLUMN c int"
	b.dst.Script(t, add)
	b.src.Script(t, add+"; UPDATE a SET c = id")
	b.backfill.Pause(false)
	b.loaded(t)
	b.same(t, "a")
}
