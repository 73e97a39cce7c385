package apply

import (
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
