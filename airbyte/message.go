package airbyte

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
	"time"
)

// Message is any message but RECORD, which the hot path writes by itself
// (protocol: airbyte_protocol.yaml, AirbyteMessage).
type Message struct {
	Type             string            `json:"type"`
	Log              *Log              `json:"log,omitempty"`
	Spec             json.RawMessage   `json:"spec,omitempty"`
	ConnectionStatus *ConnectionStatus `json:"connectionStatus,omitempty"`
	Catalog          *Catalog          `json:"catalog,omitempty"`
	State            *StateMessage     `json:"state,omitempty"`
	Trace            *Trace            `json:"trace,omitempty"`
}

// Log is a line for people.
type Log struct {
	Level   string `json:"level"`
	Message string `json:"message"`
}

// ConnectionStatus is the answer to check.
type ConnectionStatus struct {
	Status  string `json:"status"` // SUCCEEDED or FAILED
	Message string `json:"message,omitempty"`
}

// Trace carries one of the kinds of facts about a run.
type Trace struct {
	Type         string        `json:"type"`
	EmittedAt    float64       `json:"emitted_at"` // milliseconds since 1970
	Error        *TraceError   `json:"error,omitempty"`
	Estimate     *Estimate     `json:"estimate,omitempty"`
	StreamStatus *StreamStatus `json:"stream_status,omitempty"`
}

// TraceError says why the run fails.
type TraceError struct {
	Message         string      `json:"message"`
	InternalMessage string      `json:"internal_message,omitempty"`
	FailureType     string      `json:"failure_type"` // system_error, config_error, transient_error
	Stream          *Descriptor `json:"stream_descriptor,omitempty"`
}

// Estimate says how much a stream holds.
type Estimate struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
	Type      string `json:"type"` // STREAM
	Rows      int64  `json:"row_estimate"`
	Bytes     int64  `json:"byte_estimate"`
}

// StreamStatus says how far a stream is in this run.
type StreamStatus struct {
	Stream Descriptor `json:"stream_descriptor"`
	Status string     `json:"status"` // STARTED, RUNNING, COMPLETE, INCOMPLETE
}

// Descriptor names a stream.
type Descriptor struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}

// Writer writes messages to stdout, one a line and never two at once. After an
// error it writes nothing more; the error comes out of every later call.
type Writer struct {
	mu  sync.Mutex
	out *bufio.Writer
	err error
	now func() time.Time
}

// outBuffer is how much is gathered before it is written: a pipe's size.
const outBuffer = 64 << 10

// NewWriter makes a Writer.
func NewWriter(w io.Writer) *Writer {
	return &Writer{out: bufio.NewWriterSize(w, outBuffer), now: time.Now}
}

// Send writes a message and everything before it.
func (w *Writer) Send(m *Message) error {
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line(line)
	w.flush()
	return w.err
}

// Lines writes whole lines, each with its newline, and may keep them until the
// next message that is not a record.
func (w *Writer) Lines(lines []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		_, w.err = w.out.Write(lines)
	}
	return w.err
}

func (w *Writer) line(line []byte) {
	if w.err != nil {
		return
	}
	if _, w.err = w.out.Write(line); w.err == nil {
		w.err = w.out.WriteByte('\n')
	}
}

func (w *Writer) flush() {
	if w.err == nil {
		w.err = w.out.Flush()
	}
}

// Flush writes what was kept.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flush()
	return w.err
}

func (w *Writer) trace(t Trace) error {
	t.EmittedAt = float64(w.now().UnixMilli())
	return w.Send(&Message{Type: "TRACE", Trace: &t})
}

// Status says how far a stream is.
func (w *Writer) Status(stream Descriptor, status string) error {
	return w.trace(Trace{Type: "STREAM_STATUS", StreamStatus: &StreamStatus{stream, status}})
}

// Estimate says how much a stream holds, as far as the catalog knows.
func (w *Writer) Estimate(stream Descriptor, rows, bytes int64) error {
	return w.trace(Trace{Type: "ESTIMATE", Estimate: &Estimate{stream.Name, stream.Namespace, "STREAM", rows, bytes}})
}

// Error says why the run fails.
func (w *Writer) Error(e TraceError) error { return w.trace(Trace{Type: "ERROR", Error: &e}) }
