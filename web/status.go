package web

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/relay"
)

// Status is what /status shows and millrace status prints. Nil is unknown; it
// is null in JSON and never 0.
type Status struct {
	Job    string `json:"job"`
	State  string `json:"state"`
	Reason string `json:"reason"`
	Hint   string `json:"hint"`
	See    string `json:"see"` // where more is said about the reason; empty: nowhere
	// Condition is what the job waits for while it tries again:
	// source_unreachable, destination_unreachable, waiting_for_slot or changing_tables; or converging.
	Condition   *string     `json:"condition"`
	Version     string      `json:"version"`
	Instance    *string     `json:"instance"`
	HeartbeatAt *Time       `json:"heartbeat_at"`
	Source      Source      `json:"source"`
	Destination Destination `json:"destination"`
	Lag         relay.Lag   `json:"lag"`
	Rates       Rates       `json:"rates"` // unknown while nothing runs
	Load        *Load       `json:"load"`  // the first load, while this instance does it
	Tables      []Table     `json:"tables"`
	Alarms      []Alarm     `json:"alarms"`
	Fallbacks   *int64      `json:"fallback_transactions"` // source transactions that took the row path
	HTTP        *string     `json:"http"`
	StoppedAt   *Time       `json:"stopped_at"`      // set when nothing runs: the last sign of life
	LoadStarted *Time       `json:"load_started_at"` // since when a first load holds the source's xmin
	LoadPaused  *Time       `json:"load_paused_at"`  // since when the load beside the stream rests; the stream goes on
	LoadRows    *int64      `json:"-"`               // copied so far by the first load of this process
	LoadRest    *int64      `json:"-"`               // bytes the first load has still to copy, an estimate
}

// Load is where a first load stands.
type Load struct {
	Phase          string   `json:"phase"`
	Rows           int64    `json:"rows"`
	Bytes          int64    `json:"bytes"`
	EstimatedBytes *int64   `json:"estimated_bytes"`
	BytesPerSecond *float64 `json:"bytes_per_second"`
	ETASeconds     *float64 `json:"eta_seconds"` // of the rows
	TablesDone     int      `json:"tables_done"`
	Steps          int      `json:"steps"` // of a phase that copies no rows
	StepsDone      int      `json:"steps_done"`
}

// Source is the state of the source's server and of the job's slot there.
type Source struct {
	Server             *string       `json:"server"` // host:port/database
	SystemID           *string       `json:"system_id"`
	Timeline           *int32        `json:"timeline"`
	CurrentLSN         *millrace.LSN `json:"current_lsn"`
	Slot               string        `json:"slot"`
	SlotActive         *bool         `json:"slot_active"`
	WALStatus          *string       `json:"wal_status"`
	InvalidationReason *string       `json:"invalidation_reason"`
	RestartLSN         *millrace.LSN `json:"restart_lsn"`
	ConfirmedFlushLSN  *millrace.LSN `json:"confirmed_flush_lsn"`
	RetainedWALBytes   *int64        `json:"retained_wal_bytes"`
	SafeWALSizeBytes   *int64        `json:"safe_wal_size_bytes"`
	// DiskFreeBytes is what the disk with the source's WAL has left; nil unless
	// that is on this machine and the role may know where.
	DiskFreeBytes *int64 `json:"disk_free_bytes"`
	// MaxSlotWALKeepBytes is max_slot_wal_keep_size; nil without a limit.
	MaxSlotWALKeepBytes *int64 `json:"max_slot_wal_keep_bytes"`
	// SecondsUntilLost is when the slot is lost if it rests and WAL is written
	// as in the last ten seconds; nil without a limit or without WAL.
	SecondsUntilLost *float64 `json:"seconds_until_lost"`
	// WALHeldBy is what most of the retained WAL waits for: lag or
	// source_transaction; nil when little is retained.
	WALHeldBy *string `json:"wal_held_by"`
	// OldestTransaction is the oldest one at the source that has written.
	OldestTransaction *Backend `json:"oldest_transaction"`
}

// Backend is a session of a server.
type Backend struct {
	PID         int32    `json:"pid"` // 0: a prepared transaction
	Application *string  `json:"application"`
	State       *string  `json:"state"`
	Seconds     *float64 `json:"seconds"` // age of its transaction
}

// Destination is what the destination holds.
type Destination struct {
	Kind           string        `json:"kind"`
	Server         *string       `json:"server"` // host:port/database
	Generation     *int64        `json:"generation"`
	Epoch          *int64        `json:"epoch"`
	CommitLSN      *millrace.LSN `json:"commit_lsn"`
	CommittedLSN   *millrace.LSN `json:"committed_lsn"`
	AckedLSN       *millrace.LSN `json:"acked_lsn"`
	ConsistentFrom *millrace.LSN `json:"consistent_from"`
}

// Table is one table of the job's set.
type Table struct {
	Table         string `json:"table"`
	State         string `json:"state"` // waiting, copying, paused, copied or streaming
	RowsCopied    *int64 `json:"rows_copied"`
	RowsEstimated *int64 `json:"rows_estimated"`
	BytesCopied   *int64 `json:"bytes_copied"`
	Changes       *int64 `json:"changes"` // received by the running instance
}

// Alarm is a limit that is crossed.
type Alarm struct {
	Name    string `json:"name"` // the configuration's key
	Since   Time   `json:"since"`
	Message string `json:"message"`
}

// Time is written as RFC 3339 in UTC with microseconds.
type Time struct{ time.Time }

const timeForm = "2006-01-02T15:04:05.000000Z"

// String gives the form that JSON holds.
func (t Time) String() string { return t.UTC().Format(timeForm) }

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) { return []byte(`"` + t.String() + `"`), nil }

// Known makes a pointer, for a value that is known.
func Known[T any](v T) *T { return &v }

// KnownLSN gives nil for the LSN that means unknown.
func KnownLSN(l millrace.LSN) *millrace.LSN {
	if l == 0 {
		return nil
	}
	return &l
}

// KnownTime gives nil for the zero time.
func KnownTime(t time.Time) *Time {
	if t.IsZero() {
		return nil
	}
	return &Time{t}
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.current())
}

// current is the status with what only a look back can tell.
func (s *Server) current() *Status {
	st := s.opt.Status()
	st.Rates = s.history.rates()
	if safe, rate := st.Source.SafeWALSizeBytes, st.Rates.WAL; safe != nil && rate != nil && *rate > 0 {
		st.Source.SecondsUntilLost = Known(float64(max(*safe, 0)) / *rate)
	}
	return st
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	writeText(w, http.StatusOK, "ok")
}

// readyz is 200 only while the job streams: a reader that is sent here sees
// data that is nearly current.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	state := s.opt.Status().State
	code := http.StatusServiceUnavailable
	if state == string(relay.Streaming) {
		code = http.StatusOK
	}
	writeText(w, code, state)
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text + "\n")) // the client may be gone
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		writeText(w, http.StatusInternalServerError, "encode the answer: "+err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n')) // the client may be gone
}
