package airbyte

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
)

// documents is Estuary's dialect.
type documents struct {
	opt  *Options
	doc  []byte
	rows uint64   // of chunks, for their place
	gone []string // bindings of the state whose changes are not captured
}

// begin implements dialect: the first documents of a stream come behind its schema.
func (d *documents) begin(st *stream) error {
	line, err := d.opt.Flow.Append(nil, &FlowResponse{Schema: &FlowSchema{Binding: uint32(st.Number), Schema: st.Stream.Stream.JSONSchema}})
	if err != nil {
		return err
	}
	return d.opt.Writer.Lines(line)
}

// append implements dialect. A large value that was not sent is left out: the
// collection's schema merges documents of the same key. Where none may have come
// before, since the table is still read or the key is new, the value is fetched.
func (d *documents) append(ctx context.Context, b []byte, st *stream, s *stamp, c *millrace.Change) ([]byte, int64, error) {
	op, row, keysOnly := byte('c'), c.New, false
	switch c.Op {
	case millrace.Update:
		op = 'u'
	case millrace.Delete:
		op, row, keysOnly = 'd', c.Old, !c.OldFull
	}
	if c.Op == millrace.Update && unsent(row) && (!st.state.done() || c.Old != nil && st.keyChanged(c)) {
		var err error
		if row, err = d.opt.complete(ctx, c); err != nil {
			return b, 0, err
		}
	}
	doc, first, err := st.enc.appendMembers(append(d.doc[:0], '{'), row, keysOnly)
	if err != nil {
		return b, 0, err
	}
	if !first {
		doc = append(doc, ',')
	}
	if d.doc, err = d.appendMeta(doc, st, s, c, op); err != nil {
		return b, 0, err
	}
	return d.opt.Flow.AppendCaptured(b, st.Number, d.doc), 1, nil
}

// appendMeta appends where the document comes from. loc orders the documents of
// all time: the end of the transaction before, the place in this one, its commit
// record. In a chunk the last is 0.
func (d *documents) appendMeta(b []byte, st *stream, s *stamp, c *millrace.Change, op byte) ([]byte, error) {
	b = append(append(b, `"_meta":{"op":"`...), op)
	b = append(b, `","source":{`...)
	at := c.Seq
	if s.commit == 0 {
		d.rows++
		at = d.rows
		b = append(b, `"snapshot":true,`...)
	} else {
		b = strconv.AppendInt(append(b, `"ts_ms":`...), s.millis, 10)
		b = strconv.AppendUint(append(b, `,"txid":`...), uint64(s.xid), 10)
		b = append(b, ',')
	}
	b = appendName(append(b, `"schema":`...), st.name.Schema)
	b = appendName(append(b, `,"table":`...), st.name.Name)
	b = strconv.AppendUint(append(b, `,"loc":[`...), uint64(s.before), 10)
	b = strconv.AppendUint(append(b, ','), at, 10)
	b = strconv.AppendUint(append(b, ','), uint64(s.commit), 10)
	b = append(b, `]}`...)
	if c.Op == millrace.Update && c.Old != nil {
		var err error
		b = append(b, `,"before":{`...)
		if b, _, err = st.enc.appendMembers(b, c.Old, !c.OldFull); err != nil {
			return b, err
		}
		b = append(b, '}')
	}
	return append(b, `}}`...), nil
}

// flowState is the state as the runtime keeps it. A patch holds only the bindings
// that changed.
type flowState struct {
	*Shared
	Bindings map[string]*flowBindingState `json:"bindingStateV1"`
}

// flowBindingState is a tableState whose load is text: what is an object would be
// merged member by member with the one before.
type flowBindingState struct {
	OID      uint32 `json:"oid"`
	Filenode uint32 `json:"filenode"`
	Shape    string `json:"shape"`
	Load     string `json:"load,omitempty"`
	Rows     int64  `json:"rows"`
}

// state implements dialect.
func (d *documents) state(at *Shared, streams []*stream, _ int64) (int64, error) {
	update := flowState{Shared: at, Bindings: map[string]*flowBindingState{}}
	for _, st := range streams {
		if st.dirty {
			t := st.state
			update.Bindings[st.Stream.stateKey] = &flowBindingState{t.OID, t.Filenode, t.Shape, string(t.Load), t.Rows}
		}
	}
	for _, key := range d.gone {
		update.Bindings[key] = nil // which takes it out of the state
	}
	text, err := json.Marshal(update)
	if err != nil {
		return 0, err
	}
	line, err := d.opt.Flow.Append(nil, &FlowResponse{Checkpoint: &FlowCheckpoint{FlowState{Updated: text, Patch: true}}})
	if err != nil {
		return 0, err
	}
	if err := d.opt.Writer.Lines(line); err != nil {
		return 0, err
	}
	d.gone = nil
	return 1, d.opt.Writer.Flush()
}

