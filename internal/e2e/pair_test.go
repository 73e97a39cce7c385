// Package e2e drives the built program from a source to a target and looks at
// one promise of docs/guarantees.md at a time, from outside: what a reader, an
// operator or the source's slot sees.
package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

func TestMain(m *testing.M) { blackbox.Main(m) }

// full is the long form: the sizes that issues and docs speak of.
func full() bool { return os.Getenv("MILLRACE_SOAK") != "" }

// patience is for a machine that is busy with everything else.
const patience = 60 * time.Second

// fast makes retries and the sign of life quick, so that tests are.
const fast = "resources: {retry_backoff: {min: 50ms, max: 500ms}}\nsafety: {heartbeat_interval: 1s}\n"

// pair is a source, a target and the job between them.
type pair struct {
	*blackbox.Job
	source, target *rig.DB
	address        map[int]string // of the HTTP server, by pid
	token          string         // of the HTTP server
	former         string         // what blocked said when the latest process had ended
}

// plan says what a pair is made of; the zero value of each field will do.
type plan struct {
	source, target *rig.Postgres // none: shared ones
	schema         string        // run at the source
	before         string        // run at the target, which then has the tables already
	options        func(*blackbox.Options, *pair)
}

// newPair makes databases, tables, the publication and the configuration.
func newPair(t *testing.T, p plan) *pair {
	t.Helper()
	if p.source == nil {
		p.source = rig.Shared(t, rig.Newest)
	}
	if p.target == nil {
		p.target = rig.Shared(t, rig.Newest)
	}
	x := &pair{source: p.source.NewDB(t), target: p.target.NewDB(t), address: map[int]string{}}
	x.source.Script(t, p.schema)
	x.source.SQL(t, "CREATE PUBLICATION "+x.slotName()+" FOR ALL TABLES")
	o := blackbox.Options{Name: x.source.Name, Source: x.source, Target: x.target, Tables: []string{"public.*"}, Extra: fast}
	if p.before != "" {
		x.target.Script(t, p.before)
		o.Existing = true
	}
	if p.options != nil {
		p.options(&o, x)
	}
	x.Job, x.token = blackbox.NewJob(t, o), o.Token
	return x
}

// running is a pair whose first load is done and whose job runs.
func running(t *testing.T, p plan) *pair {
	t.Helper()
	x := newPair(t, p)
	x.Start(t, "--bootstrap")
	x.sync(t)
	return x
}

func (p *pair) slotName() string { return "millrace_" + p.source.Name }

// sync waits until the target holds what the source has now.
func (p *pair) sync(t *testing.T) {
	t.Helper()
	if err := p.Wait(patience); err != nil {
		t.Fatal(err)
	}
}

// position is the source's, as a client takes it after COMMIT.
func (p *pair) position(t *testing.T) string {
	t.Helper()
	return p.source.Query(t, "SELECT pg_current_wal_insert_lsn()")
}

// slot asks for something about the job's slot.
func (p *pair) slot(t *testing.T, expression string) string {
	t.Helper()
	return p.source.Query(t, fmt.Sprintf("SELECT %s FROM pg_replication_slots WHERE slot_name = '%s'", expression, p.slotName()))
}

// record asks for something about the job's record.
func (p *pair) record(t *testing.T, expression string) string {
	t.Helper()
	return p.target.Query(t, fmt.Sprintf("SELECT %s FROM millrace.job WHERE job = '%s'", expression, p.Name))
}

// fewRows is up to where a difference is shown row by row.
const fewRows = 2000

