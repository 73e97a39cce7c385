package backfill

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/snapshot"
)

// TestFurtherUniqueColumns: of a table with further unique columns a chunk is given away
// as its rows are where the stream is. Behind a stream that lags they are as the snapshot
// shows them, and what came since is behind them.
func TestFurtherUniqueColumns(t *testing.T) {
	old := millrace.Value{Kind: millrace.Text, Raw: []byte("old")}
	none := millrace.Value{Kind: millrace.Null}
	for _, c := range []struct {
		passed millrace.LSN
		want   string
	}{
		{2000, "read 22 old, read 24 x, read 23 x, read 31 x"},
		{1999, "read 22 old, read 24 old, read 30 old, read 40 old, insert 23 old, update 22, update 24 x, delete 30, update 23 x, delete 40, insert 31 x"},
	} {
		s, l := newFiltered(t, "")
		l.table.Limited = true
		ranges(t, l)
		p := s.nextLocked()
		row := func(n int64, v millrace.Value) millrace.Row { return millrace.Row{id(n), v} }
		for i, changes := range [][]millrace.Change{
			{{Op: millrace.Insert, New: row(21, text)}}, // which the snapshot sees
			{{Op: millrace.Insert, New: row(23, old)}, {Op: millrace.Update, New: row(22, unsent)}, {Op: millrace.Update, New: row(24, text)}},
			{{Op: millrace.Delete, Old: row(30, none)}, {Op: millrace.Update, New: row(23, text)}},
			{{Op: millrace.Update, Old: row(40, none), New: row(31, text)}},
		} {
			for k := range changes {
				changes[k].Rel = rel
			}
			at := millrace.LSN(1100 + 10*i)
			txn := &millrace.Txn{XID: uint32(199 + i), Commit: at, End: at + 5, Last: true, Changes: changes}
			if err := s.take(t.Context(), txn); err != nil || len(txn.Changes) != 0 {
				t.Fatalf("%v, %v", txn.Changes, err)
			}
		}
		s.passLocked(c.passed)
		p.view = view(200, 2000)
		p.rows = &snapshot.Rows{Final: true}
		for _, n := range []int64{22, 24, 30, 40} {
			p.rows.Changes = append(p.rows.Changes, millrace.Change{Op: millrace.Read, Seq: uint64(len(p.rows.Changes) + 1), Rel: rel, New: row(n, old)})
			p.rows.Keys = append(p.rows.Keys, key(t, l, n))
		}
		txn, err := s.inject(t.Context(), p)
		if err != nil || txn == nil {
			t.Fatalf("%v, %v", txn, err)
		}
		var got []string
		for i := range txn.Changes {
			c := &txn.Changes[i]
			of := c.New
			if of == nil {
				of = c.Old
			}
			got = append(got, strings.TrimSpace(fmt.Sprint(c.Op, " ", binary.BigEndian.Uint64(of[0].Raw), " ", string(of[1].Raw))))
			if c.Seq != uint64(i+1) {
				t.Errorf("change %d has the number %d", i+1, c.Seq)
			}
		}
		if list := strings.Join(got, ", "); list != c.want {
			t.Errorf("where the stream is at %v: %s, want %s", c.passed, list, c.want)
		}
	}
}

// TestUniqueValueThatMoved: a chunk shows a row with a unique value that another row has
// at the destination, because the stream stands still. That is no reason to stop.
func TestUniqueValueThatMoved(t *testing.T) {
	b := newBed(t, rig.Shared(t, rig.Newest), "CREATE TABLE a (id int PRIMARY KEY, u text UNIQUE, v text)",
		"INSERT INTO a SELECT g, 'u' || g, repeat('x', 50) FROM generate_series(1, 2500) g")
	b.opt.Rate = 100_000
	b.run(t)
	rig.Eventually(t, patience, func() bool {
		return b.dst.Query(t, "SELECT count(*) > 0 FROM a") == "t"
	}, "a part is loaded")
	b.end()
	b.opt.Rate, b.paused = 0, true
	b.run(t)
	active := ""
	rig.Eventually(t, patience, func() bool {
		active = b.src.Query(t, "SELECT coalesce(max(active_pid), 0) FROM pg_replication_slots WHERE slot_name = '"+b.slot+"'")
		return active != "0" && len(b.backfill.Progress()) > 0
	}, "the stream has begun")
	pid, err := strconv.Atoi(active)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn := func() { _ = syscall.Kill(pid, syscall.SIGCONT) } // it may be gone
	t.Cleanup(goOn)
	b.src.SQL(t, "WITH x AS (DELETE FROM a WHERE id = 1 RETURNING *) INSERT INTO a SELECT 5000, u, v FROM x")
	b.backfill.Pause(false)
	rig.Linger(t, 4*time.Second, "what is read now comes before the stream")
	goOn()
	b.loaded(t)
	b.same(t, "a")
}

// TestUniqueValuesMove loads a table while its unique values move between its rows.
func TestUniqueValuesMove(t *testing.T) {
	b := newBed(t, rig.Shared(t, rig.Newest), "CREATE TABLE a (id int PRIMARY KEY, u int UNIQUE, n int NOT NULL DEFAULT 0, big text); ALTER TABLE a ALTER big SET STORAGE EXTERNAL",
		"INSERT INTO a SELECT g, g, 0, CASE WHEN g % 20 = 0 THEN repeat('x', 3000) END FROM generate_series(1, 3000) g")
	small(b)
	b.opt.Rate = 400_000
	stop := b.writeRandom(t, 3, []string{
		"WITH x AS (DELETE FROM a WHERE id = %[1]d RETURNING *) INSERT INTO a SELECT %[2]d, u, n, big FROM x ON CONFLICT DO NOTHING",
		"UPDATE a SET id = %[2]d WHERE id = %[1]d AND NOT EXISTS (SELECT FROM a WHERE id = %[2]d)",
		"UPDATE a SET u = -u WHERE id = %[1]d", "UPDATE a SET n = n + 1 WHERE id %% 100 = %[1]d %% 100",
	}, 6000, 6000)
	b.run(t)
	b.loaded(t)
	stop()
	b.same(t, "a")
}

// TestNothingIsMadeUp: a row that has come from another key without its large value can't
// be made of what the stream has; the chunk stays as it was read.
func TestNothingIsMadeUp(t *testing.T) {
	_, l := newFiltered(t, "")
	for _, c := range []struct {
		value millrace.Value
		want  bool
	}{{text, true}, {unsent, false}} {
		rows := &snapshot.Rows{}
		moved := held{key: key(t, l, 7), change: millrace.Change{Op: millrace.Insert, Rel: rel, New: millrace.Row{id(7), c.value}}}
		if got := netByKey(rows, []held{moved}); got != c.want || (len(rows.Changes) == 1) != c.want {
			t.Errorf("%c: %v, %v", c.value.Kind, got, rows.Changes)
		}
	}
}
