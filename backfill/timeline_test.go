package backfill

import (
	"testing"

	"github.com/millrace/millrace"
)

// forked is a stream whose history has left the checkpoint's timeline.
type forked struct {
	Stream
	at millrace.LSN
}

func (f forked) LeftAt() millrace.LSN { return f.at }

// TestLoadedBehindAFork: after a promotion a load goes on, unless what was loaded may show
// transactions that the new timeline lacks.
func TestLoadedBehindAFork(t *testing.T) {
	const held, shows = 1000, 2000
	for _, c := range []struct {
		left millrace.LSN
		want millrace.Kind
	}{{0, 0}, {shows, 0}, {3000, 0}, {shows - 1, millrace.KindResync}} {
		s, l := newFiltered(t, "")
		p := s.nextLocked()
		give(t, s, p, 200, false, 1, 5) // in a view up to 2000
		if got := l.shows(); got != shows {
			t.Fatalf("the chunk shows what lies below %v", got)
		}
		s.opt.Stream = forked{at: c.left}
		err := s.checkTimeline(millrace.Checkpoint{History: millrace.History{Timeline: 1}, Acked: held})
		if c.want == 0 && err != nil || c.want != 0 && (millrace.KindOf(err) != c.want || millrace.HintOf(err) == "") {
			t.Errorf("left at %v: %v", c.left, err)
		}
	}
}
