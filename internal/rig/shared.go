package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/rig/pgserver"
)

// shared are the servers that the tests of this binary share.
var shared struct {
	sync.Mutex
	running bool // inside Run
	servers map[string]*entry
}

type entry struct {
	once  sync.Once
	pg    *Postgres
	kafka *Kafka
	err   error
}

// Main is the TestMain of packages that use Shared:
//
//	func TestMain(m *testing.M) { rig.Main(m) }
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run runs the tests, stops the shared servers and returns the exit code.
func Run(m interface{ Run() int }) int {
	shared.Lock()
	shared.running = true
	shared.Unlock()
	code := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintln(os.Stderr, "rig:", err)
		return max(code, 1)
	}
	return code
}

func closeShared() error {
	shared.Lock()
	defer shared.Unlock()
	shared.running = false
	var errs []error
	for _, e := range shared.servers {
		if e.pg != nil {
			errs = append(errs, e.pg.Close())
		}
		if e.kafka != nil {
			errs = append(errs, e.kafka.Close())
		}
	}
	shared.servers = nil
	return errors.Join(errs...)
}

// Shared gives the server of this version with these settings that all tests of
// the binary share; the first one starts it. It can't be stopped by a test. The
// package's TestMain must be rig.Main.
func Shared(t testing.TB, major int, settings ...string) *Postgres {
	t.Helper()
	need(t, major)
	return sharedWith(t, fmt.Sprint(major, " ", strings.Join(settings, "\n")), pgserver.Options{Major: major, Settings: settings, Name: "-shared"})
}

func sharedWith(t testing.TB, key string, o pgserver.Options) *Postgres {
	t.Helper()
	e := sharedEntry(t, key)
	e.once.Do(func() {
		var s *pgserver.Server
		s, e.err = pgserver.Start(context.Background(), o)
		if e.err == nil {
			e.pg = &Postgres{Server: s, shared: true}
		}
	})
	if e.err != nil {
		t.Fatal(e.err)
	}
	return e.pg
}

// SharedICU is Shared for a server that has ICU. Without one, which not every machine can
// have, the test is skipped.
func SharedICU(t testing.TB) *Postgres {
	t.Helper()
	if !pgserver.HaveICU() {
		t.Skipf("no PostgreSQL %d with ICU in %s: run `make rig`", pgserver.ICUMajor, pgserver.ICUDir())
	}
	return sharedWith(t, "icu", pgserver.Options{Major: pgserver.ICUMajor, ICU: true, Name: "-icu-shared"})
}

func sharedEntry(t testing.TB, key string) *entry {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if !shared.running {
		t.Fatal("rig.Shared needs `func TestMain(m *testing.M) { rig.Main(m) }` in the package")
	}
	if shared.servers == nil {
		shared.servers = map[string]*entry{}
	}
	e := shared.servers[key]
	if e == nil {
		e = &entry{}
		shared.servers[key] = e
	}
	return e
}
