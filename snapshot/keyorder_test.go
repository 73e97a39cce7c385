package snapshot

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/datum"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/session"
)

// keyType is a type that a key can have a column of, with values as SQL literals. Some
// of them are equal and written in another way, and some are next to each other in one
// order and not in another.
type keyType struct {
	sql    string
	values *rapid.Generator[string]
	needs  string // a collation that not every server has
}

var (
	keyInts  = rapid.OneOf(rapid.Int64Range(-300, 300), rapid.SampledFrom([]int64{-32768, 32767, -256, -255, 255, 256}))
	keyWords = rapid.StringOfN(rapid.SampledFrom([]rune("aAbBzZäÄéßñ019 _-.\x01~\u00a0日\U0001F418\uFFFD\uE000")), 0, 4, -1)
	keyRaw   = rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0x7F, 0x80, 0xFE, 0xFF}), 0, 4)
	keyDays  = rapid.Map(rapid.IntRange(-2_400_000, 2_400_000), func(n int) string { return fmt.Sprintf("date '2000-01-01' + %d", n) })
)

func literals(g *rapid.Generator[string]) *rapid.Generator[string] {
	return rapid.Map(g, millrace.QuoteLiteral)
}

func numbers(low, high int64, more ...string) *rapid.Generator[string] {
	all := rapid.OneOf(keyInts, rapid.Int64Range(low, high), rapid.SampledFrom([]int64{low, high}))
	inRange := rapid.Map(all, func(n int64) string { return "'" + strconv.FormatInt(min(max(n, low), high), 10) + "'" })
	return rapid.OneOf(append([]*rapid.Generator[string]{inRange}, some(more...)...)...)
}

func some(of ...string) []*rapid.Generator[string] {
	if len(of) == 0 {
		return nil
	}
	return []*rapid.Generator[string]{literals(rapid.SampledFrom(of))}
}

func oneOf(of ...string) *rapid.Generator[string] { return some(of...)[0] }

var (
	decimals = rapid.OneOf(
		rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("'%d.%0*d'", keyInts.Draw(t, "whole"), rapid.IntRange(1, 6).Draw(t, "scale"), rapid.IntRange(0, 9).Draw(t, "fraction"))
		}),
		rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("'%de%d'", rapid.IntRange(-20, 20).Draw(t, "digits"), rapid.IntRange(-40, 40).Draw(t, "power"))
		}),
		oneOf("NaN", "Infinity", "-Infinity", "0", "0.00", "-0.0", "1.5", "1.50", "1.500", "10", "1e1", "-0.5", "-0.50"))
	doubles = rapid.OneOf(rapid.Map(rapid.Float32(), func(f float32) string { return fmt.Sprintf("'%g'", f) }),
		oneOf("NaN", "Infinity", "-Infinity", "0", "-0", "1e-45", "-1e-45", "1.5", "1.50", "3.4e38"))
	moments = rapid.OneOf(oneOf("infinity", "-infinity", "2000-01-01", "1999-12-31 23:59:59.999999", "0001-01-01 BC", "4713-01-01 BC", "294276-12-31"),
		rapid.Map(rapid.Int64Range(-1<<40, 1<<40), func(n int64) string {
			return fmt.Sprintf("timestamptz '2000-01-01 00:00+00' + %d * interval '1 us'", n)
		}))
)

