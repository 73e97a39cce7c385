package airbyte

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// Estuary's capture protocol: requests on stdin, responses on stdout, either as
// lines of JSON or as protobuf behind four bytes of length, little-endian
// (go/protocols/capture/capture.proto and flow.proto of Estuary Flow; the numbers
// of fields stand in the code below).

// flowProtocol is Response.Spec.protocol.
const flowProtocol = 3032023

// FlowRequest is one request; exactly one member is set.
type FlowRequest struct {
	Spec     *struct{}     `json:"spec"`
	Discover *FlowDiscover `json:"discover"`
	Validate *FlowValidate `json:"validate"`
	Apply    *struct{}     `json:"apply"`
	Open     *FlowOpen     `json:"open"`
	Ack      *FlowAck      `json:"acknowledge"`
}

// FlowDiscover asks for what can be captured.
type FlowDiscover struct {
	Config json.RawMessage `json:"config"`
}

// FlowValidate asks whether bindings can be captured.
type FlowValidate struct {
	Config   json.RawMessage `json:"config"`
	Bindings []FlowBinding   `json:"bindings"`
}

// FlowOpen begins a capture.
type FlowOpen struct {
	Capture struct {
		Config   json.RawMessage `json:"config"`
		Bindings []FlowBinding   `json:"bindings"`
	} `json:"capture"`
	State json.RawMessage `json:"state"`
}

// FlowBinding is a table that is bound to a collection.
type FlowBinding struct {
	Resource     json.RawMessage `json:"resourceConfig"`
	ResourcePath []string        `json:"resourcePath"`
	StateKey     string          `json:"stateKey"`
}

// FlowAck says that checkpoints are durable: so many of the oldest that were not
// acknowledged; 0 means 1.
type FlowAck struct {
	Checkpoints uint32 `json:"checkpoints"`
}

// FlowResource is the configuration of a binding.
type FlowResource struct {
	Namespace  string   `json:"namespace"`
	Stream     string   `json:"stream"`
	PrimaryKey []string `json:"primary_key,omitempty"` // instead of the table's own
}

// FlowResponse is one response but captured, which the hot path writes by itself.
type FlowResponse struct {
	Spec       *FlowSpec       `json:"spec,omitempty"`
	Discovered *FlowDiscovered `json:"discovered,omitempty"`
	Validated  *FlowValidated  `json:"validated,omitempty"`
	Applied    *FlowApplied    `json:"applied,omitempty"`
	Opened     *FlowOpened     `json:"opened,omitempty"`
	Schema     *FlowSchema     `json:"sourcedSchema,omitempty"`
	Checkpoint *FlowCheckpoint `json:"checkpoint,omitempty"`
}

type (
	// FlowSpec answers spec.
	FlowSpec struct {
		Protocol       uint32          `json:"protocol"`
		ConfigSchema   json.RawMessage `json:"configSchema"`
		ResourceSchema json.RawMessage `json:"resourceConfigSchema"`
		Documentation  string          `json:"documentationUrl"`
		PathPointers   []string        `json:"resourcePathPointers"`
	}
	// FlowDiscovered answers discover.
	FlowDiscovered struct {
		Bindings []FlowFound `json:"bindings"`
	}
	// FlowFound is a table that can be captured.
	FlowFound struct {
		Name         string          `json:"recommendedName"`
		Resource     json.RawMessage `json:"resourceConfig"`
		Schema       json.RawMessage `json:"documentSchema"`
		Key          []string        `json:"key"`
		ResourcePath []string        `json:"resourcePath"`
	}
	// FlowValidated answers validate, in the order of the request.
	FlowValidated struct {
		Bindings []FlowPath `json:"bindings"`
	}
	// FlowPath names a table.
	FlowPath struct {
		ResourcePath []string `json:"resourcePath"`
	}
	// FlowApplied answers apply.
	FlowApplied struct {
		Action string `json:"actionDescription,omitempty"`
	}
	// FlowOpened answers open.
	FlowOpened struct {
		Explicit bool `json:"explicitAcknowledgements"`
	}
	// FlowSchema says what the documents of a binding look like.
	FlowSchema struct {
		Binding uint32          `json:"binding"`
		Schema  json.RawMessage `json:"documentSchema"`
	}
	// FlowCheckpoint ends a transaction of documents.
	FlowCheckpoint struct {
		State FlowState `json:"state"`
	}
	// FlowState changes the state that the next open is given.
	FlowState struct {
		Updated json.RawMessage `json:"updated"`
		Patch   bool            `json:"mergePatch,omitempty"` // RFC 7396
	}
)

// FlowCodec reads and writes the messages in one of the two forms.
type FlowCodec struct {
	in   *bufio.Reader
	json bool
}

// NewFlowCodec takes the codec as FLOW_RUNTIME_CODEC names it: json, or proto,
// which is also meant by nothing.
func NewFlowCodec(in io.Reader, name string) (*FlowCodec, error) {
	switch name {
	case "", "proto", "json":
		return &FlowCodec{in: bufio.NewReaderSize(in, outBuffer), json: name == "json"}, nil
	}
	return nil, configError("FLOW_RUNTIME_CODEC", fmt.Errorf("unknown codec %q", name), "use proto or json")
}

// mostRequest bounds a request, which holds the schemas of all collections.
const mostRequest = 256 << 20

var errRequest = errors.New("malformed request")

// Read gives the next request; io.EOF at the end.
func (c *FlowCodec) Read() (*FlowRequest, error) {
	if c.json {
		for {
			line, err := c.in.ReadBytes('\n')
			if len(line) > 1 {
				r := &FlowRequest{}
				if err := json.Unmarshal(line, r); err != nil {
					return nil, fmt.Errorf("%w: %w", errRequest, jsonProblem(err))
				}
				return r, nil
			}
			if err != nil {
				return nil, err
			}
		}
	}
	var head [4]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > mostRequest {
		return nil, fmt.Errorf("%w: %d bytes", errRequest, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(c.in, body); err != nil {
		return nil, fmt.Errorf("%w: it ends too early", errRequest)
	}
	return parseFlowRequest(body)
}

// Append appends a response in the codec's form.
func (c *FlowCodec) Append(b []byte, r *FlowResponse) ([]byte, error) {
	if c.json {
		line, err := json.Marshal(r)
		return append(append(b, line...), '\n'), err
	}
	return appendFrame(b, r.proto()), nil
}

func appendFrame(b, body []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(body))), body...)
}

// AppendCaptured appends a document.
func (c *FlowCodec) AppendCaptured(b []byte, binding int, doc []byte) []byte {
	if c.json {
		b = append(b, `{"captured":{"binding":`...)
		b = fmt.Append(b, binding)
		b = append(append(b, `,"doc":`...), doc...)
		return append(b, '}', '}', '\n')
	}
	size := protowire.SizeTag(2) + protowire.SizeBytes(len(doc))
	if binding != 0 {
		size += protowire.SizeTag(1) + protowire.SizeVarint(uint64(binding))
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(protowire.SizeTag(6)+protowire.SizeBytes(size)))
	b = protowire.AppendVarint(protowire.AppendTag(b, 6, protowire.BytesType), uint64(size))
	if binding != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), uint64(binding))
	}
	return protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), doc)
}
