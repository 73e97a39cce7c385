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

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/internal/rig/child"
)

// runtime is Estuary's runtime with one capture. What comes between two checkpoints
// is kept together with the second one, or not at all.
type runtime struct {
	*platform
	codec    string
	bindings []map[string]any
	state    map[string]any
	docs     map[string]map[string]document // of each table, merged by key
	keys     map[string][]string            // pointers
	pending  []response
}

// document is what a collection has under a key.
type document map[string]json.RawMessage

func (d document) String() string {
	var row strings.Builder
	for _, column := range slices.Sorted(maps.Keys(d)) {
		if column != "_meta" {
			fmt.Fprintf(&row, "%s=%s ", column, d[column])
		}
	}
	return row.String()
}

// session is one process.
type session struct {
	proc  *child.Process
	stdin io.WriteCloser
	out   *bufio.Reader
	codec string
	owed  int          // checkpoints that came and were not acknowledged
	log   bytes.Buffer // to be read once it has ended
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
	cmd.Stderr = &s.log
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

// acknowledge acknowledges all checkpoints that came.
func (s *session) acknowledge(t *testing.T) {
	t.Helper()
	s.send(t, map[string]any{"acknowledge": map[string]any{"checkpoints": s.owed}})
	s.owed = 0
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
	Schema *struct {
		Binding int `json:"binding"`
	} `json:"sourcedSchema"`
	Checkpoint *struct {
		State struct {
			Updated    map[string]any `json:"updated"`
			MergePatch bool           `json:"mergePatch"`
		} `json:"state"`
	} `json:"checkpoint"`

	line []byte // as it came
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
			x.r.line = bytes.TrimSpace(line)
		}
		got <- x
	}()
	select {
	case x := <-got:
		if x.err != nil && !errors.Is(x.err, io.EOF) {
			t.Fatal(x.err)
		}
		if x.r.Checkpoint != nil {
			s.owed++
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
	r := &runtime{platform: newPlatform(t, rig.Shared(t, rig.Newest), shop), codec: codec, docs: map[string]map[string]document{}, keys: map[string][]string{}}
	r.source.SQL(t, "ALTER TABLE log REPLICA IDENTITY FULL")
	r.makeSlot(t)
	r.bind(t)
	return r
}

// bind makes a binding of each table that is discovered.
func (r *runtime) bind(t *testing.T) {
	t.Helper()
	r.bindings = nil
	clear(r.docs)
	clear(r.keys)
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
		r.docs[name] = map[string]document{}
		for _, k := range b["key"].([]any) {
			r.keys[name] = append(r.keys[name], k.(string))
		}
	}
	s.send(t, map[string]any{"validate": map[string]any{"config": r.config, "bindings": r.bindings}})
	if x, _ := s.receive(t); x.Validated == nil {
		t.Fatal("not validated")
	}
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

// take keeps a response until its checkpoint comes, and tells whether it did.
func (r *runtime) take(t *testing.T, x response) bool {
	t.Helper()
	if x.Captured != nil {
		r.pending = append(r.pending, x)
	}
	if x.Checkpoint == nil {
		return false
	}
	if !x.Checkpoint.State.MergePatch {
		t.Error("a checkpoint that is no merge patch")
	}
	for _, x := range r.pending {
		r.reduce(t, x)
	}
	r.pending = nil
	r.state = merge(r.state, x.Checkpoint.State.Updated)
	return true
}

// meta is what stands under _meta.
type meta struct {
	Op     string   `json:"op"`
	Before document `json:"before"`
	Source struct {
		Loc []json.Number `json:"loc"`
	} `json:"source"`
}

// reduce merges a document into its collection.
func (r *runtime) reduce(t *testing.T, x response) {
	t.Helper()
	table := r.bindings[x.Captured.Binding]["table"].(string)
	var doc document
	var about meta
	if err := errors.Join(json.Unmarshal(x.Captured.Doc, &doc), json.Unmarshal(x.Captured.Doc, &struct {
		Meta *meta `json:"_meta"`
	}{&about})); err != nil {
		t.Fatal(err)
	}
	var key strings.Builder
	for _, pointer := range r.keys[table] {
		if n, ok := strings.CutPrefix(pointer, "/_meta/source/loc/"); ok {
			fmt.Fprintf(&key, "%s|", about.Source.Loc[n[0]-'0'])
		} else {
			fmt.Fprintf(&key, "%s|", doc[strings.TrimPrefix(pointer, "/")])
		}
	}
	if about.Op == "d" && !r.log(table) {
		delete(r.docs[table], key.String())
		return
	}
	merged := maps.Clone(r.docs[table][key.String()])
	if merged == nil || about.Op == "c" {
		merged = document{}
	}
	maps.Copy(merged, doc)
	r.docs[table][key.String()] = merged
}

// log tells whether the documents of a table are a log of its changes.
func (r *runtime) log(table string) bool { return strings.HasPrefix(r.keys[table][0], "/_meta/") }

// rows gives the rows of a table as its documents have them, in order.
func (r *runtime) rows(t *testing.T, table string) []string {
	t.Helper()
	count := map[string]int{}
	for _, doc := range r.docs[table] {
		var about meta
		if err := json.Unmarshal(doc["_meta"], &about); err != nil {
			t.Fatal(err)
		}
		switch {
		case r.log(table) && about.Op == "d":
			count[doc.String()]--
		case r.log(table) && about.Op == "u":
			count[about.Before.String()]--
			count[doc.String()]++
		default:
			count[doc.String()]++
		}
	}
	var rows []string
	for _, row := range slices.Sorted(maps.Keys(count)) {
		if count[row] < 0 {
			t.Errorf("table %s: a row that was not there is gone: %s", table, row)
		}
		rows = append(rows, slices.Repeat([]string{row}, max(0, count[row]))...)
	}
	return rows
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
