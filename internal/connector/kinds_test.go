package connector

import (
	"fmt"
	"strings"
)

// ownTypes are those that users and extensions make.
const ownTypes = `
CREATE EXTENSION hstore;
CREATE EXTENSION citext;
CREATE EXTENSION ltree;
CREATE TYPE mood AS ENUM ('sad', 'so so', 'happy', '"null"');
CREATE DOMAIN percent AS numeric(5,2) CHECK (VALUE <= 100);
CREATE DOMAIN share AS percent CHECK (VALUE >= 0);
CREATE DOMAIN numbers AS int[] CHECK (cardinality(VALUE) < 5);
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN named_pair AS pair CHECK ((VALUE).b <> '');
CREATE TYPE nested AS (p pair, moods mood[], n numeric[], at timestamptz);
CREATE TYPE textrange AS RANGE (subtype = text, collation = "C");
`

// kind is a type, and values of it as SQL expressions: extremes, what has more than
// one spelling, and what other connectors null, round or reorder. docs/types.md
// shows the first one.
type kind struct {
	name   string
	values []string
}

// kinds are all types that a column can have; TestValues compares with the server.
// For each that is no array a column of its array type is added.
var kinds = []kind{
	{"boolean", []string{"true", "false"}},
	{"smallint", []string{"-32768", "32767"}},
	{"integer", []string{"2147483647", "-2147483648"}},
	{"bigint", []string{"9223372036854775807", "-9223372036854775808"}},
	{"real", []string{"'NaN'", "0.1", "'-0'", "'-Infinity'", "3.4028235e38", "1e-45", "16777216"}},
	{"double precision", []string{"'-Infinity'", "1e-300", "'NaN'", "'-0'", "5e-324", "1.7976931348623157e308", "9007199254740993", "0.1"}},
	{"numeric", []string{"'NaN'", "123456789012345678901234567890.123456789", "'Infinity'", "'-Infinity'", "1.500", "'1e-1000'", "0.000", "-0.5"}},
	{"numeric(10,2)", []string{"12345678.90", "-0.01", "'NaN'"}},
	{"numeric(5,-2)", []string{"123456", "-300"}},
	{"numeric(3,5)", []string{"0.00123"}},
	{"money", []string{"'-$1,234.56'", "'-92233720368547758.08'", "'0'", "'-0.05'"}},
	{"text", []string{`E'a"\\\n\tü'`, "''", `E'\x01\x7f 日本 🐘'`, "'NULL'", "repeat('long ', 2000)"}},
	{"varchar(5)", []string{"'abc'", "'é  '"}},
	{"char(5)", []string{"'ab'", "''"}},
	{"bpchar", []string{"'ab  '"}},
	{"name", []string{"'nm'", "repeat('n', 63)"}},
	{`"char"`, []string{"'a'", "''", `'\\'`}},
	{"bytea", []string{`'\x00ff'`, `'\x'`, "decode(repeat('ab', 3000), 'hex')"}},
	{"date", []string{"'-infinity'", "'0044-03-15 BC'", "'infinity'", "'2024-02-29'", "'4713-01-01 BC'", "'5874897-12-31'", "'0001-12-31 BC'", "'10000-01-01'"}},
	{"time", []string{"'24:00:00'", "'00:00:00.000001'", "'12:34:56.7'"}},
	{"time(3)", []string{"'12:34:56.789'"}},
	{"timetz", []string{"'12:34:56.789+05:30'", "'24:00+15:59'", "'00:00:00+02:30:15'", "'01:02:03+00'"}},
	{"timestamp", []string{"'infinity'", "'12024-01-01 00:00:00'", "'-infinity'", "'2024-02-29 12:34:56.789012'", "'0044-03-15 12:00:00.5 BC'", "'294276-12-31 23:59:59.999999'", "'4713-01-01 BC'"}},
	{"timestamp(0)", []string{"'2024-02-29 12:34:56'"}},
	{"timestamptz", []string{"'2024-02-29 12:34:56.789012+02'", "'0001-01-01 00:00:00+00 BC'", "'infinity'", "'-infinity'", "'12024-01-01 00:00:00+00'", "'1900-01-01 00:00:00+00'"}},
	{"interval", []string{"'1 year -2 mons 3 days 04:05:06.7'", "'0'", "'-1 mon'", "'-00:00:00.000001'", "'178000000 years'", "'-1 year -1 mon -1 day -01:01:01.5'", "'100:00:00'", "'infinity'", "'-infinity'"}},
	{"uuid", []string{"'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"}},
	{"json", []string{`'{"b": 1, "a":  [1,2], "b": 2}'`, "'null'", "'[1e400, 1.50]'", `E'{"x":\n "\\u00e9"}'`, `' "text" '`}},
	{"jsonb", []string{`'{"z": 1e3}'`, "'null'", `'[1.50, {"b": "é", "a": null}]'`, "'12345678901234567890.123456789'"}},
	{"jsonpath", []string{"'$.a[*] ? (@.b > 1).c'"}},
	{"xml", []string{"'<a>1</a>'", `'<?xml version="1.0"?><a>é</a>'`, "'text <b/>'", "''"}},
	{"integer[]", []string{"'{{1,NULL},{3,4}}'", "'{}'", "'{1,2}'", "'{{{1},{2}},{{3},{4}}}'", "'[0:1]={1,2}'", "'[2:3][-1:0]={{1,2},{3,4}}'"}},
	{"text[]", []string{`'[2:3]={"a,b",NULL}'`, `'{"NULL",NULL,"","a\"b\\c"}'`, "'{}'"}},
	{"numeric[]", []string{"'{1.50,NaN}'", "'{Infinity,0.00}'"}},
	{"mood", []string{"'so so'", `'"null"'`}},
	{"percent", []string{"99.50", "-0.01"}},
	{"share", []string{"0"}},
	{"numbers", []string{"'{1,NULL,3}'", "'[5:6]={1,2}'", "'{}'"}},
	{"pair", []string{`'(1,"x""y")'`, "'(,)'", `'(,"")'`}},
	{"named_pair", []string{"'(7,seven)'"}},
	{"nested", []string{`ROW(ROW(1, 'a,"b')::pair, '{sad,NULL}', '{1.50,NaN}', 'infinity')`, "ROW(NULL, '{}', NULL, '2024-02-29 12:34:56+02')"}},
	{"hstore", []string{"'a=>1, b=>NULL'", "''", `'"b c"=>"q\"x", "é"=>"NULL"'`}},
	{"citext", []string{"'CiText'"}},
	{"ltree", []string{"'a.b.c'", "''"}},
	{"lquery", []string{"'a.*{1,2}.b|c'"}},
	{"ltxtquery", []string{"'a & b*'"}},
	{"bit(4)", []string{"'0101'"}},
	{"bit", []string{"'1'"}},
	{"varbit", []string{"'11'", "''", "B'1010101011111111000000001'"}},
	{"inet", []string{"'10.0.0.1/8'", "'10.1.2.3'", "'2001:db8::1/64'", "'::ffff:1.2.3.4'", "'::'"}},
	{"cidr", []string{"'10.0.0.0/8'", "'2001:db8::/32'", "'10.1.2.3'"}},
	{"macaddr", []string{"'08:00:2b:01:02:03'"}},
	{"macaddr8", []string{"'08:00:2b:01:02:03:04:05'"}},
	{"point", []string{"'(1.5,2)'", "'(0.1,-0)'", "'(NaN,Infinity)'", "'(1e300,-1e-7)'"}},
	{"box", []string{"'(3,4),(1,2)'", "'(1,2),(3,4.25)'"}},
	{"lseg", []string{"'[(0.1,2),(3,4)]'"}},
	{"line", []string{"'{1,-0.5,3}'"}},
	{"path", []string{"'((0,0),(1,1.5))'", "'[(0,0),(1,1)]'"}},
	{"polygon", []string{"'((0,0),(1,1),(2,0.1))'"}},
	{"circle", []string{"'<(1,2),0.3>'"}},
	{"int4range", []string{"'[1,10)'", "'empty'", "'[1,5]'", "'(,)'", "'[,3)'"}},
	{"int8range", []string{"'[1,9223372036854775806]'"}},
	{"numrange", []string{"'(,5.50]'", "'[1.00,2.50]'", "'(,NaN)'"}},
	{"tsrange", []string{"'[2024-01-01,infinity]'", "'[\"0044-03-15 12:00:00 BC\",\"2024-01-01 00:00:00.000001\")'"}},
	{"tstzrange", []string{"'[2024-01-01 00:00+00,2024-06-01 00:00+02)'", "'[-infinity,)'"}},
	{"daterange", []string{"'[2024-01-01,2024-12-31]'", "'(,infinity)'"}},
	{"textrange", []string{`'["",a b]'`, `textrange('[', 'a"\')`}},
	{"int4multirange", []string{"'{[1,3),[7,9)}'", "'{}'"}},
	{"int8multirange", []string{"'{[1,9223372036854775806]}'"}},
	{"nummultirange", []string{"'{[1.0,2.50),(3,NaN)}'"}},
	{"tsmultirange", []string{"'{[2024-01-01,2024-02-01)}'"}},
	{"tstzmultirange", []string{"'{[2024-01-01 00:00+00,2024-06-01 00:00+02),[2025-01-01 00:00+00,)}'"}},
	{"datemultirange", []string{"'{[2024-01-01,2024-12-31]}'"}},
	{"textmultirange", []string{`'{["a,b","c"),[x,)}'`}},
	{"pg_lsn", []string{"'16/B374D848'", "'0/0'", "'FFFFFFFF/FFFFFFFF'"}},
	{"tsvector", []string{"'a fat cat'", "'a:1A,3 b:2B ''c d'''", "''"}},
	{"tsquery", []string{"'fat & (rat | !cat:*A)'", "''"}},
	{"oid", []string{"4294967295", "0"}},
	{"xid", []string{"'4294967295'"}},
	{"xid8", []string{"'18446744073709551615'"}},
	{"cid", []string{"'7'"}},
	{"tid", []string{"'(4294967295,65535)'"}},
	{"int2vector", []string{"'1 -2 3'", "''"}},
	{"oidvector", []string{"'1 4294967295'"}},
	{"int2vector[]", []string{`'{"1 2",NULL}'`}},
	{"oidvector[]", []string{`'{"1 2","3"}'`}},
	{"pg_snapshot", []string{"'10:20:10,14,15'"}},
	{"txid_snapshot", []string{"'10:20:10,14,15'"}},
	{"refcursor", []string{"'cursor 1'"}},
	{"aclitem", []string{"'pg_read_all_data=r*w/pg_read_all_data'"}},
	{"regclass", []string{"'pg_class'"}},
	{"regtype", []string{"'timestamp with time zone'"}},
	{"regproc", []string{"'pg_catalog.now'"}},
	{"regprocedure", []string{"'pg_catalog.substr(text,integer)'"}},
	{"regoper", []string{"'pg_catalog.||/'"}},
	{"regoperator", []string{"'+(integer,integer)'"}},
	{"regrole", []string{"'pg_read_all_data'"}},
	{"regnamespace", []string{"'pg_catalog'"}},
	{"regconfig", []string{"'english'"}},
	{"regdictionary", []string{"'simple'"}},
	{"regcollation", []string{`'"C"'`}},
}

