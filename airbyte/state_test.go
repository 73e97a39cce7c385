package airbyte

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/millrace/millrace"
)

// TestStates: what platforms give back is understood in all its spellings.
func TestStates(t *testing.T) {
	table := millrace.TableName{Schema: "public", Name: "orders"}
	global := `{"shared_state":{"format":1,"system_id":"7","timeline":2,"lsn":"0/16B3748"},
		"stream_states":[{"stream_descriptor":{"name":"orders","namespace":"public"},"stream_state":{"oid":5,"load":"done"}}]}`
	one := func(name, lsn string) string {
		return `{"type":"STREAM","stream":{"stream_descriptor":{"name":"` + name + `","namespace":"public"},
			"stream_state":{"format":1,"system_id":"7","timeline":2,"lsn":"` + lsn + `","oid":5,"load":"done"}},"global_":null,"data":null}`
	}
	for _, c := range []struct {
		name, state string
		lsn         millrace.LSN
		done        bool
	}{
		{"none", ``, 0, false},
		{"null", `null`, 0, false},
		{"empty", `[]`, 0, false},
		{"object", `{}`, 0, false},
		{"global", `[{"type":"GLOBAL","global":` + global + `}]`, 0x16B3748, true},
		{"global_", `[{"type":"GLOBAL","global_":` + global + `,"stream":null}]`, 0x16B3748, true},
		{"streams", `[` + one("items", "0/10") + `,` + one("orders", "0/20") + `]`, 0x10, true},
		{"rows without a position", `[{"type":"GLOBAL","global":` + `{"shared_state":null,` + global[strings.Index(global, `"stream_states"`):] + `}]`, 0, false},
		{"legacy", `[{"type":"LEGACY","data":{}}]`, 0, false},
		{"stream without state", `[{"type":"STREAM","stream":{"stream_descriptor":{"name":"orders","namespace":"public"}}}]`, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := ParseState([]byte(c.state))
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case c.lsn == 0 && s.Position != nil:
				t.Errorf("position %+v, want none", s.Position)
			case c.lsn != 0 && (s.Position == nil || s.Position.LSN != c.lsn):
				t.Errorf("position %+v, want %v", s.Position, c.lsn)
			}
			if done := s.Tables[table] != nil && s.Tables[table].done(); done != c.done {
				t.Errorf("done: %v, want %v", done, c.done)
			}
			if c.name == "streams" && s.SkipOf(table) != 0x20 {
				t.Errorf("skip %v, want 0/20", s.SkipOf(table))
			}
		})
	}
}

// TestForeignStates: what can't be continued is refused and not taken for none.
func TestForeignStates(t *testing.T) {
	for _, state := range []string{
		`[{"type":"GLOBAL","global":{"shared_state":{"state":{"[\"db\",{}]":"{\"lsn\":1}"}},"stream_states":[]}}]`,
		`[{"type":"GLOBAL","global":{"shared_state":{"format":2,"system_id":"7","lsn":"0/1"},"stream_states":[]}}]`,
		`[{"type":"STATE","state":{"type":"GLOBAL","global":{"shared_state":null,"stream_states":[]}}}]`,
		`[{"type":"GLOBAL"}]`,
		`{"type":"GLOBAL"}`,
		`[7]`,
		`{"a":`,
	} {
		_, err := ParseState([]byte(state))
		if err == nil || millrace.HintOf(err) == "" || strings.Contains(err.Error(), "struct") {
			t.Errorf("%s: error %v", state, err)
		}
	}
}

