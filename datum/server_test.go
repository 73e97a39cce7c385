package datum_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/datum"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/pgoutput"
	"github.com/millrace/millrace/session"
)

func TestMain(m *testing.M) { rig.Main(m) }

func open(t testing.TB, db *rig.DB) *pgx.Conn {
	t.Helper()
	conn, err := session.Static(millrace.PeerSource, db.URL(), "test").Connect(t.Context(), session.Check)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

const userTypes = `
CREATE SCHEMA ext;
CREATE EXTENSION hstore SCHEMA ext; CREATE EXTENSION citext SCHEMA ext; CREATE EXTENSION ltree SCHEMA ext;
CREATE TYPE public.mood AS ENUM ('sad', 'ok "fine"', 'null');
CREATE DOMAIN public.positive AS int CHECK (VALUE > 0);
CREATE DOMAIN public.price AS numeric(12,3);
CREATE TYPE public.pair AS (a int, "b c" text, d numeric[], e timestamptz);
CREATE TYPE public.outer_pair AS (p public.pair, m public.mood);
CREATE TYPE public.moodrange AS RANGE (subtype = public.mood);
CREATE TYPE public.textrange AS RANGE (subtype = text, collation = "C");`

// samples are values by type, as SQL expressions. Extremes and what has more
// than one spelling are in.
var samples = map[string][]string{
	"bool":             {"'t'", "'f'"},
	"bytea":            {`'\x'`, `'\x00ff5c'`, "decode(repeat('ab', 500), 'hex')"},
	`"char"`:           {"'a'", "''", `'\377'`, `'\\'`},
	"name":             {"'x'", "repeat('n', 63)"},
	"int8":             {"0", "9223372036854775807", "-9223372036854775808"},
	"int2":             {"-32768", "32767"},
	"int4":             {"-2147483648", "2147483647", "0"},
	"text":             {"''", "'Grüße 日本 🐘'", `E'a\tb\n\\"\x01\x7f'`, "repeat('x', 3000)", "'NULL'", "'{a,b}'", `'"__debezium"'`},
	"oid":              {"0", "4294967295"},
	"tid":              {"'(0,1)'", "'(4294967295,65535)'"},
	"xid":              {"'0'", "'4294967295'"},
	"cid":              {"'7'"},
	"json":             {`'{"a" : 1, "a":  2.50}'`, "'[1e400]'", "'null'", `E'{"x":\n "\\u00e9"}'`},
	"xml":              {"'<a>é</a>'", `'<?xml version="1.0" encoding="UTF-8"?><a/>'`, `'<?xml version="1.1" standalone="yes"?><a/>'`, "'text <b/>'", "''"},
	"point":            {"'(0.1,-0)'", "'(NaN,Infinity)'", "'(1e300,-1e-7)'"},
	"lseg":             {"'[(0.1,2),(3,4)]'"},
	"path":             {"'((0,0),(1,1.5))'", "'[(0,0),(1,1)]'"},
	"box":              {"'(1,2),(3,4.25)'"},
	"polygon":          {"'((0,0),(1,1),(2,0.1))'"},
	"line":             {"'{1,-0.5,3}'"},
	"circle":           {"'<(1,2),0.3>'"},
	"cidr":             {"'10.0.0.0/8'", "'10.1.2.3'", "'2001:db8::/32'", "'::/0'"},
	"inet":             {"'10.1.2.3/8'", "'10.1.2.3'", "'2001:db8::1/64'", "'::ffff:1.2.3.4'", "'::1.2.3.4'", "'::1'", "'::'", "'1:0:0:2:0:0:0:3'", "'1:0:2::'", "'::2:1:2'", "'0:0:0:0:0:1:2:3'", "'fe80::1:0:0:1'"},
	"macaddr":          {"'08:00:2b:01:02:03'"},
	"macaddr8":         {"'08:00:2b:01:02:03:04:05'"},
	"float4":           {"0.1", "'-0'", "'NaN'", "'Infinity'", "1e-45", "1e6", "999999", "123456.7", "16777216", "1e10", "3.4028235e38", "8589973000"},
	"float8":           {"0.1", "'-0'", "'NaN'", "'-Infinity'", "5e-324", "1e300/3", "1e15", "1e14", "1e23", "9007199254740993", "1.7976931348623157e308", "2::float8 ^ 63", "2::float8 ^ (-44)", "1e-4", "1e-5", "9.5e22", "4.4501477170144028e-308"},
	"money":            {"'12.34'", "'-92233720368547758.08'", "'0'", "'-0.05'", "'1234567.89'"},
	"char(5)":          {"'ab'", "''"},
	"varchar(9)":       {"'ab  '", "'é'"},
	"date":             {"'2024-02-29'", "'infinity'", "'-infinity'", "'4713-01-01 BC'", "'5874897-12-31'", "'0001-01-01'", "'0001-12-31 BC'", "'0044-03-15 BC'", "'10000-01-01'", "'1969-12-31'"},
	"time":             {"'24:00'", "'00:00:00.000001'", "'12:34:56.7'"},
	"time(3)":          {"'24:00'", "'12:34:56.789'"},
	"timetz":           {"'24:00+15:59'", "'12:34:56.789-03:30'", "'00:00:00+02:30:15'", "'01:02:03+00'"},
	"timestamp":        {"'294246-12-31 23:59:59.999999'", "'4713-01-01 BC'", "'infinity'", "'-infinity'", "'0001-01-01'", "'1969-12-31 23:59:59.999999'", "'0044-03-15 12:00:00.5 BC'", "'2024-02-29 12:34:56.789012'"},
	"timestamp(3)":     {"'294276-12-31 23:59:59.999'", "'infinity'", "'-infinity'", "'1969-12-31 23:59:59.999'", "'4713-01-01 BC'"},
	"timestamptz":      {"'294276-12-31 23:59:59.999999+00'", "'-infinity'", "'infinity'", "'1900-01-01 00:00:00+00'", "'0044-03-15 12:00:00.5+00 BC'", "'4713-01-01 00:00+00 BC'", "'10000-01-01 00:00+00'"},
	"interval":         {"'1 year -2 months 3 days -04:05:06.000007'", "'178000000 years'", "'0'", "'-1 mon'", "'1 day'", "'-1 day +00:00:01'", "'-00:00:00.000001'", "'-178000000 years'", "'100:00:00'", "'-2562047788:00:54.775807'", "'3 mons -5 days'", "'-1 year -1 mon -1 day -01:01:01.5'", "'13 mons'"},
	"numeric":          {"'NaN'", "'Infinity'", "'-Infinity'", "1.00", "'1e-1000'", "'-12345678901234567890.000100'", "'9e2000'", "0", "0.000", "-0.5", "10000", "100000000", "0.0001", "0.00001", "123456789.123456789"},
	"numeric(10,2)":    {"1.5", "-0.01", "'NaN'", "99999999.99", "0"},
	"numeric(3,5)":     {"0.00123", "-0.00001"},
	"numeric(5,-2)":    {"12345678::numeric / 100", "-300"},
	"uuid":             {"'00000000-0000-0000-0000-000000000001'", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"},
	"pg_lsn":           {"'FFFFFFFF/FFFFFFFF'", "'0/0'", "'16/B374D848'"},
	"bit(1)":           {"B'1'", "B'0'"},
	"bit(3)":           {"B'101'", "B'001'"},
	`pg_catalog."bit"`: {"B'0010'", "B''"},
	"bit(19)":          {"B'1010000000000000011'"},
	"varbit(40)":       {"B''", "B'101'", "B'1010101011111111000000001'"},
	"tsvector":         {"'a:1A,3 b:2B ''c d'''", "''", "to_tsvector('simple', repeat('word another ', 30))", `'''it''''s\\'':4C'`},
	"jsonb":            {`'{"b": 1.50, "a": [null, true, "é"]}'`, "'1e1000'", `'""'`},
	"jsonpath":         {"'$.a[*] ? (@.b > 1).c'", "'strict $'"},
	"xid8":             {"'18446744073709551615'"},

	"int4range":      {"'empty'", "'[1,5]'", "'(,)'", "'[,3)'"},
	"int8range":      {"'[1,9223372036854775806]'"},
	"numrange":       {"'[1.00,2.50]'", "'(,NaN)'"},
	"tsrange":        {"'[2024-01-01,infinity]'", "'[2024-01-01 00:00:00.000001,)'"},
	"tstzrange":      {"'[2024-01-01 00:00+00,2024-06-01 00:00+00)'"},
	"daterange":      {"'[2024-01-01,2024-12-31]'"},
	"int4multirange": {"'{}'", "'{[1,3),[5,8)}'"},
	"tsmultirange":   {"'{[2024-01-01,2024-02-01)}'"},

	"ext.hstore":        {`''`, `'a=>1, "b c"=>NULL, "q\"x"=>"y\\z", n=>"NULL"'`, `'"é"=>""'`},
	"ext.citext":        {"'CiT'", "''"},
	"ext.ltree":         {"'a.b.c'", "''"},
	"public.mood":       {"'sad'", `'ok "fine"'`, "'null'"},
	"public.positive":   {"5"},
	"public.price":      {"5.25"},
	"public.pair":       {`'(1,"x y",,)'`, `'(,"","{1.50,NULL}","2024-01-01 00:00+00")'`, `ROW(1, E'q"\\ (,)', ARRAY[1.5,2], 'infinity')::public.pair`},
	"public.outer_pair": {`ROW(ROW(1, 'a,"b', NULL, NULL), 'null')::public.outer_pair`, "ROW(NULL, NULL)::public.outer_pair"},
	"public.moodrange":  {`'[sad,null]'`, "public.moodrange('sad', 'ok \"fine\"')"},
	"public.textrange":  {`'["",a b]'`, `public.textrange('[', 'a"\')`},
}

// typeOf describes a type that is written as SQL does.
func typeOf(t testing.TB, conn *pgx.Conn, sqlType string) (*datum.Type, int32) {
	t.Helper()
	rows, err := conn.PgConn().Exec(t.Context(), fmt.Sprintf("CREATE TEMP TABLE probe (v %s); SELECT atttypid::int8, atttypmod FROM pg_catalog.pg_attribute WHERE attrelid = 'pg_temp.probe'::pg_catalog.regclass AND attnum = 1; DROP TABLE pg_temp.probe", sqlType)).ReadAll()
	if err != nil {
		t.Fatalf("type %s: %v", sqlType, err)
	}
	var oid uint32
	var mod int32
	if _, err := fmt.Sscan(string(rows[1].Rows[0][0])+" "+string(rows[1].Rows[0][1]), &oid, &mod); err != nil {
		t.Fatal(err)
	}
	types, err := catalog.ReadTypes(t.Context(), conn, []uint32{oid})
	if err != nil {
		t.Fatal(err)
	}
	return types[oid].Datum(), mod
}

var styles = []datum.Style{
	{},
	{Plain: true},
	{Flat: true},
	{Decimal: datum.DecimalBytes},
}

// value is one value as the server sends it in either form; nil is null.
type value struct{ text, binary []byte }

func read(t testing.TB, conn *pgx.Conn, sql string) []value {
	t.Helper()
	var all []value
	for _, format := range []int16{0, 1} {
		r := conn.PgConn().ExecParams(t.Context(), sql, nil, nil, nil, []int16{format}).Read()
		if r.Err != nil {
			t.Fatalf("%s: %v", sql, r.Err)
		}
		for i, row := range r.Rows {
			if format == 0 {
				all = append(all, value{text: row[0]})
			} else {
				all[i].binary = row[0]
			}
		}
	}
	return all
}

// TestValues takes every type through every style: text and binary form must
// give the same, and what was written must read back as the server's text.
func TestValues(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		db := pg.NewDB(t)
		db.SQL(t, userTypes)
		conn := open(t, db)
		for _, sqlType := range slices.Sorted(maps.Keys(samples)) {
			exprs := samples[sqlType]
			if sqlType == "interval" && pg.Major() >= 17 {
				exprs = append(slices.Clone(exprs), "'infinity'", "'-infinity'")
			}
			var parts []string
			for _, e := range exprs {
				parts = append(parts, fmt.Sprintf("(%s)::%s", e, sqlType))
			}
			values := read(t, conn, "VALUES ("+strings.Join(parts, "),(")+")")
			checkValues(t, conn, sqlType, values)
			x := parts[len(parts)-1]
			arrays := []string{
				"'{}'", "ARRAY[" + strings.Join(parts, ",") + "]", "ARRAY[NULL," + x + "]", "ARRAY[[" + x + ",NULL],[" + x + "," + x + "]]",
				"(ARRAY[" + x + "])[1:1]", "'[0:1]={NULL,NULL}'", "'[-1:0][3:3]={{NULL},{NULL}}'",
			}
			for i := range arrays {
				if sqlType == "box" {
					arrays[i] = strings.NewReplacer("NULL,NULL}'", "NULL;NULL}'", "},{", "};{").Replace(arrays[i])
				}
				arrays[i] = "(" + arrays[i] + ")::" + sqlType + "[]"
			}
			checkValues(t, conn, sqlType+"[]", read(t, conn, "VALUES ("+strings.Join(arrays, "),(")+")"))
		}
	})
}

