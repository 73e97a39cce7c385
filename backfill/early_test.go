package backfill

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/snapshot"
)

// earlyDDL has large values that updates leave alone, keys that move, keys that are equal
// and written in different ways, a further unique column, and whole old rows.
const earlyDDL = `CREATE TABLE ints (id int8 PRIMARY KEY, n int NOT NULL DEFAULT 0, big text);
ALTER TABLE ints ALTER big SET STORAGE EXTERNAL;
CREATE TABLE nums (id numeric, n int NOT NULL, big text, PRIMARY KEY (id));
ALTER TABLE nums ALTER big SET STORAGE EXTERNAL;
CREATE TABLE uniq (id int PRIMARY KEY, u int NOT NULL UNIQUE, n int NOT NULL DEFAULT 0);
CREATE TABLE fulls (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, big text);
ALTER TABLE fulls REPLICA IDENTITY FULL; ALTER TABLE fulls ALTER big SET STORAGE EXTERNAL;
CREATE TABLE bare (n int); ALTER TABLE bare REPLICA IDENTITY FULL;`

const earlyFill = `INSERT INTO ints SELECT g, 0, repeat(md5(g::text), 70 + (g % 2)) FROM generate_series(1, 400) g;
INSERT INTO nums SELECT g, 0, repeat(md5(g::text), 80) FROM generate_series(1, 250) g;
INSERT INTO uniq SELECT g, g FROM generate_series(1, 500) g;
INSERT INTO fulls SELECT g, 0, repeat(md5(g::text), 70) FROM generate_series(1, 150) g;
INSERT INTO bare SELECT g FROM generate_series(1, 200) g;`

// earlyChanges draws a transaction.
func earlyChanges(rng *rand.Rand, truncates bool) string {
	a, b := rng.IntN(600), rng.IntN(600)
	stmts := []string{
		fmt.Sprintf("UPDATE ints SET n = n + 1 WHERE id BETWEEN %d AND %d", a, a+20),
		fmt.Sprintf("UPDATE ints SET id = %d WHERE id = %d AND NOT EXISTS (SELECT FROM ints WHERE id = %[1]d)", b, a),
		fmt.Sprintf("DELETE FROM ints WHERE id = %d", a),
		fmt.Sprintf("DELETE FROM ints WHERE id = %[2]d; UPDATE ints SET id = %[2]d WHERE id = %[1]d", a, b),
		fmt.Sprintf("INSERT INTO ints VALUES (%d, 7, repeat(md5('%d'), 75)) ON CONFLICT (id) DO UPDATE SET n = ints.n + 1", a, b),
		fmt.Sprintf("UPDATE nums SET n = n + 1 WHERE id BETWEEN %d AND %d", a/2, a/2+5),
		fmt.Sprintf("UPDATE nums SET id = id * 1.00, n = n + 1 WHERE id = %d", a/2),
		fmt.Sprintf("UPDATE nums SET id = %d WHERE id = %d AND NOT EXISTS (SELECT FROM nums WHERE id = %[1]d)", b/2, a/2),
		fmt.Sprintf("UPDATE uniq SET n = n + 1 WHERE id BETWEEN %d AND %d", a, a+10),
		fmt.Sprintf("UPDATE uniq SET u = -%[1]d WHERE id = %[1]d; UPDATE uniq SET u = %[1]d WHERE id = %[2]d AND NOT EXISTS (SELECT FROM uniq WHERE u = %[1]d)", a, b),
		fmt.Sprintf("DELETE FROM uniq WHERE id = %d", a),
		fmt.Sprintf("UPDATE fulls SET n = n + 1 WHERE id = %d; UPDATE fulls SET id = -id WHERE id = %d", a/4, b/4),
		fmt.Sprintf("INSERT INTO bare VALUES (%d); DELETE FROM bare WHERE n = %d", a, b/10),
	}
	if truncates && rng.IntN(150) == 0 {
		return "TRUNCATE ints; INSERT INTO ints SELECT g, 9, repeat(md5(g::text), 70) FROM generate_series(1, 300) g"
	}
	var sql []string
	for range 1 + rng.IntN(3) {
		sql = append(sql, stmts[rng.IntN(len(stmts))])
	}
	return strings.Join(sql, "; ")
}

// TestEarlyChangesConverge: who takes what passes early as what holds behind it, in order, has
// what the source has once the load is over and the stream has passed it; also if the
// loading job was ended in between.
func TestEarlyChangesConverge(t *testing.T) {
	b := newBed(t, rig.Shared(t, rig.Newest), earlyDDL, earlyFill)
	small(b)
	b.opt.Early = true
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	stop := b.writeSQL(t, 2, func(n int) func() string {
		rng := rand.New(rand.NewPCG(seed, uint64(n)))
		return func() string { return earlyChanges(rng, n == 0) }
	})
	b.run(t)
	rig.Eventually(t, patience, func() bool {
		return b.dst.Query(t, "SELECT coalesce(sum(rows), 0) > 0 FROM millrace.chunk") == "t" || b.dst.Query(t, "SELECT count(*) FROM millrace.job_table WHERE NOT copied") == "0"
	}, "the load goes on")
	b.end()
	b.run(t)
	b.loaded(t)
	stop()
	b.same(t, "ints", "nums", "uniq", "fulls", "bare")
}

// writeSQL runs writers, each with transactions of its own, until the returned function is called.
func (b *bed) writeSQL(t *testing.T, writers int, draws func(n int) func() string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for n := range writers {
		draw := draws(n)
		wg.Go(func() {
			conn, err := pgx.Connect(context.Background(), b.src.URL())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close(context.Background())
			for ctx.Err() == nil {
				if _, err := conn.Exec(context.Background(), "BEGIN; "+draw()+"; COMMIT", pgx.QueryExecModeSimpleProtocol); err != nil {
					_, _ = conn.Exec(context.Background(), "ROLLBACK") // two writers collided
				}
			}
		})
	}
	stopped := sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stopped)
	return stopped
}

