package connector

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/rig"
)

const shop = `
CREATE TABLE orders (id int PRIMARY KEY, customer text NOT NULL, total numeric(12,2), note text, at timestamptz);
CREATE TABLE items (orders int, line int, what text, PRIMARY KEY (orders, line));
CREATE TABLE log (line text);
INSERT INTO orders SELECT g, 'c' || g, g * 1.25, NULL, '2024-02-29 12:34:56.789+02' FROM generate_series(1, 500) g;
INSERT INTO items SELECT g / 3, g % 3, 'x' FROM generate_series(3, 900) g;
INSERT INTO log VALUES ('one'), ('two');
`

// TestCheck: it finds what is missing, creates nothing, and succeeds once all is
// there.
func TestCheck(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, rig.Shared(t, rig.Newest), shop)
	messages, code := p.run(t, "check")
	last := messages[len(messages)-1].Status
	if code != 0 || last.Status != "FAILED" || !strings.Contains(last.Message, "CREATE PUBLICATION") || !strings.Contains(last.Message, "pg_create_logical_replication_slot") {
		t.Errorf("without slot and publication: exit code %d, %+v", code, last)
	}
	if n := p.source.Query(t, "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"); n != "0" {
		t.Errorf("check made %s slots", n)
	}
	p.makeSlot(t)
	messages, code = p.run(t, "check")
	if last := messages[len(messages)-1].Status; code != 0 || last.Status != "SUCCEEDED" {
		t.Errorf("with slot and publication: exit code %d, %+v", code, last)
	}
	p.config["mode"] = "sometimes"
	messages, code = p.run(t, "check")
	if last := messages[len(messages)-1].Status; code != 0 || last.Status != "FAILED" || !strings.Contains(last.Message, "mode") {
		t.Errorf("with a wrong configuration: exit code %d, %+v", code, last)
	}
}

// TestSyncs: the first sync reads all rows, the next ones what changed since,
// deletes and changed keys and large values included.
func TestSyncs(t *testing.T) {
	t.Parallel()
	for _, states := range []string{"global", "stream"} {
		t.Run(states, func(t *testing.T) {
			t.Parallel()
			p := shopWithSlot(t, config{"state_type": states})
			r := p.reader()
			first := p.sync(t)
			r.take(first)
			if n := len(r.rows["orders"]); n != 500 {
				t.Fatalf("%d orders, want 500", n)
			}
			statuses(t, first)
			p.source.SQL(t, `UPDATE orders SET note = (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 400) i) WHERE id <= 3`)
			p.source.SQL(t, `ALTER TABLE orders ALTER note SET STORAGE EXTERNAL; UPDATE orders SET total = 0 WHERE id <= 3`)
			p.source.SQL(t, `UPDATE orders SET id = id + 10000 WHERE id IN (2, 7); DELETE FROM orders WHERE id > 490`)
			p.source.SQL(t, `INSERT INTO items VALUES (1000, 1, 'new'); UPDATE items SET line = line + 5 WHERE orders = 100; DELETE FROM items WHERE orders = 200`)
			second := p.sync(t)
			r.take(second)
			if n := records(second, "orders"); n < 3 || n > 30 {
				t.Errorf("the second sync had %d records of orders", n)
			}
			p.equals(t, r)
			if n := records(p.sync(t), "orders"); n != 0 {
				t.Errorf("a sync without changes had %d records of orders", n)
			}
		})
	}
}

// TestNotOffered: what discover does not offer for a table without a key is not
// what ends a sync; the table is read by full refresh, each time. PyAirbyte asks
// for incremental always, and of every sync as the first generation.
func TestNotOffered(t *testing.T) {
	t.Parallel()
	p := shopWithSlot(t, config{"state_type": "stream"})
	for _, s := range p.streams {
		s["sync_mode"], s["generation_id"] = "incremental", 1
	}
	for range 2 {
		if n := records(p.sync(t), "log"); n != 2 {
			t.Errorf("%d records of log, want 2", n)
		}
	}
	// Once its changes can be followed, they are so from a load on.
	p.source.SQL(t, "ALTER TABLE log REPLICA IDENTITY FULL; UPDATE log SET line = 'uno' WHERE line = 'one'")
	p.discover(t)
	if n := records(p.sync(t), "log"); n < 2 {
		t.Errorf("%d records of log by the first incremental sync, want all rows", n)
	}
}

