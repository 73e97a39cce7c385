package connector

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/internal/rig/child"
)

// runtime is Estuary's runtime with one capture.
type runtime struct {
	*platform
	codec    string
	bindings []map[string]any
	state    map[string]any
	docs     map[string]map[string]string // of each table, merged by key
	keys     map[string][]string
}

// session is one process.
type session struct {
	proc  *child.Process
	stdin io.WriteCloser
	out   *bufio.Reader
	codec string
}

func (r *runtime) session(t *testing.T) *session {
	t.Helper()
	cmd := exec.Command(r.binary, "connector", "flow", "--log-format", "text")
	cmd.Env = append(os.Environ(), "FLOW_RUNTIME_CODEC="+r.codec)
	in, stdin, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout = in, out
	s := &session{stdin: stdin, out: bufio.NewReader(stdout), codec: r.codec}
	s.proc, err = child.Start(cmd, syscall.SIGKILL)
	in.Close()
	out.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = s.proc.Signal(syscall.SIGKILL) // it may have ended
		<-s.proc.Done()
	})
	return s
}

// end closes stdin and reads what still comes: a process that can't write waits.
func (s *session) end() {
	s.stdin.Close()
	_, _ = io.Copy(io.Discard, s.out) // not committed
	<-s.proc.Done()
}

// send writes a request, whose member is given as JSON has it.
func (s *session) send(t *testing.T, request map[string]any) {
	t.Helper()
	frame, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	if frame = append(frame, '\n'); s.codec == "proto" {
		body := protoOf(request)
		frame = append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)
	}
	if _, err := s.stdin.Write(frame); err != nil {
		t.Fatal(err)
	}
}

// protoOf writes the requests that the tests send.
func protoOf(request map[string]any) []byte {
	text := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return b
	}
	field := func(b []byte, num protowire.Number, v []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), v)
	}
	for name, v := range request {
		m, _ := v.(map[string]any)
		switch name {
		case "spec":
			return field(nil, 1, nil)
		case "discover":
			return field(nil, 2, field(nil, 2, text(m["config"])))
		case "validate":
			in := field(nil, 3, text(m["config"]))
			for _, b := range m["bindings"].([]map[string]any) {
				in = field(in, 4, field(nil, 1, text(b["resourceConfig"])))
			}
			return field(nil, 3, in)
		case "open":
			capture := m["capture"].(map[string]any)
			spec := field(field(nil, 1, []byte("a/capture")), 3, text(capture["config"]))
			for _, b := range capture["bindings"].([]map[string]any) {
				spec = field(spec, 4, field(field(nil, 1, text(b["resourceConfig"])), 5, []byte(b["stateKey"].(string))))
			}
			return field(nil, 5, field(field(nil, 1, spec), 4, text(m["state"])))
		case "acknowledge":
			n := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(m["checkpoints"].(int)))
			return field(nil, 6, n)
		}
	}
	panic("unknown request")
}

// response is a response as JSON has it.
type response struct {
	Spec       map[string]any `json:"spec"`
	Discovered struct {
		Bindings []map[string]any `json:"bindings"`
	} `json:"discovered"`
	Validated *struct{}      `json:"validated"`
	Opened    map[string]any `json:"opened"`
	Captured  *struct {
		Binding int             `json:"binding"`
		Doc     json.RawMessage `json:"doc"`
	} `json:"captured"`
	Schema     *struct{} `json:"sourcedSchema"`
	Checkpoint *struct {
		State struct {
			Updated    map[string]any `json:"updated"`
			MergePatch bool           `json:"mergePatch"`
		} `json:"state"`
	} `json:"checkpoint"`
}

// receive reads a response; false at the end.
func (s *session) receive(t *testing.T) (response, bool) {
	t.Helper()
	type result struct {
		r   response
		err error
	}
	got := make(chan result, 1)
	go func() {
		var x result
		var line []byte
		if s.codec == "proto" {
			line, x.err = s.frame()
		} else {
			line, x.err = s.out.ReadBytes('\n')
		}
		if x.err == nil {
			x.err = json.Unmarshal(line, &x.r)
		}
		got <- x
	}()
	select {
	case x := <-got:
		if x.err != nil && !errors.Is(x.err, io.EOF) {
			t.Fatal(x.err)
		}
		return x.r, x.err == nil
	case <-time.After(patience):
		t.Fatal("no response comes")
	}
	return response{}, false
}

