package replication_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/pgoutput"
	"github.com/millrace/millrace/replication"
)

// versions are those that can be a source.
var versions = []int{15, 16, 17, 18}

func options(slot string) replication.Options {
	return replication.Options{Slot: slot, Publications: []string{"everything"}, Binary: true, MaxMessage: 16 << 20, BufferSize: 256 << 10}
}

func TestSlotWithSnapshot(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		db := pg.NewDB(t)
		db.SQL(t, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
		c := connect(t, db)
		defer ended(t, c)
		sys, err := c.IdentifySystem(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := db.Query(t, "SELECT system_identifier FROM pg_control_system()"); sys.ID != want || sys.Timeline != 1 || sys.Database != db.Name || sys.Flushed == 0 {
			t.Errorf("got %+v, want system %s", sys, want)
		}
		slot, err := c.CreateSlot(t.Context(), db.Name, false)
		if err != nil {
			t.Fatal(err)
		}
		db.SQL(t, "INSERT INTO t VALUES (2)")
		seen := db.Script(t, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '"+slot.Snapshot+"'; SELECT count(*) FROM t; COMMIT")
		if got := lastLine(seen, 1); got != "1" {
			t.Errorf("the snapshot shows %q rows, want 1", got)
		}
		if want := db.Query(t, "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '"+db.Name+"'"); slot.ConsistentPoint.String() != want || slot.Name != db.Name {
			t.Errorf("got %+v, want consistent point %s", slot, want)
		}
		if err := c.DropSlot(t.Context(), db.Name, true); err != nil {
			t.Error(err)
		}
		if n := db.Query(t, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '"+db.Name+"'"); n != "0" {
			t.Error("the slot is still there")
		}
		var pgErr *pgconn.PgError
		if err := c.DropSlot(t.Context(), db.Name, false); !errors.As(err, &pgErr) || pgErr.Code != "42704" {
			t.Errorf("dropping it again: %v", err)
		}
	}, versions...)
}

// lastLine gives the n-th line from the end of psql's output; COMMIT is 0.
func lastLine(out string, n int) string {
	var lines []string
	line := ""
	for _, c := range out {
		if c == '\n' {
			lines = append(lines, line)
			line = ""
			continue
		}
		line += string(c)
	}
	if len(lines) <= n {
		return ""
	}
	return lines[len(lines)-1-n]
}

func TestTimelineHistory(t *testing.T) {
	primary := rig.Start(t, 18)
	standby := rig.Standby(t, primary)
	standby.Promote(t)
	db := &rig.DB{Server: standby, Name: "postgres"}
	c := connect(t, db)
	defer ended(t, c)
	sys, err := c.IdentifySystem(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	history, err := c.TimelineHistory(t.Context(), sys.Timeline)
	if err != nil {
		t.Fatal(err)
	}
	if sys.Timeline != 2 || len(history) != 1 || history[0].Timeline != 1 || history[0].End == 0 || history[0].End > sys.Flushed {
		t.Errorf("%+v with history %+v", sys, history)
	}
	if h, err := c.TimelineHistory(t.Context(), 1); err != nil || h != nil {
		t.Errorf("of timeline 1: %v, %v", h, err)
	}
}

// streamed creates a slot and n transactions of one row after it.
func streamed(t testing.TB, pg *rig.Postgres, n int) *rig.DB {
	t.Helper()
	db := pg.NewDB(t)
	db.SQL(t, "CREATE TABLE t (id int PRIMARY KEY, filler text); CREATE PUBLICATION everything FOR ALL TABLES")
	db.SQL(t, "SELECT pg_create_logical_replication_slot('"+db.Name+"', 'pgoutput')")
	db.Script(t, fmt.Sprintf("DO $$ BEGIN FOR i IN 1..%d LOOP INSERT INTO t VALUES (i, repeat('x', 500)); COMMIT; END LOOP; END $$", n))
	return db
}

// commits receives until n commits have come and gives the end of the last.
func commits(t testing.TB, s *replication.Stream, n int) millrace.LSN {
	t.Helper()
	var last millrace.LSN
	for n > 0 {
		m, err := s.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if pgoutput.TagOf(m.Data) != pgoutput.TagCommit {
			continue
		}
		c, err := pgoutput.ParseCommit(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		last = c.End
		n--
	}
	return last
}

func confirmed(t testing.TB, db *rig.DB) string {
	t.Helper()
	return db.Query(t, "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '"+db.Name+"'")
}

// TestAckMovesTheSlot covers also that nothing else does, that closing gives
// the slot back at once, and that the last Ack is not lost by closing with much
// still unread.
func TestAckMovesTheSlot(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		db := streamed(t, pg, 20000)
		before := confirmed(t, db)
		s := startStream(t, db, options(db.Name))
		if pid := db.Query(t, "SELECT active_pid FROM pg_replication_slots WHERE slot_name = '"+db.Name+"'"); pid != fmt.Sprint(s.PID) {
			t.Errorf("the slot is active for %s, our walsender is %d", pid, s.PID)
		}
		end := commits(t, s, 10)
		rig.Linger(t, 300*time.Millisecond, "some reports are sent")
		if got := confirmed(t, db); got != before {
			t.Errorf("the slot moved from %s to %s without an Ack", before, got)
		}
		s.Ack(end)
		s.Interrupt()
		if _, err := s.Receive(); !errors.Is(err, replication.ErrInterrupted) {
			t.Error(err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if got := db.Query(t, "SELECT active, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '"+db.Name+"'"); got != "f|"+end.String() {
			t.Errorf("after Close the slot is %s, want f|%v", got, end)
		}
	}, versions...)
}

func TestBusySlot(t *testing.T) {
	db := streamed(t, rig.Shared(t, 18), 1)
	s := startStream(t, db, options(db.Name))
	defer ended(t, s)
	_, err := connect(t, db).Start(t.Context(), options(db.Name))
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "55006" {
		t.Errorf("got %v", err)
	}
}

// TestSlowConsumer blocks three times as long as wal_sender_timeout, with a
// stream that is full, and then goes on.
func TestSlowConsumer(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		t.Parallel()
		db := streamed(t, pg, 100000)
		db.SQL(t, "ALTER ROLE CURRENT_USER IN DATABASE "+db.Name+" SET wal_sender_timeout = '4s'")
		s := startStream(t, db, options(db.Name))
		defer ended(t, s)
		commits(t, s, 10)
		rig.Linger(t, 12*time.Second, "three times wal_sender_timeout")
		commits(t, s, 100000-10)
	}, versions...)
}

func TestServerAnswersWithItsPosition(t *testing.T) {
	db := streamed(t, rig.Shared(t, 18), 1)
	s := startStream(t, db, options(db.Name))
	defer ended(t, s)
	end := commits(t, s, 1)
	db.SQL(t, "CREATE TABLE unpublished_work AS SELECT 1") // moves the log, publishes nothing
	want, err := millrace.ParseLSN(db.Query(t, "SELECT pg_current_wal_flush_lsn()"))
	if err != nil {
		t.Fatal(err)
	}
	for got := end; got < want; {
		s.RequestPosition()
		m, err := s.Receive()
		if err != nil {
			t.Fatal(err)
		}
		got = max(got, m.Position)
	}
}

func TestServerShutsDown(t *testing.T) {
	pg := rig.Start(t, 18)
	db := streamed(t, pg, 1)
	s := startStream(t, db, options(db.Name))
	end := commits(t, s, 1)
	s.Ack(end)
	done := make(chan error, 1)
	go func() {
		for {
			m, err := s.Receive()
			if err != nil {
				done <- err
				return
			}
			s.Ack(m.Position)
		}
	}()
	pg.Stop(t)
	select {
	case err := <-done:
		t.Log(err)
	case <-time.After(30 * time.Second):
		t.Fatal("Receive did not end")
	}
	_ = s.Close(t.Context()) // there is nobody to say goodbye to
}

// ended closes a stream or a connection at the end of a test.
func ended(t testing.TB, c interface{ Close(context.Context) error }) {
	t.Helper()
	if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Errorf("close: %v", err)
	}
}

