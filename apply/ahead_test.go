package apply

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/session"
)

// TestAheadOnAnotherServer: while a target fails over, new connections can reach another
// server than those that live on. What was committed there would be out of order.
func TestAheadOnAnotherServer(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY)")
	var url atomic.Pointer[string]
	here, there := p.dst.URL(), rig.Shared(t, 17).NewDB(t).URL()
	url.Store(&here)
	p.opt.Endpoint = &session.Endpoint{Peer: millrace.PeerDestination, Conn: func() (string, error) { return *url.Load(), nil }, Job: "shop"}
	s := p.open(t)
	url.Store(&there)
	if _, err := s.Ahead(t.Context(), 7); err == nil || !strings.Contains(err.Error(), "has reached another server") {
		t.Errorf("got %v", err)
	}
	url.Store(&here)
	a, err := s.Ahead(t.Context(), 7)
	if err != nil {
		t.Fatal(err)
	}
	a.Drop()
}

// TestAheadWithoutConnection: where no further session is to be had, it is none of the
// stream's business.
func TestAheadWithoutConnection(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY)")
	role := "few_" + p.dst.Name
	p.dst.SQL(t, "CREATE ROLE "+role+" LOGIN CONNECTION LIMIT 3; GRANT ALL ON a TO "+role+"; GRANT ALL ON SCHEMA millrace TO "+role+
		"; GRANT ALL ON ALL TABLES IN SCHEMA millrace TO "+role)
	t.Cleanup(func() { p.dst.SQL(t, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	p.opt.Endpoint = sessionOf(strings.Replace(p.dst.URL(), "postgres@", role+"@", 1))
	s := p.open(t)
	write(t, s, p.change(t, "INSERT INTO a VALUES (1)")) // that writes, makes durable and describes on three
	if _, err := s.Ahead(t.Context(), 7); session.SQLState(err) != "53300" {
		t.Errorf("got %v", err)
	}
	write(t, s, p.change(t, "INSERT INTO a VALUES (2)"))
	p.same(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestAheadLosesItsBackend between the last answer and the commit: the transaction comes
// again, and goes the usual way then. That of others is not.
func TestAheadLosesItsBackend(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY)")
	s := p.open(t)
	// until gives the commit of a transaction whose changes are all applied.
	until := func(txn *millrace.Txn) *millrace.Txn {
		t.Helper()
		a, err := s.Ahead(t.Context(), txn.XID)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.Write(t.Context(), clone([]*millrace.Txn{txn})[0], 0), a.Flush(t.Context()), a.Ready(t.Context(), 0)); err != nil {
			t.Fatal(err)
		}
		return &millrace.Txn{XID: txn.XID, Commit: txn.Commit, End: txn.End, Time: txn.Time, Last: true, Phase: millrace.AppliedAhead}
	}
	first := p.change(t, "INSERT INTO a SELECT generate_series(1, 1000)")
	write(t, s, []*millrace.Txn{until(first[0])})
	p.same(t)
	second := p.change(t, "INSERT INTO a SELECT generate_series(2001, 3000)")
	commit := until(second[0])
	p.dst.SQL(t, `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
		WHERE application_name = 'millrace:shop:apply' AND state = 'idle in transaction' AND datname = current_database()`)
	if err := tryWrite(t, s, []*millrace.Txn{commit}); millrace.KindOf(err) != millrace.KindRetry {
		t.Errorf("got %v", err)
	}
	if cp := reopen(t, s); cp.Commit != first[0].Commit {
		t.Errorf("the checkpoint is at %v, want %v", cp.Commit, first[0].Commit)
	}
	if _, err := s.Ahead(t.Context(), second[0].XID); !errors.Is(err, errAheadFailed) {
		t.Fatalf("it is tried again: %v", err)
	}
	write(t, s, second)
	third := p.change(t, "DELETE FROM a WHERE id < 10")
	write(t, s, []*millrace.Txn{until(third[0])})
	p.same(t)
	if n := s.Stats().Ahead; n != 2 {
		t.Errorf("%d were committed so", n)
	}
}