// frame reads a protobuf response and gives those that the tests look at as JSON.
func (s *session) frame() ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(s.out, head[:]); err != nil {
		return nil, err
	}
	body := make([]byte, binary.LittleEndian.Uint32(head[:]))
	if _, err := io.ReadFull(s.out, body); err != nil {
		return nil, err
	}
	num, in := fieldsOf(body)
	switch num {
	case 5:
		return []byte(`{"opened":{"explicitAcknowledgements":true}}`), nil
	case 6:
		binding, doc := 0, []byte(nil)
		each(in, func(n protowire.Number, v []byte, x uint64) {
			if n == 1 {
				binding = int(x)
			} else {
				doc = v
			}
		})
		return fmt.Appendf(nil, `{"captured":{"binding":%d,"doc":%s}}`, binding, doc), nil
	case 7:
		var updated []byte
		patch := false
		_, state := fieldsOf(in)
		each(state, func(n protowire.Number, v []byte, x uint64) {
			if n == 1 {
				updated = v
			} else {
				patch = x == 1
			}
		})
		return fmt.Appendf(nil, `{"checkpoint":{"state":{"updated":%s,"mergePatch":%v}}}`, updated, patch), nil
	}
	return []byte(`{}`), nil
}

func fieldsOf(b []byte) (num protowire.Number, v []byte) {
	each(b, func(n protowire.Number, in []byte, _ uint64) { num, v = n, in })
	return num, v
}

func each(b []byte, give func(protowire.Number, []byte, uint64)) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		b = b[n:]
		var v []byte
		var x uint64
		if typ == protowire.BytesType {
			v, n = protowire.ConsumeBytes(b)
		} else {
			x, n = protowire.ConsumeVarint(b)
		}
		give(num, v, x)
		b = b[n:]
	}
}

func newRuntime(t *testing.T, codec string) *runtime {
	t.Helper()
	r := &runtime{platform: newPlatform(t, rig.Shared(t, rig.Newest), shop), codec: codec, docs: map[string]map[string]string{}, keys: map[string][]string{}}
	r.makeSlot(t)
	plain := &runtime{platform: r.platform, codec: "json"}
	s := plain.session(t)
	s.send(t, map[string]any{"spec": map[string]any{"connectorType": "IMAGE"}})
	if x, _ := s.receive(t); x.Spec["protocol"] != float64(3032023) || x.Spec["configSchema"] == nil {
		t.Fatalf("spec: %v", x.Spec)
	}
	s.send(t, map[string]any{"discover": map[string]any{"config": r.config}})
	x, _ := s.receive(t)
	for _, b := range x.Discovered.Bindings {
		path := b["resourcePath"].([]any)
		name := path[1].(string)
		r.bindings = append(r.bindings, map[string]any{"resourceConfig": b["resourceConfig"], "stateKey": fmt.Sprintf("%s%%2F%s.v1", path...), "table": name})
		r.docs[name] = map[string]string{}
		for _, k := range b["key"].([]any) {
			r.keys[name] = append(r.keys[name], strings.TrimPrefix(k.(string), "/"))
		}
	}
	if len(r.bindings) != 2 {
		t.Fatalf("%d bindings, want the two tables with keys", len(r.bindings))
	}
	s.send(t, map[string]any{"validate": map[string]any{"config": r.config, "bindings": r.bindings}})
	if x, _ := s.receive(t); x.Validated == nil {
		t.Fatal("not validated")
	}
	return r
}

// open begins to capture.
func (r *runtime) open(t *testing.T) *session {
	t.Helper()
	s := r.session(t)
	s.send(t, map[string]any{"open": map[string]any{"capture": map[string]any{"config": r.config, "bindings": r.bindings}, "state": r.state}})
	if x, _ := s.receive(t); x.Opened["explicitAcknowledgements"] != true {
		t.Fatalf("opened: %+v", x)
	}
	return s
}