// TestUnreachable: a server that is away is nothing that somebody has to correct in
// the configuration; platforms try again.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	p := shopWithSlot(t, nil)
	p.config["url"] = "host=127.0.0.1 port=1 dbname=shop user=reader"
	messages, code := p.run(t, "read", p.readArgs(t)...)
	if got := failure(messages); code != 1 || !strings.HasPrefix(got, "transient_error") {
		t.Errorf("read: exit code %d, %s", code, got)
	}
	messages, code = p.run(t, "check")
	if last := messages[len(messages)-1].Status; code != 0 || last.Status != "FAILED" || !strings.Contains(last.Message, "start the server") {
		t.Errorf("check: exit code %d, %+v", code, last)
	}
}

func records(messages []message, stream string) (n int) {
	for _, m := range messages {
		if m.Type == "RECORD" && m.Record.Stream == stream {
			n++
		}
	}
	return n
}

// statuses checks that every stream has begun and ended.
func statuses(t *testing.T, messages []message) {
	t.Helper()
	said := map[string]string{}
	for _, m := range messages {
		if s := m.Trace.Status; m.Trace.Type == "STREAM_STATUS" {
			said[s.Stream.Name] += s.Status + " "
		}
	}
	for _, name := range []string{"orders", "items", "log"} {
		if want := "STARTED RUNNING COMPLETE "; said[name] != want {
			t.Errorf("stream %s: %s, want %s", name, said[name], want)
		}
	}
}

// TestEveryState: from whatever state a platform goes on, an upserting reader
// that took all records before it comes to the same tables.
func TestEveryState(t *testing.T) {
	t.Parallel()
	p := shopWithSlot(t, nil)
	for i := range 30 {
		p.source.SQL(t, fmt.Sprintf("INSERT INTO orders VALUES (%d, 'n', 1); UPDATE orders SET total = total + 1 WHERE id %% 30 = %d; DELETE FROM items WHERE orders = %d", 2000+i, i, i+50))
	}
	messages := p.sync(t)
	resumed := 0
	for i, m := range messages {
		if m.Type != "STATE" {
			continue
		}
		resumed++
		p.commit(m)
		r := p.reader()
		r.take(messages[:i+1])
		r.take(p.sync(t))
		p.equals(t, r)
	}
	if resumed < 2 {
		t.Errorf("only %d states", resumed)
	}
}

// TestTakenBack: rows that the backlog of the slot inserts and deletes again are
// not left at the platform, wherever the chunks come in between.
func TestTakenBack(t *testing.T) {
	t.Parallel()
	p := shopWithSlot(t, nil)
	for range 5 {
		p.source.SQL(t, "INSERT INTO orders SELECT g, repeat('x', 1000), 1 FROM generate_series(10001, 14000) g")
		p.source.SQL(t, "DELETE FROM orders WHERE id > 10000")
	}
	r := p.reader()
	r.take(p.sync(t))
	p.equals(t, r)
}

