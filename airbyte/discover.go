package airbyte

import (
	"slices"

	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/datum"
)

// The members that a record has beside the columns.
const (
	// MemberCursor is the cursor: a number that grows from record to record, over
	// all syncs. The position is none, since the records of a transaction share it.
	// Airbyte's own source for MySQL has a member of this name for the same.
	MemberCursor  = "_ab_cdc_cursor"
	MemberLSN     = "_ab_cdc_lsn"
	MemberUpdated = "_ab_cdc_updated_at"
	MemberDeleted = "_ab_cdc_deleted_at"
)

// Style is the form of values on stdout, the same in snapshots and streams.
func (c *Config) Style() datum.Style { return datum.Style{Plain: true} }

// Discover describes a table. published tells whether its changes can be read.
// Without a key they can be where they have whole rows: then it is for the catalog
// to choose one.
func (c *Config) Discover(t *catalog.Table, published bool) (Stream, error) {
	s := Stream{Name: t.Name.Name, Namespace: t.Name.Schema, SyncModes: []string{FullRefresh}}
	key, err := c.KeyOf(t, nil)
	if err != nil {
		return s, err
	}
	for _, column := range key.Columns {
		s.PrimaryKey = append(s.PrimaryKey, []string{column})
	}
	s.Resumable = len(key.Columns) > 0
	if published && (key.Named || key.Log(t)) {
		s.SyncModes = append(s.SyncModes, Incremental)
		s.SourceDefinedCursor = true
		s.DefaultCursor = []string{MemberCursor}
	}
	s.JSONSchema = c.schema(t, s.SourceDefinedCursor)
	return s, nil
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
			`"`+MemberCursor+`":{"type":["null","integer"]},`+
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
	return unnamed(c.Schema).AppendJSONSchema(b)
}

// unnamed is a schema without the names that scalars have in Kafka Connect, which
// mean nothing to a platform. A composite type keeps its own.
func unnamed(s *datum.Schema) *datum.Schema {
	bare := *s
	if s.Kind != datum.Struct {
		bare.Name = ""
	}
	if s.Items != nil {
		bare.Items = unnamed(s.Items)
	}
	bare.Fields = slices.Clone(s.Fields)
	for i := range bare.Fields {
		bare.Fields[i].Schema = unnamed(bare.Fields[i].Schema)
	}
	return &bare
}

// appendName appends a name of the catalog as a JSON string.
func appendName(b []byte, name string) []byte {
	quoted, err := datum.AppendQuoted(b, []byte(name))
	if err != nil { // SQL_ASCII: the platform can't name it anyway
		return append(b, `"?"`...)
	}
	return quoted
}
