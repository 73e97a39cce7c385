package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/session"
)

// keyKinds are tables whose keys sort in ways that are easy to get wrong. native
// tells whether the bytes of the keys are to sort in that way, in binary form.
var keyKinds = []struct {
	name, columns, key, rows string
	native                   bool
}{
	{"int2", "k int2", "k", "SELECT g FROM generate_series(-300, 300) g UNION SELECT 32767 UNION SELECT -32768", true},
	{"int8", "k int8", "k", "SELECT (random() * 1e18 - 5e17)::int8 FROM generate_series(1, 500) UNION SELECT 9223372036854775807 UNION SELECT -9223372036854775808 UNION SELECT 0 UNION SELECT -1 UNION SELECT -256 UNION SELECT 255", true},
	{"uuid", "k uuid", "k", "SELECT gen_random_uuid() FROM generate_series(1, 400)", true},
	{"bytea", "k bytea", "k", `SELECT decode(repeat('00', g % 7) || substr(md5(g::text), 1, 2 * (g % 9)), 'hex') FROM generate_series(1, 400) g GROUP BY 1`, true},
	{"bool", "k bool", "k", "VALUES (true), (false)", true},
	{"date", "k date", "k", "SELECT date '2000-01-01' + g FROM generate_series(-400, 400) g UNION SELECT 'infinity' UNION SELECT '-infinity' UNION SELECT '4000-01-01 BC'", true},
	{"tstz", "k timestamptz", "k", "SELECT timestamptz '2000-01-01' + g * interval '1.000001 h' FROM generate_series(-400, 400) g UNION SELECT 'infinity' UNION SELECT '-infinity'", true},
	{"textc", `k text COLLATE "C"`, "k", `SELECT chr(32 + g % 300) || md5(g::text) FROM generate_series(1, 400) g UNION SELECT '' UNION SELECT 'a' UNION SELECT 'a' || chr(1)`, true},
	{"textlocale", `k text COLLATE words`, "k", `SELECT chr(65 + g % 60) || chr(32 + g % 90) || g FROM generate_series(1, 400) g`, false},
	{"citext", "k public.citext", "k", `SELECT (CASE WHEN g % 2 = 0 THEN 'a' ELSE 'B' END || g)::public.citext FROM generate_series(1, 300) g`, false},
	{"char", "k char(8)", "k", `SELECT substr(md5(g::text), 1, 1 + g % 8) FROM generate_series(1, 300) g GROUP BY 1`, false},
	{"numeric", "k numeric", "k", "SELECT (g / 7.0) FROM generate_series(-300, 300) g UNION SELECT 'NaN' UNION SELECT 'Infinity' UNION SELECT '-Infinity' UNION SELECT 1e30 UNION SELECT 10.500", false},
	{"float8", "k float8", "k", "SELECT g / 7.0 FROM generate_series(-300, 300) g WHERE g <> 0 UNION SELECT 'NaN' UNION SELECT 'Infinity' UNION SELECT '-Infinity' UNION SELECT '-0'", false},
	{"enum", "k mood", "k", "SELECT unnest(enum_range(NULL::mood))", false},
	{"domain", "k positive", "k", "SELECT g FROM generate_series(1, 300) g", true},
	{"array", "k int[]", "k", "SELECT ARRAY[g % 10, g] FROM generate_series(1, 300) g UNION SELECT '{}'", false},
	{"interval", "k interval", "k", "SELECT g * interval '1 day 1 hour' FROM generate_series(-200, 200) g", false},
	{"inet", "k inet", "k", "SELECT ('10.' || g % 250 || '.0.' || g % 7)::inet FROM generate_series(1, 200) g GROUP BY 1", false},
	{"mixed", `a text COLLATE words, b int8, c numeric`, "a, b, c", "SELECT chr(65 + g % 40), g % 5, g / 3.0 FROM generate_series(1, 500) g", false},
	{"composite", `a int4, b text COLLATE "C", c uuid`, "a, b, c", "SELECT g % 7 - 3, chr(60 + g % 30), gen_random_uuid() FROM generate_series(1, 500) g", true},
}

// TestKeysSortAsTheServerSays reads tables of all kinds of keys chunk by chunk:
// every row must come exactly once, in the order of a real ORDER BY, and the rank
// of keys among bounds must be what that order says.
func TestKeysSortAsTheServerSays(t *testing.T) {
	db := rig.Shared(t, 18).NewDB(t)
	db.Script(t, `CREATE EXTENSION citext SCHEMA public; CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy', 'aaa');
		CREATE DOMAIN positive AS int8 CHECK (VALUE > 0);
		CREATE COLLATION words (provider = libc, locale = 'C.UTF-8')`)
	for _, k := range keyKinds {
		db.Script(t, fmt.Sprintf("CREATE TABLE t_%s (%s, pad text DEFAULT 'x', PRIMARY KEY (%s)); INSERT INTO t_%s (%s) %s", k.name, k.columns, k.key, k.name, k.key, k.rows))
	}
	source := session.Static(millrace.PeerSource, db.URL(), "test")
	r, err := NewChunkReader(t.Context(), source, NewLimiter(0))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, k := range keyKinds {
		for _, binary := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/binary=%v", k.name, binary), func(t *testing.T) {
				var oid uint32
				if err := r.Conn().QueryRow(t.Context(), "SELECT $1::regclass::oid", "public.t_"+k.name).Scan(&oid); err != nil {
					t.Fatal(err)
				}
				table, err := DescribeChunks(t.Context(), r.Conn(), oid, binary, nil)
				if err != nil {
					t.Fatal(err)
				}
				if binary && table.Key.Native != k.native {
					t.Errorf("native: %v, want %v", table.Key.Native, k.native)
				}
				keys := readAll(t, r, table, 37)
				if want := db.Query(t, "SELECT count(*) FROM t_"+k.name); fmt.Sprint(len(keys)) != want {
					t.Fatalf("%d rows were read of %s", len(keys), want)
				}
				checkRanks(t, r, table.Key, keys)
			})
		}
	}
}

