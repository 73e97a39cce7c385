package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/record"
)

func TestSmallTransactions(t *testing.T) {
	bothForms(t, func(t *testing.T, binary bool) {
		p := newPair(t, binary, `CREATE TABLE a (id int PRIMARY KEY, v text, n numeric(10,2), at timestamptz);
			CREATE TABLE b (x text, y bigint, z int[], PRIMARY KEY (y, x))`)
		s := p.open(t)
		write(t, s, p.change(t, `
			INSERT INTO a SELECT g, 'v' || g, g * 1.5, '2024-01-01'::timestamptz + g * interval '1 hour' FROM generate_series(1, 100) g;
			INSERT INTO b SELECT 'k' || g, g, ARRAY[g, NULL, 2] FROM generate_series(1, 50) g;
			UPDATE a SET v = E'quo"te\\d,\t{}()\n' WHERE id % 3 = 0;
			BEGIN; DELETE FROM a WHERE id % 10 = 0; INSERT INTO a VALUES (10, NULL, 'NaN', 'infinity'); UPDATE b SET z = '{{1,2},{3,4}}' WHERE y < 10; COMMIT;
			UPDATE a SET id = id + 1000 WHERE id < 6;
			DELETE FROM b WHERE y = 5;
		`))
		p.same(t)
		st := s.Stats()
		if st.Transactions != 6 || st.FallbackTransactions != 0 || st.RowRows != 0 {
			t.Errorf("%+v", st)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		p.released(t)
	})
}

func TestRedelivery(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE keyless (v int)")
	s := p.open(t)
	txns := p.change(t, "INSERT INTO keyless VALUES (1); INSERT INTO keyless VALUES (2); INSERT INTO keyless SELECT generate_series(3, 20)")
	again, third := clone(txns), clone(txns)
	write(t, s, txns)
	cp := reopen(t, s)
	write(t, s, again[len(again)-1:])
	last := again[len(again)-1]
	if cp.Commit != last.Commit || cp.End != last.End || cp.Acked != last.End || cp.LastXID != last.XID || cp.LastTime != last.Time.UnixMicro() {
		t.Errorf("checkpoint %+v after %+v", cp, last)
	}
	write(t, s, append(third, p.change(t, "INSERT INTO keyless VALUES (100)")...))
	p.same(t)
}

func TestGroupOfOne(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY, v int)")
	p.opt.Group = 1
	s := p.open(t)
	var sql strings.Builder
	for i := range 50 {
		fmt.Fprintf(&sql, "INSERT INTO a VALUES (%d, 0);", i)
	}
	txns := p.change(t, sql.String())
	write(t, s, txns)
	if n := p.dst.Query(t, "SELECT count(DISTINCT xmin::text) FROM a"); n != "50" {
		t.Errorf("%s transactions of the target for 50 of the source", n)
	}
	if st := s.Stats(); st.Groups != 50 {
		t.Errorf("%+v", st)
	}
}

