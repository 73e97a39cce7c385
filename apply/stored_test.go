package apply

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
)

// TestChunkIsStored: the maker of a chunk is told of it when it is committed, and not
// when its memory is given back. In sets, in one flight and row by row.
func TestChunkIsStored(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY, v int NOT NULL)")
	for _, c := range []struct {
		name, sql string
		byRow     bool
	}{
		{"one flight", "INSERT INTO a SELECT g, 0 FROM generate_series(1, 100) g", false},
		{"sets", "INSERT INTO a SELECT g, 0 FROM generate_series(1001, 3000) g", false},
		{"row by row", "INSERT INTO a SELECT g, 0 FROM generate_series(3001, 3100) g", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := p.open(t)
			s.w.Load().rowsOnly(c.byRow)
			txn := p.change(t, c.sql)[0]
			txn.Chunk, txn.Commit, txn.XID = &millrace.Chunk{Table: txn.Changes[0].Rel.Name}, 0, 0
			want := p.src.Query(t, "SELECT count(*) FROM a")
			told := make(chan string, 2)
			txn.OnStored(func(committed bool) {
				there, err := p.dst.Server.TryQuery(p.dst.Name, "SELECT count(*) FROM a")
				if err != nil || !committed {
					there = fmt.Sprint(committed, err)
				}
				told <- there
			})
			write(t, s, []*millrace.Txn{txn})
			var there string
			rig.Eventually(t, patience, func() bool {
				select {
				case there = <-told:
					return true
				default:
					return false
				}
			}, "the maker is told")
			if there != want {
				t.Errorf("when the maker was told, %s rows were committed, want %s", there, want)
			}
		})
	}
	p.same(t)
}