// readAll reads the table in chunks and gives the keys in the order in which they
// came.
func readAll(t *testing.T, r *ChunkReader, table *ChunkTable, most int) [][]byte {
	t.Helper()
	var keys [][]byte
	seen := map[string]bool{}
	for in := (Range{}); ; {
		view, err := r.Begin(t.Context(), table)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := r.Range(t.Context(), table, in, most, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.End(t.Context(), view); err != nil {
			t.Fatal(err)
		}
		for _, key := range rows.Keys {
			if seen[string(key)] {
				t.Fatalf("key %x came twice", key)
			}
			seen[string(key)] = true
		}
		keys = append(keys, rows.Keys...)
		if rows.Final {
			return keys
		}
		in.After = keys[len(keys)-1]
	}
}

// checkRanks holds Rank against the order in which the server gave the keys.
func checkRanks(t *testing.T, r *ChunkReader, k *Key, keys [][]byte) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	var places []int
	for range min(5, len(keys)) {
		places = append(places, rng.IntN(len(keys)))
	}
	slices.Sort(places)
	places = slices.Compact(places)
	var bounds [][]byte
	for _, p := range places {
		bounds = append(bounds, keys[p])
	}
	ranks, err := k.Rank(t.Context(), r.Conn(), keys, bounds)
	if err != nil {
		t.Fatal(err)
	}
	for i := range keys {
		want := 0
		for _, p := range places {
			if i > p {
				want++
			}
		}
		if ranks[i] != want {
			t.Fatalf("key %d of %d (%x) is behind %d of the bounds %v, want %d", i, len(keys), keys[i], ranks[i], places, want)
		}
	}
	if k.Native && !slices.IsSortedFunc(keys, bytes.Compare) {
		t.Error("the bytes of the keys are not in the server's order")
	}
}

// TestSees holds Sees against what the documentation of pg_snapshot says, around
// the wrap of the 32 bits that the stream sends.
func TestSees(t *testing.T) {
	v, err := ParseVisibility("4294967290:4294967300:4294967295,4294967297")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		xid  uint32
		want bool
	}{{4294967289, true}, {4294967290, true}, {4294967295, false}, {0, true}, {1, false}, {3, true}, {4, false}, {5, false}, {4294960000, true}} {
		if got := v.Sees(c.xid); got != c.want {
			t.Errorf("%d: %v, want %v", c.xid, got, c.want)
		}
	}
	if v.String() != "4294967290:4294967300:4294967295,4294967297" {
		t.Errorf("it is written as %s", v)
	}
	for _, bad := range []string{"", "1:2", "2:1:", "1:2:x", "1:2:3:4"} {
		if _, err := ParseVisibility(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestChunkOfAnotherTable: what was described does not stay as it was while chunks
// are read, and not all changes of it give it another file.
func TestChunkOfAnotherTable(t *testing.T) {
	db := rig.Shared(t, 18).NewDB(t)
	db.Script(t, `CREATE TABLE a (k int PRIMARY KEY, "v""x" numeric(8, 2), g int GENERATED ALWAYS AS (k + 1) STORED, gone text);
		ALTER TABLE a DROP COLUMN gone; CREATE TABLE other (LIKE a INCLUDING ALL)`)
	r, err := NewChunkReader(t.Context(), session.Static(millrace.PeerSource, db.URL(), "test"), NewLimiter(0))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var oid uint32
	if err := r.Conn().QueryRow(t.Context(), "SELECT 'public.a'::regclass::oid").Scan(&oid); err != nil {
		t.Fatal(err)
	}
	for _, change := range []string{
		"SELECT 1", // none
		"ALTER TABLE a ADD COLUMN c int DEFAULT 5",
		`ALTER TABLE a RENAME COLUMN "v""x" TO w`,
		"ALTER TABLE a RENAME TO was; ALTER TABLE other RENAME TO a",
	} {
		table, err := DescribeChunks(t.Context(), r.Conn(), oid, true, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, begin := range []string{"", change} {
			if begin != "" {
				db.Script(t, change)
			}
			want := begin != "" && change != "SELECT 1"
			_, err := r.Begin(t.Context(), table)
			if errors.Is(err, ErrRewritten) != want || err != nil && !want {
				t.Errorf("%s: %v, noticed should be %v", change, err, want)
			}
			if err := r.Abandon(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func binaryInt(raw []byte) int32 { return int32(binary.BigEndian.Uint32(raw)) }

func splitInts(t *testing.T, text string) []int {
	t.Helper()
	var all []int
	for _, s := range strings.Split(text, ",") {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}
