package connector

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/rig"
)

// keyless has a table without a key, and one whose key is not the one that is
// asked for, with columns that only the server can put in order.
const keyless = `
CREATE TABLE events (tenant int NOT NULL, id uuid NOT NULL, what text, big text);
ALTER TABLE events REPLICA IDENTITY FULL;
ALTER TABLE events ALTER big SET STORAGE EXTERNAL;
CREATE INDEX ON events (tenant, id);
INSERT INTO events SELECT g % 7, md5(g::text)::uuid, 'e' || g, repeat('x', CASE WHEN g % 500 = 0 THEN 3000 ELSE 10 END) FROM generate_series(1, 3000) g;
CREATE TABLE docs (id int PRIMARY KEY, region text NOT NULL, n numeric NOT NULL, v int, optional int);
ALTER TABLE docs REPLICA IDENTITY FULL;
CREATE UNIQUE INDEX ON docs (region, n);
INSERT INTO docs SELECT g, (ARRAY['Zürich', 'zug', 'Aarau', 'äpfel'])[1 + g % 4], g::numeric / 10, 0 FROM generate_series(1, 2500) g;
`

// TestChosenKey: a key that the catalog or the configuration chooses is the one that
// tables are read by and rows are told apart by, from whatever state a sync goes on.
func TestChosenKey(t *testing.T) {
	t.Parallel()
	chosen := map[string][]string{"events": {"tenant", "id"}, "docs": {"region", "n"}}
	for _, by := range []string{"catalog", "config"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			p := newPlatform(t, rig.Shared(t, rig.Newest), keyless)
			p.makeSlot(t)
			if by == "config" {
				p.config["keys"] = []map[string]any{{"table": "public.events", "columns": chosen["events"]}, {"table": "public.docs", "columns": chosen["docs"]}}
			}
			p.discover(t)
			for _, s := range p.streams {
				stream := s["stream"].(map[string]any)
				var paths []any
				for _, column := range chosen[stream["name"].(string)] {
					paths = append(paths, []any{column})
				}
				if by == "catalog" {
					s["primary_key"] = paths
				} else if diff := cmp.Diff(paths, stream["source_defined_primary_key"]); diff != "" {
					t.Errorf("the key of %s (-want +got):\n%s", stream["name"], diff)
				}
				if s["sync_mode"] != "incremental" {
					t.Errorf("%s is not offered incrementally", stream["name"])
				}
			}
			for i := range 20 { // the slot's backlog, which is read beside the tables
				p.source.SQL(t, fmt.Sprintf(`UPDATE events SET what = what || '+' WHERE tenant = %d AND what LIKE 'e%d%%'; DELETE FROM events WHERE what = 'e%d';
					UPDATE docs SET n = n + 10000, v = v + 1 WHERE id = %d; UPDATE docs SET region = 'Bern' WHERE id = %d; INSERT INTO events VALUES (9, gen_random_uuid(), 'n', '')`, i%7, i, 100+i, 50+i, 90+i))
			}
			p.fromEveryState(t, func(states []message) {
				chunks := 0
				for _, m := range states {
					chunks += strings.Count(string(m.State), `"key":["tenant","id"]`)
				}
				if chunks == 0 {
					t.Error("no state of a load by the key")
				}
			})
			p.source.SQL(t, `UPDATE events SET id = md5(what)::uuid, tenant = 8 WHERE tenant = 3; DELETE FROM events WHERE tenant = 4; UPDATE docs SET region = 'zug', n = -n WHERE region = 'Zürich';
				UPDATE events SET what = 'large' WHERE length(big) = 3000`)
			r := p.reader()
			p.states = map[string]string{}
			r.take(p.sync(t))
			p.equals(t, r)
		})
	}
}

// fromEveryState syncs, and then goes on from each state that was written: a reader
// that took all records before it comes to the same tables.
func (p *platform) fromEveryState(t *testing.T, look func(states []message)) {
	t.Helper()
	messages := p.sync(t)
	want := p.whole(t)
	var states []message
	for i, m := range messages {
		if m.Type != "STATE" {
			continue
		}
		states = append(states, m)
		p.commit(m)
		r := p.reader()
		r.take(messages[:i+1])
		r.take(p.sync(t))
		want.equals(t, r)
	}
	look(states)
}

