package hooks

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// receiver is a server that keeps what it is sent and answers as it is told.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	bodies  []string
	headers []http.Header
	answers []int // one for each request; then 200
}

func newReceiver(t *testing.T, answers ...int) *receiver {
	r := &receiver{answers: answers}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.bodies, r.headers = append(r.bodies, string(body)), append(r.headers, req.Header)
		if n := len(r.bodies); n <= len(r.answers) {
			w.WriteHeader(r.answers[n-1])
		}
	}))
	t.Cleanup(func() { client.CloseIdleConnections(); r.Close() })
	return r
}

func fixed(s string) func() (string, error) { return func() (string, error) { return s, nil } }

var streaming = Event{Event: "state", Job: "shop", At: time.Unix(0, 0).UTC(), State: "streaming", Reason: "it was reached", Instance: "i"}

// TestWebhook: an event comes as JSON, with the header, again after a failure of
// the server, and not again after a refusal.
func TestWebhook(t *testing.T) {
	r := newReceiver(t, 503, 200, 403)
	var log strings.Builder
	h := New(Options{URL: fixed(r.URL + "/secret-path"), Authorization: fixed("Bearer secret"), Log: slog.New(slog.NewTextHandler(&log, nil))})
	h.Tell(streaming)
	failed := streaming
	failed.Event, failed.Alarm, failed.Message = "alarm", "max_replication_lag", "too much"
	h.Tell(failed)
	h.Close(time.Minute)
	if len(r.bodies) != 3 || r.bodies[0] != r.bodies[1] {
		t.Fatalf("got %q", r.bodies)
	}
	var got Event
	if err := json.Unmarshal([]byte(r.bodies[1]), &got); err != nil || got != streaming {
		t.Errorf("got %+v, %v", got, err)
	}
	if !strings.Contains(r.bodies[2], `"alarm":"max_replication_lag","message":"too much"`) {
		t.Errorf("got %s", r.bodies[2])
	}
	if h := r.headers[0]; h.Get("Authorization") != "Bearer secret" || h.Get("Content-Type") != "application/json" {
		t.Errorf("got %v", h)
	}
	if !strings.Contains(log.String(), "Forbidden") || strings.Contains(log.String(), "secret") {
		t.Errorf("logged: %s", log.String())
	}
}

// TestUnreachable: nobody waits for a webhook that does not answer, and its
// address is not logged.
func TestUnreachable(t *testing.T) {
	var log strings.Builder
	h := New(Options{URL: fixed("http://127.0.0.1:1/secret"), Log: slog.New(slog.NewTextHandler(&log, nil))})
	h.Tell(streaming)
	begun := time.Now()
	h.Close(100 * time.Millisecond)
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("closing took %v", took)
	}
	if !strings.Contains(log.String(), "refused") || strings.Contains(log.String(), "secret") {
		t.Errorf("logged: %s", log.String())
	}
}

// TestCommand: no shell, the event in variables and on standard input, and no
// variable of the process that may be a secret.
func TestCommand(t *testing.T) {
	t.Setenv("SOURCE_URL", "postgres://u:secret@h/d")
	dir := t.TempDir()
	script := filepath.Join(dir, "hook")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n{ echo \"$1\"; env; cat; } > \"$2\"\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	var log strings.Builder
	h := New(Options{Command: []string{script, "a $HOME; b", out}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	h.Tell(streaming)
	h.Close(time.Minute)
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatalf("%v: %s", err, log.String())
	}
	for _, want := range []string{"a $HOME; b\n", "MILLRACE_JOB=shop\n", "MILLRACE_STATE=streaming\n", "MILLRACE_REASON=it was reached\n", `"state":"streaming"`} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if strings.Contains(string(got), "secret") {
		t.Errorf("the command was given a secret:\n%s", got)
	}
}

// TestCommandThatFails is logged.
func TestCommandThatFails(t *testing.T) {
	var log strings.Builder
	h := New(Options{Command: []string{filepath.Join(t.TempDir(), "missing")}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	h.Tell(streaming)
	h.Close(time.Minute)
	if !strings.Contains(log.String(), "a hook failed") {
		t.Errorf("logged: %s", log.String())
	}
}

// TestRate: of each subject one event in ten seconds, the newest; telling never
// waits; closing sends what is left.
func TestRate(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	h := &Teller{wake: make(chan struct{}, 1), sent: map[string]time.Time{}}
	take := func() string {
		var all []string
		for {
			e, _, _ := h.next(now)
			if e == nil {
				return strings.Join(all, " ")
			}
			all = append(all, e.State+e.Message)
		}
	}
	state := func(s string) { h.Tell(Event{Event: "state", State: s}) }
	alarm := func(s string) { h.Tell(Event{Event: "alarm", Alarm: "lag", Message: s}) }
	check := func(want string) {
		t.Helper()
		if got := take(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	state("a")
	alarm("1")
	check("a 1")
	for range 1000 {
		state("b")
		alarm("2")
		state("c")
	}
	check("")
	now = now.Add(apart - time.Second)
	check("")
	if _, pause, _ := h.next(now); pause != time.Second {
		t.Errorf("pause %v", pause)
	}
	now = now.Add(time.Second)
	check("2 c")
	state("d")
	check("")
	h.closing = true
	check("d")
	if _, _, end := h.next(now); !end {
		t.Error("no end")
	}
}

func TestCheckURL(t *testing.T) {
	for raw, ok := range map[string]bool{
		"https://hooks.example/x": true, "http://127.0.0.1:9/x": true, "http://[::1]/": true, "http://localhost/": true,
		"http://hooks.example/x": false, "ftp://hooks.example": false, "hooks.example": false, "https:///x": false, "": false, "https://h:x%/": false,
	} {
		err := CheckURL(raw, true)
		if (err == nil) != ok {
			t.Errorf("%s: %v", raw, err)
		}
		if err != nil && strings.Contains(err.Error(), "hooks.example") {
			t.Errorf("%v quotes the URL", err)
		}
	}
	if err := CheckURL("http://hooks.example/x", false); err != nil {
		t.Error(err)
	}
}