func checkValues(t *testing.T, conn *pgx.Conn, sqlType string, values []value) {
	t.Helper()
	typ, mod := typeOf(t, conn, sqlType)
	for _, style := range styles {
		c := datum.NewCodec(typ, mod, style)
		for _, v := range values {
			checkValue(t, c, sqlType, style, v)
		}
	}
}

func checkValue(t *testing.T, c *datum.Codec, sqlType string, style datum.Style, v value) {
	t.Helper()
	asText := millrace.Value{Kind: millrace.Text, Raw: v.text}
	asBinary := millrace.Value{Kind: millrace.Binary, Raw: v.binary}
	got, err := c.AppendText(nil, asBinary)
	if err != nil || string(got) != string(v.text) {
		t.Errorf("%s: binary gives %q, %v; the server says %q", sqlType, got, err, v.text)
		return
	}
	fromText, err1 := c.AppendJSON([]byte("x"), asText)
	fromBinary, err2 := c.AppendJSON([]byte("x"), asBinary)
	if (err1 == nil) != (err2 == nil) || string(fromText) != string(fromBinary) {
		t.Errorf("%s %+v %q: text gives %s (%v), binary %s (%v)", sqlType, style, v.text, fromText, err1, fromBinary, err2)
		return
	}
	if err1 != nil {
		if !expected(style, string(v.text)) {
			t.Errorf("%s %+v %q: %v", sqlType, style, v.text, err1)
		}
		return
	}
	raw := fromText[1:]
	if !json.Valid(raw) {
		t.Errorf("%s %+v %q: not JSON: %s", sqlType, style, v.text, raw)
	}
	back, null, err := c.AppendTextOfJSON([]byte("y"), raw)
	if err != nil || null || string(back[1:]) != string(v.text) {
		t.Errorf("%s %+v: %q -> %s -> %q, %v, %v", sqlType, style, v.text, raw, back, null, err)
	}
	if !style.Flat {
		return
	}
	bin, err := c.AppendAvro(nil, asBinary)
	if err != nil {
		t.Errorf("%s: Avro of %q: %v", sqlType, v.text, err)
		return
	}
	back, null, rest, err := c.AppendTextOfAvro(nil, append(bin, 7))
	if err != nil || null || string(back) != string(v.text) || len(rest) != 1 {
		t.Errorf("%s: %q -> Avro %x -> %q, %v, rest %x, %v", sqlType, v.text, bin, back, null, rest, err)
	}
}

