package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/docs"
	"github.com/millrace/millrace/relay"
)

// serve runs a whole Server, with what only a listening one does.
func serve(t *testing.T, opt Options) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if opt.Status == nil {
		opt.Status = func() *Status { return &Status{Job: "shop", State: "streaming"} }
	}
	if opt.Progress == nil {
		opt.Progress = relay.NewProgress()
	}
	s := New(opt)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

// reply is an answer without what has to be closed.
type reply struct {
	code   int
	header http.Header
}

// get asks a Server and gives the answer with its body.
func get(t *testing.T, client *http.Client, url string, header ...string) (reply, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(res.Body); err != nil {
		t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header}, b.String()
}

var (
	loaded  = regexp.MustCompile(`(?:src|href)="([^"]+)"`)
	inlined = regexp.MustCompile(`(?i)<style|style=|<script>|<[a-z][^>]*\son[a-z]+=|javascript:`)
)

// TestPage: the page shows the state without any script, loads nothing from
// elsewhere, and what it loads is there; nothing in it needs a weaker policy.
func TestPage(t *testing.T) {
	journal := NewJournal()
	log := slog.New(journal)
	log.Warn("a <b>bold</b> line", "cause", `<script>alert("x")</script>`, "hint", "cure it",
		"see", "https://example.com/troubleshooting.md#wal_level-is--not-logical")
	base := serve(t, Options{Job: "shop", Journal: journal, Status: func() *Status {
		return &Status{Job: "shop", State: "error", Reason: `<img src=x onerror="alert(1)">`, Hint: "do this & that", See: docs.See("wal_level is minimal, not logical", ""),
			Tables: []Table{{Table: `public."<Odd>"`, State: "copying", RowsCopied: Known(int64(50)), RowsEstimated: Known(int64(100))}},
			Lag:    relay.Lag{Seconds: Known(90.0), Bytes: Known(int64(1 << 30)), WaitsFor: Known("target_lock"), WaitsDetail: Known("pid 7 holds it"), BlockingPID: Known(int32(7))},
			Alarms: []Alarm{{Name: "max_replication_lag", Message: "too much"}}}
	}})
	res, body := get(t, http.DefaultClient, base+"/")
	if res.code != http.StatusOK {
		t.Fatalf("%d %s", res.code, body)
	}
	for _, want := range []string{"Stopped by an error", "&lt;img src=x", "do this &amp; that", "public.&#34;&lt;Odd&gt;&#34;", "50 %",
		"a &lt;b&gt;bold&lt;/b&gt; line", "1.0 GiB", "90 s", "a lock on the destination", "pid 7", "max_replication_lag", `<a href="/help/errors/wal_level-is-not-logical">What to do</a>`, `">What it means and what to do</a>`, `lang="en"`, "<noscript>"} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is not on the page", want)
		}
	}
	if strings.Contains(body, "://") || inlined.MatchString(body) {
		t.Errorf("the page has something inline or from elsewhere: %s", inlined.FindString(body))
	}
	policy := res.header.Get("Content-Security-Policy")
	if !strings.HasPrefix(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
		t.Errorf("policy %q", policy)
	}
	assets := 0
	for _, m := range loaded.FindAllStringSubmatch(body, -1) {
		if strings.HasPrefix(m[1], "/help/") {
			if res, body := get(t, http.DefaultClient, base+m[1]); res.code != http.StatusOK || !strings.Contains(body, "ALTER SYSTEM SET wal_level = logical") {
				t.Errorf("%s: %d, %s", m[1], res.code, body)
			}
		}
		if !strings.HasPrefix(m[1], "/assets/") {
			continue
		}
		assets++
		if res, body := get(t, http.DefaultClient, base+m[1]); res.code != http.StatusOK || body == "" ||
			!strings.Contains(res.header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d, %d bytes", m[1], res.code, len(body))
		}
	}
	if assets < 6 {
		t.Errorf("only %d assets", assets)
	}
	for _, path := range []string{"/assets/page.html", "/assets/", "/assets/vendor/LICENSE-uPlot", "/assets/../server.go", "/assets/none.js", "/help/errors/nothing"} {
		if res, _ := get(t, http.DefaultClient, base+path); res.code != http.StatusNotFound {
			t.Errorf("%s: %d", path, res.code)
		}
	}
}

// TestPageIsBounded: a job of very many tables has a page of a bearable size.
func TestPageIsBounded(t *testing.T) {
	tables := make([]Table, maxRows+37)
	for i := range tables {
		tables[i] = Table{Table: fmt.Sprint("public.t", i), State: "streaming"}
	}
	base := serve(t, Options{Job: "shop", Status: func() *Status { return &Status{Job: "shop", State: "streaming", Tables: tables} }})
	_, body := get(t, http.DefaultClient, base+"/")
	if n := strings.Count(body, `<th scope="row">`); n != maxRows || !strings.Contains(body, "and 37 more") {
		t.Errorf("%d rows", n)
	}
}

// message is one server-sent event.
type message struct {
	name string
	data []byte
}

