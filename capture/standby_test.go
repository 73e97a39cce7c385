package capture_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/millrace/millrace/capture"
	"github.com/millrace/millrace/internal/rig"
)

// onStandby makes the slot of a source on a standby.
func onStandby(t *testing.T, primary, standby *rig.Postgres) *source {
	t.Helper()
	p, db := &rig.DB{Server: primary, Name: "postgres"}, &rig.DB{Server: standby, Name: "postgres"}
	p.Script(t, twoTables+"; CREATE PUBLICATION everything FOR ALL TABLES")
	standby.AwaitReplay(t, primary)
	made := make(chan string, 1)
	go func() {
		point, err := standby.TryQuery("postgres", "SELECT lsn FROM pg_create_logical_replication_slot('postgres', 'pgoutput')")
		if err != nil {
			t.Error(err)
		}
		made <- point
	}()
	var point string
	rig.Eventually(t, time.Minute, func() bool {
		p.SQL(t, "SELECT pg_log_standby_snapshot()") // the slot waits for one
		select {
		case point = <-made:
			return true
		case <-time.After(100 * time.Millisecond):
			return false
		}
	}, "the slot on the standby")
	s := &source{db: db, cp: checkpoint(t, db, point), tables: set(t, db)}
	s.Source = capture.New(options(s))
	t.Cleanup(func() { _ = s.Close() }) // as a rule it was closed before
	return s
}

// TestInterruptedNext: whoever stops waiting, at whatever moment, gets the same
// transaction with the next call.
func TestInterruptedNext(t *testing.T) {
	noLeaks(t)
	primary, standby := rig.Pair(t, 18)
	s := onStandby(t, primary, standby)
	s.start(t)
	const n = 500
	primary.SQL(t, "postgres", "DO $$ BEGIN FOR i IN 1.."+strconv.Itoa(n)+" LOOP INSERT INTO t VALUES (i); COMMIT; END LOOP; END $$")
	interrupted := 0
	deadline := time.Now().Add(time.Minute)
	for want := 1; want <= n; {
		if time.Now().After(deadline) {
			t.Fatalf("transaction %d did not come", want)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(300))*time.Microsecond)
		txn, err := s.Next(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			interrupted++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if !txn.Idle() {
			if got := txn.Changes[0].New[0].Raw; int(got[2])<<8|int(got[3]) != want {
				t.Fatalf("row %x instead of %d", got, want)
			}
			want++
		}
		txn.Release()
	}
	if interrupted == 0 {
		t.Error("nothing was interrupted")
	}
	// With one in hand.
	primary.SQL(t, "postgres", "INSERT INTO u VALUES (1)")
	rig.Eventually(t, time.Minute, s.Queued, "it has come")
	ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
	defer cancel()
	if txn, err := s.Next(ctx); err == nil {
		txn.Release()
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if held := s.Stats().Held; held != 0 {
		t.Errorf("%d bytes are still held", held)
	}
}
