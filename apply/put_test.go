package apply

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/millrace/millrace"
)

// compactedLog gives what compaction leaves of transactions: the last change of each key,
// some of the others, and every TRUNCATE.
func compactedLog(txns []*millrace.Txn, rng *rand.Rand) (left []*millrace.Txn, gone int) {
	type logged struct {
		c   millrace.Change
		key string
	}
	keyed := func(op millrace.Op, c *millrace.Change, row millrace.Row) logged {
		key := []string{fmt.Sprint(c.Rel.OID)}
		for _, k := range c.Rel.Key {
			key = append(key, string(row[k].Raw))
		}
		l := logged{c: millrace.Change{Op: op, Seq: c.Seq, Rel: c.Rel}, key: strings.Join(key, "\x00")}
		if op == millrace.Put {
			l.c.New = row
		} else {
			l.c.Old = row
		}
		return l
	}
	logs := make([][]logged, len(txns))
	for i, x := range txns {
		for n := range x.Changes {
			c := &x.Changes[n]
			if c.Op == millrace.Truncate {
				logs[i] = append(logs[i], logged{c: *c})
				continue
			}
			if c.Old != nil { // deleted, or with another key from here on
				logs[i] = append(logs[i], keyed(millrace.Remove, c, c.Old))
			}
			if c.New != nil {
				logs[i] = append(logs[i], keyed(millrace.Put, c, c.New))
			}
		}
	}
	later := map[string]bool{}
	left = make([]*millrace.Txn, len(txns))
	for i := len(txns) - 1; i >= 0; i-- {
		left[i] = &millrace.Txn{XID: txns[i].XID, Commit: txns[i].Commit, End: txns[i].End, Time: txns[i].Time, Last: true, Size: txns[i].Size}
		var stay []logged
		for n := len(logs[i]) - 1; n >= 0; n-- {
			l := logs[i][n]
			if l.key != "" && later[l.key] && rng.IntN(3) > 0 {
				gone++
				continue
			}
			later[l.key] = true
			stay = append(stay, l)
		}
		for n := len(stay) - 1; n >= 0; n-- {
			left[i].Changes = append(left[i].Changes, stay[n].c)
		}
	}
	return left, gone
}

// putScript draws transactions on few keys, among them keys that are equal and written
// in different ways.
func putScript(rng *rand.Rand, transactions int) string {
	var b strings.Builder
	ids := []string{"1.0", "1.00", "1", "2", "2.0", "3"}
	for range transactions {
		b.WriteString("BEGIN;")
		for range 1 + rng.IntN(5) {
			n, to, v := 1+rng.IntN(8), 1+rng.IntN(8), rng.IntN(1000)
			id, other := ids[rng.IntN(len(ids))], ids[rng.IntN(len(ids))]
			switch rng.IntN(12) {
			case 0, 1:
				fmt.Fprintf(&b, "INSERT INTO pk VALUES (%d, 'v%d') ON CONFLICT (id) DO UPDATE SET v = excluded.v;", n, v)
			case 2:
				fmt.Fprintf(&b, "UPDATE pk SET id = %d WHERE id = %d AND NOT EXISTS (SELECT FROM pk WHERE id = %[1]d);", to, n)
			case 3:
				fmt.Fprintf(&b, "DELETE FROM pk WHERE id = %d;", n)
			case 4, 5:
				fmt.Fprintf(&b, "INSERT INTO num VALUES (%s, 'a', %d) ON CONFLICT (id, k) DO UPDATE SET v = excluded.v;", id, v)
			case 6:
				fmt.Fprintf(&b, "UPDATE num SET id = %s, v = %d WHERE id = %s AND (id = %[1]s OR NOT EXISTS (SELECT FROM num WHERE id = %[1]s));", other, v, id)
			case 7:
				fmt.Fprintf(&b, "DELETE FROM num WHERE id = %s;", id)
			case 8:
				fmt.Fprintf(&b, "INSERT INTO ident (id, n, v) VALUES (%d, %d, %d) ON CONFLICT (id) DO UPDATE SET n = excluded.n, v = excluded.v;", n, 100+to%2, v)
			case 9:
				fmt.Fprintf(&b, "DELETE FROM ident WHERE id = %d;", n)
			case 10:
				fmt.Fprintf(&b, "INSERT INTO bare VALUES (%d) ON CONFLICT DO NOTHING; DELETE FROM bare WHERE id = %d;", n, to)
			case 11:
				if v%4 == 0 {
					fmt.Fprintf(&b, "TRUNCATE %s;", []string{"pk", "num, ident"}[v/4%2])
				}
			}
		}
		b.WriteString("COMMIT;")
	}
	return b.String()
}