var keyTypes = map[string]keyType{
	"int2":       {sql: "int2", values: numbers(-32768, 32767)},
	"int4":       {sql: "int4", values: numbers(-1<<31, 1<<31-1)},
	"int8":       {sql: "int8", values: numbers(-1<<63, 1<<63-1)},
	"oid":        {sql: "oid", values: numbers(0, 1<<32-1)},
	"bool":       {sql: "bool", values: oneOf("t", "f")},
	"uuid":       {sql: "uuid", values: rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0x7F, 0x80, 0xFF}), 16, 16), func(b []byte) string { return "'" + hex.EncodeToString(b) + "'" })},
	"bytea":      {sql: "bytea", values: rapid.Map(keyRaw, func(b []byte) string { return `'\x` + hex.EncodeToString(b) + "'" })},
	"text":       {sql: "text", values: literals(keyWords)},
	"text_c":     {sql: `text COLLATE "C"`, values: literals(keyWords)},
	"text_posix": {sql: `text COLLATE "POSIX"`, values: literals(keyWords)},
	"text_basic": {sql: `text COLLATE ucs_basic`, values: literals(keyWords)},
	"text_words": {sql: `text COLLATE public.words`, values: literals(keyWords)},
	"text_utf8":  {sql: `text COLLATE "pg_c_utf8"`, values: literals(keyWords), needs: "pg_c_utf8"},
	"text_fast":  {sql: `text COLLATE "pg_unicode_fast"`, values: literals(keyWords), needs: "pg_unicode_fast"},
	"text_icu":   {sql: `text COLLATE "en-x-icu"`, values: literals(keyWords), needs: "en-x-icu"},
	"text_loose": {sql: `text COLLATE public.loose`, values: literals(keyWords), needs: "loose"},
	"varchar_c":  {sql: `varchar(9) COLLATE "C"`, values: literals(keyWords)},
	"bpchar":     {sql: "char(5)", values: literals(keyWords)},
	"bpchar_c":   {sql: `char(5) COLLATE "C"`, values: literals(keyWords)},
	"name":       {sql: "name", values: literals(keyWords)},
	"citext":     {sql: "public.citext", values: literals(keyWords)},
	"numeric":    {sql: "numeric", values: decimals},
	"cents":      {sql: "numeric(8,2)", values: numbers(-999999, 999999, "NaN", "0.5", "0.50", "-0.01")},
	"float4":     {sql: "float4", values: doubles},
	"float8":     {sql: "float8", values: doubles},
	"date":       {sql: "date", values: rapid.OneOf(keyDays, oneOf("infinity", "-infinity", "4713-01-01 BC", "5874897-12-31"))},
	"timestamp":  {sql: "timestamp", values: moments},
	"tstz":       {sql: "timestamptz", values: moments},
	"time":       {sql: "time", values: oneOf("00:00", "24:00", "12:34:56.789", "12:34:56.7890")},
	"timetz":     {sql: "timetz", values: oneOf("00:00+00", "01:00+01", "24:00+15", "12:00-03:30", "12:00+03:30")},
	"interval":   {sql: "interval", values: oneOf("1 mon", "30 days", "720:00", "-1 day", "24:00", "1 day", "0", "1 year", "360 days", "-00:00:00.000001")},
	"enum":       {sql: "public.mood", values: oneOf("sad", "ok", "happy", "aaa")},
	"domain":     {sql: "public.positive", values: numbers(1, 1<<63-1)},
	"domain_c":   {sql: "public.code", values: literals(keyWords)},
	"domain_n":   {sql: "public.price", values: decimals},
	"ints":       {sql: "int4[]", values: oneOf("{}", "{1}", "{1,2}", "{2}", "{1,1}", "{{1},{2}}")},
	"inet":       {sql: "inet", values: oneOf("10.0.0.1", "10.0.0.1/32", "10.0.0.1/8", "::1", "10.0.0.2", "9.0.0.1/4")},
	"bits":       {sql: "bit(3)", values: oneOf("000", "001", "100", "111")},
	"varbits":    {sql: "varbit(5)", values: oneOf("", "0", "00", "1", "10", "01")},
	"range":      {sql: "int4range", values: oneOf("empty", "[1,2]", "[1,3)", "(,)", "(,5]", "[2,)")},
	"jsonb":      {sql: "jsonb", values: oneOf("1", "1.0", `"a"`, "null", "[]", "{}", `{"a": 1}`)},
	"money":      {sql: "money", values: oneOf("1", "1.00", "-0.01", "99.5")},
	"lsn":        {sql: "pg_lsn", values: oneOf("0/0", "0/FF", "1/0", "FFFFFFFF/FFFFFFFF")},
}

// nativeKeys are those of which bytes are said to have the server's order, when values
// come in binary form. All others are compared by the server.
var nativeKeys = []string{"bool", "bytea", "date", "domain", "domain_c", "int2", "int4", "int8", "text_basic", "text_c", "text_fast", "text_posix", "text_utf8",
	"timestamp", "tstz", "uuid", "varchar_c"}

// keyBed is a table with a column of each type.
type keyBed struct {
	db     *rig.DB
	native []string
	conn   *pgx.Conn
	table  *catalog.Table
	rel    *millrace.Relation
	names  []string
}

