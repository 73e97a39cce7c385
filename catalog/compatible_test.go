package catalog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/rig"
)

// values are tried on every pair of types that can take them: what a column
// takes without an error, it must hold as it was written.
var values = []string{
	"1", "0", "-7", "1.5", "1.005", "12345.6789", "16777217", "9007199254740993", "9223372036854775807", "1e-20", "0.1", "NaN",
	"ab", "ab   ", "abcdefgh", "2024-02-29", "2024-02-29 12:34:56.123456", "2024-02-29 12:34:56.123456+00", "12:34:56.123456",
	"12:34:56.123456+00", "1 year 2 mons 3 days 04:05:06.789", "1 year", "1010", "10", "10.0.0.0/8", "10.1.2.3/8", "ok", "f", "true",
	`{"a" : 1, "a": 2}`, "00000000-0000-0000-0000-00000000000a", "$1.00", "[1,5)", "[1.0,2.0]", "(2,abcdefgh)", "(1.005,x)",
}

func TestCompatible(t *testing.T) {
	db := rig.Shared(t, rig.Newest).NewDB(t)
	db.SQL(t, `CREATE TYPE mood AS ENUM ('ok', 'ab'); CREATE TYPE mood2 AS ENUM ('ok', 'ab', 'more');
		CREATE DOMAIN rounded AS numeric(8,1); CREATE DOMAIN exact AS numeric;
		CREATE TYPE pair AS (n numeric, t text); CREATE TYPE pair1 AS (n numeric(6,1), t text); CREATE TYPE pairx AS (n numeric, u text);
		CREATE EXTENSION citext`)
	conn := open(t, db.URL())
	for _, c := range []struct {
		src, dst string
		want     string // a piece of the problem, "" for none
	}{
		{"int", "int", ""},
		{"int", "bigint", ""},
		{"bigint", "int", ""},
		{"bigint", "smallint", ""},
		{"smallint", "real", ""},
		{"int", "real", "rounds"},
		{"int", "float8", ""},
		{"bigint", "float8", "rounds"},
		{"bigint", "numeric", ""},
		{"bigint", "numeric(20,2)", ""},
		{"bigint", "numeric(4,-2)", "rounds"},
		{"float8", "real", "rounds"},
		{"real", "float8", ""},
		{"real", "numeric", ""},
		{"float8", "numeric(8,2)", "rounds"},
		{"numeric", "float8", "rounds"},
		{"numeric", "int", ""},
		{"numeric", "numeric", ""},
		{"numeric(8,2)", "numeric", ""},
		{"numeric", "numeric(8,2)", "rounds"},
		{"numeric(8,2)", "numeric(8,1)", "rounds"},
		{"numeric(8,2)", "numeric(5,2)", ""},
		{"numeric(8,2)", "numeric(8,4)", ""},
		{"numeric(8,-1)", "numeric(8,-2)", "rounds"},
		{"numeric(8,2)", "rounded", "rounds"},
		{"rounded", "exact", ""},
		{"exact", "rounded", "rounds"},

		{"text", "text", ""},
		{"text", "varchar", ""},
		{"varchar(5)", "text", ""},
		{"text", "varchar(5)", ""},
		{"varchar(8)", "varchar(5)", ""},
		{"char(8)", "char(8)", ""},
		{"char(8)", "char(5)", "blanks"},
		{"char(5)", "char(8)", "blanks"},
		{"char(5)", "text", ""},
		{"text", "char(8)", "blanks"},
		{"char(5)", "bpchar", ""},
		{"text", "bpchar", ""},
		{"int", "text", ""},
		{"timestamp", "text", ""},
		{"text", "int", "not known"},
		{"text", "name", "not known"},
		{"citext", "citext", ""},
		{"text", "citext", ""},
		{"citext", "text", ""},

		{"timestamp", "timestamp", ""},
		{"timestamp", "timestamptz", "time zone"},
		{"timestamptz", "timestamp", "time zone"},
		{"timestamp", "timestamp(3)", "rounds"},
		{"timestamp(3)", "timestamp", ""},
		{"timestamp(3)", "timestamp(0)", "rounds"},
		{"timestamptz(3)", "timestamptz(6)", ""},
		{"time", "time(0)", "rounds"},
		{"time", "timetz", "time zone"},
		{"timestamp", "date", "cuts"},
		{"timestamp", "time", "cuts"},
		{"timestamptz", "date", "time zone"},
		{"date", "timestamp", ""},
		{"interval", "interval", ""},
		{"interval", "interval(0)", "rounds"},
		{"interval(2)", "interval(3)", ""},
		{"interval", "interval year", "drops"},
		{"interval year", "interval", ""},
		{"interval day to second(2)", "interval day to second(1)", "rounds"},

		{"bit(4)", "bit(4)", ""},
		{"bit(4)", "bit(2)", ""},
		{"bit(4)", "varbit", ""},
		{"varbit", "bit(4)", ""},
		{"varbit(8)", "varbit(2)", ""},
		{"cidr", "inet", ""},
		{"inet", "cidr", ""},
		{"json", "jsonb", "not known"},
		{"jsonb", "json", ""},
		{"json", "text", ""},
		{"bool", "bool", ""},
		{"bool", "int", "not known"},
		{"uuid", "text", ""},
		{"text", "uuid", "not known"},
		{"money", "numeric", "not known"},
		{"int4range", "int4range", ""},
		{"int4range", "numrange", "not known"},

		{"mood", "mood2", ""},
		{"mood", "text", ""},
		{"text", "mood", ""},
		{"mood", "pair", "not known"},
		{"pair", "pair", ""},
		{"pair", "pair1", "rounds"},
		{"pair", "pairx", "field"},
	} {
		src, dst := pairOf(t, conn, c.src, c.dst)
		got := Compatible(src, dst)
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s to %s: got %q, want %q", c.src, c.dst, got, c.want)
		}
		checkSilence(t, conn, c.src, c.dst, got)
		run(t, conn, "DROP TABLE public.src, public.dst")
		if strings.Contains(c.src+c.dst, "[") || strings.Contains(got, "not known") {
			continue
		}
		src, dst = pairOf(t, conn, c.src+"[]", c.dst+"[]")
		if array := Compatible(src, dst); (array == "") != (got == "") {
			t.Errorf("%s[] to %s[]: got %q, of elements %q", c.src, c.dst, array, got)
		}
		run(t, conn, "DROP TABLE public.src, public.dst")
	}
}