// FlowStreams makes what the Sink needs of the bindings and the state of an open:
// one stream a binding, in the same order.
func FlowStreams(o *FlowOpen) (*ConfiguredCatalog, *State, error) {
	var kept flowState
	if len(o.State) > 0 {
		if err := json.Unmarshal(o.State, &kept); err != nil {
			return nil, nil, stateError(jsonProblem(err))
		}
	}
	c, state := &ConfiguredCatalog{}, &State{Tables: map[millrace.TableName]*tableState{}}
	if kept.Shared != nil && kept.System != "" {
		if err := state.at(kept.Shared); err != nil {
			return nil, nil, err
		}
	}
	for i := range o.Capture.Bindings {
		b := &o.Capture.Bindings[i]
		name, err := b.Table()
		if err != nil {
			return nil, nil, err
		}
		s := ConfiguredStream{Stream: Stream{Name: name.Name, Namespace: name.Schema}, SyncMode: Incremental, stateKey: b.StateKey}
		if s.stateKey == "" {
			s.stateKey = name.Schema + "%2F" + name.Name
		}
		c.Streams = append(c.Streams, s)
		if t := kept.Bindings[s.stateKey]; t != nil && t.Load != "" {
			state.Tables[name] = &tableState{OID: t.OID, Filenode: t.Filenode, Shape: t.Shape, Load: json.RawMessage(t.Load), Rows: t.Rows}
		}
	}
	state.bindings = slices.Sorted(maps.Keys(kept.Bindings))
	return c, state, nil
}

// Table names the table of a binding.
func (b *FlowBinding) Table() (millrace.TableName, error) {
	var r FlowResource
	if err := json.Unmarshal(b.Resource, &r); err != nil {
		return millrace.TableName{}, configError("resourceConfig", jsonProblem(err), "take bindings as discover gives them")
	}
	if r.Stream == "" {
		return millrace.TableName{}, configError("resourceConfig", errRequest, `name the table: {"namespace": "public", "stream": "orders"}`)
	}
	if r.Namespace == "" {
		r.Namespace = "public"
	}
	return millrace.TableName{Schema: r.Namespace, Name: r.Stream}, nil
}

const resourceSchema = `{"$schema":"http://json-schema.org/draft-07/schema#","title":"Table","type":"object","required":["namespace","stream"],"properties":{` +
	`"namespace":{"type":"string","title":"Schema","readOnly":true},"stream":{"type":"string","title":"Table","readOnly":true}}}`

// FlowSpecOf answers spec: the same configuration as that of the other protocol.
func FlowSpecOf() (*FlowResponse, error) {
	var spec struct {
		Documentation string          `json:"documentationUrl"`
		Schema        json.RawMessage `json:"connectionSpecification"`
	}
	if err := json.Unmarshal(Spec().Spec, &spec); err != nil {
		return nil, err
	}
	return &FlowResponse{Spec: &FlowSpec{Protocol: flowProtocol, ConfigSchema: spec.Schema, ResourceSchema: json.RawMessage(resourceSchema),
		Documentation: spec.Documentation, PathPointers: []string{"/namespace", "/stream"}}}, nil
}

// FlowFoundOf describes a table that has a key which its changes name; nil: it
// has none.
func (c *Config) FlowFoundOf(t *catalog.Table) (*FlowFound, error) {
	key, changes := KeyOf(t)
	if !changes {
		return nil, nil
	}
	f := &FlowFound{Name: t.Name.Schema + "/" + t.Name.Name, ResourcePath: []string{t.Name.Schema, t.Name.Name}}
	var err error
	if f.Resource, err = json.Marshal(FlowResource{t.Name.Schema, t.Name.Name}); err != nil {
		return nil, err
	}
	for _, column := range key {
		f.Key = append(f.Key, "/"+pointerEscape.Replace(column))
	}
	f.Schema = c.FlowSchemaOf(t)
	return f, nil
}