// TestFencedWhileStalled is the scenario of two instances of which one stalls
// inside its target transaction.
func TestFencedWhileStalled(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE log (v int); CREATE TABLE gate (id int PRIMARY KEY, v int); INSERT INTO gate VALUES (1, 0)")
	a := p.open(t)
	holder := p.dst.Server.URL(p.dst.Name)
	lock := dial(t, holder)
	exec(t, lock, "BEGIN; SELECT * FROM gate FOR UPDATE")
	txns := p.change(t, "BEGIN; INSERT INTO log VALUES (1); UPDATE gate SET v = 1; COMMIT; INSERT INTO log VALUES (2)")
	again := clone(txns)
	failed := make(chan error, 1)
	go func() { failed <- tryWrite(t, a, txns) }()
	rig.Eventually(t, patience, func() bool {
		return p.dst.Query(t, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'millrace:shop:apply' AND wait_event_type = 'Lock'") == "1"
	}, "the first instance does not wait for the lock")
	b := p.open(t)
	if err := <-failed; millrace.KindOf(err) != millrace.KindRetry {
		t.Errorf("the first instance ended with %v", err)
	}
	exec(t, lock, "ROLLBACK")
	write(t, b, again)
	p.same(t)
}

// TestFencedByEpoch has a first instance whose backends the second may not end.
func TestFencedByEpoch(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE log (v int)")
	p.dst.SQL(t, "DO $$ BEGIN CREATE ROLE other LOGIN SUPERUSER; EXCEPTION WHEN duplicate_object THEN END $$")
	mine := p.opt.Endpoint
	p.opt.Endpoint = sessionOf(strings.Replace(p.dst.URL(), "postgres@", "other@", 1))
	a := p.open(t)
	p.opt.Endpoint = mine
	b := p.open(t)
	txns := p.change(t, "INSERT INTO log VALUES (1)")
	again := clone(txns)
	err := tryWrite(t, a, txns)
	if !errors.Is(err, record.ErrFenced) || millrace.KindOf(err) != millrace.KindRetry {
		t.Errorf("the first instance ended with %v", err)
	}
	write(t, b, again)
	p.same(t)
}

// TestCutAnywhere cuts the connections at many places, COMMIT among them, and
// goes on from the checkpoint. Rows of a table without a key would show what is
// applied twice.
func TestCutAnywhere(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE log (v int, w text); CREATE TABLE a (id int PRIMARY KEY, v int)")
	proxy := rig.NewProxy(t, p.dst.Server)
	p.opt.Endpoint = sessionOf(proxy.URL(p.dst.Name))
	s := New(p.opt)
	defer func() { _ = s.Close() }()
	var txns []*millrace.Txn
	n := 0
	for cut := int64(0); cut < 6000; cut += 97 {
		n++
		txns = append(txns, p.change(t, fmt.Sprintf("INSERT INTO log VALUES (%d, 'x'); INSERT INTO a VALUES (%[1]d, 0); "+
			"BEGIN; UPDATE a SET v = v + 1; INSERT INTO log VALUES (-%[1]d, 'y'); COMMIT", n))...)
		proxy.CutAfter(cut)
		for try := 0; ; try++ {
			if try > 3 {
				t.Fatal("no way through")
			}
			err := attempt(t, s, clone(txns))
			proxy.CutAfter(-1)
			if err == nil {
				break
			}
			if millrace.KindOf(err) != millrace.KindRetry {
				t.Fatalf("cut after %d bytes: %v", cut, err)
			}
		}
		txns = txns[max(0, len(txns)-10):]
	}
	p.same(t)
}

func attempt(t *testing.T, s *Sink, txns []*millrace.Txn) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := s.Open(ctx); err != nil {
		return err
	}
	if _, err := s.Claim(ctx); err != nil {
		return err
	}
	return tryWrite(t, s, txns)
}

func TestIdlePositions(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY)")
	s := p.open(t)
	txns := p.change(t, "INSERT INTO a VALUES (1)")
	end := txns[0].End
	write(t, s, txns)
	acked := func() string {
		return p.dst.Query(t, "SELECT acked_lsn || ' ' || committed_lsn || ' ' || (SELECT count(*) FROM millrace.progress) FROM millrace.job")
	}
	write(t, s, []*millrace.Txn{{End: end + 100, Last: true, Urgent: true}})
	if got, want := acked(), fmt.Sprintf("%s %s 3", end+100, end); got != want {
		t.Errorf("an urgent position: %s, want %s", got, want)
	}
	for i := range 10 { // not urgent: remembered
		if err := s.Write(t.Context(), &millrace.Txn{End: end + millrace.LSN(200+i), Last: true}); err != nil {
			t.Fatal(err)
		}
	}
	s.Flush()
	if got, want := acked(), fmt.Sprintf("%s %s 3", end+100, end); got != want {
		t.Errorf("a position that nobody waits for: %s, want %s", got, want)
	}
	// A transaction takes what is remembered along only if it lies before it.
	txns = p.change(t, "INSERT INTO a VALUES (2)")
	write(t, s, txns)
	if got, want := acked(), fmt.Sprintf("%[1]s %[1]s 4", txns[0].End); got != want {
		t.Errorf("after a transaction: %s, want %s", got, want)
	}
	last := txns[0].End + 500
	if err := s.Write(t.Context(), &millrace.Txn{End: last, Last: true}); err != nil {
		t.Fatal(err)
	}
	if at, err := s.Drain(t.Context()); err != nil || at != last {
		t.Errorf("drained to %s, %v; want %s", at, err, last)
	}
	if at, err := s.Visible(t.Context(), last-1); err != nil || at != last {
		t.Errorf("visible %s, %v", at, err)
	}
	cp := reopen(t, s)
	if cp.Acked != last || cp.End != txns[0].End {
		t.Errorf("%+v", cp)
	}
}

