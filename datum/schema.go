package datum

// Kind is the shape that a value has outside of PostgreSQL.
type Kind uint8

// The kinds. In JSON, Int16 to Int64 are numbers, floats numbers or one of the
// strings "NaN", "Infinity" and "-Infinity", Bytes are in base64.
const (
	Bool Kind = iota
	Int16
	Int32
	Int64
	Float32
	Float64
	String
	Bytes
	Array  // of Items, nested for more dimensions; see Style
	Struct // of Fields
	Map    // from string to optional string
)

// Schema says what a Codec makes of its column's values, in the words of Kafka
// Connect: a kind and, where the kind alone does not tell, a logical name.
type Schema struct {
	Kind    Kind
	Name    string // io.debezium.time.Date
	Version int
	Params  [][2]string // scale of a Decimal, length of Bits, labels of an Enum
	Doc     string
	// Closed says of a Struct that no member may come that is not a field. Under
	// it a new field is a compatible change to a registry of JSON schemas.
	Closed bool
	Items  *Schema
	Fields []SchemaField
	// Format is the format of JSON schema where it has one: date, time,
	// date-time, duration, uuid, number (a decimal in a string), byte.
	Format string
	// Loose says that not every value has the Format: infinities, years beyond
	// 9999, or an array that only text can show.
	Loose bool
	// Postgres says, where values are kept as PostgreSQL's text for want of a
	// better form, of which type.
	Postgres string
}

// SchemaField is a field of a Struct.
type SchemaField struct {
	Name     string
	Schema   *Schema
	Optional bool
}
