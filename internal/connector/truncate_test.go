package connector

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/rig"
)

// TestTruncate: the protocol has no word for it. One that came before the first sync
// takes back what the sync has written before it; one that comes later ends a sync,
// which goes on once the platform has cleared the stream.
func TestTruncate(t *testing.T) {
	t.Parallel()
	p := shopWithSlot(t, config{"state_type": "stream"})
	p.source.SQL(t, "INSERT INTO orders SELECT g, 'x', 1 FROM generate_series(2000, 2100) g")
	p.source.SQL(t, "UPDATE orders SET id = id + 1000 WHERE id = 2001; DELETE FROM orders WHERE id = 2002")
	p.source.SQL(t, "TRUNCATE orders")
	p.source.SQL(t, "INSERT INTO orders VALUES (1, 'first'), (2000, 'again')")
	r := p.reader()
	r.take(p.sync(t))
	if n := len(r.rows["orders"]); n != 2 {
		t.Errorf("%d orders, want 2", n)
	}
	p.equals(t, r)

	p.source.SQL(t, "INSERT INTO orders VALUES (3, 'ghost'); TRUNCATE orders; INSERT INTO orders VALUES (4, 'left')")
	messages, code := p.run(t, "read", p.readArgs(t)...)
	if got := failure(messages); code != 1 || !strings.HasPrefix(got, "config_error") || !strings.Contains(got, "public.orders") || !strings.Contains(got, "was truncated") || strings.Contains(got, "millrace ") {
		t.Fatalf("exit code %d, %s", code, got)
	}
	delete(p.states, "orders") // as the hint says
	r.rows["orders"], r.cursor["orders"] = map[string]string{}, map[string]int64{}
	r.take(p.sync(t))
	p.equals(t, r)
}

// TestTruncateWhileLoading: a TRUNCATE of a table whose rows are still to be read
// does not leave at the platform what came early of it.
func TestTruncateWhileLoading(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, rig.Start(t, rig.Newest), shop)
	p.config["mode"] = "continuous"
	p.makeSlot(t)
	p.discover(t)
	// While it is open no snapshot is known to see all of what the slot lies behind.
	open, err := pgx.Connect(t.Context(), p.source.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close(t.Context())
	if _, err := open.Exec(t.Context(), "BEGIN; SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	p.source.SQL(t, "INSERT INTO orders VALUES (3000, 'early', 1)")
	l := p.start(t)
	r := p.reader()
	for !r.has("orders", 3000) {
		m, ok := l.next(t)
		if !ok {
			t.Fatal("the connector ended")
		}
		r.take([]message{m})
	}
	if len(r.rows["orders"]) != 1 {
		t.Fatalf("%d orders, want the one that came early", len(r.rows["orders"]))
	}
	p.source.SQL(t, "TRUNCATE orders")
	if _, err := open.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	var all []message
	for {
		m, ok := l.next(t)
		if !ok {
			break
		}
		all = append(all, m)
	}
	if got := failure(all); !strings.Contains(got, "was truncated") {
		t.Errorf("it ended with %s", got)
	}
}