// equal compares the text of all rows of all tables.
func (p *pair) equal(t *testing.T) {
	t.Helper()
	names := p.source.Query(t, `SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'r' AND n.nspname = 'public' ORDER BY 1`)
	for _, name := range strings.Split(names, "\n") {
		q := fmt.Sprintf("SELECT count(*), sum(hashtextextended(x::text, 0)) FROM %s x", name)
		want, got := p.source.Query(t, q), p.target.Query(t, q)
		if want == got {
			continue
		}
		t.Errorf("%s: the source has %s (rows|hash), the target %s", name, want, got)
		count, _, _ := strings.Cut(want, "|")
		if n, err := strconv.Atoi(count); err == nil && n <= fewRows {
			all := fmt.Sprintf(`SELECT x::text FROM %s x ORDER BY x::text COLLATE "C" LIMIT %d`, name, fewRows)
			t.Errorf("(-source +target)\n%s", cmp.Diff(lines(p.source.Query(t, all)), lines(p.target.Query(t, all))))
		}
	}
}

func lines(s string) []string { return strings.Split(s, "\n") }

// finish ends a test: target and source are equal and the program stops.
func (p *pair) finish(t *testing.T) {
	t.Helper()
	p.sync(t)
	p.equal(t)
	if code := p.Stop(t); code != blackbox.Done {
		t.Errorf("exit code %d after SIGTERM, want %d", code, blackbox.Done)
	}
}

// refused is how a run ended that can't go on.
type refused struct{ state, reason, hint string }

// refusal waits until the program ends by itself with code 3 and gives what its
// record says; what it printed must say the same.
func (p *pair) refusal(t *testing.T) refused {
	t.Helper()
	rig.Eventually(t, patience, func() bool { return !p.Running() }, "the program ends by itself")
	if code := p.ExitCode(); code != blackbox.Stuck {
		t.Fatalf("exit code %d, want %d", code, blackbox.Stuck)
	}
	f := strings.SplitN(p.record(t, "state, reason, hint"), "|", 3)
	if len(f) != 3 || f[1] == "" || f[2] == "" {
		t.Fatalf("the record says %q: want state, reason and hint", f)
	}
	log := p.Log(20)
	if !strings.Contains(log, f[1]) || !strings.Contains(log, "hint: "+f[2]) {
		t.Errorf("printed is not what the record says: %q", f)
	}
	return refused{f[0], f[1], f[2]}
}

// wants fails the test unless the text contains all of the parts.
func wants(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s does not contain %q:\n%s", what, part, text)
		}
	}
}

// contains tells whether the text contains all of the parts.
func contains(text string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// get asks the program's HTTP server.
func (p *pair) get(t *testing.T, path string, query url.Values) (code int, body string) {
	t.Helper()
	return p.request(t, http.MethodGet, path+"?"+query.Encode(), "")
}

// post sends it JSON.
func (p *pair) post(t *testing.T, path, body string) (int, string) {
	t.Helper()
	return p.request(t, http.MethodPost, path, body)
}

func (p *pair) request(t *testing.T, method, path, send string) (code int, body string) {
	t.Helper()
	addr := p.address[p.PID()]
	if addr == "" {
		rig.Eventually(t, patience, func() bool {
			addr, _ = p.target.Server.TryQuery(p.target.Name, fmt.Sprintf(
				"SELECT http FROM millrace.runtime WHERE job = '%s' AND pid = %d", p.Name, p.PID())) // tried again
			return addr != ""
		}, "the address of the program in millrace.runtime")
		p.address[p.PID()] = addr
	}
	client := http.Client{Timeout: patience}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader(send))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.token)
	if send != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// status is one member of /status; a dot leads into a member.
func (p *pair) status(t *testing.T, member string) string {
	t.Helper()
	_, body := p.get(t, "/status", nil)
	var all map[string]any
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		t.Fatalf("/status: %v\n%s", err, body)
	}
	outer, inner, nested := strings.Cut(member, ".")
	value := all[outer]
	if nested {
		value = value.(map[string]any)[inner]
	}
	if value == nil {
		return ""
	}
	return fmt.Sprint(value)
}

// metric sums a metric over its labels.
func (p *pair) metric(t *testing.T, name string) float64 {
	t.Helper()
	_, body := p.get(t, "/metrics", nil)
	total := 0.0
	for _, line := range lines(body) {
		if !strings.HasPrefix(line, "millrace_"+name+"{") {
			continue
		}
		v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		total += v
	}
	return total
}
