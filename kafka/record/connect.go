package record

import (
	"strconv"

	"github.com/millrace/millrace/datum"
)

// Schemas as Connect's JsonConverter writes them.

var connectTypes = map[datum.Kind]string{
	datum.Bool: "boolean", datum.Int16: "int16", datum.Int32: "int32", datum.Int64: "int64", datum.Float32: "float",
	datum.Float64: "double", datum.String: "string", datum.Bytes: "bytes", datum.Array: "array", datum.Struct: "struct", datum.Map: "map",
}

// appendConnect appends the schema of a value; field is the name of its member,
// or "".
func appendConnect(dst []byte, s *datum.Schema, optional bool, field string) []byte {
	dst = append(append(append(dst, `{"type":"`...), connectTypes[s.Kind]...), '"')
	switch s.Kind {
	case datum.Array:
		dst = appendConnect(append(dst, `,"items":`...), s.Items, true, "")
	case datum.Struct:
		dst = append(dst, `,"fields":[`...)
		for i, f := range s.Fields {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendConnect(dst, f.Schema, f.Optional, f.Name)
		}
		dst = append(dst, ']')
	case datum.Map:
		dst = append(dst, `,"keys":{"type":"string","optional":false},"values":{"type":"string","optional":true}`...)
	}
	dst = strconv.AppendBool(append(dst, `,"optional":`...), optional)
	if s.Name != "" {
		dst = append(append(dst, `,"name":`...), quoted(s.Name)...)
	}
	if s.Version > 0 {
		dst = strconv.AppendInt(append(dst, `,"version":`...), int64(s.Version), 10)
	}
	for i, p := range s.Params {
		dst = append(dst, [...]string{`,"parameters":{`, `,`}[min(i, 1)]...)
		dst = append(append(append(dst, quoted(p[0])...), ':'), quoted(p[1])...)
	}
	if len(s.Params) > 0 {
		dst = append(dst, '}')
	}
	if s.Doc != "" {
		dst = append(append(dst, `,"doc":`...), quoted(s.Doc)...)
	}
	if field != "" {
		dst = append(append(dst, `,"field":`...), quoted(field)...)
	}
	return append(dst, '}')
}

// rowSchema describes a row. Columns of the key are not optional; whether
// another one can be null is not in the stream, so all others are.
func rowSchema(name string, t *table) *datum.Schema {
	s := &datum.Schema{Kind: datum.Struct, Closed: true, Name: name}
	for i := range t.rel.Columns {
		optional := true
		for _, k := range t.key {
			optional = optional && k != i
		}
		s.Fields = append(s.Fields, datum.SchemaField{Name: t.rel.Columns[i].Name, Schema: t.codecs[i].Schema, Optional: optional})
	}
	return s
}

func keySchema(topic string, t *table) *datum.Schema {
	s := &datum.Schema{Kind: datum.Struct, Closed: true, Name: topic + ".Key"}
	for _, k := range t.key {
		s.Fields = append(s.Fields, datum.SchemaField{Name: t.rel.Columns[k].Name, Schema: t.codecs[k].Schema})
	}
	return s
}

func appendKeySchema(dst []byte, topic string, t *table) []byte {
	return appendConnect(dst, keySchema(topic, t), false, "")
}

var (
	text   = &datum.Schema{Kind: datum.String}
	number = &datum.Schema{Kind: datum.Int64}
)

// sourceSchema is that of the source block.
var sourceSchema = &datum.Schema{
	Kind: datum.Struct, Closed: true, Name: "io.debezium.connector.postgresql.Source", Version: 1,
	Fields: []datum.SchemaField{
		{Name: "version", Schema: text}, {Name: "connector", Schema: text}, {Name: "name", Schema: text}, {Name: "ts_ms", Schema: number},
		{Name: "snapshot", Optional: true, Schema: &datum.Schema{Kind: datum.String, Name: "io.debezium.data.Enum", Version: 1, Params: [][2]string{
			{"allowed", "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"},
		}}},
		{Name: "db", Schema: text}, {Name: "sequence", Schema: text, Optional: true}, {Name: "ts_us", Schema: number, Optional: true},
		{Name: "ts_ns", Schema: number, Optional: true}, {Name: "schema", Schema: text}, {Name: "table", Schema: text},
		{Name: "txId", Schema: number, Optional: true}, {Name: "lsn", Schema: number, Optional: true}, {Name: "xmin", Schema: number, Optional: true},
		{Name: "origin", Schema: text, Optional: true}, {Name: "origin_lsn", Schema: number, Optional: true},
	},
}

// blockSchema is that of the transaction block.
var blockSchema = &datum.Schema{
	Kind: datum.Struct, Closed: true, Name: "event.block", Version: 1,
	Fields: []datum.SchemaField{{Name: "id", Schema: text}, {Name: "total_order", Schema: number}, {Name: "data_collection_order", Schema: number}},
}

// envelopeSchema is that of a value.
func envelopeSchema(topic string, t *table) *datum.Schema {
	row := rowSchema(topic+".Value", t)
	return &datum.Schema{Kind: datum.Struct, Closed: true, Name: topic + ".Envelope", Version: 2, Fields: []datum.SchemaField{
		{Name: "before", Schema: row, Optional: true}, {Name: "after", Schema: row, Optional: true}, {Name: "source", Schema: sourceSchema},
		{Name: "transaction", Schema: blockSchema, Optional: true}, {Name: "op", Schema: text}, {Name: "ts_ms", Schema: number, Optional: true},
		{Name: "ts_us", Schema: number, Optional: true}, {Name: "ts_ns", Schema: number, Optional: true},
	}}
}

func appendEnvelopeSchema(dst []byte, topic string, t *table) []byte {
	return appendConnect(dst, envelopeSchema(topic, t), false, "")
}

const draft7 = `{"$schema":"http://json-schema.org/draft-07/schema#",`

func jsonSchemaOf(s *datum.Schema) string {
	b := s.AppendJSONSchema([]byte(draft7[:len(draft7)-1]))
	b[len(draft7)-1] = ','
	return string(b)
}
