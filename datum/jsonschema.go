package datum

import "strconv"

// AppendJSONSchema appends the JSON schema (draft 7) of what AppendJSON writes.
// Null is always allowed: whether a column can be null changes without a trace
// in the stream.
func (s *Schema) AppendJSONSchema(dst []byte) []byte { return s.appendJSONSchema(dst, true) }

func (s *Schema) appendJSONSchema(dst []byte, optional bool) []byte {
	types := jsonTypes[s.Kind]
	dst = append(dst, `{"type":[`...)
	if optional {
		dst = append(dst, `"null",`...)
	}
	dst = append(append(dst, types...), ']')
	format := s.Format
	if s.Kind == Bytes {
		dst = append(dst, `,"contentEncoding":"base64"`...)
		format = ""
	}
	if s.Loose && s.Kind == String && format != "" {
		// A format would have to hold for every value.
		dst = appendMember(dst, "description", format+", or infinity, or a year of more than four digits")
		format = ""
	}
	if format != "" {
		dst = appendMember(dst, "format", format)
	}
	if s.Postgres != "" {
		dst = appendMember(dst, "description", "text of PostgreSQL's type "+s.Postgres)
	}
	if s.Name != "" {
		dst = appendMember(dst, "title", s.Name)
	}
	switch s.Kind {
	case Array:
		dst = append(dst, `,"items":{"anyOf":[`...)
		dst = s.Items.appendJSONSchema(dst, true)
		// More dimensions are arrays of arrays.
		dst = append(dst, `,{"type":"array"}]}`...)
	case Struct:
		dst = append(dst, `,"properties":{`...)
		for i, f := range s.Fields {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendName(dst, f.Name), ':')
			dst = f.Schema.appendJSONSchema(dst, f.Optional)
		}
		dst = append(dst, '}')
		if s.Closed {
			dst = append(dst, `,"additionalProperties":false`...)
		}
	case Map:
		dst = append(dst, `,"additionalProperties":{"type":["null","string"]}`...)
	}
	return append(dst, '}')
}

// jsonTypes are the types of JSON schema; the strings beside float types and
// arrays are for what those can't say.
var jsonTypes = map[Kind]string{
	Bool: `"boolean"`, Int16: `"integer"`, Int32: `"integer"`, Int64: `"integer"`,
	Float32: `"number","string"`, Float64: `"number","string"`, String: `"string"`, Bytes: `"string"`,
	Array: `"array","string"`, Struct: `"object"`, Map: `"object"`,
}

func appendMember(dst []byte, name, value string) []byte {
	dst = append(appendName(append(dst, ','), name), ':')
	return appendName(dst, value)
}

// appendName appends a name from the catalog as a JSON string. Names that are
// not UTF-8, which only SQL_ASCII has, are escaped.
func appendName(dst []byte, s string) []byte {
	n := len(dst)
	dst, err := AppendQuoted(dst, []byte(s))
	if err != nil {
		return append(append(dst[:n], '"'), strconv.QuoteToASCII(s)[1:]...)
	}
	return dst
}
