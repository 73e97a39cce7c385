package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/web"
)

// instance is a run in this process.
type instance struct {
	t    *testing.T
	log  syncBuffer
	r    *runner
	stop func() error
}

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// begin runs a job; it is stopped at the test's end unless it was before.
func begin(t *testing.T, from, to string, f runFlags) *instance {
	t.Helper()
	i := &instance{t: t}
	a := &app{stdout: io.Discard, stderr: &i.log, logFormat: "text", isolated: true,
		job: "shop", from: from, to: to, tables: []string{"public.*"}}
	s, err := a.load(f.override, fastRetries)
	if err != nil {
		t.Fatal(err)
	}
	i.r = newRunner(a, s, f)
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- i.r.run(ctx) }()
	var once sync.Once
	var result error
	i.stop = func() error {
		once.Do(func() {
			cancel(errSignal)
			select {
			case result = <-ended:
			case <-time.After(patience):
				result = fmt.Errorf("it does not stop")
			}
		})
		return result
	}
	rig.Eventually(t, patience, func() bool { return i.http() != "" }, "it does not listen")
	t.Cleanup(func() {
		if err := i.stop(); err != nil {
			t.Errorf("run: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", &i.log)
		}
	})
	return i
}

// fastRetries spares the tests from waiting.
func fastRetries(c *config.Config) {
	c.Resources.RetryBackoff = config.Backoff{Min: 50 * time.Millisecond, Max: 500 * time.Millisecond}
	c.Safety.HeartbeatInterval = time.Second
	c.HTTP.Listen = "127.0.0.1:0"
}

func (i *instance) http() string {
	rt, _, _, _ := i.r.keeper.current()
	return rt.HTTP
}

// status asks the instance over HTTP, as others would.
func (i *instance) status() *web.Status {
	res, err := http.Get("http://" + i.http() + "/status")
	if err != nil {
		i.t.Fatal(err)
	}
	defer res.Body.Close()
	var st web.Status
	if err := json.NewDecoder(res.Body).Decode(&st); err != nil {
		i.t.Fatal(err)
	}
	return &st
}

func (i *instance) await(what string, cond func(*web.Status) bool) {
	i.t.Helper()
	rig.Eventually(i.t, patience, func() bool { return cond(i.status()) }, what)
}

func (i *instance) awaitState(state string) {
	i.t.Helper()
	i.await(state, func(st *web.Status) bool { return st.State == state && st.Condition == nil })
}

func (i *instance) awaitCondition(condition string) {
	i.t.Helper()
	i.await(condition, func(st *web.Status) bool { return st.Condition != nil && *st.Condition == condition })
}

