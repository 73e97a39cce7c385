package airbyte

import (
	"context"
	"encoding/json"
	"fmt"
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
// A changed key is a deletion of the old one and a document of the new one: as one
// document the old one would stay in the collection.
func (d *documents) append(ctx context.Context, b []byte, st *stream, s *stamp, c *millrace.Change) ([]byte, int64, error) {
	moved := c.Op == millrace.Update && c.Old != nil && st.keyChanged(c)
	row := c.New
	if c.Op == millrace.Update && unsent(row) && (moved || !st.state.done()) {
		var err error
		if row, err = d.opt.complete(ctx, c); err != nil {
			return b, 0, err
		}
	}
	var err error
	switch {
	case c.Op == millrace.Delete:
		b, err = d.document(b, st, s, c, 'd', c.Old, !c.OldFull)
	case moved:
		if b, err = d.document(b, st, s, c, 'd', c.Old, !c.OldFull); err == nil {
			b, err = d.document(b, st, s, c, 'c', row, false)
		}
		return b, 2, err
	case c.Op == millrace.Update:
		b, err = d.document(b, st, s, c, 'u', row, false)
	default:
		b, err = d.document(b, st, s, c, 'c', row, false)
	}
	return b, 1, err
}

// document appends one document.
func (d *documents) document(b []byte, st *stream, s *stamp, c *millrace.Change, op byte, row millrace.Row, keysOnly bool) ([]byte, error) {
	doc, first, err := st.enc.appendMembers(append(d.doc[:0], '{'), row, keysOnly)
	if err != nil {
		return b, err
	}
	if !first {
		doc = append(doc, ',')
	}
	if d.doc, err = d.appendMeta(doc, st, s, c, op); err != nil {
		return b, err
	}
	return d.opt.Flow.AppendCaptured(b, st.Number, d.doc), nil
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
	if op == 'u' && c.Old != nil {
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
// merged member by member with the one before, and what is left out would stay.
type flowBindingState struct {
	OID      uint32 `json:"oid"`
	Filenode uint32 `json:"filenode"`
	Shape    string `json:"shape"`
	Load     string `json:"load"`
	Begun    bool   `json:"begun"`
	Rows     int64  `json:"rows"`
}

// state implements dialect.
func (d *documents) state(at *Shared, streams []*stream, _ int64) (int64, error) {
	update := flowState{Shared: at, Bindings: map[string]*flowBindingState{}}
	for _, st := range streams {
		if st.dirty {
			t := st.state
			update.Bindings[st.Stream.stateKey] = &flowBindingState{t.OID, t.Filenode, t.Shape, string(t.Load), t.Begun, t.Rows}
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
		r, err := b.Resolve()
		if err != nil {
			return nil, nil, err
		}
		name := r.Table()
		s := ConfiguredStream{Stream: Stream{Name: name.Name, Namespace: name.Schema}, SyncMode: Incremental, stateKey: b.StateKey}
		for _, column := range r.PrimaryKey {
			s.PrimaryKey = append(s.PrimaryKey, []string{column})
		}
		if s.stateKey == "" {
			s.stateKey = name.Schema + "%2F" + name.Name
		}
		c.Streams = append(c.Streams, s)
		if t := kept.Bindings[s.stateKey]; t != nil && (t.Load != "" || t.Begun) {
			state.Tables[name] = &tableState{OID: t.OID, Filenode: t.Filenode, Shape: t.Shape, Load: json.RawMessage(t.Load), Begun: t.Begun, Rows: t.Rows}
		}
	}
	state.bindings = slices.Sorted(maps.Keys(kept.Bindings))
	return c, state, nil
}

// Resolve reads the configuration of a binding.
func (b *FlowBinding) Resolve() (*FlowResource, error) {
	r := &FlowResource{}
	if err := json.Unmarshal(b.Resource, r); err != nil {
		return nil, configError("resourceConfig", jsonProblem(err), "take bindings as discover gives them")
	}
	if r.Stream == "" {
		return nil, configError("resourceConfig", errRequest, `name the table: {"namespace": "public", "stream": "orders"}`)
	}
	if r.Namespace == "" {
		r.Namespace = "public"
	}
	if len(r.PrimaryKey) > 0 {
		if err := checkColumns(r.PrimaryKey); err != nil {
			return nil, configError("resourceConfig", fmt.Errorf("primary_key: %w", err), `name columns of the table: ["tenant", "id"]`)
		}
	}
	return r, nil
}

// Table names the table of a binding.
func (r *FlowResource) Table() millrace.TableName {
	return millrace.TableName{Schema: r.Namespace, Name: r.Stream}
}

const resourceSchema = `{"$schema":"http://json-schema.org/draft-07/schema#","title":"Table","type":"object","required":["namespace","stream"],"properties":{` +
	`"namespace":{"type":"string","title":"Schema","readOnly":true},"stream":{"type":"string","title":"Table","readOnly":true},` +
	`"primary_key":{"type":"array","title":"Key","items":{"type":"string"},"description":"Columns to be used instead of the table's own key, as in the key of the collection."}}}`

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

// FlowFoundOf describes a table. The documents of one whose changes name no key
// have their place for one.
func (c *Config) FlowFoundOf(t *catalog.Table) (*FlowFound, error) {
	key, err := c.FlowKeyOf(t, nil)
	if err != nil {
		return nil, err
	}
	f := &FlowFound{Name: t.Name.Schema + "/" + t.Name.Name, ResourcePath: []string{t.Name.Schema, t.Name.Name}, Key: placeKey}
	if f.Resource, err = json.Marshal(FlowResource{Namespace: t.Name.Schema, Stream: t.Name.Name}); err != nil {
		return nil, err
	}
	if len(key.Columns) > 0 {
		f.Key = nil
	}
	for _, column := range key.Columns {
		f.Key = append(f.Key, "/"+pointerEscape.Replace(column))
	}
	f.Schema = c.FlowSchemaOf(t, &key)
	return f, nil
}

// FlowKeyOf is KeyOf for documents: a table whose changes do not name its key has
// none.
func (c *Config) FlowKeyOf(t *catalog.Table, chosen []string) (Key, error) {
	key, err := c.KeyOf(t, chosen)
	switch {
	case err != nil || key.Named:
		return key, err
	case key.Chosen:
		return key, key.CanFollow(t)
	}
	return Key{}, nil
}