// newKeyBed makes it for some of the types, or all.
func newKeyBed(t *testing.T, db *rig.DB, only ...string) *keyBed {
	t.Helper()
	b := &keyBed{db: db, native: nativeKeys}
	b.db.Script(t, `CREATE EXTENSION citext SCHEMA public; CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy', 'aaa');
		CREATE DOMAIN positive AS int8 CHECK (VALUE > 0); CREATE DOMAIN code AS text COLLATE "C"; CREATE DOMAIN price AS numeric;
		CREATE COLLATION words (provider = libc, locale = 'C.UTF-8')`)
	if _, err := b.db.Server.TryQuery(b.db.Name, `CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)`); err != nil {
		t.Log("without ICU:", err)
	}
	var columns []string
	for name, k := range keyTypes {
		if only != nil && !slices.Contains(only, name) {
			continue
		}
		if k.needs != "" && b.db.Query(t, "SELECT count(*) FROM pg_collation WHERE collname = '"+k.needs+"'") == "0" {
			t.Logf("there is no collation %s", k.needs)
			continue
		}
		b.names = append(b.names, name)
		columns = append(columns, name+" "+k.sql+" NOT NULL DEFAULT "+k.values.Example(1))
	}
	slices.Sort(b.names)
	b.db.Script(t, "CREATE TABLE k ("+strings.Join(columns, ", ")+"); ALTER TABLE k REPLICA IDENTITY FULL")
	r, err := NewChunkReader(t.Context(), session.Static(millrace.PeerSource, b.db.URL(), "test"), NewLimiter(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	b.conn = r.Conn()
	tables, err := catalog.DescribeByName(t.Context(), b.conn, []millrace.TableName{{Schema: "public", Name: "k"}})
	if err != nil {
		t.Fatal(err)
	}
	b.table = tables[millrace.TableName{Schema: "public", Name: "k"}]
	b.rel = relationOf(b.table)
	return b
}

// keyRow is a row as the server sorts it.
type keyRow struct {
	row   millrace.Row
	rank  int   // in the order of the key; equal for equal keys
	ranks []int // in that of each of its columns
}

// read gives the rows of the table in the order of the key.
func (b *keyBed) read(t *rapid.T, key []string, binary bool) []keyRow {
	list := strings.Join(key, ", ")
	sql := "SELECT " + list + ", dense_rank() OVER (ORDER BY " + list + ")"
	formats := make([]int16, 2*len(key)+1)
	for i, name := range key {
		sql += ", dense_rank() OVER (ORDER BY " + name + ")"
		if binary && b.table.Column(name).Type.HasBinary {
			formats[i] = 1
		}
	}
	result := b.conn.PgConn().ExecParams(t.Context(), sql+" FROM public.k ORDER BY "+list, nil, nil, nil, formats).Read()
	if result.Err != nil {
		t.Fatal(result.Err)
	}
	var rows []keyRow
	for _, values := range result.Rows {
		r := keyRow{row: make(millrace.Row, len(b.rel.Columns))}
		for i, name := range key {
			at := slices.IndexFunc(b.rel.Columns, func(c millrace.Column) bool { return c.Name == name })
			r.row[at] = millrace.Value{Kind: millrace.Text, Raw: values[i]}
			if formats[i] == 1 {
				r.row[at].Kind = millrace.Binary
			}
		}
		for i, text := range values[len(key):] {
			n, err := strconv.Atoi(string(text))
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				r.rank = n
			} else {
				r.ranks = append(r.ranks, n)
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// TestKeysOfAllTypes draws keys of one to three columns of any types, and rows. Where the
// bytes of keys are said to have the server's order they have that of a real ORDER BY, and
// are equal where = says so; elsewhere the server is asked, and its answer is that order as
// well. Bytes that are equal never stand for values that are not.
func TestKeysOfAllTypes(t *testing.T) {
	newKeyBed(t, rig.Shared(t, rig.Newest).NewDB(t)).checkAll(t)
}

// wordKeys are the types whose order follows a collation, and some to mix them with.
var wordKeys = []string{"text", "text_c", "text_words", "text_icu", "text_loose", "text_fast", "bpchar", "citext", "domain_c", "int4", "numeric"}

// TestKeysOfOtherCollations: the collation that a database has by default can be the builtin provider's, whose order is that
// of the bytes, or one of ICU, and collations of ICU can take other bytes for equal.
func TestKeysOfOtherCollations(t *testing.T) {
	t.Run("builtin", func(t *testing.T) {
		b := newKeyBed(t, rig.Shared(t, rig.Newest).NewDB(t, "LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'"), wordKeys...)
		b.native = append(slices.Clone(nativeKeys), "text")
		b.checkAll(t)
	})
	t.Run("icu", func(t *testing.T) {
		b := newKeyBed(t, rig.SharedICU(t).NewDB(t, "LOCALE_PROVIDER icu ICU_LOCALE 'de'"), wordKeys...)
		if got := len(b.names); got != len(wordKeys) {
			t.Errorf("%d of %d types", got, len(wordKeys))
		}
		b.checkAll(t)
	})
}

func (b *keyBed) checkAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOfNDistinct(rapid.SampledFrom(b.names), 1, 3, rapid.ID[string]).Draw(t, "key")
		var rows []string
		for range rapid.IntRange(2, 16).Draw(t, "rows") {
			var row []string
			for _, name := range key {
				row = append(row, "("+keyTypes[name].values.Draw(t, name)+")::"+castOf(keyTypes[name].sql))
			}
			rows = append(rows, "("+strings.Join(row, ", ")+")")
		}
		sql := fmt.Sprintf("TRUNCATE public.k; INSERT INTO public.k (%s) VALUES %s", strings.Join(key, ", "), strings.Join(rows, ", "))
		if _, err := b.conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%v\n%s", err, sql)
		}
		for _, binary := range []bool{true, false} {
			b.check(t, key, binary)
		}
	})
}

// castOf is a type without its collation.
func castOf(sql string) string { name, _, _ := strings.Cut(sql, " COLLATE "); return name }

func (b *keyBed) check(t *rapid.T, names []string, binary bool) {
	k, err := newKey(t.Context(), b.conn, b.table, b.rel, binary, names)
	if err != nil {
		t.Fatal(err)
	}
	native := !slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(b.native, n) })
	if binary && k.Native != native {
		t.Fatalf("keys of %v compare by their bytes: %v, want %v", names, k.Native, native)
	}
	rows := b.read(t, names, binary)
	keys := make([][]byte, len(rows))
	for i := range rows {
		if keys[i], err = k.EncodeKey(rows[i].row); err != nil {
			t.Fatal(err)
		}
	}
	for i := range rows {
		for j := range i {
			want, got := cmp.Compare(rows[j].rank, rows[i].rank), bytes.Compare(keys[j], keys[i])
			if k.Native && got != want || got == 0 && want != 0 {
				t.Fatalf("%v: the server compares %s and %s as %d, bytes as %d: %x %x", names, shown(&rows[j]), shown(&rows[i]), want, got, keys[j], keys[i])
			}
		}
	}
	b.checkRank(t, k, rows, keys)
	for i, name := range names {
		b.checkDatum(t, name, i, rows)
	}
}

