package connector

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/rig"
)

// everyType has values that other connectors null, round or reorder.
const everyType = `
CREATE EXTENSION hstore;
CREATE EXTENSION citext;
CREATE EXTENSION ltree;
CREATE TYPE mood AS ENUM ('sad', 'so so', 'happy');
CREATE DOMAIN percent AS numeric(5,2) CHECK (VALUE <= 100);
CREATE TYPE pair AS (a int, b text);
CREATE TABLE v (id int PRIMARY KEY, b bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, n numeric, n2 numeric(10,2), m money, t text, vc varchar(5),
	bc char(5), nm name, by bytea, d date, tm time, tz timetz, ts timestamp, tsz timestamptz, iv interval, u uuid, j json, jb jsonb, ia int[], ta text[],
	na numeric[], mm mood, pc percent, pr pair, hs hstore, ci citext, lt ltree, bt bit(4), vb varbit, ip inet, cd cidr, ma macaddr, pt point, bx box,
	ir int4range, nr numrange, mr int4multirange, lsn pg_lsn, x xml, tv tsvector, o oid);
`

const rows = `
INSERT INTO v SELECT %[1]d, true, -32768, 2147483647, 9223372036854775807, 'NaN', '-Infinity', 'NaN', 12345678.90, '-$1,234.56', E'a"\\\n\tü', 'abc',
	'ab', 'nm', '\x00ff', '-infinity', '24:00:00', '12:34:56.789+05:30', 'infinity', '2024-02-29 12:34:56.789012+02', '1 year -2 mons 3 days 04:05:06.7', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
	'{"b": 1, "a":  [1,2], "b": 2}', '{"z": 1e3}', '{{1,NULL},{3,4}}', '[2:3]={"a,b",NULL}', '{1.50,NaN}', 'so so', 99.50, '(1,"x""y")', 'a=>1, b=>NULL', 'CiText', 'a.b.c', '0101', '11', '10.0.0.1/8', '10.0.0.0/8',
	'08:00:2b:01:02:03', '(1.5,2)', '(3,4),(1,2)', '[1,10)', '(,5.50]', '{[1,3),[7,9)}', '16/B374D848', '<a>1</a>', 'a fat cat', 4294967295;
INSERT INTO v (id, n, d, ts, tsz, ia, f8) VALUES (%[1]d + 1, 123456789012345678901234567890.123456789, '0044-03-15 BC', '12024-01-01 00:00:00', '0001-01-01 00:00:00+00 BC', '{}', 1e-300);
INSERT INTO v (id) VALUES (%[1]d + 2);
`

// TestValues: a row has the same form whether it was read or streamed, and obeys
// the schema that discover gives.
func TestValues(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, rig.Shared(t, rig.Newest), everyType)
	p.makeSlot(t)
	p.source.Script(t, fmt.Sprintf(rows, 100))
	p.discover(t)
	read := byID(p.sync(t))
	p.source.Script(t, fmt.Sprintf(rows, 200))
	streamed := byID(p.sync(t))
	for i := range 3 {
		a, b := read[100+i], streamed[200+i]
		if a == nil || b == nil {
			t.Fatalf("rows are missing: %v, %v", a == nil, b == nil)
		}
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("row %d differs (-read +streamed):\n%s", i, diff)
		}
	}
	for column, want := range map[string]string{
		"n": `"NaN"`, "f8": `"-Infinity"`, "i8": `9223372036854775807`, "ts": `"infinity"`, "tsz": `"2024-02-29T10:34:56.789012Z"`, "by": `"AP8="`,
		"bt": `"0101"`, "ia": `[[1,null],[3,4]]`, "n2": `"12345678.90"`, "d": `"-infinity"`, "o": `4294967295`, "bc": `"ab   "`,
	} {
		if got := read[100][column]; got != want {
			t.Errorf("column %s is %s, want %s", column, got, want)
		}
	}
}

func byID(messages []message) map[int]map[string]string {
	found := map[int]map[string]string{}
	for _, m := range messages {
		if m.Type != "RECORD" {
			continue
		}
		var id int
		if json.Unmarshal(m.Record.Data["id"], &id) != nil {
			continue
		}
		row := map[string]string{}
		for column, value := range m.Record.Data {
			switch column {
			case "id", "_ab_cdc_lsn", "_ab_cdc_cursor", "_ab_cdc_updated_at":
			default:
				row[column] = string(value)
			}
		}
		found[id] = row
	}
	return found
}
