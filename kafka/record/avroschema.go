package record

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace/millrace/datum"
)

// avroNames writes Avro schemas as Connect's Avro converter does, so that its
// readers rebuild the logical types: a record is defined where it stands first
// and named afterwards.
type avroNames struct{ defined map[string]bool }

func newAvroNames() *avroNames { return &avroNames{defined: map[string]bool{}} }

var avroTypes = map[datum.Kind]string{
	datum.Bool: "boolean", datum.Int16: "int", datum.Int32: "int", datum.Int64: "long", datum.Float32: "float",
	datum.Float64: "double", datum.String: "string", datum.Bytes: "bytes",
}

func (a *avroNames) schema(dst []byte, s *datum.Schema, optional bool) []byte {
	if optional {
		return append(a.schema(append(dst, `["null",`...), s, false), ']')
	}
	switch s.Kind {
	case datum.Struct:
		return a.record(dst, s)
	case datum.Array:
		return append(a.schema(append(dst, `{"type":"array","items":`...), s.Items, true), '}')
	}
	if s.Name == "" && s.Kind != datum.Int16 {
		return append(append(append(dst, '"'), avroTypes[s.Kind]...), '"')
	}
	dst = append(append(append(dst, `{"type":"`...), avroTypes[s.Kind]...), '"')
	if s.Kind == datum.Int16 {
		dst = append(dst, `,"connect.type":"int16"`...)
	}
	return append(connectProperties(dst, s), '}')
}

// connectProperties keep Connect's schema beside Avro's.
func connectProperties(dst []byte, s *datum.Schema) []byte {
	if s.Version > 0 {
		dst = strconv.AppendInt(append(dst, `,"connect.version":`...), int64(s.Version), 10)
	}
	for i, p := range s.Params {
		dst = append(dst, [...]string{`,"connect.parameters":{`, `,`}[min(i, 1)]...)
		dst = append(append(append(dst, quoted(p[0])...), ':'), quoted(p[1])...)
	}
	if len(s.Params) > 0 {
		dst = append(dst, '}')
	}
	if s.Name != "" {
		dst = append(append(dst, `,"connect.name":`...), quoted(s.Name)...)
	}
	if strings.HasSuffix(s.Name, ".Decimal") {
		scale, precision := 0, 64 // what Connect takes when it is not said
		for _, p := range s.Params {
			switch n, err := strconv.Atoi(p[1]); {
			case err != nil:
			case p[0] == "scale":
				scale = n
			default:
				precision = n
			}
		}
		dst = fmt.Appendf(dst, `,"logicalType":"decimal","precision":%d,"scale":%d`, max(precision, scale), scale)
	}
	return dst
}

func (a *avroNames) record(dst []byte, s *datum.Schema) []byte {
	full := avroFullName(s.Name)
	if a.defined[full] {
		return append(dst, quoted(full)...)
	}
	a.defined[full] = true
	namespace, name := "", full
	if i := strings.LastIndexByte(full, '.'); i >= 0 {
		namespace, name = full[:i], full[i+1:]
	}
	dst = append(append(dst, `{"type":"record","name":`...), quoted(name)...)
	if namespace != "" {
		dst = append(append(dst, `,"namespace":`...), quoted(namespace)...)
	}
	dst = append(dst, `,"fields":[`...)
	used := map[string]bool{}
	for i, f := range s.Fields {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(dst, `{"name":`...), quoted(uniqueName(avroName(f.Name), used))...)
		dst = a.schema(append(dst, `,"type":`...), f.Schema, f.Optional)
		if f.Optional {
			dst = append(dst, `,"default":null`...)
		}
		dst = append(dst, '}')
	}
	dst = append(dst, ']')
	if s.Version > 0 {
		dst = strconv.AppendInt(append(dst, `,"connect.version":`...), int64(s.Version), 10)
	}
	return append(append(append(dst, `,"connect.name":`...), quoted(s.Name)...), '}')
}

// avroFullName makes every part of a dotted name one that Avro takes.
func avroFullName(s string) string {
	parts := strings.Split(s, ".")
	for i, p := range parts {
		parts[i] = avroName(p)
	}
	return strings.Join(parts, ".")
}

// avroName makes a name of letters, digits and underscores that does not begin
// with a digit.
func avroName(s string) string {
	b := []byte(s)
	for i, c := range b {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			b[i] = '_'
		}
	}
	if len(b) == 0 || b[0] >= '0' && b[0] <= '9' {
		b = append([]byte{'_'}, b...)
	}
	return string(b)
}

// uniqueName keeps columns apart whose names become the same.
func uniqueName(s string, used map[string]bool) string {
	name := s
	for n := 2; used[name]; n++ {
		name = s + "_" + strconv.Itoa(n)
	}
	used[name] = true
	return name
}