func TestDrain(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY)")
	s := p.open(t)
	txns := p.change(t, "INSERT INTO a VALUES (1); INSERT INTO a SELECT generate_series(2, 100)")
	parts := split(txns[1], 10)
	if err := s.Write(t.Context(), txns[0]); err != nil {
		t.Fatal(err)
	}
	for _, part := range parts[:5] {
		if err := s.Write(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	at, err := s.Drain(t.Context())
	if err != nil || at != txns[0].End {
		t.Errorf("drained to %s, %v; want %s", at, err, txns[0].End)
	}
	if n := p.dst.Query(t, "SELECT count(*) FROM a"); n != "1" {
		t.Errorf("%s rows", n)
	}
	if n := p.dst.Query(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"); n != "0" {
		t.Errorf("a transaction of the target is open after Drain")
	}
	for _, part := range parts[5:] {
		part.Release()
	}
}

// TestStopWhileBlocked: a Write that gives up because of its context leaves what
// came before it to Drain, and nothing can come behind the gap.
func TestStopWhileBlocked(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY)")
	p.opt.Group = 1
	s := p.open(t)
	write(t, s, p.change(t, "INSERT INTO a VALUES (0)")) // the table is known
	txns := p.change(t, "INSERT INTO a VALUES (1); INSERT INTO a VALUES (2); INSERT INTO a VALUES (3); INSERT INTO a VALUES (4)")
	lock := dial(t, p.dst.URL())
	exec(t, lock, "BEGIN; LOCK TABLE a IN SHARE MODE")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	written := 0
	for _, txn := range txns {
		if written == 2 { // one is executed, one is held: the next must wait
			time.AfterFunc(50*time.Millisecond, cancel)
		}
		if err := s.Write(ctx, txn); err != nil {
			break
		}
		written++
	}
	if written != 2 {
		t.Fatalf("%d transactions were taken", written)
	}
	if err := s.Write(t.Context(), txns[3]); millrace.KindOf(err) != millrace.KindRetry {
		t.Errorf("behind the gap: %v", err)
	}
	exec(t, lock, "ROLLBACK")
	if at, err := s.Drain(t.Context()); err != nil || at != txns[1].End {
		t.Errorf("drained to %s, %v; want %s", at, err, txns[1].End)
	}
	if n := p.dst.Query(t, "SELECT count(*) FROM a"); n != "3" {
		t.Errorf("%s rows", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	p.released(t)
}

// TestCrashOfTheTarget loses what was visible and not durable, and nothing that
// was reported as durable.
func TestCrashOfTheTarget(t *testing.T) {
	dst := rig.Start(t, rig.Newest, "fsync=on", "wal_writer_delay=10s", "wal_writer_flush_after=1GB")
	p := newPairOn(t, dst, true, "CREATE TABLE log (v int)")
	s := p.open(t)
	var all []*millrace.Txn
	for i := range 20 {
		txns := p.change(t, fmt.Sprintf("INSERT INTO log VALUES (%d)", i))
		all = append(all, clone(txns)...)
		write(t, s, txns)
	}
	durable := all[len(all)-1].End
	dst.Crash(t)
	dst.Restart(t)
	cp := reopen(t, s)
	if cp.Acked < durable {
		t.Errorf("the checkpoint went back to %s, %s was durable", cp.Acked, durable)
	}
	write(t, s, append(clone(all), p.change(t, "INSERT INTO log VALUES (100)")...))
	p.same(t)
}

func TestWrongHistory(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY)")
	s := p.open(t)
	txns := p.change(t, "INSERT INTO a VALUES (1)")
	txns[0].From = &millrace.History{System: p.system, Timeline: 1, Generation: 2}
	if err := tryWrite(t, s, txns); millrace.KindOf(err) != millrace.KindResync {
		t.Errorf("another generation: %v", err)
	}
	txns = p.change(t, "INSERT INTO a VALUES (2)")
	txns[0].From = &millrace.History{System: p.system, Timeline: 3, Generation: 1}
	write(t, s, txns)
	if cp := reopen(t, s); cp.Timeline != 3 {
		t.Errorf("%+v", cp)
	}
}

func TestNeedText(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY, v regclass)")
	s := p.open(t)
	err := tryWrite(t, s, p.change(t, "INSERT INTO a VALUES (1, 'a')"))
	if !errors.Is(err, millrace.ErrNeedText) {
		t.Error(err)
	}
}