// listen reads events of a stream until its end.
func listen(t *testing.T, client *http.Client, base string) <-chan message {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req) //nolint:bodyclose // by the goroutine that reads it
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		res.Body.Close()
		t.Fatalf("/events: %d %s", res.StatusCode, res.Header.Get("Content-Type"))
	}
	messages := make(chan message, 64)
	go func() {
		defer close(messages)
		defer res.Body.Close()
		var m message
		lines := bufio.NewScanner(res.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			switch line := lines.Text(); {
			case strings.HasPrefix(line, "event: "):
				m.name = line[7:]
			case strings.HasPrefix(line, "data: "):
				m.data = []byte(line[6:])
			case line == "":
				select {
				case messages <- m:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return messages
}

// await gives the first event that fits.
func await(t *testing.T, messages <-chan message, name, text string) message {
	t.Helper()
	patience := time.After(30 * time.Second)
	for {
		select {
		case m, ok := <-messages:
			if !ok {
				t.Fatalf("the stream ended before %s with %q", name, text)
			}
			if m.name == name && bytes.Contains(m.data, []byte(text)) {
				return m
			}
		case <-patience:
			t.Fatalf("no %s with %q", name, text)
		}
	}
}

// TestEvents: one stream brings the history, every change of the state and each
// new sample; it ends with the server.
func TestEvents(t *testing.T) {
	t.Parallel()
	j := start(t, nil)
	base := serve(t, Options{Job: "shop", Status: func() *Status {
		j.mu.Lock()
		defer j.mu.Unlock()
		s := j.status
		return &s
	}})
	one, two := listen(t, http.DefaultClient, base), listen(t, http.DefaultClient, base)
	for _, messages := range []<-chan message{one, two} {
		var columns map[string][]any
		if err := json.Unmarshal(await(t, messages, "history", "").data, &columns); err != nil || columns["t"] == nil || columns["lag_seconds"] == nil {
			t.Errorf("history: %v %v", err, columns)
		}
		var sections map[string]string
		if err := json.Unmarshal(await(t, messages, "page", "streaming").data, &sections); err != nil {
			t.Error(err)
		}
		for _, name := range sectionNames {
			if _, ok := sections[name]; !ok {
				t.Errorf("section %s is not in the first event", name)
			}
		}
	}
	j.set(func(s *Status) { s.State, s.Reason = "error", "because of this" })
	for _, messages := range []<-chan message{one, two} {
		await(t, messages, "page", "because of this")
		await(t, messages, "sample", `"t":[`)
	}
}

// TestStreamsAreBounded: a page too many is refused, and one that is closed
// makes room.
func TestStreamsAreBounded(t *testing.T) {
	h := newHub()
	for range maxStreams {
		if !h.join() {
			t.Fatal("refused too early")
		}
	}
	if h.join() {
		t.Error("one too many")
	}
	h.leave()
	if !h.join() {
		t.Error("no room though one has left")
	}
	h.end()
	if h.leave(); h.join() {
		t.Error("joined after the end")
	}
}

// TestLogin: a browser gets in with the token once, by a cookie that is not the
// token, and only with the right one; scripts go on with the bearer token.
func TestLogin(t *testing.T) {
	const token = "s3cret-token"
	base := serve(t, Options{Job: "shop", Token: token})
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	first, body := get(t, browser, base+"/")
	if first.code != http.StatusUnauthorized || !strings.Contains(body, `action="/login"`) || strings.Contains(body, "streaming") {
		t.Errorf("without the token: %d %s", first.code, body)
	}
	for _, wrong := range []string{"", "s3cret", token + "x"} {
		res, err := browser.PostForm(base+"/login", url.Values{"token": {wrong}})
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusUnauthorized {
			t.Errorf("token %q: %d", wrong, res.StatusCode)
		}
	}
	if res, _ := get(t, browser, base+"/events"); res.code != http.StatusUnauthorized {
		t.Errorf("events without the token: %d", res.code)
	}
	res, err := browser.PostForm(base+"/login", url.Values{"token": {token}})
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK || res.Request.URL.Path != "/" {
		t.Errorf("with the token: %d at %s", res.StatusCode, res.Request.URL)
	}
	at, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range jar.Cookies(at) {
		if strings.Contains(c.Value, token) {
			t.Error("the cookie holds the token")
		}
	}
	if res, _ := get(t, browser, base+"/status"); res.code != http.StatusOK {
		t.Errorf("status with the cookie: %d", res.code)
	}
	await(t, listen(t, browser, base), "page", "streaming")
	if res, _ := get(t, http.DefaultClient, base+"/status", "Cookie", cookieName+"shop=0000"); res.code != http.StatusUnauthorized {
		t.Errorf("a made up cookie: %d", res.code)
	}
	if res, _ := get(t, http.DefaultClient, base+"/status", "Authorization", "Bearer "+token, "Host", "millrace.example"); res.code != http.StatusOK {
		t.Errorf("the bearer token under another name: %d", res.code)
	}
}

// TestForeignName: without a token, a page from elsewhere whose name was made
// to point here gets nothing.
func TestForeignName(t *testing.T) {
	base := serve(t, Options{Job: "shop"})
	for host, want := range map[string]int{"evil.example": 421, "evil.example:8642": 421, "localhost:8642": 200, "[::1]:8642": 200, "127.0.0.1": 200} {
		if res, _ := get(t, http.DefaultClient, base+"/status", "Host", host); res.code != want {
			t.Errorf("%s: %d, want %d", host, res.code, want)
		}
	}
}

// TestHistory: rates, peaks and gaps are what was counted, an hour is kept and
// no more.
func TestHistory(t *testing.T) {
	var h history
	now := time.Unix(1700000000, 0)
	var applied int64
	step := func(lag *float64, perSecond int64) {
		applied += perSecond
		st := &Status{}
		st.Lag.Seconds = lag
		st.Source.CurrentLSN, st.Destination.AckedLSN = KnownLSN(millrace.LSN(1<<20+applied*100)), KnownLSN(millrace.LSN(1<<20+applied*50))
		h.add(now, st, Numbers{Applied: map[string]int64{"set": applied, "row": 0}})
		now = now.Add(time.Second)
	}
	if r := h.rates(); r.Applied != nil || r.WAL != nil {
		t.Error("rates before anything was counted")
	}
	for i := range 10 {
		step(Known(float64(i)), 20)
	}
	step(nil, 20)
	r := h.rates()
	if r.Applied == nil || *r.Applied != 20 || *r.WAL != 2000 || *r.Held != 1000 || r.Changes != nil {
		t.Errorf("rates %+v", r)
	}
	if got := string(h.json(false)); !strings.Contains(got, `"lag_seconds":[4,9]`) || !strings.Contains(got, `"changes":[null,null]`) {
		t.Errorf("history %s", got)
	}
	for range 4 {
		step(nil, 0)
	}
	if got := string(h.json(true)); !strings.Contains(got, `"lag_seconds":[null]`) {
		t.Errorf("sample of unknown lag: %s", got)
	}
	for range 2 * samples * sampleLooks {
		step(Known(1.5), 1)
	}
	var all struct {
		T   []int64
		Lag []float64 `json:"lag_seconds"`
	}
	if err := json.Unmarshal(h.json(false), &all); err != nil {
		t.Fatal(err)
	}
	if len(all.T) != samples || len(all.Lag) != samples || all.T[samples-1]-all.T[0] != 3600-sampleLooks {
		t.Errorf("%d samples over %d s", len(all.T), all.T[len(all.T)-1]-all.T[0])
	}
	// Counters that begin anew give no rate instead of a wrong one.
	h.add(now, &Status{}, Numbers{Applied: map[string]int64{"set": 1}})
	if r := h.rates(); r.Applied != nil {
		t.Errorf("rate over a restart: %v", *r.Applied)
	}
}

// TestJournal: the newest lines from Info on, repeats counted, bounded.
func TestJournal(t *testing.T) {
	j := NewJournal()
	log := slog.New(j).With("job", "shop")
	log.Debug("too detailed")
	for range 3 {
		log.Warn("trying again", "cause", "no route\nto host", "hint", "plug it in")
	}
	log.Info("connected again", "after_seconds", 1.23456)
	e := j.Events()
	if len(e) != 2 || e[0].Message != "connected again" || e[0].Detail != "job=shop  after_seconds=1.23" ||
		e[1].Times != 3 || e[1].Hint != "plug it in" || e[1].Detail != "job=shop  cause=no route to host" {
		t.Errorf("%+v", e)
	}
	for i := range 3 * journalSize {
		log.Info(fmt.Sprint("event ", i), "text", strings.Repeat("x", 5000))
	}
	e = j.Events()
	if len(e) != journalSize || e[0].Message != fmt.Sprint("event ", 3*journalSize-1) || len(e[0].Detail) > maxDetail+10 {
		t.Errorf("%d events, the newest %s", len(e), e[0].Message)
	}
	if (*Journal)(nil).Events() != nil {
		t.Error("events of nothing")
	}
}

// TestHeadline: one sentence for each state.
func TestHeadline(t *testing.T) {
	for want, st := range map[string]*Status{
		"Up to date":                  {State: "streaming", Lag: relay.Lag{WaitsFor: Known("nothing"), Seconds: Known(0.0)}},
		"4.0 s behind":                {State: "streaming", Lag: relay.Lag{WaitsFor: Known("target"), Seconds: Known(4.0)}},
		"Behind by an unknown amount": {State: "streaming"},
		"Catching up: 1.0 GiB behind": {State: "catching_up", Lag: relay.Lag{Bytes: Known(int64(1 << 30))}},
		"The source can't be reached": {State: "streaming", Condition: Known("source_unreachable")},
		"A new first load is needed":  {State: "resync_required"},
		"First load: copying rows, 50 %, about 3 min left": {State: "bootstrapping",
			Load: &Load{Phase: "copying rows", Bytes: 50, EstimatedBytes: Known(int64(100)), ETASeconds: Known(180.0)}},
		"First load": {State: "bootstrapping"},
	} {
		if got := headline(st); got != want {
			t.Errorf("%+v: %q, want %q", st, got, want)
		}
	}
}