// TestAckAheadOfTheServer: what a destination holds may be far ahead of where the
// server begins to read its log anew. Told of it at once, the slot would let go of the
// log that its own walsender is still to read.
func TestAckAheadOfTheServer(t *testing.T) {
	pg := rig.Start(t, 18, "min_wal_size=32MB", "max_wal_size=32MB", "autovacuum=off")
	db := streamed(t, pg, 0)
	db.SQL(t, "INSERT INTO t SELECT g, repeat(md5(g::text), 30) FROM generate_series(1, 60000) g") // 4 segments
	db.SQL(t, "INSERT INTO t VALUES (0)")
	db.SQL(t, "SELECT pg_switch_wal(); SELECT pg_log_standby_snapshot(); INSERT INTO t VALUES (-1); SELECT pg_log_standby_snapshot()")
	db.SQL(t, "INSERT INTO t VALUES (-2)")
	s := startStream(t, db, options(db.Name))
	last := commits(t, s, 4) // all of it was read once, and nothing acknowledged
	ended(t, s)

	s = startStream(t, db, options(db.Name))
	defer func() { _ = s.Close(context.Background()) }()
	s.Ack(last)
	rig.Linger(t, 500*time.Millisecond, "it is reported, if it is")
	db.SQL(t, "SELECT pg_switch_wal()")
	db.SQL(t, "CHECKPOINT")
	db.SQL(t, "CHECKPOINT")
	if got := commits(t, s, 4); got != last {
		t.Errorf("the last commit ends at %v, not %v", got, last)
	}
	rig.Eventually(t, 20*time.Second, func() bool {
		if _, err := s.Receive(); err != nil {
			t.Fatal(err)
		}
		return confirmed(t, db) == last.String()
	}, "the slot is at "+last.String())
}
