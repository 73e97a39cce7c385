package airbyte

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	"github.com/millrace/millrace"
)

// formatVersion is that of the state; an older one can still be read.
const formatVersion = 1

// StateMessage is the platform's AirbyteStateMessage.
type StateMessage struct {
	Type   string       `json:"type"` // GLOBAL or STREAM
	Global *GlobalState `json:"global,omitempty"`
	Stream *StreamState `json:"stream,omitempty"`
	Stats  *Stats       `json:"sourceStats,omitempty"`
}

// refreshed is the Load of a full refresh that is not done.
type refreshed struct {
	After []byte   `json:"after"`         // the key of the last row (snapshot.Key)
	Key   []string `json:"key,omitempty"` // its columns
}

// GlobalState is one position for all streams.
type GlobalState struct {
	Shared  *Shared       `json:"shared_state"`
	Streams []StreamState `json:"stream_states"`
}

// StreamState is the state of one stream.
type StreamState struct {
	Stream Descriptor  `json:"stream_descriptor"`
	State  *tableState `json:"stream_state,omitempty"`
}

// Stats counts the records since the STATE before.
type Stats struct {
	Records count `json:"recordCount"`
}

// count is written with a point, as the protocol's schema has it.
type count int64

// MarshalJSON implements json.Marshaler.
func (c count) MarshalJSON() ([]byte, error) {
	return append(strconv.AppendInt(nil, int64(c), 10), '.', '0'), nil
}

// Shared is where the stream is.
type Shared struct {
	Format   int          `json:"format"`
	System   string       `json:"system_id"`
	Timeline int32        `json:"timeline"`
	LSN      millrace.LSN `json:"lsn"`
	// Cursor is that of the last record before (see MemberCursor).
	Cursor int64 `json:"cursor,omitempty"`
}

// tableState is how far one table is. In state_type stream it carries the
// position as well.
type tableState struct {
	*Shared
	OID      uint32 `json:"oid,omitempty"`
	Filenode uint32 `json:"filenode,omitempty"`
	Shape    string `json:"shape,omitempty"` // see ShapeHash
	// Load is "done", or how far the table was read.
	Load json.RawMessage `json:"load,omitempty"`
	// Begun: changes of the table were written, if no rows of it.
	Begun bool  `json:"begun,omitempty"`
	Rows  int64 `json:"rows,omitempty"` // read so far, until it is done
	// Generation is the generation_id of a full refresh.
	Generation *int64 `json:"generation_id,omitempty"`
	// Full: Load is that of a full refresh, behind which no changes were followed.
	Full bool `json:"full,omitempty"`
}

var loadDone = json.RawMessage(`"done"`)

func (t *tableState) done() bool { return bytes.Equal(t.Load, loadDone) }

// ShapeHash stands for a shape (catalog.ShapeOf) in the state: a state must not
// grow with the width of a table.
func ShapeHash(shape string) string {
	sum := sha256.Sum256([]byte(shape))
	return hex.EncodeToString(sum[:8])
}

// State is what a platform gives back.
type State struct {
	// Position is nil if there is no state. LSN is the lowest of all streams.
	Position *Shared
	Tables   map[millrace.TableName]*tableState
	// bindings are the keys of Estuary's that it speaks of.
	bindings []string
	// streams are the positions of streams that have one each; global tells that
	// there is one for all.
	global  bool
	streams map[millrace.TableName]*Shared
}