// TestConfig: problems are found together, each with its member and a hint, and
// nothing of the document is quoted.
func TestConfig(t *testing.T) {
	_, err := ParseConfig([]byte(`{"password":"s3cret","mode":"x","ack":"stdin","tunnel_method":{"tunnel_method":"SSH_KEY_AUTH"},"mask":{"a":1}}`))
	if err == nil {
		t.Fatal("no error")
	}
	for _, member := range []string{"mode:", "ack:", "tunnel_method:", "mask:", "host:", "database:"} {
		if !strings.Contains(err.Error(), member) {
			t.Errorf("%s is not mentioned in %v", member, err)
		}
	}
	for doc, say := range map[string]string{
		`{"password":"s3cret","port":"x"}`: "member port: want a number, got string", `{"ssl_mode":"s3cret"}`: "member ssl_mode: want an object", `["s3cret"]`: "config: want an object, got array",
	} {
		if _, err := ParseConfig([]byte(doc)); err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), say) {
			t.Errorf("a wrong type: %v", err)
		}
	}
	c, err := ParseConfig([]byte(`{"host":"h","database":"d e","username":"u","password":"p@/","unknown":1,"ssl_mode":{"mode":"verify-ca"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Conn(), "postgres://u:p%40%2F@h:5432/d%20e?sslmode=verify-ca"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestSpec: the form has a field for every member that the configuration knows.
func TestSpec(t *testing.T) {
	var spec struct {
		Connection struct {
			Properties map[string]json.RawMessage `json:"properties"`
		} `json:"connectionSpecification"`
	}
	if err := json.Unmarshal(Spec().Spec, &spec); err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(Config{})
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(config, &members); err != nil {
		t.Fatal(err)
	}
	for _, refused := range []string{"tunnel_method", "jdbc_url_params", "mask"} {
		delete(members, refused)
	}
	for name := range members {
		if spec.Connection.Properties[name] == nil {
			t.Errorf("the spec lacks %s", name)
		}
	}
	if len(spec.Connection.Properties) != len(members) {
		t.Errorf("%d properties, %d members", len(spec.Connection.Properties), len(members))
	}
}

// TestStateOfAnotherStream: a stream that is not asked for any more does not hold
// back the others.
func TestStateOfAnotherStream(t *testing.T) {
	one := func(name, lsn string) string {
		return `{"type":"STREAM","stream":{"stream_descriptor":{"name":"` + name + `"},
			"stream_state":{"format":1,"system_id":"7","timeline":2,"lsn":"` + lsn + `","oid":5,"load":"done"}}}`
	}
	s, err := ParseState([]byte(`[` + one("left", "0/10") + `,` + one("orders", "0/20") + `,` + one("whole", "0/15") + `]`))
	if err != nil {
		t.Fatal(err)
	}
	c := &ConfiguredCatalog{Streams: []ConfiguredStream{
		{Stream: Stream{Name: "orders"}, SyncMode: Incremental}, {Stream: Stream{Name: "whole"}, SyncMode: FullRefresh}, {Stream: Stream{Name: "new"}, SyncMode: Incremental}}}
	if err := s.Keep(c); err != nil {
		t.Fatal(err)
	}
	if s.Position == nil || s.Position.LSN != 0x20 {
		t.Errorf("position %+v, want 0/20", s.Position)
	}
}

// TestRefreshByAnotherKey: where a table has another key now, a full refresh begins
// anew: rows that come behind the old key would be taken for read.
func TestRefreshByAnotherKey(t *testing.T) {
	name := millrace.TableName{Schema: "public", Name: "t"}
	st := ConfiguredStream{Stream: Stream{Name: "t"}, SyncMode: FullRefresh}
	state := &State{Tables: map[millrace.TableName]*tableState{name: {OID: 5, Filenode: 5, Shape: "s", Load: json.RawMessage(`{"after":"AAE=","key":["a"]}`)}}}
	s := NewSink(Options{Config: &Config{}, State: state, Tables: []Selected{{Stream: &st, OID: 5, Filenode: 5, Shape: "s", Full: true}}})
	if after, done := s.Refresh(name, []string{"a"}); after == nil || done {
		t.Errorf("the same key: %x, %v", after, done)
	}
	if after, done := s.Refresh(name, []string{"b"}); after != nil || done {
		t.Errorf("another key: %x, %v", after, done)
	}
}

// TestIncrementalAfterRefresh: a full refresh is no beginning of an incremental read,
// since the changes behind it were not followed.
func TestIncrementalAfterRefresh(t *testing.T) {
	name := millrace.TableName{Schema: "public", Name: "t"}
	for _, full := range []bool{false, true} {
		st := ConfiguredStream{Stream: Stream{Name: "t"}, SyncMode: Incremental}
		state := &State{Tables: map[millrace.TableName]*tableState{name: {OID: 5, Filenode: 5, Shape: "s", Load: loadDone, Full: full}}}
		s := NewSink(Options{Config: &Config{}, State: state, Tables: []Selected{{Stream: &st, OID: 5, Filenode: 5, Shape: "s"}}})
		cp, err := s.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if m, load := cp.Tables[name]; load != full || len(m.State) > 0 {
			t.Errorf("after a full refresh (%v) the table is read: %v, %s", full, load, m.State)
		}
	}
}