// TestTinyBudget has every batch be over its share at once.
func TestTinyBudget(t *testing.T) {
	bothForms(t, func(t *testing.T, binary bool) {
		p := newPair(t, binary, "CREATE TABLE a (id int PRIMARY KEY, v text)")
		p.opt.MaxHeld, p.opt.MaxBatchBytes, p.opt.MaxBatchRows = 1, 1, 1
		s := p.open(t)
		txns := p.change(t, "INSERT INTO a SELECT g, repeat('x', 100000) FROM generate_series(1, 20) g; INSERT INTO a VALUES (21, repeat('y', 16000000)); UPDATE a SET v = 'z' WHERE id < 5")
		var parts []*millrace.Txn
		for _, txn := range txns {
			parts = append(parts, split(txn, 3)...)
		}
		write(t, s, parts)
		p.same(t)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		p.released(t)
	})
}

// TestSynchronousStandby: nothing is durable while the standby that the target
// waits for is away.
func TestSynchronousStandby(t *testing.T) {
	dst := rig.Start(t, rig.Newest)
	p := newPairOn(t, dst, true, "CREATE TABLE a (id int PRIMARY KEY)")
	s := p.open(t)
	write(t, s, p.change(t, "INSERT INTO a VALUES (1)"))
	release := awaitNobody(t, p.dst)
	txns := p.change(t, "INSERT INTO a VALUES (2)")
	end := txns[0].End
	if err := s.Write(t.Context(), txns[0]); err != nil {
		t.Fatal(err)
	}
	s.Flush()
	if at, err := s.Visible(t.Context(), end-1); err != nil || at != end {
		t.Fatalf("visible %s, %v", at, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if at, err := s.Durable(ctx, end-1); err == nil {
		t.Errorf("durable up to %s without the standby", at)
	}
	release()
	if at, err := s.Durable(t.Context(), end-1); err != nil || at != end {
		t.Errorf("durable %s, %v", at, err)
	}
}

// awaitNobody has all commits of a server wait for a standby that is not there. The
// setting comes into force some time after it was read; it has once a commit waits.
func awaitNobody(t *testing.T, db *rig.DB) (release func()) {
	t.Helper()
	db.SQL(t, "CREATE TABLE probe (n int)")
	db.Server.Configure(t, "synchronous_standby_names=nobody")
	db.Server.Reload(t)
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			default:
			}
			if _, err := db.Server.TryQuery(db.Name, "INSERT INTO probe VALUES (1)"); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	release = sync.OnceFunc(func() {
		close(over)
		db.Server.Configure(t, "synchronous_standby_names=")
		db.Server.Reload(t)
		<-ended
	})
	t.Cleanup(release)
	rig.Eventually(t, time.Minute, func() bool {
		return db.Query(t, "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "t"
	}, "a commit waits for the standby")
	return release
}
