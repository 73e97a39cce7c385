package airbyte

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/datum"
)

// pointerEscape escapes a member's name in a JSON pointer (RFC 6901).
var pointerEscape = strings.NewReplacer("~", "~0", "/", "~1")

// placeKey is the key of the documents of a table that has none: where they come
// from. Each of them is one of its own, as in a log.
var placeKey = []string{"/_meta/source/loc/0", "/_meta/source/loc/1", "/_meta/source/loc/2"}

// FlowSchemaOf gives the schema of a table's documents: those of one key are
// merged, and a deletion removes them. Without a key they are left as they are.
func (c *Config) FlowSchemaOf(t *catalog.Table, key *Key) []byte {
	b := []byte(`{"type":"object","required":[`)
	for _, column := range key.Columns {
		b = append(appendName(b, column), ',')
	}
	b = append(b, `"_meta"],"properties":{`...)
	for _, col := range Columns(t) {
		b = append(appendName(b, col.Name), ':')
		b = c.appendFlowType(b, col, slices.Contains(key.Columns, col.Name))
		b = append(b, ',')
	}
	b = append(b, `"_meta":{"type":"object","required":["op","source"],"properties":{`+
		`"op":{"type":"string","enum":["c","u","d"]},`+
		`"before":{"type":"object","reduce":{"strategy":"firstWriteWins"}},`+
		`"source":{"type":"object","required":["schema","table","loc"],"properties":{"ts_ms":{"type":"integer"},"schema":{"type":"string"},`+
		`"table":{"type":"string"},"snapshot":{"type":"boolean"},"txid":{"type":"integer"},"loc":{"type":"array","items":{"type":"integer"},"minItems":3,"maxItems":3}}}},`+
		`"reduce":{"strategy":"merge"}}}`...)
	if len(key.Columns) > 0 {
		b = append(b, `,"if":{"properties":{"_meta":{"properties":{"op":{"const":"d"}}}}},`+
			`"then":{"reduce":{"strategy":"merge","delete":true}},"else":{"reduce":{"strategy":"merge"}}`...)
	}
	return append(b, `,"x-infer-schema":true}`...)
}

// appendFlowType appends the schema of a column. A key is never null there.
func (c *Config) appendFlowType(b []byte, col *catalog.Column, key bool) []byte {
	codec := datum.NewCodec(col.Type.Datum(), col.Mod, c.Style())
	if nativeJSON(codec.Type) {
		return append(b, `{"description":"JSON"}`...)
	}
	from := len(b)
	b = unnamed(codec.Schema).AppendJSONSchema(b)
	if key {
		b = append(b[:from], strings.Replace(string(b[from:]), `"null",`, "", 1)...)
	}
	return b
}

// nativeJSON tells whether a value is JSON already.
func nativeJSON(t *datum.Type) bool {
	for t.Base != nil {
		t = t.Base
	}
	return t.OID == 114 || t.OID == 3802
}
