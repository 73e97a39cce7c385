package snapshot

import (
	"testing"

	"github.com/millrace/millrace"
)

// TestShows: of a snapshot of a standby it is known whether it shows a commit, but for
// those that were being replayed while it was taken, and one record behind them.
func TestShows(t *testing.T) {
	v := View{Visibility: Visibility{Xmin: 100, Xmax: 200}, From: 1000, Upto: 2000 + inReplay}
	for _, c := range []struct {
		name        string
		xid         uint32
		commit      millrace.LSN
		sees, known bool
	}{
		{"older than all that ran", 99, 5000, true, true},
		{"began behind it", 200, 10, false, true},
		{"replayed before", 150, 999, true, true},
		{"at the position before", 150, 1000, false, false},
		{"between the positions", 150, 1500, false, false},
		{"the record that was being replayed", 150, 2000, false, false},
		{"behind the header of a page", 150, 2000 + 40, false, false},
		{"behind that", 150, 2000 + inReplay + 1, false, true},
	} {
		if sees, known := v.Shows(c.xid, c.commit); sees != c.sees || known != c.known {
			t.Errorf("%s: sees %v, known %v", c.name, sees, known)
		}
	}
	if v.Plain() {
		t.Error("transactions ran, and the snapshot is taken for plain")
	}
	v.Xmax = v.Xmin
	if !v.Plain() {
		t.Error("nothing ran, and the snapshot is not taken for plain")
	}
}