// TestEarlyMoves: the row of a key that comes from another one without all its values is read on its own,
// unless the destination has it, or the chunk is still to come.
func TestEarlyMoves(t *testing.T) {
	none := millrace.Value{Kind: millrace.Null}
	for _, c := range []struct {
		name     string
		xid      uint32 // 50: the snapshot of the range that is read sees it
		from, to int64
		value    millrace.Value
		holes    int
	}{
		{"done to done", 50, 1, 2, unsent, 0},
		{"done to unread", 150, 1, 25, unsent, 0},
		{"done to seen", 50, 1, 15, unsent, 0},
		{"unread to done", 150, 25, 1, unsent, 1},
		{"unread to done, with all values", 150, 25, 1, text, 0},
		{"unread to not seen", 150, 25, 15, unsent, 1},
		{"unread to seen", 50, 25, 15, unsent, 1},
		{"unread to unread", 150, 25, 26, unsent, 0},
		{"seen to done", 50, 15, 1, unsent, 1},
		{"seen to seen", 50, 15, 16, unsent, 1},
		{"not seen to done", 150, 15, 1, unsent, 0},
	} {
		s, l := newFiltered(t, "")
		s.opt.Early = true
		ranges(t, l)
		txn := &millrace.Txn{XID: c.xid, Commit: 500, End: 510, Last: true, Changes: []millrace.Change{
			{Op: millrace.Update, Rel: rel, Old: millrace.Row{id(c.from), none}, New: millrace.Row{id(c.to), c.value}}}}
		if err := s.take(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
		if len(txn.Changes) != 1 || !txn.Changes[0].Early || txn.Changes[0].Op != millrace.Update {
			t.Errorf("%s: there remains %+v", c.name, txn.Changes)
		}
		if len(l.holes) != c.holes || c.holes > 0 && (l.holes[string(key(t, l, c.to))] == nil || len(txn.Marks) == 0) {
			t.Errorf("%s: %d holes, want %d; marks %v", c.name, len(l.holes), c.holes, txn.Marks)
		}
	}
}

// TestEarlyHole: a row that is left out of its chunk for an update without all values is read on its
// own, and given away as the updates since have left it.
func TestEarlyHole(t *testing.T) {
	s, l := newFiltered(t, "")
	s.opt.Early = true
	ranges(t, l)
	update := func(xid uint32, n int64, v millrace.Value) {
		t.Helper()
		txn := &millrace.Txn{XID: xid, Commit: millrace.LSN(xid), End: millrace.LSN(xid) + 1, Last: true,
			Changes: []millrace.Change{{Op: millrace.Update, Rel: rel, New: millrace.Row{id(n), v}}}}
		if err := s.take(t.Context(), txn); err != nil || len(txn.Changes) != 1 {
			t.Fatalf("%v, %v", txn.Changes, err)
		}
	}
	give := func(p *pending, v snapshot.View, ids ...int64) string {
		t.Helper()
		p.view, p.rows = v, &snapshot.Rows{Final: true}
		for _, n := range ids {
			p.rows.Changes = append(p.rows.Changes, millrace.Change{Op: millrace.Read, Rel: rel, New: millrace.Row{id(n), text}})
			p.rows.Keys = append(p.rows.Keys, key(t, l, n))
		}
		txn, err := s.inject(t.Context(), p)
		if err != nil || txn == nil {
			t.Fatalf("%v, %v", txn, err)
		}
		var got []string
		for i := range txn.Changes {
			got = append(got, fmt.Sprint(binary.BigEndian.Uint64(txn.Changes[i].New[0].Raw), string(txn.Changes[i].New[1].Raw)))
		}
		return strings.Join(got, " ")
	}
	p := s.nextLocked()
	update(210, 22, unsent)
	update(220, 23, text) // all of it has passed
	update(190, 24, unsent)
	if got := give(p, view(200, 2000), 22, 23, 24); got != "24x" {
		t.Errorf("the chunk has rows %s", got)
	}
	if h := l.holes[string(key(t, l, 22))]; len(l.holes) != 1 || h == nil || h.state != unread {
		t.Fatalf("the holes are %v", l.holes)
	}
	p = s.nextLocked()
	if p == nil || p.key == nil {
		t.Fatalf("read next is %+v", p)
	}
	update(310, 22, unsent)
	update(320, 22, millrace.Value{Kind: millrace.Text, Raw: []byte("y")})
	update(330, 22, unsent)
	if got := give(p, view(300, 3000), 22); got != "22y" {
		t.Errorf("the row of the hole is %s", got)
	}
}

// asked is a stream that is asked for its position.
type asked struct{ Stream }

func (asked) RequestPosition() {}

// TestEarlyChunkWaits: with further unique columns a chunk is never ahead of the stream.
func TestEarlyChunkWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newFiltered(t, "")
		s.opt.Early, s.opt.Stream = true, asked{}
		l.table.Limited = true
		p := s.nextLocked()
		p.view = view(200, 2000)
		decided := make(chan error, 1)
		go func() { decided <- s.decided(t.Context(), p) }()
		synctest.Wait()
		if len(decided) > 0 {
			t.Error("it is given away before the stream has passed what it shows")
		}
		s.mu.Lock()
		s.passLocked(2000)
		s.mu.Unlock()
		if err := <-decided; err != nil {
			t.Error(err)
		}
	})
}
