package airbyte

import (
	"bytes"
	_ "embed" // the spec
	"encoding/json"
)

//go:embed spec.json
var specJSON []byte

// Spec is the answer to spec: what the platform's form asks for.
func Spec() *Message {
	var line bytes.Buffer
	if err := json.Compact(&line, specJSON); err != nil {
		panic(err) // embedded, and tested
	}
	return &Message{Type: "SPEC", Spec: line.Bytes()}
}
