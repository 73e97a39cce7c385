package apply

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/record"
)

// inTwo makes of a committed transaction what a source with two-phase commit
// sends: the prepared one, in parts of n changes, and its commit.
func inTwo(txn *millrace.Txn, n int) (prepared []*millrace.Txn, commit *millrace.Txn) {
	c := *txn
	c.OnRelease(nil)
	c.Phase, c.Changes, c.Part, c.Last = millrace.CommitPrepared, nil, 0, true
	prepared = split(txn, n)
	for _, p := range prepared {
		p.Phase, p.End, p.Commit = millrace.Prepared, 0, txn.Commit-8
	}
	return prepared, &c
}

// newPrepared is a pair whose target is alone on its server: what is prepared
// holds up others.
func newPrepared(t *testing.T) *pair {
	t.Helper()
	p := newPairOn(t, rig.Start(t, rig.Newest), true, "CREATE TABLE a (id int PRIMARY KEY, v int REFERENCES a DEFERRABLE)")
	p.opt.TwoPhase = true
	return p
}

func (p *pair) gid(t *testing.T, xid uint32) string {
	t.Helper()
	return fmt.Sprintf("millrace_shop_1_%d_%s", xid, p.dst.Query(t, "SELECT oid FROM pg_database WHERE datname = current_database()"))
}

func (p *pair) traces(t *testing.T) string {
	t.Helper()
	return p.dst.Query(t, "SELECT (SELECT count(*) FROM pg_prepared_xacts), (SELECT count(*) FROM millrace.prepared)")
}

// TestPreparedSteps stops at every step of a transaction in two, as a kill would,
// and lets all of it come again.
func TestPreparedSteps(t *testing.T) {
	p := newPrepared(t)
	s := p.open(t)
	if !s.TwoPhase() {
		t.Fatal("the target takes no prepared transactions")
	}
	for _, c := range []struct {
		name   string
		before func(xid uint32) // what the killed process has still done
	}{
		{"prepared", func(uint32) {}},
		{"committed without progress", func(xid uint32) { p.dst.SQL(t, "COMMIT PREPARED '"+p.gid(t, xid)+"'") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			txns := p.change(t, "BEGIN; DELETE FROM a; INSERT INTO a SELECT g, g FROM generate_series(1, 50) g; COMMIT; INSERT INTO a VALUES (1000)")
			first, again := clone(txns), clone(txns)
			prepared, _ := inTwo(first[0], 20)
			write(t, s, prepared)
			if _, err := s.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := p.traces(t); got != "1|0" {
				t.Fatalf("%s after the prepare", got)
			}
			c.before(txns[0].XID)
			next := New(p.opt)
			reopen(t, next)
			prepared, commit := inTwo(again[0], 20)
			write(t, next, append(prepared, commit, again[1]))
			p.same(t)
			if got := p.traces(t); got != "0|0" {
				t.Errorf("%s at the end", got)
			}
			if err := next.Close(); err != nil {
				t.Error(err)
			}
			reopen(t, s)
		})
	}
}

// TestPreparedByHand has somebody roll back what was prepared.
func TestPreparedByHand(t *testing.T) {
	p := newPrepared(t)
	s := p.open(t)
	txns := p.change(t, "INSERT INTO a VALUES (1)")
	prepared, commit := inTwo(txns[0], 20)
	write(t, s, prepared)
	if _, err := s.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.dst.SQL(t, "ROLLBACK PREPARED '"+p.gid(t, txns[0].XID)+"'")
	err := tryWrite(t, s, []*millrace.Txn{commit})
	if millrace.KindOf(err) != millrace.KindData || !strings.Contains(err.Error(), p.gid(t, txns[0].XID)) || !strings.Contains(millrace.HintOf(err), "--restart-snapshot") {
		t.Errorf("%v; hint: %s", err, millrace.HintOf(err))
	}
}

// TestPreparedIsFenced has a former instance try to prepare.
func TestPreparedIsFenced(t *testing.T) {
	p := newPrepared(t)
	s := p.open(t)
	p.dst.SQL(t, "UPDATE millrace.job_state SET epoch = epoch + 1") // its backends are those of another role, and live
	txns := p.change(t, "INSERT INTO a VALUES (1)")
	prepared, _ := inTwo(txns[0], 20)
	write(t, s, prepared)
	_, err := s.Drain(t.Context())
	if millrace.KindOf(err) != millrace.KindRetry || !errors.Is(err, record.ErrFenced) {
		t.Errorf("got %v", err)
	}
	if got := p.traces(t); got != "0|0" {
		t.Errorf("%s", got)
	}
}

// TestNamesOfPrepared tells jobs apart whose names begin alike.
func TestNamesOfPrepared(t *testing.T) {
	pg := rig.Start(t, rig.Newest)
	db := pg.NewDB(t)
	db.SQL(t, "CREATE TABLE t (v int)")
	for _, gid := range []string{"millrace_a_1_2_3", "millrace_a_1_1_2_3", "millrace_a_2_4_3", "millrace_ab_1_2_3", "millrace_a_x_2_3", "other"} {
		db.SQL(t, "BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION '"+gid+"'")
	}
	conn := dial(t, db.URL())
	for _, c := range []struct {
		job  string
		keep int64
		want string
	}{{"a", 0, "[millrace_a_1_2_3 millrace_a_2_4_3]"}, {"a", 1, "[millrace_a_2_4_3]"}, {"a_1", 0, "[millrace_a_1_1_2_3]"}, {"b", 0, "[]"}} {
		got, err := record.PreparedNames(t.Context(), conn, c.job, c.keep)
		if err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("job %s but generation %d: %v, %v; want %s", c.job, c.keep, got, err, c.want)
		}
	}
	for _, job := range []string{"a", "a_1", "ab"} {
		if _, err := record.RollbackPrepared(t.Context(), conn, job, 0); err != nil {
			t.Fatal(err)
		}
	}
	db.SQL(t, "ROLLBACK PREPARED 'other'")
	db.SQL(t, "ROLLBACK PREPARED 'millrace_a_x_2_3'")
}
