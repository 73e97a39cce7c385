package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// TestReadYourWrites: whoever waits for the token of a commit finds its rows,
// whichever way it waits.
func TestReadYourWrites(t *testing.T) {
	t.Parallel()
	// On a shared server others write between COMMIT and the token, and what
	// reads the target sees such a position only after up to 10 s.
	p := quietPair(t)
	ways := map[string]func(t *testing.T, token, xid string){
		"/wait":         func(t *testing.T, token, _ string) { p.ask(t, http.StatusOK, "lsn", token) },
		"/wait visible": func(t *testing.T, token, _ string) { p.ask(t, http.StatusOK, "lsn", token, "visible", "1") },
		"/wait full":    func(t *testing.T, token, _ string) { p.ask(t, http.StatusOK, "lsn", p.history(t)+token) },
		"/wait xid":     func(t *testing.T, _, xid string) { p.ask(t, http.StatusOK, "xid", xid) },
		"/wait lsn=xid": func(t *testing.T, _, xid string) { p.ask(t, http.StatusOK, "lsn", "xid="+xid) },
		"wait --lsn":    func(t *testing.T, token, _ string) { p.verb(t, blackbox.Done, "--lsn", token) },
		"wait_for": func(t *testing.T, token, _ string) {
			if got := p.target.Query(t, fmt.Sprintf("SELECT millrace.wait_for('%s', '%s', '30s')", p.Name, token)); got != "t" {
				t.Errorf("wait_for: %s", got)
			}
		},
	}
	id := 1
	for name, wait := range ways {
		rounds := 10
		if name == "wait --lsn" {
			rounds = 2 // a process each
		}
		for range rounds {
			id++
			xid, token, _ := strings.Cut(p.source.Query(t, fmt.Sprintf(
				"BEGIN; INSERT INTO t VALUES (%d); SELECT pg_current_xact_id(); COMMIT; SELECT pg_current_wal_insert_lsn()", id)), "\n")
			wait(t, token, xid)
			if got := p.target.Query(t, fmt.Sprintf("SELECT count(*) FROM t WHERE id = %d", id)); got != "1" {
				t.Fatalf("%s: row %d is not on the target", name, id)
			}
		}
	}
	p.finish(t)
}

// ask asks /wait, wants this answer and gives its body.
func (p *pair) ask(t *testing.T, want int, query ...string) string {
	t.Helper()
	q := url.Values{}
	for i := 0; i < len(query); i += 2 {
		q.Set(query[i], query[i+1])
	}
	code, body := p.get(t, "/wait", q)
	if code != want {
		t.Errorf("/wait?%s: %d, want %d: %s", q.Encode(), code, want, body)
	}
	return body
}

// verb runs `millrace wait`.
func (p *pair) verb(t *testing.T, want int, args ...string) {
	t.Helper()
	r := p.Run(t, "wait", args...)
	if r.Code != want {
		t.Errorf("wait %s: exit code %d, want %d: %s%s", strings.Join(args, " "), r.Code, want, r.Stdout, r.Stderr)
	}
}

// quietPair is a job whose source nobody else writes to.
func quietPair(t *testing.T) *pair {
	t.Helper()
	return running(t, plan{source: rig.Start(t, rig.Newest), schema: "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)"})
}

// history is what stands before the LSN in a full token.
func (p *pair) history(t *testing.T) string {
	t.Helper()
	return strings.ReplaceAll(p.record(t, "system_id, timeline, generation"), "|", ":") + ":"
}

// TestIdleSource: a position behind which nothing comes is reached all the
// same, soon through /wait, which asks the source.
func TestIdleSource(t *testing.T) {
	t.Parallel()
	// Shared servers are not idle.
	p := quietPair(t)
	total := time.Duration(0)
	for range 5 {
		// The insert position then stands behind the header of a page that is
		// not written; no commit ever ends there.
		p.source.SQL(t, "SELECT pg_switch_wal()")
		token := p.position(t)
		began := time.Now()
		p.ask(t, http.StatusOK, "lsn", token, "timeout", "60s")
		total += time.Since(began)
		p.source.SQL(t, "INSERT INTO t SELECT max(id) + 1 FROM t") // a next switch has something to end
	}
	// A tenth of a second between two questions to the source, and time for a
	// busy machine; unasked, each would take up to 10 s.
	if total > 20*time.Second {
		t.Errorf("five times /wait took %v", total)
	}
	p.source.SQL(t, "SELECT pg_switch_wal()")
	began := time.Now()
	p.verb(t, blackbox.Done, "--now")
	p.verb(t, blackbox.Done, "--lsn", p.position(t))
	if took := time.Since(began); took > 35*time.Second {
		t.Errorf("two times wait on an idle source took %v, each may take 10 s", took)
	}
	p.finish(t)
}

// TestRefusedTokens: what can't be waited for is said at once.
func TestRefusedTokens(t *testing.T) {
	t.Parallel()
	p := quietPair(t)
	here := p.position(t)
	f := strings.Split(p.history(t), ":") // system, timeline, generation
	for _, c := range []struct {
		want  int
		query []string
	}{
		{http.StatusBadRequest, []string{"lsn", "nonsense"}},
		{http.StatusBadRequest, []string{"lsn", ""}},
		{http.StatusBadRequest, []string{"lsn", "0/1/2"}},
		{http.StatusBadRequest, []string{"lsn", "1:2:0/3"}},
		{http.StatusBadRequest, []string{"xid", "-1"}},
		{http.StatusBadRequest, []string{"lsn", here, "timeout", "soon"}},
		{http.StatusNotFound, []string{"lsn", here, "job", "another"}},
		{http.StatusRequestTimeout, []string{"lsn", "FFFF/0", "timeout", "200ms"}},
		{http.StatusRequestTimeout, []string{"xid", "4000000", "timeout", "200ms"}},
		{http.StatusConflict, []string{"lsn", "1:" + f[1] + ":" + f[2] + ":" + here}},
		{http.StatusConflict, []string{"lsn", f[0] + ":" + f[1] + ":999:" + here}},
		{http.StatusOK, []string{"lsn", here, "job", p.Name}},
	} {
		began := time.Now()
		p.ask(t, c.want, c.query...)
		if took := time.Since(began); took > 15*time.Second { // the default timeout is 30 s
			t.Errorf("%v took %v", c.query, took)
		}
	}
	p.verb(t, blackbox.No, "--lsn", "FFFF/0", "--timeout", "300ms")
	p.verb(t, blackbox.Usage, "--lsn", "nonsense")
	p.verb(t, blackbox.Usage)
	p.verb(t, blackbox.Usage, "--lsn", "xid=5")
	p.verb(t, blackbox.No, "--lsn", "1:"+f[1]+":"+f[2]+":"+here)
	if got := p.target.Query(t, fmt.Sprintf("SELECT millrace.wait_for('%s', 'FFFF/0', '100ms')", p.Name)); got != "f" {
		t.Errorf("wait_for for what does not come: %s", got)
	}
	for _, call := range []string{"'" + p.Name + "', 'xid=7', '1s'", "'another', '" + here + "', '1s'", "'" + p.Name + "', '1:1:1:0/1', '1s'"} {
		if got, err := p.target.Server.TryQuery(p.target.Name, "SELECT millrace.wait_for("+call+")"); err == nil {
			t.Errorf("wait_for(%s) gave %s instead of an error", call, got)
		}
	}
	p.finish(t)
	// The process is gone: the verb waits for whoever starts it again.
	p.source.SQL(t, "INSERT INTO t VALUES (2)")
	p.verb(t, blackbox.No, "--now", "--timeout", "300ms")
}