// TestMissingTable: a stream whose table is gone has an error of its own and stays
// incomplete; the others are read, and go on being read.
func TestMissingTable(t *testing.T) {
	t.Parallel()
	p := shopWithSlot(t, nil)
	r := p.reader()
	r.take(p.sync(t))
	p.source.SQL(t, "DROP TABLE items; DROP TABLE log; UPDATE orders SET total = 7 WHERE id < 10")
	messages := p.sync(t)
	r.take(messages)
	if row := r.rows["orders"]["3|"]; !strings.Contains(row, `total="7.00"`) {
		t.Errorf("the change of the other table was not read: %s", row)
	}
	said := map[string]string{}
	for _, m := range messages {
		switch m.Trace.Type {
		case "STREAM_STATUS":
			said[m.Trace.Status.Stream.Name] += m.Trace.Status.Status + " "
		case "ERROR":
			said[m.Trace.Error.Stream.Name] += m.Trace.Error.FailureType + " "
			if !strings.Contains(m.Trace.Error.Message, "is not there, or not selected (take the stream out") {
				t.Errorf("message: %s", m.Trace.Error.Message)
			}
		}
	}
	for name, want := range map[string]string{"orders": "STARTED RUNNING COMPLETE ", "items": "STARTED config_error INCOMPLETE ", "log": "STARTED config_error INCOMPLETE "} {
		if said[name] != want {
			t.Errorf("stream %s: %s, want %s", name, said[name], want)
		}
	}
}

// TestAwayForAWhile: of a stream whose table was not selected for a while nothing is lost, although
// the syncs in between have ended well and moved the position.
func TestAwayForAWhile(t *testing.T) {
	t.Parallel()
	for states, change := range map[string]string{
		"global": "UPDATE items SET what = 'away' WHERE orders < 9; INSERT INTO items VALUES (9000, 1, 'new')",
		"stream": "UPDATE items SET what = 'away' WHERE orders < 9; DELETE FROM items WHERE orders = 20",
	} {
		t.Run(states, func(t *testing.T) {
			t.Parallel()
			p := shopWithSlot(t, config{"state_type": states})
			r := p.reader()
			r.take(p.sync(t))
			p.config["tables"] = []string{"public.*", "!public.items"}
			p.source.SQL(t, change)
			for i := range 2 {
				p.source.SQL(t, fmt.Sprintf("UPDATE orders SET total = %d WHERE id < 10", i))
				r.take(p.sync(t))
			}
			delete(p.config, "tables")
			r.take(p.sync(t))
			p.equals(t, r)
		})
	}
}

// TestOlderState: a state that is older than what the platform has proved to hold can't be
// gone on from, since the source's log is gone from there; that is said, and nothing
// is read.
func TestOlderState(t *testing.T) {
	t.Parallel()
	for _, states := range []string{"global", "stream"} {
		t.Run(states, func(t *testing.T) {
			t.Parallel()
			p := shopWithSlot(t, config{"state_type": states})
			p.sync(t)
			old := maps.Clone(p.states)
			for i := range 2 { // the second one is given the state of the first, which moves the slot
				p.source.SQL(t, fmt.Sprintf("UPDATE orders SET total = %d WHERE id < 10", i))
				p.sync(t)
			}
			newest := p.states
			p.states = old
			p.isTooOld(t, map[string]string{"global": "clear its data and its state", "stream": "they are read again: public.items, public.orders)"}[states])
			// The streams of a platform that commits them one by one are as old as the oldest.
			if states == "stream" {
				p.states = maps.Clone(newest)
				p.states["items"] = old["items"]
				p.isTooOld(t, "they are read again: public.items)")
			}
			p.states = newest
			p.sync(t)
		})
	}
}

// isTooOld reads from the state that the platform has, which is refused with a hint.
func (p *platform) isTooOld(t *testing.T, hint string) {
	t.Helper()
	messages, code := p.run(t, "read", p.readArgs(t)...)
	got := failure(messages)
	if code != 1 || !strings.HasPrefix(got, "config_error") || !strings.Contains(got, "the state is of") ||
		!strings.Contains(got, hint) || !strings.Contains(got, "troubleshooting.md#") || strings.Contains(got, "millrace bootstrap") {
		t.Errorf("exit code %d, %s", code, got)
	}
	for _, m := range messages {
		if m.Type == "RECORD" || m.Type == "STATE" {
			t.Fatalf("a %s came of a state that is too old", m.Type)
		}
		if s := m.Trace.Status; s.Status == "COMPLETE" {
			t.Errorf("stream %s is complete", s.Stream.Name)
		}
	}
}
