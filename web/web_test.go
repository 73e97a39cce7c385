package web

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/relay"
)

// job is a running relay over a source that has nothing to send but its
// position, and a sink that holds whatever it is given.
type job struct {
	*httptest.Server
	source   *source
	progress *relay.Progress
	status   Status
	mu       sync.Mutex
	stop     func() error
}

func (j *job) set(f func(*Status)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f(&j.status)
}

func start(t *testing.T, set func(*Options)) *job {
	t.Helper()
	j := &job{source: newSource()}
	j.status = Status{Job: "shop", State: "streaming", Tables: []Table{{Table: `public."Odd"`}}}
	r := relay.New(relay.Options{Source: j.source, Sink: &sink{source: j.source}})
	j.progress = r.Progress()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	opt := Options{Job: "shop", Version: "1.2.3", Progress: r.Progress(),
		Status: func() *Status {
			j.mu.Lock()
			defer j.mu.Unlock()
			s := j.status
			s.Lag = r.Progress().Lag(time.Now())
			return &s
		},
		Numbers:  func() Numbers { return Numbers{Relay: r.Stats()} },
		WALSizes: func() (uint64, uint64) { return 8192, 16 << 20 },
	}
	if set != nil {
		set(&opt)
	}
	server := New(opt)
	j.Server = httptest.NewServer(server.Handler())
	var once sync.Once
	j.stop = func() (err error) {
		once.Do(func() {
			cancel()
			err = <-done
			r.Progress().End(nil)
		})
		return err
	}
	t.Cleanup(func() {
		if err := j.stop(); err != nil {
			t.Error(err)
		}
		j.Server.Close()
	})
	return j
}

