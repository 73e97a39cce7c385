package session

import (
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

var encodedBytes = regexp.MustCompile(`0x[0-9a-f]{2}( 0x[0-9a-f]{2})*`)

// withoutValues gives a server's message without the values of rows. The
// server's own messages quote such in class 22 (data exception) only, and
// extensions in internal errors; the rest is kept to the detail, which is never
// shown. What a function of a user raises can say anything.
func withoutValues(pg *pgconn.PgError) string {
	m := pg.Message
	switch {
	case Raised(pg):
		return "a function of the server refused it" + raisedBy(pg.Where)
	case !strings.HasPrefix(pg.Code, "22") && pg.Code != "XX000":
		return m
	case pg.Code == "22021" || pg.Code == "22P05": // the quotes hold encodings here
		return encodedBytes.ReplaceAllLiteralString(m, "0x…")
	}
	first, last := strings.IndexByte(m, '"'), strings.LastIndexByte(m, '"')
	if first < 0 || first == last {
		return m
	}
	return m[:first+1] + "…" + m[last:]
}

// interpreters are the source files in which errors of functions in procedural
// languages are made.
var interpreters = []string{"pl_exec.c", "plpy_elog.c", "plperl.c", "pltcl.c"}

// Raised tells whether a function's author wrote the message, as with PL/pgSQL's
// RAISE and ASSERT. Every part of such an error may quote a row: message, detail,
// hint, and the names of table, column and constraint.
func Raised(pg *pgconn.PgError) bool {
	return slices.Contains(interpreters, pg.File) || strings.HasPrefix(pg.Code, "P0") || strings.HasPrefix(pg.Code, "38")
}

// raiser is the frame of the function that raised an error, which begins the
// context. Frames below it may quote statements, and with them values.
var raiser = regexp.MustCompile(`^PL/pgSQL function ([A-Za-z0-9_."]+\([A-Za-z0-9_., "\[\]]*\)) line (\d+) at [A-Z]+(\n|$)`)

func raisedBy(context string) string {
	m := raiser.FindStringSubmatch(context)
	if m == nil {
		return ""
	}
	return ": PL/pgSQL function " + m[1] + " line " + m[2]
}