// shown is a row's key for people.
func shown(r *keyRow) string {
	var all []string
	for _, v := range r.row {
		if v.Kind != 0 {
			all = append(all, fmt.Sprintf("%c%q", v.Kind, v.Raw))
		}
	}
	return strings.Join(all, ",")
}

// checkRank holds Rank against the server's order, also where it has no need to ask.
func (b *keyBed) checkRank(t *rapid.T, k *Key, rows []keyRow, keys [][]byte) {
	var bounds [][]byte
	var at []int
	for i := range rows {
		if (i == 0 || rows[i].rank != rows[i-1].rank) && rapid.Bool().Draw(t, "bound") {
			bounds, at = append(bounds, keys[i]), append(at, rows[i].rank)
		}
	}
	asking := *k
	asking.Native = false
	for _, k := range []*Key{k, &asking} {
		ranks, err := k.Rank(t.Context(), b.conn, keys, bounds)
		if err != nil {
			t.Fatal(err)
		}
		for i := range rows {
			want := 0
			for _, r := range at {
				if r < rows[i].rank {
					want++
				}
			}
			if ranks[i] != want {
				t.Fatalf("native %v: %s is behind %d of the bounds, want %d", k.Native, shown(&rows[i]), ranks[i], want)
			}
		}
	}
}

// checkDatum holds what package datum says of the values of one column against the
// server.
func (b *keyBed) checkDatum(t *rapid.T, name string, column int, rows []keyRow) {
	c := b.table.Column(name)
	k := datum.NewKey(c.Type.Datum(), c.Mod, c.DatumCollation())
	at := slices.IndexFunc(b.rel.Columns, func(c millrace.Column) bool { return c.Name == name })
	keys := make([][]byte, len(rows))
	for i := range rows {
		var err error
		if keys[i], err = k.Append(nil, rows[i].row[at]); err != nil {
			t.Fatalf("%s %s: %v", name, shown(&rows[i]), err)
		}
	}
	for i := range rows {
		for j := range i {
			want, got := cmp.Compare(rows[j].ranks[column], rows[i].ranks[column]), bytes.Compare(keys[j], keys[i])
			switch {
			case k.Ordered && want != got, k.Exact && (want == 0) != (got == 0), !k.Exact && got != 0:
				t.Fatalf("datum, %s (ordered %v, exact %v): the server compares %s and %s as %d, bytes as %d: %x %x", name, k.Ordered, k.Exact,
					shown(&rows[j]), shown(&rows[i]), want, got, keys[j], keys[i])
			}
		}
	}
}