func (j *job) get(t *testing.T, path string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, j.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := j.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// source is at a position, says so when asked, and sends transactions.
type source struct {
	mu       sync.Mutex
	position millrace.LSN
	from     millrace.History
	send     chan *millrace.Txn
	asked    bool
}

func newSource() *source {
	return &source{position: 0x2000100, from: millrace.History{System: "77", Timeline: 2, Generation: 3},
		send: make(chan *millrace.Txn, 16)}
}

func (s *source) Start(context.Context, millrace.Checkpoint) error { return nil }
func (s *source) Ack(millrace.LSN)                                 {}
func (s *source) Close() error                                     { return nil }

func (s *source) Next(ctx context.Context) (*millrace.Txn, error) {
	select {
	case t := <-s.send:
		return t, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *source) RequestPosition() {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.from
	s.asked = true
	select {
	case s.send <- &millrace.Txn{End: s.position, From: &from, Last: true, Urgent: true}:
	default:
	}
}

// sink holds what is written as soon as it is written.
type sink struct {
	source *source
	mu     sync.Mutex
	held   millrace.LSN
	more   chan struct{}
}

func (s *sink) Open(context.Context) (millrace.Checkpoint, error) {
	s.held, s.more = 0x2000000, make(chan struct{}, 1)
	return millrace.Checkpoint{History: s.source.from, Commit: s.held - 8, End: s.held, Acked: s.held}, nil
}

func (s *sink) Write(_ context.Context, t *millrace.Txn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = max(s.held, t.End)
	select {
	case s.more <- struct{}{}:
	default:
	}
	return nil
}

func (s *sink) Flush() {}

func (s *sink) Durable(ctx context.Context, after millrace.LSN) (millrace.LSN, error) {
	for {
		s.mu.Lock()
		held := s.held
		s.mu.Unlock()
		if held > after {
			return held, nil
		}
		select {
		case <-s.more:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (s *sink) Close() error { return nil }

func TestWait(t *testing.T) {
	j := start(t, func(o *Options) {
		o.HeldOn = func(_ context.Context, timeline int32, at millrace.LSN) (bool, error) {
			return timeline == 1 && at <= 0x1000000, nil
		}
	})
	j.source.send <- &millrace.Txn{XID: 741, Commit: 0x2000040, End: 0x2000050, From: &j.source.from, Last: true}
	for _, c := range []struct {
		query string
		code  int
		body  string
	}{
		{"lsn=0/2000000", 200, `"lsn":"0/2000000"`},
		{"lsn=0/2000100", 200, `"held_lsn":"0/2000100"`},
		{"lsn=0/2000100&visible=1", 200, ``},
		{"lsn=77:2:3:0/2000100", 200, ``},
		{"lsn=77:1:3:0/1000000", 200, `"lsn":"0/1000000"`},
		{"lsn=xid=741", 200, `"lsn":"0/2000050"`},
		{"xid=741", 200, `"lsn":"0/2000050"`},
		{"lsn=xid=4294968037", 200, `"lsn":"0/2000050"`}, // with the epoch in front
		{"lsn=0/2000000&job=shop", 200, ``},
		{"lsn=", 400, `malformed token`},
		{"lsn=17", 400, `malformed token`},
		{"lsn=1:2:0/10", 400, `malformed token`},
		{"lsn=x:2:3:0/10", 400, `no system identifier`},
		{"lsn=77:0:3:0/10", 400, `no timeline`},
		{"lsn=77:2:-3:0/10", 400, `no generation`},
		{"lsn=77:2:3:0/10/2", 400, `malformed`},
		{"lsn=xid=-1", 400, `malformed`},
		{"lsn=0/10&timeout=soon", 400, `malformed timeout`},
		{"lsn=0/10&timeout=-1s", 400, `negative timeout`},
		{"lsn=0/10&visible=perhaps", 400, `visible`},
		{"lsn=0/10&job=other", 404, `no job`},
		{"lsn=0/2000101&timeout=50ms", 408, `"held_lsn":"0/2000100"`},
		{"lsn=xid=999&timeout=0.05", 408, `not held`},
		{"lsn=77:3:3:0/2000100&timeout=20ms", 408, ``},
		{"lsn=78:2:3:0/10", 409, `of system 78`},
		{"lsn=77:2:2:0/10", 409, `of generation 2`},
		{"lsn=77:2:4:0/10", 409, `of generation 4`},
		{"lsn=77:1:3:0/1000008", 409, `not on the history`},
	} {
		code, body := j.get(t, "/wait?"+c.query)
		if code != c.code || !strings.Contains(body, c.body) {
			t.Errorf("%s: got %d %s want %d …%s…", c.query, code, body, c.code, c.body)
		}
		var a waitAnswer
		if err := json.Unmarshal([]byte(body), &a); err != nil || a.Job != "shop" {
			t.Errorf("%s: %v in %s", c.query, err, body)
		}
	}
}

// An insert position just behind a page header that is not written yet is never
// reported by the server: it is taken back to the page's start.
func TestWaitNormalizesTokens(t *testing.T) {
	j := start(t, nil)
	for position, token := range map[millrace.LSN]string{0x3000000: "0/3000028", 0x301C000: "0/301C018"} {
		j.source.mu.Lock()
		j.source.position = position
		j.source.mu.Unlock()
		if code, body := j.get(t, "/wait?timeout=2s&lsn="+token); code != 200 {
			t.Errorf("%s at %v: %d %s", token, position, code, body)
		}
	}
}

func TestWaitWithoutHope(t *testing.T) {
	j := start(t, nil)
	for state, want := range map[string]int{"resync_required": 409, "error": 503, "stopped": 503} {
		j.set(func(s *Status) { s.State, s.Reason, s.Hint = state, "because", "do this" })
		code, body := j.get(t, "/wait?lsn=0/10")
		if code != want || !strings.Contains(body, `"hint":"do this"`) {
			t.Errorf("%s: %d %s", state, code, body)
		}
	}
}

func TestWaitEndsWithTheRun(t *testing.T) {
	j := start(t, nil)
	answered := make(chan int)
	go func() {
		code, _ := j.get(t, "/wait?lsn=FF/0&timeout=1m")
		answered <- code
	}()
	for !j.source.wasAsked() {
		runtime.Gosched()
	}
	if err := j.stop(); err != nil {
		t.Error(err)
	}
	if code := <-answered; code != http.StatusServiceUnavailable {
		t.Errorf("got %d", code)
	}
}

func (s *source) wasAsked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func TestStatusAndProbes(t *testing.T) {
	j := start(t, nil)
	_, body := j.get(t, "/status")
	var got map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	source := got["source"].(map[string]any)
	for _, name := range []string{"system_id", "current_lsn", "slot_active", "retained_wal_bytes"} {
		if v, ok := source[name]; !ok || v != nil {
			t.Errorf("%s is %v, want null", name, v)
		}
	}
	table := got["tables"].([]any)[0].(map[string]any)
	if table["table"] != `public."Odd"` {
		t.Errorf("table %v", table["table"])
	}
	if code, body := j.get(t, "/readyz"); code != 200 || body != "streaming\n" {
		t.Errorf("readyz: %d %q", code, body)
	}
	j.set(func(s *Status) { s.State = "catching_up" })
	if code, body := j.get(t, "/readyz"); code != 503 || body != "catching_up\n" {
		t.Errorf("readyz: %d %q", code, body)
	}
	if code, _ := j.get(t, "/healthz"); code != 200 {
		t.Errorf("healthz: %d", code)
	}
	if code, body := j.get(t, "/"); code != 200 || !strings.Contains(body, "catching_up") || strings.Contains(body, "://") {
		t.Errorf("index: %d %s", code, body)
	}
	if code, _ := j.get(t, "/nothing"); code != 404 {
		t.Errorf("unknown path: %d", code)
	}
}

func TestToken(t *testing.T) {
	j := start(t, func(o *Options) { o.Token = "s3cret" })
	for _, path := range []string{"/", "/status", "/metrics", "/wait?lsn=0/1"} {
		if code, body := j.get(t, path); code != 401 || strings.Contains(body, "s3cret") {
			t.Errorf("%s without a token: %d %s", path, code, body)
		}
		if code, _ := j.get(t, path, "Authorization", "Bearer s3cret2"); code != 401 {
			t.Errorf("%s with a wrong token: %d", path, code)
		}
		if code, _ := j.get(t, path, "Authorization", "Bearer s3cret"); code != 200 {
			t.Errorf("%s with the token: %d", path, code)
		}
	}
	for _, path := range []string{"/healthz", "/readyz", "/help/errors/wal_level-is-not-logical"} {
		if code, _ := j.get(t, path); code != 200 {
			t.Errorf("%s: %d", path, code)
		}
	}
}

func TestMetrics(t *testing.T) {
	j := start(t, nil)
	j.get(t, "/wait?lsn=0/2000100")
	_, body := j.get(t, "/metrics")
	for _, want := range []string{
		`millrace_build_info{pipeline="shop",version="1.2.3"} 1`,
		`millrace_up{pipeline="shop"} 1`,
		`millrace_state{pipeline="shop",state="streaming"} 1`,
		`millrace_state{pipeline="shop",state="error"} 0`,
		`millrace_source_transactions_total{pipeline="shop"} 0`,
		`millrace_source_changes_total{op="insert",pipeline="shop"} 0`,
		`millrace_reconnects_total{peer="source",pipeline="shop"} 0`,
		`millrace_lag_transactions{pipeline="shop"} 0`,
		`millrace_wait_seconds_count{code="200",pipeline="shop"} 1`,
		`go_goroutines`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is missing", want)
		}
	}
	for _, unknown := range []string{"millrace_lag_seconds", "millrace_retained_wal_bytes{", "millrace_slot_active{"} {
		if strings.Contains(body, "\n"+unknown) {
			t.Errorf("%s is shown though nobody knows it", unknown)
		}
	}
}

func TestListen(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	log := New(Options{Job: "x", Status: func() *Status { return &Status{} }}).opt.Log
	l, err := Listen(taken.Addr().String(), false, log)
	if err != nil {
		t.Fatalf("the default is taken: %v", err)
	}
	if l.Addr().String() == taken.Addr().String() {
		t.Error("the same address twice")
	}
	l.Close()
	_, err = Listen(taken.Addr().String(), true, log)
	var e *millrace.Error
	if !errors.As(err, &e) || e.Kind != millrace.KindPreflight || e.Hint == "" {
		t.Errorf("a configured address that is taken: %v", err)
	}
	got := map[string]bool{}
	for _, a := range []string{"127.0.0.1:1", "localhost:1", "[::1]:1", ":1", "0.0.0.0:1", "10.0.0.1:1", "example.org:1"} {
		got[a] = Loopback(a)
	}
	if diff := cmp.Diff(map[string]bool{"127.0.0.1:1": true, "localhost:1": true, "[::1]:1": true,
		":1": false, "0.0.0.0:1": false, "10.0.0.1:1": false, "example.org:1": false}, got); diff != "" {
		t.Error(diff)
	}
}
