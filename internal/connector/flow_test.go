package connector

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// capture captures until a checkpoint after which done says that it is enough, and
// acknowledges each if it is to.
func (r *runtime) capture(t *testing.T, s *session, acknowledge bool, done func() bool) (all []response) {
	t.Helper()
	for {
		x, ok := s.receive(t)
		if !ok {
			t.Fatal("the capture ended")
		}
		all = append(all, x)
		if !r.take(t, x) {
			continue
		}
		if acknowledge {
			s.acknowledge(t)
		}
		if done() {
			return all
		}
	}
}

// TestFlow: what is captured, over several sessions and in both codecs, is what
// the source has; the slot follows the acknowledgements.
func TestFlow(t *testing.T) {
	t.Parallel()
	for _, codec := range []string{"json", "proto"} {
		t.Run(codec, func(t *testing.T) {
			t.Parallel()
			r := newRuntime(t, codec)
			before := r.flushed(t)
			for round := range 3 {
				s := r.open(t)
				id := 5000 + round
				r.source.SQL(t, fmt.Sprintf(`UPDATE orders SET total = total + 1 WHERE id %% 7 = %d; DELETE FROM items WHERE orders = %d;
					UPDATE items SET line = line + 10 WHERE orders = %d; INSERT INTO log VALUES ('n'), ('n'); DELETE FROM log WHERE line = 'two';
					UPDATE log SET line = line || '+' WHERE line = 'one'; INSERT INTO orders VALUES (%d, 'f', 1)`, round, 10+round, 20+round, id))
				r.capture(t, s, true, func() bool {
					return r.docs["orders"][fmt.Sprintf("%d|", id)] != nil && (round < 2 || r.loaded(t))
				})
				s.end()
				if code := s.proc.ExitCode(); code != 0 {
					t.Fatalf("exit code %d", code)
				}
			}
			if r.flushed(t) == before {
				t.Error("the slot did not move")
			}
			r.isSource(t)
		})
	}
}

// isSource compares what was captured with the source.
func (r *runtime) isSource(t *testing.T) {
	t.Helper()
	fresh := newCopy(t, r)
	for name := range r.docs {
		got := r.rows(t, name)
		if n := r.source.Query(t, "SELECT count(*) FROM "+name); n != strconv.Itoa(len(got)) {
			t.Errorf("table %s: %d rows captured, the source has %s", name, len(got), n)
		}
		if diff := cmp.Diff(fresh.rows(t, name), got); diff != "" {
			t.Errorf("table %s differs (-source +captured):\n%.2000s", name, diff)
		}
	}
}

// newCopy captures everything anew, by way of another slot.
func newCopy(t *testing.T, r *runtime) *runtime {
	t.Helper()
	c := &runtime{platform: &platform{source: r.source, binary: r.binary, config: maps.Clone(r.config)}, codec: "json", bindings: r.bindings,
		keys: r.keys, docs: map[string]map[string]document{}}
	for name := range r.docs {
		c.docs[name] = map[string]document{}
	}
	c.config["replication_method"] = map[string]any{"replication_slot": r.slot() + "_x", "publication": r.slot()}
	r.source.SQL(t, "SELECT pg_create_logical_replication_slot('"+r.slot()+"_x', 'pgoutput')")
	defer r.source.SQL(t, "SELECT pg_drop_replication_slot('"+r.slot()+"_x')")
	s := c.open(t)
	c.capture(t, s, false, func() bool { return c.loaded(t) })
	s.end()
	return c
}

// loaded tells whether the state says of all tables that they are read.
func (r *runtime) loaded(t *testing.T) bool {
	t.Helper()
	text, err := json.Marshal(r.state)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(text, []byte(`"load":"\"done\""`)) == len(r.bindings)
}

// TestFlowOlderState: what Airbyte's platform is told about a state that is too old, the runtime's
// log says; and so of a binding whose table is gone.
func TestFlowOlderState(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, "json")
	var old map[string]any
	for id := range 3 {
		r.source.SQL(t, fmt.Sprintf("INSERT INTO orders VALUES (%d, 'f', 1)", 5000+id))
		s := r.open(t)
		r.capture(t, s, true, func() bool { return r.loaded(t) && r.docs["orders"][fmt.Sprintf("%d|", 5000+id)] != nil })
		s.end()
		if id == 0 {
			old = merge(nil, r.state)
		}
	}
	newest := r.state
	r.state = old
	r.fails(t, "the state is of", "clear its data and its state", "see: https://")
	r.state = newest
	r.source.SQL(t, "DROP TABLE items")
	r.fails(t, "table public.items: is not there, or not selected", "see: https://")
}

// fails opens a capture that ends with an error.
func (r *runtime) fails(t *testing.T, says ...string) {
	t.Helper()
	s := r.session(t)
	s.send(t, map[string]any{"open": map[string]any{"capture": map[string]any{"config": r.config, "bindings": r.bindings}, "state": r.state}})
	for {
		x, ok := s.receive(t)
		if !ok {
			break
		}
		if x.Captured != nil || x.Checkpoint != nil {
			t.Fatalf("something was captured: %s", x.line)
		}
	}
	<-s.proc.Done()
	log := s.log.String()
	if code := s.proc.ExitCode(); code != 1 {
		t.Errorf("exit code %d\n%s", code, log)
	}
	for _, say := range says {
		if !strings.Contains(log, say) {
			t.Errorf("it does not say %q:\n%s", say, log)
		}
	}
}
