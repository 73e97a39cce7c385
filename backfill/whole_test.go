package backfill

import (
	"slices"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/snapshot"
)

// TestWholeTableThatIsVoid: a table without a key is ready to be read, and the stream
// goes on until the transaction ends that is open. What that does to the table can
// make the snapshot useless: rows of it must not be given away.
func TestWholeTableThatIsVoid(t *testing.T) {
	insert := func(size int) millrace.Change {
		big := millrace.Value{Kind: millrace.Text, Raw: make([]byte, size)}
		return millrace.Change{Op: millrace.Insert, Rel: rel, New: millrace.Row{id(1), big}}
	}
	for _, c := range []struct {
		name    string
		changes []millrace.Change
		early   bool
		used    bool
	}{
		{"few changes", []millrace.Change{insert(1), insert(1)}, false, true},
		{"changes that have passed", []millrace.Change{insert(1)}, true, false},
		{"more than is held", []millrace.Change{insert(mostHeld + 1), insert(1)}, false, false},
		{"truncated", []millrace.Change{{Op: millrace.Truncate, Truncated: &millrace.Truncation{Rels: []*millrace.Relation{rel}}}}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, l := newFiltered(t, "")
			l.table.Key = nil
			s.opt.Early = c.early
			p := s.nextLocked()
			v, err := snapshot.ParseVisibility("200:200:")
			if err != nil {
				t.Fatal(err)
			}
			p.view = snapshot.View{Visibility: v, Upto: 2000}
			if !s.usable(p) {
				t.Fatal("the snapshot is not usable")
			}
			p.pieces = make(chan *snapshot.Rows, 1)
			p.pieces <- &snapshot.Rows{Final: true}
			s.whole = p
			txn := &millrace.Txn{XID: 210, Commit: 500, End: 510, Last: true, Changes: slices.Clone(c.changes)}
			if err := s.take(t.Context(), txn); err != nil {
				t.Fatal(err)
			}
			chunk, err := s.chunk(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if used := chunk != nil; used != c.used {
				t.Fatalf("given away: %v, want %v", used, c.used)
			}
			select {
			case told := <-p.taken:
				if told != c.used {
					t.Errorf("the reader is told %v", told)
				}
			default:
				t.Error("the reader is told nothing")
			}
			if chunk != nil && len(chunk.Changes) != len(c.changes) {
				t.Errorf("%d of %d changes that the snapshot does not see", len(chunk.Changes), len(c.changes))
			}
		})
	}
}