// What a compacted log has left leads to the rows of the source, in sets, row by row, and
// when it comes once more from its beginning.
func TestPutsConverge(t *testing.T) {
	bothForms(t, func(t *testing.T, binary bool) {
		p := newPair(t, binary, `
			CREATE TABLE pk (id int PRIMARY KEY, v text);
			CREATE TABLE num (id numeric, k text COLLATE "C", v int, PRIMARY KEY (id, k));
			CREATE TABLE bare (id int PRIMARY KEY)`)
		p.src.Script(t, "CREATE TABLE ident (id int PRIMARY KEY, n int, v int)")
		p.dst.Script(t, "CREATE TABLE ident (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY, v int)")
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 1))
		s := p.open(t)
		var log []*millrace.Txn
		for round := range 4 {
			txns := p.change(t, putScript(rng, 25))
			left, gone := compactedLog(txns, rng)
			if gone == 0 {
				t.Error("nothing is gone")
			}
			s.w.Load().rowsOnly(round%3 == 2)
			write(t, s, left)
			p.same(t)
			log = append(log, left...)
		}
		last := log[len(log)-1].End
		var again []*millrace.Txn
		for _, x := range log {
			y := *x
			y.Commit, y.End = x.Commit+last, x.End+last
			again = append(again, &y)
		}
		write(t, s, again)
		p.same(t)
		if st := s.Stats(); st.SetRows == 0 || st.RowRows == 0 {
			t.Errorf("%+v", st)
		}
	})
}

// Rows can be put only where an index tells them apart by the key of the log.
func TestPutNeedsAnIndex(t *testing.T) {
	p := newPair(t, false, "")
	p.src.Script(t, "CREATE TABLE a (id int PRIMARY KEY, u int UNIQUE)")
	p.dst.Script(t, "CREATE TABLE a (id int NOT NULL, u int UNIQUE)")
	txns, _ := compactedLog(p.change(t, "INSERT INTO a VALUES (1, 1)"), rand.New(rand.NewPCG(1, 1)))
	s := p.open(t)
	if err := tryWrite(t, s, txns); millrace.KindOf(err) != millrace.KindData || !strings.Contains(millrace.HintOf(err), `CREATE UNIQUE INDEX ON "public"."a" ("id")`) {
		t.Errorf("%v, hint %s", err, millrace.HintOf(err))
	}
	p.dst.SQL(t, "CREATE UNIQUE INDEX ON a (id)")
	reopen(t, s)
	write(t, s, txns)
	p.same(t)
	// A value that has moved between rows, of which the first change is gone.
	txns, _ = compactedLog(p.change(t, "UPDATE a SET u = 2; INSERT INTO a VALUES (2, 1)"), rand.New(rand.NewPCG(1, 1)))
	txns[0].Changes = nil
	if err := tryWrite(t, s, txns); millrace.KindOf(err) != millrace.KindData || !strings.Contains(millrace.HintOf(err), "make it again once") {
		t.Errorf("%v, hint %s", err, millrace.HintOf(err))
	}
}

// Keys that differ at the source and are equal here would make one row of two.
func TestPutsTellKeysApart(t *testing.T) {
	p := newPair(t, false, "")
	p.src.Script(t, "CREATE TABLE n (id numeric PRIMARY KEY); CREATE TABLE w (id int, v varchar(3), d numeric(5,2), at timestamp(3), PRIMARY KEY (id, v, d, at))")
	p.dst.Script(t, "CREATE TABLE n (id numeric(5,0) PRIMARY KEY); CREATE TABLE w (id bigint, v varchar(9), d numeric(7,2), at timestamp, PRIMARY KEY (id, v, d, at))")
	txns, _ := compactedLog(p.change(t, "INSERT INTO w VALUES (1, 'a', 1.5, 'now'); INSERT INTO n VALUES (1.2), (1.3)"), rand.New(rand.NewPCG(1, 1)))
	s := p.open(t)
	if err := tryWrite(t, s, txns); millrace.KindOf(err) != millrace.KindData || !strings.Contains(err.Error(), "numeric(5,0)") || millrace.HintOf(err) == "" {
		t.Errorf("%v, hint %s", err, millrace.HintOf(err))
	}
	p.dst.SQL(t, "ALTER TABLE n ALTER id TYPE numeric")
	reopen(t, s)
	write(t, s, txns)
	p.same(t)
}
