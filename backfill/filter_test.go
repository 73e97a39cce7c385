package backfill

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/snapshot"
)

// rel has an integer key, which compares by its bytes, and a large column.
var rel = &millrace.Relation{OID: 77, Name: millrace.TableName{Schema: "s", Name: "t"}, Key: []int{0},
	Columns: []millrace.Column{{Name: "id", Type: 20}, {Name: "big", Type: 25}}}

func newFiltered(t *testing.T, mark string) (*Source, *load) {
	t.Helper()
	l, err := newLoad(rel.Name, millrace.Mark{OID: rel.OID, State: []byte(mark)})
	if err != nil {
		t.Fatal(err)
	}
	l.table = &snapshot.ChunkTable{Rel: rel, Key: snapshot.IntKey("id", 0)}
	s := New(Options{})
	s.loads, s.order, s.noted = map[uint32]*load{rel.OID: l}, []*load{l}, map[*load]bool{}
	return s, l
}

func id(n int64) millrace.Value {
	return millrace.Value{Kind: millrace.Binary, Raw: binary.BigEndian.AppendUint64(nil, uint64(n))}
}

func key(t *testing.T, l *load, n int64) []byte {
	t.Helper()
	k, err := l.table.Key.EncodeKey(millrace.Row{id(n), {}})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

var (
	text   = millrace.Value{Kind: millrace.Text, Raw: []byte("x")}
	unsent = millrace.Value{Kind: millrace.Unchanged}
)

// ranges are: done up to 10, read in a snapshot that sees transactions below 100 up
// to 20, unread behind that.
func ranges(t *testing.T, l *load) {
	t.Helper()
	v, err := snapshot.ParseVisibility("100:100:")
	if err != nil {
		t.Fatal(err)
	}
	l.segments = []segment{{upto: key(t, l, 10), state: done}, {upto: key(t, l, 20), state: read, view: snapshot.View{Visibility: v, Upto: 1000}}, {state: unread}}
}

// TestRules is the table of package backfill's documentation: what becomes of a
// change, by where its keys lie and whether a chunk's snapshot sees it.
func TestRules(t *testing.T) {
	row := func(n int64, v millrace.Value) millrace.Row { return millrace.Row{id(n), v} }
	ins := func(n int64) millrace.Change {
		return millrace.Change{Op: millrace.Insert, Rel: rel, New: row(n, text)}
	}
	del := func(n int64) millrace.Change {
		return millrace.Change{Op: millrace.Delete, Rel: rel, Old: row(n, millrace.Value{Kind: millrace.Null})}
	}
	move := func(from, to int64, v millrace.Value) millrace.Change {
		return millrace.Change{Op: millrace.Update, Rel: rel, Old: row(from, millrace.Value{Kind: millrace.Null}), New: row(to, v)}
	}
	truncate := millrace.Change{Op: millrace.Truncate, Truncated: &millrace.Truncation{Rels: []*millrace.Relation{rel}}}
	const older, newer = 50, 150 // than the snapshot of the range that is read
	for _, c := range []struct {
		name   string
		xid    uint32
		change millrace.Change
		want   string // operations that remain
		holes  int
		ranges string // afterwards, by their state
	}{
		{"insert, done", older, ins(5), "insert", 0, ""},
		{"insert, read and seen", older, ins(15), "", 0, ""},
		{"insert, read and not seen", newer, ins(15), "insert", 0, ""},
		{"insert, unread", newer, ins(25), "", 0, ""},
		{"delete at a bound belongs to the range before", older, del(10), "delete", 0, ""},
		{"delete, read and seen", older, del(20), "", 0, ""},
		{"delete, unread", older, del(21), "", 0, ""},
		{"move, done to done", older, move(1, 2, text), "update", 0, ""},
		{"move without a value, done to done", older, move(1, 2, unsent), "update", 0, ""},
		{"move, done to seen", older, move(1, 15, text), "delete", 0, ""},
		{"move, done to not seen", newer, move(1, 15, unsent), "update", 0, ""},
		{"move, done to unread", newer, move(1, 25, unsent), "delete", 0, ""},
		{"move, seen to done", older, move(15, 1, text), "insert", 0, ""},
		{"move without a value, seen to done", older, move(15, 1, unsent), "", 1, ""},
		{"move, unread to done", newer, move(25, 1, text), "insert", 0, ""},
		{"move without a value, unread to done", newer, move(25, 1, unsent), "", 1, ""},
		{"move without a value, unread to not seen", newer, move(25, 15, unsent), "", 1, ""},
		{"move, unread to unread", newer, move(25, 26, unsent), "", 0, ""},
		{"truncate that no snapshot sees", newer, truncate, "truncate", 0, "done read unread"},
		{"truncate that one snapshot sees", older, truncate, "truncate", 0, "unread"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, l := newFiltered(t, "")
			ranges(t, l)
			txn := &millrace.Txn{XID: c.xid, Commit: 500, End: 510, Last: true, Changes: []millrace.Change{c.change}}
			if err := s.take(t.Context(), txn); err != nil {
				t.Fatal(err)
			}
			var got []string
			for i := range txn.Changes {
				got = append(got, txn.Changes[i].Op.String())
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("there remains %q, want %q", got, c.want)
			}
			if len(l.holes) != c.holes {
				t.Errorf("%d holes, want %d", len(l.holes), c.holes)
			}
			if wants := c.holes > 0 || c.ranges == "unread"; wants != (len(txn.Marks) > 0) {
				t.Errorf("marks %v go with the transaction", txn.Marks)
			}
			if c.ranges != "" {
				if states := statesOf(l); states != c.ranges {
					t.Errorf("ranges %q, want %q", states, c.ranges)
				}
			}
		})
	}
}

