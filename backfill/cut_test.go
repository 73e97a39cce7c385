package backfill

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/snapshot"
)

// view makes a snapshot that sees the transactions below xid.
func view(xid uint64, upto millrace.LSN) snapshot.View {
	return snapshot.View{Visibility: snapshot.Visibility{Xmin: xid, Xmax: xid}, Upto: upto}
}

func (l *load) states() string {
	var all []string
	for i := range l.segments {
		all = append(all, string(l.segments[i].state))
	}
	return strings.Join(all, " ")
}

// give has a chunk given away that a reader has read: the rows from up to to, and
// final tells whether no more are in what was asked for.
func give(t *testing.T, s *Source, p *pending, xid uint64, final bool, from, to int64) *millrace.Txn {
	t.Helper()
	p.view = view(xid, 2000)
	if !s.usable(p) {
		t.Fatal("the snapshot is not usable")
	}
	p.rows = &snapshot.Rows{Final: final}
	for n := from; n <= to; n++ {
		p.rows.Changes = append(p.rows.Changes, millrace.Change{Op: millrace.Read, Rel: rel, New: millrace.Row{id(n), text}})
		p.rows.Keys = append(p.rows.Keys, key(t, p.load, n))
	}
	txn, err := s.inject(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if txn == nil {
		t.Fatal("the chunk is not used")
	}
	return txn
}

// TestSharedRange: while a chunk is read, what lies behind the next cut is given to
// another reader. What was held for the whole range then counts where it belongs.
func TestSharedRange(t *testing.T) {
	s, l := newFiltered(t, "")
	s.opt.Parallel = 2
	for n := int64(100); n <= 500; n += 100 {
		l.segments[0].cuts = append(l.segments[0].cuts, key(t, l, n))
	}
	first := s.nextLocked()
	if string(first.in.Upto) != string(key(t, l, 100)) {
		t.Fatal("a chunk does not end at the first cut")
	}
	insert := func(n int64) millrace.Change {
		return millrace.Change{Op: millrace.Insert, Rel: rel, New: millrace.Row{id(n), text}}
	}
	take := func(xid uint32, changes ...millrace.Change) int {
		t.Helper()
		txn := &millrace.Txn{XID: xid, Commit: 500, End: 510, Last: true, Changes: changes}
		if err := s.take(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
		return len(txn.Changes)
	}
	if n := take(210, insert(7), insert(450)); n != 0 {
		t.Fatalf("%d changes of an unread range pass", n)
	}
	second := s.nextLocked()
	if second == nil || second.load != l || string(second.in.After) != string(key(t, l, 300)) || string(second.in.Upto) != string(key(t, l, 400)) {
		t.Fatalf("the second reader is given %v", second)
	}
	if third := s.nextLocked(); third == nil || string(third.in.After) != string(key(t, l, 200)) && string(third.in.After) != string(key(t, l, 400)) {
		t.Fatalf("the third reader is given %v", third)
	} else {
		s.giveUp(third)
	}
	if fine := slices.Contains(second.before, 210); !fine {
		t.Error("the second reader's snapshot need not see what was delivered before it began")
	}
	// Of the first chunk: what its snapshot does not see comes behind its rows, but not what
	// lies behind it.
	txn := give(t, s, first, 200, true, 1, 3)
	if n := len(txn.Changes); n != 4 || string(txn.Changes[3].New[0].Raw) != string(id(7).Raw) {
		t.Errorf("the first chunk has %d changes, want its 3 rows and the insert of key 7", n)
	}
	if n := take(220, insert(8), insert(150), insert(310)); n != 1 {
		t.Errorf("%d changes pass, want that of the range that was read", n)
	}
	// The second one reads a part only.
	txn = give(t, s, second, 215, false, 301, 305)
	if n := len(txn.Changes); n != 5 {
		t.Errorf("the second chunk has %d changes, want its 5 rows", n)
	}
	if n := take(230, insert(304), insert(310), insert(350)); n != 1 {
		t.Errorf("%d changes pass, want one", n)
	}
	var m struct{ Ranges []struct{ State string } }
	if err := json.Unmarshal(l.mark().State, &m); err != nil || len(m.Ranges) != len(l.segments) {
		t.Error(err, len(m.Ranges), l.states())
	}
}

// TestCutsThatComeLate: a table is looked at while a chunk of it is read, which may
// end anywhere.
func TestCutsThatComeLate(t *testing.T) {
	s, l := newFiltered(t, "")
	first := s.nextLocked()
	for n := int64(100); n <= 500; n += 100 {
		l.segments[0].cuts = append(l.segments[0].cuts, key(t, l, n))
	}
	if p := s.nextLocked(); p != nil {
		t.Fatal("a range is shared of which it is not known what will be read")
	}
	give(t, s, first, 200, false, 1, 220)
	next := s.nextLocked()
	if string(next.in.After) != string(key(t, l, 220)) || string(next.in.Upto) != string(key(t, l, 300)) {
		t.Errorf("the next chunk is not that up to the next cut: %x %x", next.in.After, next.in.Upto)
	}
	if p := s.nextLocked(); p == nil || string(p.in.After) != string(key(t, l, 400)) {
		t.Error("the range is not shared")
	}
	if got := l.states(); got != "read unread unread" {
		t.Errorf("ranges: %s", got)
	}
}

// TestMillionChunks reads a table in a million chunks (in the long form) by four readers:
// the mark never grows beyond what is read at the same time.
func TestMillionChunks(t *testing.T) {
	s, l := newFiltered(t, "")
	chunks, rows := int64(50_000), int64(10)
	if os.Getenv("MILLRACE_SOAK") != "" {
		chunks = 1_000_000
	}
	for n := int64(1); n < mostCuts; n++ {
		l.segments[0].cuts = append(l.segments[0].cuts, key(t, l, n*(chunks*rows/mostCuts)))
	}
	number := func(k []byte) (n int64) { // the inverse of key, for positive numbers
		if len(k) > 0 {
			for _, c := range k[1:] {
				n = n<<8 | int64(c)
			}
		}
		return n
	}
	var reading []*pending
	largest, longest, read := 0, 0, int64(0)
	for lsn := millrace.LSN(1); ; lsn++ {
		for len(reading) < 4 {
			p := s.nextLocked()
			if p == nil {
				break
			}
			reading = append(reading, p)
		}
		if len(reading) == 0 {
			break
		}
		p := reading[0]
		reading = reading[1:]
		from, end := number(p.in.After), chunks*rows
		if p.in.Upto != nil {
			end = number(p.in.Upto)
		}
		to := min(from+rows, end)
		p.view = view(uint64(lsn), lsn)
		last := key(t, l, to)
		p.rows = &snapshot.Rows{Final: to == end, Keys: [][]byte{last}, Changes: make([]millrace.Change, 1)}
		read += to - from
		if txn, err := s.inject(t.Context(), p); err != nil || txn == nil {
			t.Fatal(txn, err)
		} else if n := len(txn.Marks[rel.Name].State); n > largest {
			largest = n
		}
		longest = max(longest, len(l.segments))
		s.passLocked(lsn - 2) // the stream is a little behind
	}
	s.passLocked(1 << 40)
	if !l.isDone() || read != chunks*rows {
		t.Errorf("%d rows were read, ranges %s", read, l.states())
	}
	t.Logf("the mark had up to %d bytes, %d ranges", largest, longest)
	if largest > 4<<10 || longest > 20 {
		t.Errorf("the mark has %d bytes and %d ranges", largest, longest)
	}
}

const wideDDL = `CREATE EXTENSION IF NOT EXISTS citext SCHEMA public;
CREATE TABLE words (a public.citext, b numeric, v int NOT NULL DEFAULT 0, pad text, PRIMARY KEY (a, b));
CREATE TABLE ids (id uuid PRIMARY KEY, v int NOT NULL DEFAULT 0, pad text);
CREATE TABLE pairs (a int, b text COLLATE "C", v int NOT NULL DEFAULT 0, pad text, PRIMARY KEY (a, b));`

const wideFill = `INSERT INTO words SELECT 'Word' || g % 700, g / 7.0, 0, repeat('x', 400) FROM generate_series(1, 6000) g;
INSERT INTO ids SELECT md5(g::text)::uuid, 0, repeat('x', 400) FROM generate_series(1, 6000) g;
INSERT INTO pairs SELECT g % 300, md5(g::text), 0, repeat('x', 400) FROM generate_series(1, 6000) g;`

var wideWrites = []string{
	"UPDATE words SET v = v + 1 WHERE a = 'word%[1]d'", "UPDATE words SET b = b * 1.00, a = upper(a::text) WHERE a = 'word%[1]d'",
	"DELETE FROM words WHERE a = 'word%[1]d' AND v > 0", "INSERT INTO words VALUES ('word%[1]d', %[1]d * 1000, 1) ON CONFLICT (a, b) DO UPDATE SET v = words.v + 1",
	"UPDATE ids SET v = v + 1 WHERE id = md5('%[2]d')::uuid", "DELETE FROM ids WHERE id = md5('%[2]d')::uuid",
	"INSERT INTO ids VALUES (gen_random_uuid(), %[1]d)", "UPDATE ids SET id = gen_random_uuid() WHERE id = md5('%[2]d')::uuid",
	"UPDATE pairs SET v = v + 1 WHERE a = %[3]d", "UPDATE pairs SET a = %[1]d WHERE a = %[3]d AND v = 1", "DELETE FROM pairs WHERE a = %[3]d AND v > 2",
}

// TestSeveralRanges loads tables by several readers each, under writes and over
// restarts, with keys whose order only the server knows among them.
func TestSeveralRanges(t *testing.T) {
	for _, major := range []int{rig.Newest} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			b := newBed(t, rig.Shared(t, major), wideDDL, wideFill)
			b.opt.ChunkBytes, b.opt.CutBytes, b.opt.Parallel, b.opt.Rate = 24<<10, 64<<10, 4, 6<<20
			stop := b.writeRandom(t, 2, wideWrites, 700, 6000, 300)
			shared := 0
			for range 3 {
				b.run(t)
				left := b.dst.Query(t, "SELECT coalesce(sum(rows), 0) FROM millrace.chunk")
				rig.Eventually(t, patience, func() bool {
					for _, mark := range strings.Split(b.dst.Query(t, "SELECT coalesce(string_agg(mark, E'\\x01'), '') FROM millrace.chunk"), "\x01") {
						shared = max(shared, strings.Count(mark, "unread"))
					}
					return b.dst.Query(t, "SELECT coalesce(sum(rows), 0) > "+left+" + 1500 FROM millrace.chunk") == "t" || b.dst.Query(t, "SELECT count(*) FROM millrace.job_table WHERE NOT copied") == "0"
				}, "the load goes on")
				b.end()
			}
			b.run(t)
			b.loaded(t)
			stop()
			b.same(t, "words", "ids", "pairs")
			if shared < 2 {
				t.Error("no table was read by two readers at once")
			}
			t.Logf("up to %d unread ranges in a mark", shared)
		})
	}
}
