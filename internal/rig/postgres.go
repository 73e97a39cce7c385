package rig

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/rig/pgserver"
)

// The majors that the project supports. 15 is supported as a source only.
var supported = []int{16, 17, 18}

// Newest is the version for tests that do not depend on one.
const Newest = 18

// Postgres is a server in a test: what fails, fails the test.
type Postgres struct {
	*pgserver.Server
	shared bool
}

// Dir is where the rig keeps binaries and data.
func Dir() string { return pgserver.Dir() }

// Have tells whether servers of the version can be started.
func Have(major int) bool { return pgserver.Have(major) }

// Start gives the test a fresh server of its own, which is gone at its end.
// Settings are "name=value" lines for postgresql.conf.
func Start(t testing.TB, major int, settings ...string) *Postgres {
	t.Helper()
	need(t, major)
	return start(t, pgserver.Options{Major: major, Settings: settings, Name: dirName(t)})
}

// Standby gives the test a hot standby of a running server, of the same
// version, with a physical slot there.
func Standby(t testing.TB, primary *Postgres, settings ...string) *Postgres {
	t.Helper()
	o := pgserver.Options{Major: primary.Major(), Settings: settings, Name: dirName(t), Standby: primary.Server}
	return start(t, o)
}

func start(t testing.TB, o pgserver.Options) *Postgres {
	t.Helper()
	s, err := pgserver.Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of PostgreSQL %d on port %d ends with:\n%s", s.Major(), s.Port(), s.Log(25))
		}
		if err := s.Close(); err != nil {
			t.Errorf("close PostgreSQL %d: %v", s.Major(), err)
		}
	})
	return &Postgres{Server: s}
}

// need ends a test that wants a version that is not there. Only -short makes
// that a skip: a suite that is green because it ran nothing helps nobody.
func need(t testing.TB, major int) {
	t.Helper()
	if Have(major) {
		return
	}
	if testing.Short() {
		t.Skipf("no PostgreSQL %d: run `make rig`", major)
	}
	t.Fatalf("no PostgreSQL %d in %s: run `make rig`", major, pgserver.BinDir(major))
}

// EachVersion runs a subtest for every supported version, named 16, 17, 18, or
// for those listed. The server is the shared one.
func EachVersion(t *testing.T, f func(t *testing.T, pg *Postgres), majors ...int) {
	t.Helper()
	if len(majors) == 0 {
		majors = slices.Clone(supported)
	}
	for _, m := range majors {
		t.Run(strconv.Itoa(m), func(t *testing.T) { f(t, Shared(t, m)) })
	}
}

// Crash is an immediate shutdown; [Postgres.Restart] goes through recovery.
func (p *Postgres) Crash(t testing.TB) { t.Helper(); p.must(t, "crash", p.Server.Crash()) }

// Kill ends all processes of the server with SIGKILL.
func (p *Postgres) Kill(t testing.TB) { t.Helper(); p.must(t, "kill", p.Server.Kill()) }

// Stop is a fast shutdown.
func (p *Postgres) Stop(t testing.TB) { t.Helper(); p.must(t, "stop", p.Server.Stop()) }

// Restart starts the server again, on the same port.
func (p *Postgres) Restart(t testing.TB) {
	t.Helper()
	p.must(t, "restart", p.Server.Restart(context.Background()))
}

// Pause stops all processes of the server, so that connections stay open and
// nobody answers.
func (p *Postgres) Pause(t testing.TB) { t.Helper(); p.must(t, "pause", p.Server.Pause()) }

// Continue undoes Pause.
func (p *Postgres) Continue(t testing.TB) { t.Helper(); p.must(t, "continue", p.Server.Continue()) }

// Promote makes a standby a primary.
func (p *Postgres) Promote(t testing.TB) {
	t.Helper()
	p.must(t, "promote", p.Server.Promote(context.Background()))
}

// Configure appends "name=value" settings to the configuration, which hold from
// the next Restart or Reload on.
func (p *Postgres) Configure(t testing.TB, settings ...string) {
	t.Helper()
	p.must(t, "configure", p.Server.Configure(settings...))
}

// HBA puts lines in front of pg_hba.conf, for tests of passwords and refusals,
// and waits until new connections go by them.
func (p *Postgres) HBA(t testing.TB, lines ...string) {
	t.Helper()
	p.must(t, "change pg_hba.conf", p.Server.HBA(lines...))
	p.awaitReload(t)
}

// Reload makes the server read its configuration files again and waits until it
// has.
func (p *Postgres) Reload(t testing.TB) {
	t.Helper()
	p.must(t, "reload", p.Server.Reload())
	p.awaitReload(t)
}

// must fails the test if err is set, and also if others use the server.
func (p *Postgres) must(t testing.TB, op string, err error) {
	t.Helper()
	if p.shared {
		t.Fatalf("%s: other tests use this server: take one with rig.Start", op)
	}
	if err != nil {
		t.Fatalf("%s PostgreSQL %d: %v", op, p.Major(), err)
	}
}

var notName = regexp.MustCompile(`[^a-z0-9]+`)

// dirName is a short form of the test's name for the data directory.
func dirName(t testing.TB) string {
	n := strings.Trim(notName.ReplaceAllString(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), "-"), "-")
	return "-" + n[:min(len(n), 20)]
}
