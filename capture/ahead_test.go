package capture_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/capture"
	"github.com/millrace/millrace/internal/rig"
)

// eager is a destination that takes transactions ahead of their commit, and keeps
// nothing of them but what it was asked for.
type eager struct {
	mu                        sync.Mutex
	begun, dropped, savepoint int
	refuse                    bool // holds a transaction up before it has begun
}

func (e *eager) options(o *capture.Options) {
	o.Ahead = func(ctx context.Context, _ uint32) (millrace.Ahead, error) {
		e.mu.Lock()
		e.begun++
		refuse := e.refuse
		e.mu.Unlock()
		if refuse {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return e, nil
	}
}

func (e *eager) count(n *int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return *n
}

func (e *eager) add(n *int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	*n++
	return nil
}

func (e *eager) Write(_ context.Context, t *millrace.Txn, _ millrace.LSN) error {
	t.Release()
	return nil
}
func (e *eager) Flush(context.Context) error               { return nil }
func (e *eager) Savepoint(context.Context, uint32) error   { return e.add(&e.savepoint) }
func (e *eager) RollBack(context.Context, uint32) error    { return nil }
func (e *eager) Ready(context.Context, millrace.LSN) error { return nil }
func (e *eager) Drop()                                     { _ = e.add(&e.dropped) }

// aheadOf is a source that streams, with an open transaction on a connection of its own.
func aheadOf(t *testing.T, e *eager, more ...func(*capture.Options)) (s *source, exec func(string), marker func()) {
	t.Helper()
	db := rig.Shared(t, rig.Newest).NewDB(t)
	sendEarly(t, db)
	s = prepare(t, db, twoAlike, append(more, early(t), e.options)...)
	s.UseText()
	conn := dial(t, db)
	t.Cleanup(func() { conn.Close(context.Background()) })
	exec = func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	return s, exec, func() { // has the source send what is open
		n++
		db.SQL(t, fmt.Sprintf("INSERT INTO u VALUES (%d)", 1_000_000+n))
	}
}

func rows(from, n int) string {
	return fmt.Sprintf("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(%d, %d) i; ", from, from+n-1)
}

// TestAheadIsGivenUpAtRest: nothing is held on the destination for a source whose
// transaction is left open. It comes whole at its commit.
func TestAheadIsGivenUpAtRest(t *testing.T) {
	e := &eager{}
	s, exec, marker := aheadOf(t, e, func(o *capture.Options) { o.AheadIdle = 100 * time.Millisecond })
	s.start(t)
	exec("BEGIN; " + rows(1, 20_000))
	marker()
	rig.Eventually(t, time.Minute, func() bool { return e.count(&e.dropped) == 1 }, "it is given up")
	exec("COMMIT")
	r := newReplica()
	s.follow(t, r, s.insertPosition(t))
	r.equal(t, s.db)
	if n := e.count(&e.begun); n != 1 {
		t.Errorf("tried %d times", n)
	}
}

// TestAheadRests: sessions that end while one is applied ahead may end because of it,
// and are not the way of a whole run.
func TestAheadRests(t *testing.T) {
	noLeaks(t)
	e := &eager{}
	s, exec, marker := aheadOf(t, e)
	r := newReplica()
	exec("BEGIN; " + rows(1, 20_000))
	const most = 3
	for n := 1; n <= most; n++ {
		s.start(t)
		marker()
		rig.Eventually(t, time.Minute, func() bool { return e.count(&e.begun) == n && e.count(&e.dropped) == n-1 }, "it is applied ahead")
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	s.start(t)
	exec(rows(50_001, 20_000) + "COMMIT")
	s.follow(t, r, s.insertPosition(t))
	r.equal(t, s.db)
	if n := e.count(&e.begun); n != most {
		t.Errorf("tried %d times", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestAheadIsNotWaitedFor: one that the destination has not begun with when the commit
// comes is played back.
func TestAheadIsNotWaitedFor(t *testing.T) {
	e := &eager{refuse: true}
	s, exec, _ := aheadOf(t, e)
	s.start(t)
	exec("BEGIN; " + rows(1, 20_000) + "COMMIT")
	r := newReplica()
	s.follow(t, r, s.insertPosition(t))
	r.equal(t, s.db)
	if n := e.count(&e.begun); n != 1 {
		t.Errorf("tried %d times", n)
	}
}

// TestAheadOnlyWhatIsLarge: for a few rows no sessions are opened.
func TestAheadOnlyWhatIsLarge(t *testing.T) {
	e := &eager{}
	s, exec, _ := aheadOf(t, e)
	s.start(t)
	exec("BEGIN; " + rows(1, 1000) + "COMMIT")
	r := newReplica()
	s.follow(t, r, s.insertPosition(t))
	r.equal(t, s.db)
	if n, streamed := e.count(&e.begun), s.Stats().Streamed; n != 0 || streamed == 0 {
		t.Errorf("tried %d times, of %d that came in blocks", n, streamed)
	}
}

// TestAheadManySubtransactions: the destination's transaction has few of them; those
// that are rolled back do not count.
func TestAheadManySubtransactions(t *testing.T) {
	for _, c := range []struct{ kept, lost, ahead int }{{50, 15, 1}, {65, 0, 0}} {
		e := &eager{}
		s, exec, _ := aheadOf(t, e)
		s.start(t)
		exec("BEGIN; " + rows(1, 20_000))
		rig.Eventually(t, time.Minute, func() bool { return e.count(&e.begun) == 1 }, "it is applied ahead")
		for i := range c.kept + c.lost {
			if i < c.lost { // more than is gathered for one write of the spool
				exec("SAVEPOINT s; " + rows(100_000+i*5000, 3500) + "ROLLBACK TO s; RELEASE s")
			} else {
				exec("SAVEPOINT s; " + rows(100_000+i*5000, 10) + "RELEASE s")
			}
		}
		exec("COMMIT")
		txn := s.txn(t)
		if got := txn.Phase == millrace.AppliedAhead; got != (c.ahead == 1) {
			t.Errorf("%+v: applied ahead %t; %d savepoints, dropped %d times", c, got, e.count(&e.savepoint), e.count(&e.dropped))
		}
		txn.Release()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestAheadIsCounted: the commit says of each table what the transaction has, without
// what was rolled back.
func TestAheadIsCounted(t *testing.T) {
	e := &eager{}
	s, exec, _ := aheadOf(t, e)
	s.db.SQL(t, "INSERT INTO u SELECT i, 'v' FROM generate_series(1, 5000) i")
	s.start(t)
	s.follow(t, newReplica(), s.insertPosition(t))
	exec("BEGIN; " + rows(1, 20_000))
	exec("SAVEPOINT a; DELETE FROM t WHERE id > 15000; UPDATE u SET v = 'w' WHERE id <= 4000")
	exec("SAVEPOINT b; DELETE FROM u WHERE id <= 2500; RELEASE b; " + rows(30_001, 7000))
	rig.Eventually(t, time.Minute, func() bool { return e.count(&e.savepoint) >= 1 }, "a subtransaction is applied")
	exec("ROLLBACK TO a; RELEASE a; UPDATE u SET v = 'x' WHERE id <= 300; SAVEPOINT c; DELETE FROM u WHERE id > 4990; COMMIT")
	txn := s.txn(t)
	defer txn.Release()
	if txn.Phase != millrace.AppliedAhead || len(txn.Changes) != 0 {
		t.Fatalf("phase %d, %d changes; given up %d times", txn.Phase, len(txn.Changes), e.count(&e.dropped))
	}
	got := map[string][3]int64{}
	for _, c := range txn.Tally {
		if c.Bytes <= 0 {
			t.Errorf("%v: %d bytes", c.Rel.Name, c.Bytes)
		}
		got[c.Rel.Name.Name] = [3]int64{c.Inserts, c.Updates, c.Deletes}
	}
	if want := [][3]int64{{20_000, 0, 0}, {0, 300, 10}}; !slices.Equal([][3]int64{got["t"], got["u"]}, want) || len(got) != 2 {
		t.Errorf("inserts, updates, deletes: %v", got)
	}
}