// TestUnfitKey: a key that can't tell rows apart is refused, with what cures it.
func TestUnfitKey(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, rig.Shared(t, rig.Newest), keyless+`ALTER TABLE docs REPLICA IDENTITY DEFAULT;`)
	p.makeSlot(t)
	p.discover(t)
	for _, c := range []struct{ column, say string }{
		{"optional", `ALTER COLUMN "optional" SET NOT NULL`}, {"missing", "no column missing"}, {"region", `ALTER TABLE "public"."docs" REPLICA IDENTITY FULL`},
	} {
		for _, s := range p.streams {
			if s["stream"].(map[string]any)["name"] == "docs" {
				s["primary_key"] = []any{[]any{c.column}}
			}
		}
		messages, code := p.run(t, "read", p.readArgs(t)...)
		if got := failure(messages); code != 1 || !strings.HasPrefix(got, "config_error") || !strings.Contains(got, c.say) {
			t.Errorf("key %s: exit code %d, %s", c.column, code, got)
		}
	}
	p.config["keys"] = []map[string]any{{"table": "public.docs", "columns": []string{"optional"}}, {"table": "public.none", "columns": []string{"id"}}}
	messages, _ := p.run(t, "check")
	for _, say := range []string{`ALTER COLUMN "optional" SET NOT NULL`, "public.none: is not there"} {
		if last := messages[len(messages)-1].Status; last.Status != "FAILED" || !strings.Contains(last.Message, say) {
			t.Errorf("check of keys: %+v lacks %s", last, say)
		}
	}
	p.config["keys"] = []map[string]any{{"table": "docs", "columns": []string{"id"}}}
	if messages, _ := p.run(t, "check"); !strings.Contains(messages[len(messages)-1].Status.Message, "the schema is missing") {
		t.Errorf("%+v", messages)
	}
}

// TestRefreshByChosenKey: a table without a key is read whole by the chosen one, and
// goes on behind the last row.
func TestRefreshByChosenKey(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, rig.Shared(t, rig.Newest), keyless+`INSERT INTO events SELECT 1, gen_random_uuid(), 'more', '' FROM generate_series(1, 20000);`)
	p.makeSlot(t)
	p.discover(t)
	for _, s := range p.streams {
		s["sync_mode"], s["generation_id"] = "full_refresh", 5
		if s["stream"].(map[string]any)["name"] == "events" {
			s["primary_key"] = []any{[]any{"tenant"}, []any{"id"}}
		}
	}
	whole := p.sync(t)
	n, at := 0, ""
	for _, m := range whole {
		if m.Type == "RECORD" && m.Record.Stream == "events" && at == "" {
			n++
		}
		if m.Type == "STATE" && at == "" && strings.Contains(string(m.State), `"key":["tenant","id"]`) {
			at = string(m.State)
		}
	}
	if at == "" || records(whole, "events") != 23000 {
		t.Fatalf("%d records, a state in the middle: %v", records(whole, "events"), at != "")
	}
	p.states = map[string]string{"": at}
	if rest := records(p.sync(t), "events"); rest != 23000-n {
		t.Errorf("behind %d records of 23000 came %d", n, rest)
	}
}

// TestCursor: the cursor alone says which record of a key is the newest, also within
// a transaction, and beside what an earlier sync has written and no state speaks of.
func TestCursor(t *testing.T) {
	t.Parallel()
	p := shopWithSlot(t, nil)
	p.only("orders", "items") // log has no cursor
	var all []message
	all = append(all, p.sync(t)...)
	kept := p.states[""]
	p.source.SQL(t, "UPDATE orders SET total = 1 WHERE id < 9; UPDATE orders SET total = 2 WHERE id < 9; UPDATE orders SET id = id + 5000 WHERE id < 5; UPDATE orders SET id = id - 5000 WHERE id > 5000")
	all = append(all, p.sync(t)...)
	p.states[""] = kept // the platform has the records, and lost the state
	p.source.SQL(t, "UPDATE orders SET total = 3 WHERE id < 4; DELETE FROM orders WHERE id = 3; INSERT INTO orders VALUES (3, 'again', 4)")
	all = append(all, p.sync(t)...)
	for i, j := 0, len(all)-1; i < j; i, j = i+1, j-1 { // the newest first
		all[i], all[j] = all[j], all[i]
	}
	last := int64(1 << 62)
	for _, m := range all {
		if text := m.Record.Data["_ab_cdc_cursor"]; text != nil {
			var cursor int64
			if err := json.Unmarshal(text, &cursor); err != nil || cursor >= last {
				t.Fatalf("cursor %s before %d", text, last)
			}
			last = cursor
		}
	}
	r := p.reader()
	r.take(all)
	p.equals(t, r)
}