// noValues are the types of pg_catalog that a column can be declared with, and
// that nobody can write a value of: their input functions refuse everything.
var noValues = map[string]string{
	"pg_node_tree":                 "expressions in the catalog",
	"pg_ndistinct":                 "extended statistics",
	"pg_dependencies":              "extended statistics",
	"pg_mcv_list":                  "extended statistics",
	"pg_brin_bloom_summary":        "pages of BRIN indexes",
	"pg_brin_minmax_multi_summary": "pages of BRIN indexes",
	"gtsvector":                    "pages of GiST indexes",
}

// valueColumn is a column of the table that holds all kinds.
type valueColumn struct {
	name, sql string
	values    []string
	added     bool // the array type of another one
}

// valueColumns gives the columns, in order.
func valueColumns() (columns []valueColumn) {
	for _, k := range kinds {
		c := valueColumn{name: fmt.Sprintf("c%d", len(columns)), sql: k.name, values: k.values}
		columns = append(columns, c)
		if strings.HasSuffix(k.name, "[]") || strings.HasSuffix(k.name, "vector") && k.name != "tsvector" {
			continue
		}
		elements := "NULL::" + k.name
		for _, v := range k.values {
			elements += ", (" + v + ")::" + k.name
		}
		columns = append(columns, valueColumn{name: fmt.Sprintf("c%d", len(columns)), sql: k.name + "[]", values: []string{"ARRAY[" + elements + "]"}, added: true})
	}
	return columns
}

// everyType makes the table.
func everyType() string {
	sql := ownTypes + "CREATE TABLE v (id int PRIMARY KEY"
	for _, c := range valueColumns() {
		sql += ", " + c.name + " " + c.sql
	}
	return sql + ");\n"
}

// valueRows is how many rows there are: the last one is all NULL.
func valueRows() int {
	most := 0
	for _, c := range valueColumns() {
		most = max(most, len(c.values))
	}
	return most + 1
}

// rows inserts them, from an id on.
func rows(id int) string {
	var sql strings.Builder
	for row := range valueRows() {
		fmt.Fprintf(&sql, "INSERT INTO v VALUES (%d", id+row)
		for _, c := range valueColumns() {
			if row < len(c.values) {
				fmt.Fprintf(&sql, ", (%s)::%s", c.values[row], c.sql)
			} else {
				sql.WriteString(", NULL")
			}
		}
		sql.WriteString(");\n")
	}
	return sql.String()
}