// expected tells whether a style has no form for a value, which must be an
// error then.
func expected(s datum.Style, text string) bool {
	special := strings.Contains(text, "NaN") || strings.Contains(text, "Infinity")
	nested := strings.HasPrefix(text, "[") || strings.HasPrefix(text, "{{")
	return s.Decimal == datum.DecimalBytes && special || s.Flat && nested
}

// TestRandomValues compares what the server prints with what we make of the
// binary form, for types where digits are computed.
func TestRandomValues(t *testing.T) {
	db := rig.Shared(t, rig.Newest).NewDB(t)
	conn := open(t, db)
	const n = " FROM pg_catalog.generate_series(1, 3000) i"
	for sqlType, sql := range map[string]string{
		"float8":      "SELECT ((random() - 0.5) * 10::float8 ^ (random() * 600 - 300)::int)" + n,
		"float4":      "SELECT ((random() - 0.5) * 10::float8 ^ (random() * 70 - 35)::int)::float4" + n,
		"numeric":     "SELECT round((random() - 0.5)::numeric * 10::numeric ^ (random() * 60 - 30)::int, (random() * 40)::int)" + n,
		"timestamp":   "SELECT '4713-01-01 BC'::timestamp + random() * '298000 years'::interval" + n,
		"timestamptz": "SELECT '4713-01-01 00:00+00 BC'::timestamptz + random() * '298000 years'::interval" + n,
		"date":        "SELECT '4713-01-01 BC'::date + (random() * 2147400000)::int" + n,
		"interval":    "SELECT make_interval(months => (random() * 40000 - 20000)::int, days => (random() * 900 - 450)::int, secs => (random() - 0.5) * 1e6)" + n,
		"inet":        "SELECT ('::'::inet + (random() * 65535)::int8 * (ARRAY[1, 65536, 4294967296])[i % 3 + 1])" + n,
		"money":       "SELECT ((random() - 0.5) * 10 ^ (random() * 15)::int)::numeric::money" + n,
	} {
		t.Run(sqlType, func(t *testing.T) {
			// One execution for both forms: the text is made by the server as well.
			typ, mod := typeOf(t, conn, sqlType)
			r := conn.PgConn().ExecParams(t.Context(), "SELECT v, v FROM ("+sql+") s (v)", nil, nil, nil, []int16{0, 1}).Read()
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			for _, style := range styles {
				c := datum.NewCodec(typ, mod, style)
				for _, row := range r.Rows {
					checkValue(t, c, sqlType, style, value{row[0], row[1]})
				}
			}
		})
	}
	// Powers of two and ten, and their neighbours, are where shortest digits differ.
	t.Run("floats at the edges", func(t *testing.T) {
		values := read(t, conn, `SELECT x FROM pg_catalog.generate_series(-300, 300) i,
			LATERAL (VALUES (2::float8 ^ i), (10::float8 ^ i), (10::float8 ^ i * 9), (10::float8 ^ i * 5), (2::float8 ^ i * 3)) v (x)`)
		checkValues(t, conn, "float8", values)
		values = read(t, conn, `SELECT x::float4 FROM pg_catalog.generate_series(-37, 37) i,
			LATERAL (VALUES (2::float8 ^ i), (10::float8 ^ i), (10::float8 ^ i * 3), (10::float8 ^ i * 5), (2::float8 ^ (i * 3)), (10::float8 ^ i * 7)) v (x)`)
		checkValues(t, conn, "float4", values)
	})
}