func pairOf(t *testing.T, conn *pgx.Conn, src, dst string) (s, d *Column) {
	t.Helper()
	for table, typ := range map[string]string{"src": src, "dst": dst} {
		run(t, conn, "SET search_path = public, pg_catalog; CREATE TABLE public."+table+" (v "+typ+"); SET search_path = pg_catalog")
	}
	return &describe(t, conn, "public", "src").Columns[0], &describe(t, conn, "public", "dst").Columns[0]
}

// checkSilence compares the verdict with what the server does.
func checkSilence(t *testing.T, conn *pgx.Conn, src, dst, verdict string) {
	t.Helper()
	var sourceType string
	err := conn.QueryRow(t.Context(), `SELECT format_type(atttypid, atttypmod) FROM pg_attribute
		WHERE attrelid = 'public.src'::regclass AND attnum = 1`).Scan(&sourceType)
	if err != nil {
		t.Fatal(err)
	}
	changed := ""
	for _, v := range values {
		run(t, conn, "TRUNCATE public.src, public.dst")
		if _, err := conn.Exec(t.Context(), "INSERT INTO public.src VALUES ("+quote(v)+")"); err != nil {
			continue // not a value of this type
		}
		var sent string
		if err := conn.QueryRow(t.Context(), "SELECT concat('', v) FROM public.src").Scan(&sent); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "INSERT INTO public.dst VALUES ("+quote(sent)+")"); err != nil {
			continue // it raises, nothing is silent
		}
		held := ""
		// Back in the source's type, so that 1.00 is 1 again.
		for _, back := range []string{"concat('', v)::", "v::"} {
			err := conn.QueryRow(t.Context(), "SELECT concat('', "+back+sourceType+") FROM public.dst").Scan(&held)
			if err == nil {
				break
			}
			held = err.Error()
		}
		if sent != held {
			changed = fmt.Sprintf("%q became %q", sent, held)
			if verdict == "" {
				if strings.TrimRight(sent, " ") == held && strings.Contains(dst, "varchar") {
					continue // Narrower warns of that
				}
				t.Errorf("%s to %s: %s in silence", src, dst, changed)
			}
		}
	}
	judged := false // what cannot be seen in this way
	for _, s := range []string{"not known", "field", "time zone", "blanks"} {
		judged = judged || strings.Contains(verdict, s)
	}
	if verdict != "" && changed == "" && !judged {
		t.Errorf("%s to %s: nothing changes, but: %s", src, dst, verdict)
	}
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func TestNarrower(t *testing.T) {
	db := rig.Shared(t, rig.Newest).NewDB(t)
	db.SQL(t, "CREATE TYPE mood AS ENUM ('ok', 'ab'); CREATE TYPE mood2 AS ENUM ('ok', 'ab', 'more')")
	conn := open(t, db.URL())
	for _, c := range []struct{ src, dst, want string }{
		{"int", "int", ""},
		{"int", "bigint", ""},
		{"bigint", "int", "does not fit"},
		{"numeric", "smallint", "does not fit"},
		{"numeric(8,2)", "numeric(5,2)", "does not fit"},
		{"numeric(8,2)", "numeric(9,2)", ""},
		{"varchar(5)", "varchar(5)", ""},
		{"varchar(5)", "varchar(8)", ""},
		{"varchar(8)", "varchar(5)", "blanks"},
		{"text", "varchar(5)", "blanks"},
		{"text[]", "varchar(5)[]", "blanks"},
		{"bit(4)", "bit(2)", "does not fit"},
		{"bit(2)", "bit(4)", "does not fit"},
		{"varbit(4)", "varbit(8)", ""},
		{"varbit", "varbit(8)", "does not fit"},
		{"mood", "mood2", ""},
		{"mood2", "mood", "lacks labels"},
	} {
		src, dst := pairOf(t, conn, c.src, c.dst)
		if got := Narrower(src, dst); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s to %s: got %q, want %q", c.src, c.dst, got, c.want)
		}
		run(t, conn, "DROP TABLE public.src, public.dst")
	}
}