// ParseState reads the file behind --state: an array of states, where a missing
// one, null and an empty object mean that there is none.
func ParseState(data []byte) (*State, error) {
	s := &State{Tables: map[millrace.TableName]*tableState{}, streams: map[millrace.TableName]*Shared{}}
	data = bytes.TrimSpace(data)
	if len(data) == 0 || bytes.Equal(data, []byte("null")) || bytes.Equal(data, []byte("{}")) {
		return s, nil
	}
	var messages []givenState
	if err := json.Unmarshal(data, &messages); err != nil {
		return nil, stateError(jsonProblem(err))
	}
	for i, m := range messages {
		if m.Global == nil {
			m.Global = m.Global2
		}
		switch {
		case m.empty():
		case m.Global != nil:
			if err := s.at(m.Global.Shared); err != nil {
				return nil, err
			}
			s.global = s.global || m.Global.Shared != nil
			for i := range m.Global.Streams {
				s.table(&m.Global.Streams[i])
			}
		case m.Stream != nil && m.Stream.State != nil:
			if err := s.at(m.Stream.State.Shared); err != nil {
				return nil, err
			}
			stream := Stream{Name: m.Stream.Stream.Name, Namespace: m.Stream.Stream.Namespace}
			if m.Stream.State.Shared != nil {
				s.streams[stream.Table()] = m.Stream.State.Shared
			}
			s.table(m.Stream)
		case m.Stream == nil:
			return nil, configError("state", fmt.Errorf("message %d is neither GLOBAL nor STREAM", i+1),
				"pass an array of what stands under state in STATE messages")
		}
	}
	if s.Position == nil { // rows without the position they are of: what came since is not known
		maps.DeleteFunc(s.Tables, func(_ millrace.TableName, t *tableState) bool { return !t.Full })
	}
	return s, nil
}

// givenState is one state of those that a platform gives back.
type givenState struct {
	Type    string          `json:"type"`
	Global  *GlobalState    `json:"global"`
	Global2 *GlobalState    `json:"global_"` // as some clients spell it
	Stream  *StreamState    `json:"stream"`
	Data    json.RawMessage `json:"data"` // of a LEGACY one
}

// empty tells whether it is a platform's word for none.
func (m *givenState) empty() bool {
	none := len(m.Data) == 0 || string(m.Data) == "null" || string(m.Data) == "{}"
	return (m.Type == "" || m.Type == "LEGACY") && none && m.Global == nil && m.Stream == nil
}

func stateError(err error) error {
	return configError("state", err, "reset the connection's state, so that its streams are read again")
}

// at takes a position; the streams of a platform that commits them one by one
// have different ones.
func (s *State) at(p *Shared) error {
	switch {
	case p == nil:
		return nil
	case p.Format != formatVersion:
		return stateError(fmt.Errorf("format %d is not known: it is of another connector or of a newer version", p.Format))
	case s.Position == nil:
		first := *p
		s.Position = &first
		return nil
	case s.Position.System != p.System:
		return stateError(fmt.Errorf("it speaks of two systems, %s and %s", s.Position.System, p.System))
	}
	s.Position.LSN = min(s.Position.LSN, p.LSN)
	s.Position.Cursor = max(s.Position.Cursor, p.Cursor)
	s.Position.Timeline = min(s.Position.Timeline, p.Timeline)
	return nil
}

// Keep forgets the positions of streams that are not read by increments, if they
// have one each: one that is not asked for any more would hold back all others.
func (s *State) Keep(c *ConfiguredCatalog) error {
	if s.global || len(s.streams) == 0 {
		return nil
	}
	s.Position = nil
	for i := range c.Streams {
		if st := &c.Streams[i]; !st.Full() {
			if err := s.at(s.streams[st.Stream.Table()]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Behind names the streams of a catalog that are read by increments and whose own
// positions lie before one, if they have one each.
func (s *State) Behind(c *ConfiguredCatalog, at millrace.LSN) []string {
	var names []string
	for i := range c.Streams {
		name := c.Streams[i].Stream.Table()
		if p := s.streams[name]; p != nil && p.LSN < at && !c.Streams[i].Full() {
			names = append(names, name.String())
		}
	}
	return names
}

func (s *State) table(m *StreamState) {
	if m.State == nil || len(m.State.Load) == 0 && !m.State.Begun {
		return // never begun: read from its beginning
	}
	stream := Stream{Name: m.Stream.Name, Namespace: m.Stream.Namespace}
	s.Tables[stream.Table()] = m.State
}

// SkipOf gives the position up to which the destination has the changes of a
// table, where the platform commits the states of streams one by one.
func (s *State) SkipOf(name millrace.TableName) millrace.LSN {
	if t := s.Tables[name]; t != nil && t.Shared != nil {
		return t.LSN
	}
	return 0
}
