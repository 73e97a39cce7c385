package airbyte

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/millrace/millrace"
)

// Catalog is what discover answers.
type Catalog struct {
	Streams []Stream `json:"streams"`
}

// Stream is a table, as the platform sees it.
type Stream struct {
	Name                string          `json:"name"`
	Namespace           string          `json:"namespace,omitempty"`
	JSONSchema          json.RawMessage `json:"json_schema"`
	SyncModes           []string        `json:"supported_sync_modes"`
	SourceDefinedCursor bool            `json:"source_defined_cursor"`
	DefaultCursor       []string        `json:"default_cursor_field,omitempty"`
	PrimaryKey          [][]string      `json:"source_defined_primary_key,omitempty"`
	Resumable           bool            `json:"is_resumable"`
}

// Table names the stream's table. A stream without a namespace is in public.
func (s *Stream) Table() millrace.TableName {
	if s.Namespace == "" {
		return millrace.TableName{Schema: "public", Name: s.Name}
	}
	return millrace.TableName{Schema: s.Namespace, Name: s.Name}
}

// Descriptor names the stream as the catalog does.
func (s *Stream) Descriptor() Descriptor { return Descriptor{Name: s.Name, Namespace: s.Namespace} }

// The sync modes.
const (
	FullRefresh = "full_refresh"
	Incremental = "incremental"
)

// ConfiguredStream is a stream that is to be read.
type ConfiguredStream struct {
	Stream       Stream     `json:"stream"`
	SyncMode     string     `json:"sync_mode"`
	PrimaryKey   [][]string `json:"primary_key"`
	GenerationID *int64     `json:"generation_id"`

	stateKey string // of Estuary's state
}

// Full tells whether the stream is read by full refresh: it is to be, or it was
// never offered otherwise. PyAirbyte asks for incremental whatever is offered, and
// connectors made with Airbyte's CDK take that in the same way.
func (c *ConfiguredStream) Full() bool {
	return c.SyncMode == FullRefresh || len(c.Stream.SyncModes) > 0 && !slices.Contains(c.Stream.SyncModes, Incremental)
}

// Chosen gives the columns of the key that was chosen for the stream, none where
// that is the one that discover gave.
func (c *ConfiguredStream) Chosen() ([]string, error) {
	key, err := columnsOf(c.PrimaryKey)
	if err != nil || len(key) == 0 {
		return nil, err
	}
	if found, err := columnsOf(c.Stream.PrimaryKey); err == nil && sameColumns(key, found) {
		return nil, nil
	}
	return key, checkColumns(key)
}

// columnsOf reads a key as the protocol has it: paths, here of one element.
func columnsOf(paths [][]string) ([]string, error) {
	key := make([]string, len(paths))
	for i, path := range paths {
		if len(path) != 1 {
			return nil, fmt.Errorf("a path has one element, the column's name")
		}
		key[i] = path[0]
	}
	return key, nil
}

// properties gives the names of the schema's members, nil if it names none.
func (c *ConfiguredStream) properties() map[string]bool {
	var schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if json.Unmarshal(c.Stream.JSONSchema, &schema) != nil || len(schema.Properties) == 0 {
		return nil
	}
	names := make(map[string]bool, len(schema.Properties))
	for name := range schema.Properties {
		names[name] = true
	}
	return names
}

// ConfiguredCatalog says what read reads.
type ConfiguredCatalog struct {
	Streams []ConfiguredStream `json:"streams"`
}

// ParseCatalog reads a configured catalog.
func ParseCatalog(data []byte) (*ConfiguredCatalog, error) {
	c := &ConfiguredCatalog{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, configError("catalog", jsonProblem(err), "pass a ConfiguredAirbyteCatalog, made of what discover answers")
	}
	if len(c.Streams) == 0 {
		return nil, configError("catalog", fmt.Errorf("no streams"), "pass a ConfiguredAirbyteCatalog with at least one stream")
	}
	seen := map[millrace.TableName]bool{}
	for i := range c.Streams {
		s := &c.Streams[i]
		name := s.Stream.Table()
		switch {
		case s.Stream.Name == "":
			return nil, configError("catalog", fmt.Errorf("stream %d has no name", i+1), "take streams as discover gives them")
		case seen[name]:
			return nil, configError("catalog", fmt.Errorf("stream %s is there twice", name), "take one of them out")
		case s.SyncMode != FullRefresh && s.SyncMode != Incremental:
			return nil, configError("catalog", fmt.Errorf("stream %s: unknown sync_mode %q", name, s.SyncMode), "use full_refresh or incremental")
		}
		if _, err := s.Chosen(); err != nil {
			return nil, configError("catalog", fmt.Errorf("stream %s: primary_key: %w", name, err), `name columns of the table: [["tenant"], ["id"]]`)
		}
		seen[name] = true
	}
	return c, nil
}