// TestBuiltins compares the table of built-in types with a server's.
func TestBuiltins(t *testing.T) {
	conn := open(t, rig.Shared(t, rig.Newest).NewDB(t))
	rows, err := conn.Query(t.Context(), `SELECT t.oid::int8, t.typname::text, t.typarray::int8, t.typdelim::text,
		COALESCE((SELECT rngsubtype::int8 FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)), 0)
		FROM pg_catalog.pg_type t WHERE t.typarray <> 0 AND t.typtype <> 'c' AND t.oid < 16384 AND t.typnamespace = 'pg_catalog'::regnamespace`)
	if err != nil {
		t.Fatal(err)
	}
	var oid, array, sub uint32
	var name, delim string
	_, err = pgx.ForEachRow(rows, []any{&oid, &name, &array, &delim, &sub}, func() error {
		b, a := datum.Builtin(oid), datum.Builtin(array)
		if b == nil || a == nil {
			t.Logf("not in the table: %s", name)
			return nil
		}
		if b.Name != name || a.Elem != b || string(b.Delim) != delim || (sub != 0) != (b.Range != nil) || sub != 0 && b.Range.OID != sub {
			t.Errorf("%s: %+v", name, b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestStreamAndSnapshot inserts the samples into a table and takes them out of
// the stream in both forms: with the text that a query gives, everything that
// is made of them must be equal.
func TestStreamAndSnapshot(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		db := pg.NewDB(t)
		db.SQL(t, userTypes)
		conn := open(t, db)
		var cols, vals []string
		for _, sqlType := range slices.Sorted(maps.Keys(samples)) {
			name := fmt.Sprintf("c%d", len(cols))
			cols = append(cols, name+" "+sqlType, name+"a "+sqlType+"[]")
			vals = append(vals, samples[sqlType][0], "ARRAY[("+samples[sqlType][0]+")::"+sqlType+", NULL]")
		}
		db.SQL(t, "CREATE TABLE public.wide ("+strings.Join(cols, ",")+"); CREATE PUBLICATION p FOR TABLE public.wide;")
		db.SQL(t, "SELECT pg_catalog.pg_create_logical_replication_slot('datum_"+db.Name[max(0, len(db.Name)-20):]+"', 'pgoutput')")
		slot := "datum_" + db.Name[max(0, len(db.Name)-20):]
		t.Cleanup(func() { db.SQL(t, "SELECT pg_catalog.pg_drop_replication_slot('"+slot+"')") })
		db.SQL(t, "INSERT INTO public.wide VALUES ("+strings.Join(vals, ",")+")")

		tables, err := catalog.DescribeByName(t.Context(), conn, []millrace.TableName{{Schema: "public", Name: "wide"}})
		if err != nil {
			t.Fatal(err)
		}
		table := tables[millrace.TableName{Schema: "public", Name: "wide"}]
		query := conn.PgConn().ExecParams(t.Context(), "SELECT * FROM public.wide", nil, nil, nil, nil).Read()
		if query.Err != nil {
			t.Fatal(query.Err)
		}
		text, binary := streamed(t, conn, slot, "false"), streamed(t, conn, slot, "true")
		for i, col := range table.Columns {
			for _, style := range styles[:2] {
				c := datum.NewCodec(col.Type.Datum(), col.Mod, style)
				var want string
				for j, v := range []millrace.Value{{Kind: millrace.Text, Raw: query.Rows[0][i]}, text[i], binary[i]} {
					got, err := c.AppendJSON(nil, v)
					switch {
					case err != nil:
						t.Errorf("%s: %v", col.Declared, err)
					case j == 0:
						want = string(got)
					case string(got) != want:
						t.Errorf("%s: %s, queried %s", col.Declared, got, want)
					}
				}
			}
			if binary[i].Kind != millrace.Binary {
				t.Errorf("%s was not sent in binary form", col.Declared)
			}
		}
	})
}

func streamed(t *testing.T, conn *pgx.Conn, slot, binary string) millrace.Row {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes($1, NULL, NULL,
		'proto_version', '1', 'publication_names', 'p', 'binary', $2)`, slot, binary)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		if pgoutput.TagOf(m) == pgoutput.TagInsert {
			var slab pgoutput.Slab
			ins, err := pgoutput.ParseInsert(m, &slab)
			if err != nil {
				t.Fatal(err)
			}
			return ins.New
		}
	}
	t.Fatal("no insert in the stream")
	return nil
}

// TestKeyOrder sorts values on the server: key bytes must ascend, and be equal
// where the server says so.
func TestKeyOrder(t *testing.T) {
	conn := open(t, rig.Shared(t, rig.Newest).NewDB(t))
	const n = " FROM pg_catalog.generate_series(1, 2000) i"
	for sqlType, random := range map[string]string{
		"bool":        "SELECT random() < 0.5" + n,
		"int2":        "SELECT (random() * 600 - 300)::int2" + n,
		"int4":        "SELECT (random() * 2 ^ (i % 31) * (i % 3 - 1))::int4" + n,
		"int8":        "SELECT (random() * 2 ^ (i % 62) * (i % 3 - 1))::int8" + n,
		"oid":         "SELECT (random() * 4294967295)::int8::oid" + n,
		"date":        "SELECT '4713-01-01 BC'::date + (random() * 2147400000)::int" + n,
		"time":        "SELECT '00:00'::time + random() * '1 day'::interval" + n,
		"timestamp":   "SELECT '4713-01-01 BC'::timestamp + random() * '298000 years'::interval" + n,
		"timestamptz": "SELECT '4713-01-01 00:00+00 BC'::timestamptz + random() * '298000 years'::interval" + n,
		"float4":      "SELECT ((random() - 0.5) * 10::float8 ^ (random() * 70 - 35)::int)::float4" + n,
		"float8":      "SELECT (random() - 0.5) * 10::float8 ^ (random() * 600 - 300)::int" + n,
		"numeric":     "SELECT round((random() - 0.5)::numeric * 10::numeric ^ (random() * 20 - 10)::int, (random() * 10)::int)" + n + " UNION ALL SELECT round((i % 7 - 3) * 0.5, i % 5)" + n,
		"uuid":        "SELECT gen_random_uuid()" + n,
		"bytea":       "SELECT decode(repeat('00', i % 3) || substr(md5(i::text), 1, i % 7 * 2), 'hex')" + n,
		"text":        `SELECT (repeat(E'\x01', i % 3) || substr(md5(i::text), 1, i % 7) || chr(i))` + n,
		"char(5)":     "SELECT substr(md5(i::text), 1, i % 3)" + n,
		"interval":    "SELECT make_interval(months => i % 3, days => i % 61, hours => i % 5 * 12)" + n,
		"inet":        "SELECT ('10.0.0.0'::inet + i % 50)" + n,
		"bit(3)":      "SELECT (i % 8)::bit(3)" + n,
		"money":       "SELECT (random() * 100 - 50)::numeric::money" + n,
		"int4[]":      "SELECT ARRAY[i % 5, i % 3]" + n,
		"int4range":   "SELECT int4range(i % 5, i % 5 + i % 3)" + n,
	} {
		typ, mod := typeOf(t, conn, sqlType)
		k := datum.NewKey(typ, mod, datum.CollationBytes)
		if !k.Exact {
			t.Errorf("%s: not exact", sqlType)
		}
		var parts []string
		for _, e := range samples[sqlType] {
			parts = append(parts, fmt.Sprintf("SELECT (%s)::%s", e, sqlType))
		}
		collate := ""
		if sqlType == "text" || sqlType == "char(5)" {
			collate = ` COLLATE "C"`
		}
		rows := conn.PgConn().ExecParams(t.Context(), fmt.Sprintf(
			"SELECT v, v, v = pg_catalog.lag(v) OVER (ORDER BY v%[1]s) FROM (SELECT x::%[2]s v FROM (%[3]s) s (x)) s ORDER BY v%[1]s",
			collate, sqlType, strings.Join(append(parts, random), " UNION ALL ")), nil, nil, nil, []int16{0, 1, 0}).Read()
		if rows.Err != nil {
			t.Fatalf("%s: %v", sqlType, rows.Err)
		}
		var last []byte
		for i, row := range rows.Rows {
			key, err := k.Append(nil, millrace.Value{Kind: millrace.Text, Raw: row[0]})
			key2, err2 := k.Append(nil, millrace.Value{Kind: millrace.Binary, Raw: row[1]})
			if err != nil || err2 != nil || string(key) != string(key2) {
				t.Fatalf("%s %q: text gives %x (%v), binary %x (%v)", sqlType, row[0], key, err, key2, err2)
			}
			cmp := strings.Compare(string(last), string(key))
			if equal := string(row[2]) == "t"; i > 0 && (equal != (cmp == 0) || k.Ordered && cmp > 0) {
				t.Errorf("%s: %q after %q: %x after %x", sqlType, row[0], rows.Rows[i-1][0], key, last)
			}
			last = key
			if !k.Ordered {
				continue
			}
			text, null, rest, err := k.AppendText(nil, append(key, 9))
			again, err2 := k.Append(nil, millrace.Value{Kind: millrace.Text, Raw: text})
			if err != nil || err2 != nil || null || len(rest) != 1 || string(again) != string(key) {
				t.Errorf("%s: %q -> %x -> %q, %x, %v, %v", sqlType, row[0], key, text, again, err, err2)
			}
		}
	}
}

// TestInexactKeys: what can be equal with different text must not tell values
// apart.
func TestInexactKeys(t *testing.T) {
	db := rig.Shared(t, rig.Newest).NewDB(t)
	db.SQL(t, userTypes)
	conn := open(t, db)
	for _, sqlType := range []string{"jsonb", "ext.citext", "numeric[]", "numrange", "public.pair"} {
		typ, mod := typeOf(t, conn, sqlType)
		k := datum.NewKey(typ, mod, datum.CollationOther)
		a, _ := k.Append(nil, millrace.Value{Kind: millrace.Text, Raw: []byte("1.0")})
		b, _ := k.Append(nil, millrace.Value{Kind: millrace.Text, Raw: []byte("1.00")})
		if k.Exact || k.Ordered || string(a) != string(b) {
			t.Errorf("%s: %+v", sqlType, k)
		}
	}
	if k := datum.NewKey(datum.Builtin(25), -1, datum.CollationNondeterministic); k.Exact {
		t.Error("nondeterministic text counts as exact")
	}
}
