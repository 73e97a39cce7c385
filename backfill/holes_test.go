package backfill

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/rig"
)

// TestManyHoles: one transaction gives more rows a key in what is read, without their
// large values, than may wait to be read on their own. The stream waits until they
// are, and not until it has passed what they show.
func TestManyHoles(t *testing.T) {
	b := newBed(t, rig.Shared(t, rig.Newest), "CREATE TABLE a (id int PRIMARY KEY, big text); ALTER TABLE a ALTER big SET STORAGE EXTERNAL",
		"INSERT INTO a SELECT g, CASE WHEN g > 2500 THEN repeat('x', 3000) END FROM generate_series(1, 3000) g")
	small(b)
	b.opt.Rate = 50_000
	b.run(t)
	rig.Eventually(t, patience, func() bool {
		return b.dst.Query(t, "SELECT coalesce(sum(rows), 0) > 0 FROM millrace.chunk") == "t"
	}, "a part is loaded")
	b.src.SQL(t, "UPDATE a SET id = -id WHERE id > 2700")
	rig.Eventually(t, patience, func() bool {
		return b.dst.Query(t, "SELECT mark LIKE '%holes%' FROM millrace.chunk") == "t"
	}, "there are holes")
	b.end()
	b.opt.Rate = 0
	b.run(t)
	b.loaded(t)
	b.same(t, "a")
}

// TestHolesLeaveTurns: where there are always rows to be read on their own, one range is still begun in a while,
// by one reader alone as well.
func TestHolesLeaveTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newFiltered(t, "")
		for n := range int64(100) {
			l.holes[string(key(t, l, n))] = &hole{state: unread}
		}
		for turn := range 3 {
			began, ranges := time.Now(), 0
			for time.Since(began) < holesFirst {
				p := s.nextLocked()
				if p.key == nil {
					ranges++
				}
				<-time.After(20 * time.Millisecond) // a hole is read, and another one comes
				s.giveUp(p)
			}
			if ranges != 1 {
				t.Errorf("%d ranges and other holes in turn %d", ranges, turn)
			}
		}
	})
}

// TestSlowRangesLeaveTurns: nor do ranges that take long, with all that they wait for, keep holes
// from being read.
func TestSlowRangesLeaveTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newFiltered(t, "")
		for n := range int64(100) {
			l.holes[string(key(t, l, n))] = &hole{state: unread}
		}
		holes := 0
		for range 20 {
			p := s.nextLocked()
			if p.key != nil {
				holes++
			} else {
				<-time.After(2 * holesFirst)
			}
			s.giveUp(p)
		}
		if holes < 10 {
			t.Errorf("%d holes of 20 turns", holes)
		}
	})
}

// TestChunksTakeTheTimeTheyShould: chunks grow and shrink with the time that they take, and not beyond what fits
// into one; of wide rows they hold as many as do.
func TestChunksTakeTheTimeTheyShould(t *testing.T) {
	s, l := newFiltered(t, "")
	for _, c := range []struct {
		size, read int // rows that were asked for, and that came
		took       time.Duration
		want       int
	}{
		{1000, 1000, wanted / 4, 2000},
		{1000, 1000, wanted, 1000},
		{1000, 1000, 3 * wanted, 500},
		{leastRows, leastRows, 100 * wanted, leastRows},
		{mostRows, mostRows, 0, mostRows},
		{1000, 80, wanted / 4, 90}, // the bytes were the limit
		{1000, 80, 3 * wanted, 90},
	} {
		l.size = c.size
		s.adapt(l, c.read, c.size, c.took)
		if l.size != c.want {
			t.Errorf("%d of %d rows within %v: the next chunk has %d, want %d", c.read, c.size, c.took, l.size, c.want)
		}
	}
}
