package session

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestRaisedStaysHidden: of what a function's author has written nothing is
// shown but where it was raised, whatever its SQLSTATE.
func TestRaisedStaysHidden(t *testing.T) {
	for _, c := range []struct {
		pg   pgconn.PgError
		want string
	}{
		{pgconn.PgError{Code: "P0001", Message: "row secret", File: "pl_exec.c", Where: "PL/pgSQL function public.guard() line 3 at RAISE\nSQL statement \"secret\""},
			"a function of the server refused it: PL/pgSQL function public.guard() line 3 (SQLSTATE P0001)"},
		{pgconn.PgError{Code: "23505", Message: "row secret", File: "pl_exec.c", Where: `PL/pgSQL function "Odd".guard(integer, text) line 12 at ASSERT`},
			`a function of the server refused it: PL/pgSQL function "Odd".guard(integer, text) line 12 (SQLSTATE 23505)`},
		{pgconn.PgError{Code: "P0001", Message: "row secret", Where: "SQL statement \"secret\"\nPL/pgSQL function f() line 3 at RAISE"},
			"a function of the server refused it (SQLSTATE P0001)"},
		{pgconn.PgError{Code: "38000", Message: "row secret", File: "plpy_elog.c", Where: "PL/Python function \"secret\""},
			"a function of the server refused it (SQLSTATE 38000)"},
		{pgconn.PgError{Code: "XX000", Message: `parse error in "secret" here`, File: "lwgeom.c"}, `parse error in "…" here (SQLSTATE XX000)`},
	} {
		c.pg.Severity, c.pg.Detail, c.pg.Hint = "ERROR", "secret", "secret"
		got := Wrap("apply", "", &c.pg).Error()
		if got != "apply: "+c.want || strings.Contains(got, "secret") {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}
