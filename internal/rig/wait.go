package rig

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Eventually polls until cond holds and fails the test after the timeout. What
// comes behind cond is printed then; a pointer is read at that time, so that it
// can be where cond leaves what it saw.
func Eventually(t testing.TB, timeout time.Duration, cond func() bool, what ...any) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	pause := 2 * time.Millisecond
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", timeout, describe(what))
		}
		time.Sleep(pause)
		pause = min(pause*3/2, 100*time.Millisecond)
	}
}

// Linger lets time pass in a test of what must not happen meanwhile, such as a
// timeout of the server's; what it is stands in why, for the reader. To wait for
// something that happens there is Eventually.
func Linger(t testing.TB, d time.Duration, why string) {
	t.Helper()
	t.Logf("%v pass: %s", d, why)
	time.Sleep(d)
}

func describe(what []any) string {
	parts := make([]string, len(what))
	for i, w := range what {
		switch w := w.(type) {
		case *error:
			parts[i] = fmt.Sprint(*w)
		case *string:
			parts[i] = *w
		default:
			parts[i] = fmt.Sprint(w)
		}
	}
	return strings.Join(parts, " ")
}

// awaitReload waits until the postmaster has read its files: it reads them
// before it starts the next backend, once the signal has arrived.
func (p *Postgres) awaitReload(t testing.TB) {
	t.Helper()
	mark := fmt.Sprintf("rig.reload=%d", time.Now().UnixNano())
	if err := p.Server.Configure(mark); err != nil {
		t.Fatal(err)
	}
	if err := p.Server.Reload(); err != nil {
		t.Fatal(err)
	}
	_, want, _ := strings.Cut(mark, "=")
	Eventually(t, 20*time.Second, func() bool {
		got, err := p.exec("postgres", "SHOW rig.reload")
		// A server that now refuses the superuser has read its files as well.
		return got == want || isRefusal(err)
	}, "the server does not read its configuration")
}

func isRefusal(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && strings.HasPrefix(e.Code, "28")
}
