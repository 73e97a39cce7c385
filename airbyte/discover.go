package airbyte

import (
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/datum"
)

// The members that a record has beside the columns.
const (
	MemberLSN     = "_ab_cdc_lsn"
	MemberUpdated = "_ab_cdc_updated_at"
	MemberDeleted = "_ab_cdc_deleted_at"
)

// Style is the form of values on stdout, the same in snapshots and streams.
func (c *Config) Style() datum.Style { return datum.Style{Plain: true} }

// Discover describes a table. published tells whether its changes can be read.
func (c *Config) Discover(t *catalog.Table, published bool) Stream {
	s := Stream{Name: t.Name.Name, Namespace: t.Name.Schema, SyncModes: []string{FullRefresh}}
	key, changes := KeyOf(t)
	for _, column := range key {
		s.PrimaryKey = append(s.PrimaryKey, []string{column})
	}
	s.Resumable = len(key) > 0
	if published && changes {
		s.SyncModes = append(s.SyncModes, Incremental)
		s.SourceDefinedCursor = true
		s.DefaultCursor = []string{MemberLSN}
	}
	s.JSONSchema = c.schema(t, s.SourceDefinedCursor)
	return s
}

// KeyOf gives the columns that tell a table's rows apart for the platform: those
// that a delete is sure to name. changes tells whether there are such; a primary
// key alone still makes a full refresh resumable.
func KeyOf(t *catalog.Table) (key []string, changes bool) {
	if t.Identity == millrace.IdentityIndex {
		key = t.IdentityColumns()
		return key, len(key) > 0
	}
	pk := t.PrimaryKey()
	if pk == nil {
		return nil, false
	}
	for _, n := range pk.Columns {
		col := t.ByNum(n)
		if col == nil || col.Generated != 0 { // which the stream does not send
			return nil, false
		}
		key = append(key, col.Name)
	}
	return key, t.Identity != millrace.IdentityNothing && pk.Immediate
}

// Columns gives the columns that records have: what the stream sends.
func Columns(t *catalog.Table) []*catalog.Column {
	var columns []*catalog.Column
	for i := range t.Columns {
		if t.Columns[i].Generated == 0 {
			columns = append(columns, &t.Columns[i])
		}
	}
	return columns
}

func (c *Config) schema(t *catalog.Table, changes bool) []byte {
	b := []byte(`{"type":"object","properties":{`)
	for i, col := range Columns(t) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendName(b, col.Name), ':')
		codec := datum.NewCodec(col.Type.Datum(), col.Mod, c.Style())
		b = appendTypeSchema(b, codec, c.Decimal == DecimalNumber)
	}
	if changes {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(b, `"`+MemberLSN+`":{"type":["null","integer"]},`+
			`"`+MemberUpdated+`":{"type":["null","string"],"format":"date-time","airbyte_type":"timestamp_with_timezone"},`+
			`"`+MemberDeleted+`":{"type":["null","string"],"format":"date-time","airbyte_type":"timestamp_with_timezone"}`...)
	}
	return append(b, `}}`...)
}

// airbyteTypes are the airbyte_type of a format, where the form of every value is
// the platform's (protocol v0, "airbyte_type").
var airbyteTypes = map[uint32]string{
	1114: "timestamp_without_timezone", 1184: "timestamp_with_timezone",
	1083: "time_without_timezone", 1266: "time_with_timezone",
}

// appendTypeSchema appends the schema of a column. The platform's own words are
// used where all values of the type obey them; what can be infinite, or a year of
// five digits, is still in the platform's type, as the platform's own connector
// has it.
func appendTypeSchema(b []byte, c *datum.Codec, number bool) []byte {
	base := c.Type
	for base.Base != nil {
		base = base.Base
	}
	switch name, temporal := airbyteTypes[base.OID]; {
	case temporal && slices.Contains([]uint32{1083, 1266}, base.OID):
		return append(b, `{"type":["null","string"],"format":"time","airbyte_type":"`+name+`"}`...)
	case temporal:
		return append(b, `{"type":["null","string"],"format":"date-time","airbyte_type":"`+name+`"}`...)
	case base.OID == 1082:
		return append(b, `{"type":["null","string"],"format":"date"}`...)
	case c.Schema.Format == "number" && number: // as appendMembers decides
		return append(b, `{"type":["null","number","string"]}`...)
	}
	return c.Schema.AppendJSONSchema(b)
}

// appendName appends a name of the catalog as a JSON string.
func appendName(b []byte, name string) []byte {
	quoted, err := datum.AppendQuoted(b, []byte(name))
	if err != nil { // SQL_ASCII: the platform can't name it anyway
		return append(b, `"?"`...)
	}
	return quoted
}
