package rig

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace/millrace/internal/rig/pgserver"
)

// childEnv makes the test binary a process that starts a server, prints its
// directory and waits to be killed.
const childEnv = "RIG_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		s, err := pgserver.Start(context.Background(), pgserver.Options{Major: Newest, Name: "-child"})
		if err != nil {
			panic(err)
		}
		_, _ = os.Stdout.WriteString(s.DataDir() + "\n")
		select {}
	}
	Main(m)
}

func TestEachVersionStartsAndDecodes(t *testing.T) {
	majors := []int{16, 17, 18}
	if Have(15) {
		majors = append(majors, 15)
	}
	EachVersion(t, func(t *testing.T, pg *Postgres) {
		t.Parallel()
		db := pg.NewDB(t)
		db.SQL(t, "CREATE TABLE t (a int PRIMARY KEY, b text); CREATE PUBLICATION p FOR ALL TABLES")
		db.SQL(t, "SELECT pg_create_logical_replication_slot('"+db.Name+"', 'test_decoding')")
		db.SQL(t, "INSERT INTO t VALUES (1, 'x'), (2, NULL)")
		if got := db.Query(t, "TABLE t ORDER BY a"); got != "1|x\n2|" {
			t.Errorf("rows: %q", got)
		}
		if got := db.Script(t, "TABLE t ORDER BY a"); got != "1|x\n2|\n" {
			t.Errorf("rows by psql: %q", got)
		}
		got := db.Query(t, "SELECT count(*) FROM pg_logical_slot_get_changes('"+db.Name+"', NULL, NULL) WHERE data LIKE '%INSERT%'")
		if got != "2" {
			t.Errorf("decoded inserts: %s", got)
		}
		if got := db.Query(t, "SHOW server_version_num"); !strings.HasPrefix(got, string(rune('0'+pg.Major()/10))) {
			t.Errorf("version: %s", got)
		}
	}, majors...)
}

func TestServersHaveIdentitiesOfTheirOwn(t *testing.T) {
	const q = "SELECT system_identifier FROM pg_control_system()"
	a := Shared(t, Newest).Query(t, "postgres", q)
	b := Start(t, Newest).Query(t, "postgres", q)
	if a == b {
		t.Errorf("two servers with the system identifier %s", a)
	}
}

func TestCrashKillAndPause(t *testing.T) {
	t.Parallel()
	pg := Start(t, Newest, "work_mem=5MB")
	db := pg.NewDB(t)
	db.SQL(t, "CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
	for name, end := range map[string]func(testing.TB){"crash": pg.Crash, "kill": pg.Kill, "stop": pg.Stop} {
		end(t)
		if _, err := pg.TryQuery(db.Name, "SELECT 1"); err == nil {
			t.Fatalf("%s: the server still answers", name)
		}
		pg.Restart(t)
		if got := db.Query(t, "SELECT current_setting('work_mem'), count(*) FROM t"); got != "5MB|1" {
			t.Fatalf("%s: %s", name, got)
		}
	}
	pg.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if c, err := pgconn.Connect(ctx, db.URL()); err == nil {
		_ = c.Close(ctx)
		t.Error("a paused server took a connection")
	}
	pg.Continue(t)
	db.SQL(t, "INSERT INTO t VALUES (2)")
}

func TestStandbyFollowsAndIsPromoted(t *testing.T) {
	t.Parallel()
	primary := Start(t, Newest)
	standby := Standby(t, primary)
	primary.SQL(t, "postgres", "CREATE TABLE t (a int)")
	Eventually(t, 20*time.Second, func() bool {
		got, err := standby.TryQuery("postgres", "SELECT pg_is_in_recovery() AND to_regclass('t') IS NOT NULL")
		return err == nil && got == "t"
	}, "the table comes to the standby")
	standby.Promote(t)
	standby.SQL(t, "postgres", "INSERT INTO t VALUES (1)")
}

func TestPasswords(t *testing.T) {
	t.Parallel()
	pg := Start(t, Newest)
	pg.SQL(t, "postgres", "CREATE ROLE app LOGIN PASSWORD 'secret'")
	pg.HBA(t, "host all app 127.0.0.1/32 scram-sha-256")
	for password, want := range map[string]bool{"secret": true, "wrong": false} {
		c, err := pgconn.Connect(t.Context(), pg.URLAs("app", password, "postgres"))
		if (err == nil) != want {
			t.Errorf("password %q: %v", password, err)
		}
		if err == nil {
			_ = c.Close(t.Context())
		}
	}
}

func TestProxy(t *testing.T) {
	t.Parallel()
	x := NewProxy(t, Shared(t, Newest))
	open := func() *pgconn.PgConn {
		t.Helper()
		c, err := pgconn.Connect(t.Context(), x.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(context.Background()) })
		return c
	}
	ask := func(c *pgconn.PgConn, timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		_, err := c.Exec(ctx, "SELECT repeat('x', 1000)").ReadAll()
		return err
	}
	const long, brief = 20 * time.Second, 100 * time.Millisecond

	c := open()
	if err := ask(c, long); err != nil {
		t.Fatal(err)
	}
	x.Cut()
	if err := ask(c, long); err == nil {
		t.Error("cut: the connection still answers")
	}
	c = open()
	x.CutAfter(500)
	if err := ask(c, long); err == nil {
		t.Error("cut after 500 bytes: the whole answer came")
	}
	c = open()
	x.Stall()
	if err := ask(c, brief); err == nil {
		t.Error("stalled: an answer came")
	}
	x.Resume()
	c = open()
	x.Delay(2 * brief)
	if err := ask(c, brief); err == nil {
		t.Error("delayed: the answer came at once")
	}
	x.Delay(0)
	x.Refuse(true)
	if _, err := pgconn.Connect(t.Context(), x.URL("postgres")); err == nil {
		t.Error("refused: connected")
	}
	x.Refuse(false)
	if err := ask(open(), long); err != nil {
		t.Error(err)
	}
}

// A test binary that is killed takes its servers along, and the next one
// removes their files. Both have a rig of their own, since any other process
// that uses the common one would do the same for them.
func TestKilledOwnerLeavesNothing(t *testing.T) {
	t.Parallel()
	env := append(os.Environ(), childEnv+"=1", "MILLRACE_RIG="+ownRig(t))
	start := func() (*exec.Cmd, string) {
		t.Helper()
		cmd := exec.Command(os.Args[0])
		cmd.Env = env
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return cmd, strings.TrimSpace(line)
	}
	killed, data := start()
	pidFile, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, _, _ := strings.Cut(string(pidFile), "\n")
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, 20*time.Second, func() bool {
		_, err := os.Stat("/proc/" + pid)
		return err != nil
	}, "the server of the killed process ends")
	if _, err := os.Stat(data); err != nil {
		t.Fatalf("nobody has swept yet: %v", err)
	}
	start()
	if _, err := os.Stat(data); err == nil {
		t.Error("the files of the killed process are still there")
	}
}

// ownRig makes a directory as Dir gives one, with the binaries of the common one.
func ownRig(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(Dir()), "millrace-rig-test-")
	if err != nil {
		t.Fatal(err)
	}
	// Runs after the processes' own clean-ups, which are registered later.
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(Dir(), "pg"), filepath.Join(dir, "pg")); err != nil {
		t.Fatal(err)
	}
	return dir
}
