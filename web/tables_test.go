package web

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/relay"
)

const dropOrders = `{"action": "drop", "tables": ["public.orders"]}`

// post sends a body to /tables as JSON, unless the header says otherwise.
func post(t *testing.T, base, body string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/tables", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// TestTables: tables are changed only where that is enabled, only for who may look,
// only by POST with JSON, and never for a page of another origin, be it another port
// of this machine.
func TestTables(t *testing.T) {
	var done []string
	o := Options{Job: "shop", Tables: func(_ context.Context, action string, patterns []string) ([]string, error) {
		done = append(done, action+" "+strings.Join(patterns, " "))
		if patterns[0] == "public.none" {
			return nil, errors.Join(&millrace.Error{Kind: millrace.KindPreflight, Op: "table add", Err: errors.New("there is no such table"), Hint: "name one that there is"})
		}
		return patterns, nil
	}}
	base := serve(t, o)
	origin := base
	for _, c := range []struct {
		name, body string
		header     []string
		code       int
		answer     string
	}{
		{"another site", dropOrders, []string{"Sec-Fetch-Site", "cross-site"}, 403, "another origin"},
		{"another port of this machine", dropOrders, []string{"Sec-Fetch-Site", "same-site"}, 403, "another origin"},
		{"another origin, by an old browser", dropOrders, []string{"Origin", "http://127.0.0.1:1"}, 403, "another origin"},
		{"a form", dropOrders, []string{"Content-Type", "text/plain"}, 415, "application/json"},
		{"without a type", dropOrders, []string{"Content-Type", ""}, 415, "application/json"},
		{"a name that was made to point here", dropOrders, []string{"Host", "evil.example"}, 421, ""},
		{"no JSON", "drop public.orders", nil, 400, "JSON"},
		{"an unknown member", `{"action": "drop", "tables": ["a.b"], "force": true}`, nil, 400, "JSON"},
		{"an unknown action", `{"action": "truncate", "tables": ["a.b"]}`, nil, 400, "no such action"},
		{"no table", `{"action": "drop", "tables": []}`, nil, 400, "no tables"},
		{"too much", `{"action": "drop", "tables": ["` + strings.Repeat("x", 32<<10) + `"]}`, nil, 400, "JSON"},
	} {
		if code, body := post(t, base, c.body, c.header...); code != c.code || !strings.Contains(body, c.answer) {
			t.Errorf("%s: %d %s", c.name, code, body)
		}
	}
	if len(done) > 0 {
		t.Fatalf("done: %q", done)
	}
	for _, header := range [][]string{nil, {"Sec-Fetch-Site", "same-origin"}, {"Origin", origin}} {
		if code, body := post(t, base, dropOrders, header...); code != 200 || body != `{"action":"drop","tables":["public.orders"]}`+"\n" {
			t.Errorf("%q: %d %s", header, code, body)
		}
	}
	if len(done) != 3 || done[0] != "drop public.orders" {
		t.Errorf("done: %q", done)
	}
	if code, body := post(t, base, `{"action": "add", "tables": ["public.none"]}`); code != 409 ||
		!strings.Contains(body, `"error":"table add: there is no such table","hint":"name one that there is"`) {
		t.Errorf("a refused one: %d %s", code, body)
	}
	if res, _ := get(t, http.DefaultClient, base+"/tables"); res.code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", res.code)
	}

	off := serve(t, Options{Job: "shop"})
	if code, body := post(t, off, dropOrders); code != 403 || !strings.Contains(body, "http.actions") {
		t.Errorf("not enabled: %d %s", code, body)
	}
	if _, page := get(t, http.DefaultClient, off+"/"); strings.Contains(page, "data-action") || strings.Contains(page, `id="add"`) {
		t.Error("the page has buttons that are not enabled")
	}
	o.Token = "sesame"
	closed := serve(t, o)
	done = nil
	if code, _ := post(t, closed, dropOrders); code != 401 || len(done) > 0 {
		t.Errorf("without the token: %d, done %q", code, done)
	}
	if code, _ := post(t, closed, dropOrders, "Authorization", "Bearer sesame"); code != 200 || len(done) != 1 {
		t.Errorf("with the token: %d, done %q", code, done)
	}
}

// TestOneChangeAtOnce: a second change is refused while one is going on; that goes
// on when its page is closed, and ends with the process.
func TestOneChangeAtOnce(t *testing.T) {
	began, ended := make(chan struct{}), make(chan error, 1)
	s := New(Options{Job: "shop", Progress: relay.NewProgress(), Status: func() *Status { return &Status{Job: "shop", State: "streaming"} },
		Tables: func(ctx context.Context, _ string, _ []string) ([]string, error) {
			close(began)
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	base := "http://" + l.Addr().String()
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/tables", strings.NewReader(dropOrders))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	left := make(chan error, 1)
	go func() {
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			res.Body.Close()
		}
		left <- err
	}()
	<-began
	leave()
	if err := <-left; err == nil {
		t.Error("an answer though it goes on")
	}
	if code, body := post(t, base, dropOrders); code != 409 || !strings.Contains(body, "another change") {
		t.Errorf("a second one: %d %s", code, body)
	}
	select {
	case err := <-ended:
		t.Errorf("it has ended: %v", err)
	default:
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