// take merges a document into the collection, or a patch into the state.
func (r *runtime) take(t *testing.T, x response) {
	t.Helper()
	if x.Checkpoint != nil {
		if !x.Checkpoint.State.MergePatch {
			t.Error("a checkpoint that is no merge patch")
		}
		r.state = merge(r.state, x.Checkpoint.State.Updated)
	}
	if x.Captured == nil {
		return
	}
	table := r.bindings[x.Captured.Binding]["table"].(string)
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(x.Captured.Doc, &doc); err != nil {
		t.Fatal(err)
	}
	key := func(of map[string]json.RawMessage) string {
		var b strings.Builder
		for _, column := range r.keys[table] {
			fmt.Fprintf(&b, "%s|", of[column])
		}
		return b.String()
	}
	var meta struct {
		Op     string                     `json:"op"`
		Before map[string]json.RawMessage `json:"before"`
	}
	if err := json.Unmarshal(doc["_meta"], &meta); err != nil {
		t.Fatal(err)
	}
	delete(doc, "_meta")
	// A changed key is one document here; what it was is before.
	if meta.Before != nil && key(meta.Before) != key(doc) {
		delete(r.docs[table], key(meta.Before))
	}
	if meta.Op == "d" {
		delete(r.docs[table], key(doc))
		return
	}
	var row strings.Builder
	for _, column := range slices.Sorted(maps.Keys(doc)) {
		fmt.Fprintf(&row, "%s=%s ", column, doc[column])
	}
	r.docs[table][key(doc)] = row.String()
}

// merge is RFC 7396.
func merge(to, patch map[string]any) map[string]any {
	if to == nil {
		to = map[string]any{}
	}
	for k, v := range patch {
		if m, ok := v.(map[string]any); ok {
			old, _ := to[k].(map[string]any)
			to[k] = merge(maps.Clone(old), m)
		} else if v == nil {
			delete(to, k)
		} else {
			to[k] = v
		}
	}
	return to
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
					UPDATE items SET line = line + 10 WHERE orders = %d; INSERT INTO orders VALUES (%d, 'f', 1)`, round, 10+round, 20+round, id))
				for committed := false; !committed; {
					x, ok := s.receive(t)
					if !ok {
						t.Fatal("the capture ended")
					}
					r.take(t, x)
					if x.Checkpoint != nil {
						s.send(t, map[string]any{"acknowledge": map[string]any{"checkpoints": 1}})
						committed = r.docs["orders"][fmt.Sprintf("%d|", id)] != "" && (round < 2 || r.loaded(t))
					}
				}
				s.end()
				if code := s.proc.ExitCode(); code != 0 {
					t.Fatalf("exit code %d", code)
				}
			}
			if r.flushed(t) == before {
				t.Error("the slot did not move")
			}
			want := r.platform.source.Query(t, `SELECT count(*) || ' ' || sum(total) FROM orders`)
			got := 0
			for range r.docs["orders"] {
				got++
			}
			if !strings.HasPrefix(want, fmt.Sprintf("%d ", got)) {
				t.Errorf("%d orders captured, the source has %s", got, want)
			}
			fresh := newCopy(t, r)
			for name := range r.docs {
				if diff := cmp.Diff(slices.Sorted(maps.Values(fresh[name])), slices.Sorted(maps.Values(r.docs[name]))); diff != "" {
					t.Errorf("table %s differs (-source +captured):\n%.2000s", name, diff)
				}
			}
		})
	}
}

// newCopy captures everything anew, by way of another slot.
func newCopy(t *testing.T, r *runtime) map[string]map[string]string {
	t.Helper()
	c := &runtime{platform: &platform{source: r.source, binary: r.binary, config: maps.Clone(r.config)}, codec: "json", bindings: r.bindings,
		keys: r.keys, docs: map[string]map[string]string{"orders": {}, "items": {}}}
	c.config["replication_method"] = map[string]any{"replication_slot": r.slot() + "_x", "publication": r.slot()}
	r.source.SQL(t, "SELECT pg_create_logical_replication_slot('"+r.slot()+"_x', 'pgoutput')")
	defer r.source.SQL(t, "SELECT pg_drop_replication_slot('"+r.slot()+"_x')")
	s := c.open(t)
	for {
		x, ok := s.receive(t)
		if !ok {
			t.Fatal("the capture ended")
		}
		c.take(t, x)
		if x.Checkpoint == nil {
			continue
		}
		if c.loaded(t) {
			s.end()
			return c.docs
		}
	}
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