// waitFor asks /wait for the source's position.
func (i *instance) waitFor(token string) (int, string) {
	res, err := http.Get("http://" + i.http() + "/wait?timeout=60s&lsn=" + token)
	if err != nil {
		i.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		i.t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// TestOutages takes away each server in turn, and the password. The job tries
// again, says what it waits for, and goes on.
func TestOutages(t *testing.T) {
	source, target := rig.Start(t, sourceMajor), rig.Start(t, targetMajor)
	source.SQL(t, "postgres", `CREATE ROLE reader LOGIN REPLICATION PASSWORD 'one' IN ROLE pg_read_all_data`)
	source.SQL(t, "postgres", "CREATE DATABASE shop")
	target.SQL(t, "postgres", "CREATE DATABASE shop")
	source.SQL(t, "shop", "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE PUBLICATION millrace_shop FOR TABLE t")
	source.HBA(t, "host all reader 127.0.0.1/32 scram-sha-256")
	i := begin(t, source.URLAs("reader", "one", "shop"), target.URL("shop"),
		runFlags{bootstrap: true, bootstrapFlags: bootstrapFlags{pgDump: source.Bin("pg_dump")}})
	i.awaitState("streaming")
	held := func(id int) {
		t.Helper()
		source.SQL(t, "shop", fmt.Sprintf("INSERT INTO t VALUES (%d)", id))
		token := source.Query(t, "shop", "SELECT pg_current_wal_insert_lsn()")
		if code, body := i.waitFor(token); code != http.StatusOK {
			t.Fatalf("row %d: %d %s", id, code, body)
		}
		if got := target.Query(t, "shop", fmt.Sprintf("SELECT count(*) FROM t WHERE id = %d", id)); got != "1" {
			t.Errorf("row %d is not there", id)
		}
	}
	held(2)

	source.Crash(t)
	i.awaitCondition("source_unreachable")
	// A look at the source may have been under way.
	i.await("no position of the source, and a reason", func(st *web.Status) bool {
		return st.State == "streaming" && st.Source.CurrentLSN == nil && st.Reason != ""
	})
	rig.Eventually(t, patience, func() bool {
		return target.Query(t, "shop", "SELECT condition FROM millrace.runtime") == "source_unreachable"
	}, "the condition in the record")
	source.Restart(t)
	i.awaitState("streaming")
	held(3)

	target.Crash(t)
	source.SQL(t, "shop", "INSERT INTO t VALUES (4)")
	i.awaitCondition("destination_unreachable")
	target.Restart(t)
	i.awaitState("streaming")
	held(5)

	source.SQL(t, "postgres", "ALTER ROLE reader PASSWORD 'two'; SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
	i.await("the password is refused", func(st *web.Status) bool {
		return st.Condition != nil && *st.Condition == "source_unreachable" && strings.Contains(st.Reason, "password")
	})
	source.SQL(t, "postgres", "ALTER ROLE reader PASSWORD 'one'")
	i.awaitState("streaming")
	held(6)
	if err := i.stop(); err != nil {
		t.Fatal(err)
	}
	if got := target.Query(t, "shop", "SELECT state, (SELECT count(*) FROM t), (SELECT count(*) FROM millrace.runtime) FROM millrace.job"); got != "stopped|6|0" {
		t.Errorf("in the end: %s", got)
	}
}

// TestTokens waits by HTTP in all its forms.
func TestTokens(t *testing.T) {
	source, target := rig.Shared(t, sourceMajor).NewDB(t), rig.Shared(t, targetMajor).NewDB(t)
	source.SQL(t, "CREATE TABLE t (id int PRIMARY KEY)")
	i := begin(t, source.URL(), target.URL(), runFlags{bootstrap: true,
		bootstrapFlags: bootstrapFlags{createPublication: true, pgDump: source.Server.Bin("pg_dump")}})
	i.awaitState("streaming")
	xid := source.Query(t, "WITH i AS (INSERT INTO t VALUES (1)) SELECT pg_current_xact_id()")
	if code, body := i.waitFor("xid=" + xid); code != http.StatusOK {
		t.Errorf("xid: %d %s", code, body)
	}
	if got := target.Query(t, "SELECT count(*) FROM t"); got != "1" {
		t.Errorf("%s rows", got)
	}
	st := i.status()
	full := fmt.Sprintf("%s:%d:%d:", *st.Source.SystemID, *st.Source.Timeline, *st.Destination.Generation)
	source.SQL(t, "INSERT INTO t VALUES (2); SELECT pg_switch_wal()")
	began := time.Now()
	if code, body := i.waitFor(full + source.Query(t, "SELECT pg_current_wal_insert_lsn()")); code != http.StatusOK {
		t.Errorf("after a switch of segments: %d %s", code, body)
	}
	// Unasked, an idle position may take 10 s.
	if d := time.Since(began); d > 8*time.Second {
		t.Errorf("an idle source took %v", d)
	}
	_, line, _ := strings.Cut(full, ":")
	for token, want := range map[string]int{"1:" + line + "0/1": 409, "0/1x": 400} {
		if code, body := i.waitFor(token); code != want {
			t.Errorf("%s: %d %s", token, code, body)
		}
	}
}
