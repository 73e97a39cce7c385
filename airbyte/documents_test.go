package airbyte

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
)

const flowOpen = `{"state":{"format":1,"system_id":"7","timeline":1,"lsn":"0/100","bindingStateV1":{` +
	`"here":{"oid":5,"filenode":5,"shape":"s","load":"\"done\"","rows":0},"away":{"oid":6,"filenode":6,"shape":"s","load":"\"done\"","rows":0}}},` +
	`"capture":{"bindings":[{"resourceConfig":{"namespace":"public","stream":"t"},"stateKey":"here"}]}}`

func newFlowSink(t *testing.T, fetched millrace.Row) (*Sink, *bytes.Buffer) {
	t.Helper()
	var open FlowOpen
	if err := json.Unmarshal([]byte(flowOpen), &open); err != nil {
		t.Fatal(err)
	}
	catalog, state, err := FlowStreams(&open)
	if err != nil {
		t.Fatal(err)
	}
	codec, err := NewFlowCodec(strings.NewReader(""), "json")
	if err != nil {
		t.Fatal(err)
	}
	out := &bytes.Buffer{}
	return NewSink(Options{
		Writer: NewWriter(out), Flow: codec, Config: &Config{Mode: ModeContinuous}, State: state, Log: slog.New(slog.DiscardHandler),
		Tables: []Selected{{Stream: &catalog.Streams[0], OID: 5, Filenode: 5, Shape: "s", Key: []string{"id"}}},
		From:   millrace.Checkpoint{History: millrace.History{System: "7", Timeline: 1}, End: 0x100, Acked: 0x100},
		Type:   func(_ context.Context, c *millrace.Column) (*datum.Type, error) { return datum.Builtin(c.Type), nil },
		Fetch:  func(context.Context, *millrace.Change) (millrace.Row, error) { return fetched, nil },
	}), out
}

// TestBindingThatIsAway: the first checkpoint takes what is not captured out of
// the state, so that it is read from its beginning when it comes back.
func TestBindingThatIsAway(t *testing.T) {
	s, out := newFlowSink(t, nil)
	if err := s.state(); err != nil {
		t.Fatal(err)
	}
	if want := `"bindingStateV1":{"away":null}`; !strings.Contains(out.String(), want) {
		t.Errorf("%s, want %s", out, want)
	}
	out.Reset()
	if err := s.state(); err != nil || strings.Contains(out.String(), "away") {
		t.Errorf("again: %s, %v", out, err)
	}
}

// TestUnsentValues: a large value that was not sent is left out of a document only
// where documents of the key that have it came before.
func TestUnsentValues(t *testing.T) {
	rel := &millrace.Relation{OID: 5, Name: millrace.TableName{Schema: "public", Name: "t"}, Key: []int{0},
		Columns: []millrace.Column{{Name: "id", Type: 23}, {Name: "big", Type: 25}}}
	value := func(s string) millrace.Value { return millrace.Value{Kind: millrace.Text, Raw: []byte(s)} }
	for _, c := range []struct {
		name   string
		loaded bool
		old    millrace.Row
		wanted bool
	}{
		{name: "loaded", loaded: true},
		{name: "while it is loaded", wanted: true},
		{name: "new key", loaded: true, old: millrace.Row{value("1"), {Kind: millrace.Null}}, wanted: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, out := newFlowSink(t, millrace.Row{value("2"), value("large")})
			if !c.loaded {
				s.order[0].state.Load = json.RawMessage(`{"ranges":[{"state":"unread"}]}`)
			}
			err := s.Write(t.Context(), &millrace.Txn{XID: 9, Commit: 0x200, End: 0x230, Time: time.Now(), Last: true, Changes: []millrace.Change{
				{Op: millrace.Update, Seq: 1, Rel: rel, Old: c.old, New: millrace.Row{value("2"), {Kind: millrace.Unchanged}}},
			}})
			if err == nil {
				err = s.state()
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(out.String(), `"big":"large"`); got != c.wanted {
				t.Errorf("fetched: %v, want %v: %s", got, c.wanted, out)
			}
		})
	}
}

// TestLargeKey: a key that is large and unchanged stands in the old row only.
func TestLargeKey(t *testing.T) {
	rel := &millrace.Relation{OID: 5, Name: millrace.TableName{Schema: "public", Name: "t"}, Key: []int{0},
		Columns: []millrace.Column{{Name: "id", Type: 25}, {Name: "v", Type: 25}}}
	s, out := newFlowSink(t, nil)
	err := s.Write(t.Context(), &millrace.Txn{XID: 9, Commit: 0x200, End: 0x230, Time: time.Now(), Last: true, Changes: []millrace.Change{
		{Op: millrace.Update, Seq: 1, Rel: rel, Old: millrace.Row{{Kind: millrace.Text, Raw: []byte("large")}, {Kind: millrace.Null}},
			New: millrace.Row{{Kind: millrace.Unchanged}, {Kind: millrace.Text, Raw: []byte("x")}}},
	}})
	if err == nil {
		err = s.state()
	}
	if err != nil || !strings.Contains(out.String(), `"doc":{"id":"large","v":"x"`) {
		t.Errorf("%s, %v", out, err)
	}
}