func statesOf(l *load) string {
	var states []string
	for i := range l.segments {
		states = append(states, string(l.segments[i].state))
	}
	return strings.Join(states, " ")
}

// TestTruncateThatAllSee: nothing at the destination is older than it.
func TestTruncateThatAllSee(t *testing.T) {
	s, l := newFiltered(t, "")
	ranges(t, l)
	l.segments[0].state, l.segments[0].view = read, l.segments[1].view
	txn := &millrace.Txn{XID: 50, Commit: 500, End: 510, Last: true,
		Changes: []millrace.Change{{Op: millrace.Truncate, Truncated: &millrace.Truncation{Rels: []*millrace.Relation{rel}}}}}
	if err := s.take(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
	if len(txn.Changes) != 0 || statesOf(l) != "read read unread" {
		t.Errorf("%v, ranges %s", txn.Changes, statesOf(l))
	}
}

// TestHeldChanges: what comes while a chunk is read goes with it, if the snapshot
// does not see it and its key is not behind the chunk's last one.
func TestHeldChanges(t *testing.T) {
	s, l := newFiltered(t, "")
	ranges(t, l)
	p := s.nextLocked()
	if p == nil || string(p.in.After) != string(key(t, l, 20)) {
		t.Fatalf("the chunk to be read is %+v", p)
	}
	for xid, n := range map[uint32]int64{190: 22, 210: 23, 220: 99} {
		txn := &millrace.Txn{XID: xid, Commit: millrace.LSN(500 + n), End: millrace.LSN(501 + n), Last: true,
			Changes: []millrace.Change{{Op: millrace.Insert, Rel: rel, New: millrace.Row{id(n), text}}}}
		if err := s.take(t.Context(), txn); err != nil || len(txn.Changes) != 0 {
			t.Fatalf("%v, %v", txn.Changes, err)
		}
	}
	v, err := snapshot.ParseVisibility("200:200:")
	if err != nil {
		t.Fatal(err)
	}
	p.view = snapshot.View{Visibility: v, Upto: 2000}
	p.rows = &snapshot.Rows{Changes: []millrace.Change{{Op: millrace.Read, Rel: rel, New: millrace.Row{id(22), text}}, {Op: millrace.Read, Rel: rel, New: millrace.Row{id(30), text}}},
		Keys: [][]byte{key(t, l, 22), key(t, l, 30)}}
	if !s.usable(p) {
		t.Fatal("the snapshot is not usable")
	}
	txn, err := s.inject(t.Context(), p)
	if err != nil || txn == nil {
		t.Fatalf("%v, %v", txn, err)
	}
	var got []string
	for i := range txn.Changes {
		c := &txn.Changes[i]
		got = append(got, fmt.Sprint(c.Op, " ", binary.BigEndian.Uint64(c.New[0].Raw)))
	}
	if want := "read 22, read 30, insert 23"; strings.Join(got, ", ") != want {
		t.Errorf("%s, want %s", strings.Join(got, ", "), want)
	}
	if states := statesOf(l); states != "done read read unread" {
		t.Errorf("ranges %s", states)
	}
}

// TestMarkStaysSmall loads a table of many chunks, in the soak a million: its mark never grows
// beyond what is active, and survives being written down.
func TestMarkStaysSmall(t *testing.T) {
	s, l := newFiltered(t, "")
	chunks := 20_000
	if os.Getenv("MILLRACE_SOAK") != "" {
		chunks = 1_000_000
	}
	most := 0
	for n := range int64(chunks) {
		p := s.nextLocked()
		if p == nil { // what is active has to be passed first
			s.passLocked(millrace.LSN(n))
			if p = s.nextLocked(); p == nil {
				t.Fatalf("nothing is read after %d chunks: %s", n, l.mark().State)
			}
		}
		xid := uint64(1000 + n)
		p.view = snapshot.View{Visibility: snapshot.Visibility{Xmin: xid, Xmax: xid}, Upto: millrace.LSN(n + 20)}
		p.rows = &snapshot.Rows{Keys: [][]byte{key(t, l, n)}, Changes: []millrace.Change{{Op: millrace.Read, Rel: rel, New: millrace.Row{id(n), text}}}}
		txn, err := s.inject(t.Context(), p)
		if err != nil || txn == nil {
			t.Fatalf("%v, %v", txn, err)
		}
		s.passLocked(millrace.LSN(n))
		if n%1000 == 0 {
			state := txn.Marks[rel.Name].State
			most = max(most, len(state))
			again, err := newLoad(rel.Name, millrace.Mark{OID: rel.OID, State: state})
			if err != nil {
				t.Fatal(err)
			}
			if got := string(again.mark().State); got != string(state) {
				t.Fatalf("the mark is read back as %s, it was %s", got, state)
			}
		}
	}
	if most > 8<<10 {
		t.Errorf("the mark had %d bytes", most)
	}
	t.Logf("%d chunks, the mark had at most %d bytes", chunks, most)
}

// TestEarlyChangesAreTakenBack: where changes of what is not read pass at once, a
// deletion that a chunk's snapshot sees has to pass as well: an insert of the same
// row may have passed before the chunk came, in which the row is missing.
func TestEarlyChangesAreTakenBack(t *testing.T) {
	for _, old := range []int64{15, 25} { // read, unread
		for _, xid := range []uint32{50, 150} {
			s, l := newFiltered(t, "")
			s.opt.Early = true
			ranges(t, l)
			row := millrace.Row{id(old), {Kind: millrace.Null}}
			txn := &millrace.Txn{XID: xid, Commit: 500, End: 510, Last: true, Changes: []millrace.Change{
				{Op: millrace.Delete, Rel: rel, Old: row},
				{Op: millrace.Update, Rel: rel, Old: row, New: millrace.Row{id(5), text}},
			}}
			if err := s.sift(t.Context(), txn); err != nil {
				t.Fatal(err)
			}
			if len(txn.Changes) != 2 {
				t.Errorf("key %d, transaction %d: %d of 2 changes pass", old, xid, len(txn.Changes))
			}
		}
	}
}
