package record

import (
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
)

// Format is what the values of records are.
type Format string

// The formats, as the configuration names them.
const (
	JSON       Format = "json"        // Debezium's envelope, without schema
	JSONInline Format = "json-inline" // the same as Connect's {schema, payload}
	JSONSchema Format = "json-schema" // the same, with its JSON schema in a registry
	Avro       Format = "avro"        // the envelope in Avro, schema in a registry
	Flat       Format = "flat"        // the row only; null for a row that is gone
	Keys       Format = "keys"        // which row changed, and where; not its values
)

// Formats lists them.
var Formats = []Format{JSON, JSONInline, JSONSchema, Avro, Flat, Keys}

// Readable tells whether the format holds enough to read changes back.
func (f Format) Readable() bool { return f != Flat && f != Keys }

// NeedsRegistry tells whether schemas go to a registry.
func (f Format) NeedsRegistry() bool { return f == JSONSchema || f == Avro }

// Toast is what stands for a large value that an UPDATE did not change and
// PostgreSQL did not send.
type Toast string

// The choices. In both the header "unchanged" names the columns.
const (
	Placeholder Toast = "placeholder" // Debezium's text __debezium_unavailable_value
	Omit        Toast = "omit"        // the member is missing; null where a schema wants one
)

// placeholder is Debezium's unavailable.value.placeholder.
const placeholder = "__debezium_unavailable_value"

// Options say what records look like.
type Options struct {
	Format   Format
	Prefix   string // source.name
	Database string // source.db
	Version  string // source.version
	Decimal  datum.Decimal
	Toast    Toast
	// Lossy takes Debezium's forms also where they lose something; what is
	// written so can't be read back.
	Lossy bool
	// Topic gives the topic of a table: the names of schemas derive from it.
	Topic func(millrace.TableName) string
	// Registry takes the schemas of json-schema and avro.
	Registry Registry
}

// Registry keeps schemas. Register gives the number of a schema under a subject
// and may block; it must give the same number for the same schema.
type Registry interface {
	Register(subject, schema string, format Format) (int, error)
}

func (o *Options) style() datum.Style {
	s := datum.Style{Decimal: o.Decimal, Lossy: o.Lossy}
	switch o.Format {
	case Flat, Keys:
		s = datum.Style{Plain: true}
	case JSONInline, Avro:
		s.Flat = true
	}
	return s
}

// Check finds what does not fit together.
func (o *Options) Check() error {
	known := false
	names := make([]string, len(Formats))
	for i, f := range Formats {
		known = known || f == o.Format
		names[i] = string(f)
	}
	switch {
	case !known:
		return fmt.Errorf("format %q: want one of %s", o.Format, strings.Join(names, ", "))
	case o.Toast != Placeholder && o.Toast != Omit:
		return fmt.Errorf("toast %q: want placeholder or omit", o.Toast)
	case o.Format.NeedsRegistry() && o.Registry == nil:
		return fmt.Errorf("format %s needs a schema registry", o.Format)
	}
	return nil
}

// Record is one record of a change. Its slices are valid until the next call of
// the Encoder.
type Record struct {
	Key, Value []byte // nil: null
	// Row has the key's values, for whoever wants to name the row; nil for a
	// record that belongs to none.
	Row millrace.Row
	// Canonical is the same for keys that are equal in SQL, however they are
	// written: it chooses the partition. Nil for a record without key.
	Canonical []byte
	Headers   []kgo.RecordHeader // those that only some records have
	// Event says that the record counts in the transaction's event_count;
	// tombstones don't.
	Event bool
}

// Encoder makes records of changes. It serves one goroutine at a time.
type Encoder interface {
	// Begin says that the changes which follow belong to this transaction, or
	// chunk, whose id stands in BEGIN and END. It is called again when a
	// transaction is encoded anew.
	Begin(id string, t *millrace.Txn)
	// Encode makes the records of one change: several where the key changed (a
	// delete of the old one and an insert of the new) and where a tombstone
	// follows. rel is the change's relation, for a Truncate each in turn; key are
	// the columns of the record key.
	Encode(c *millrace.Change, rel *millrace.Relation, key []int, emit func(*Record) error) error
}

// NewEncoder makes the encoder of a format.
func NewEncoder(o Options) (Encoder, error) {
	if o.Toast == "" {
		o.Toast = Placeholder
	}
	if err := o.Check(); err != nil {
		return nil, err
	}
	e := &encoder{opt: o, style: o.style(), tables: map[*millrace.Relation]*table{}}
	switch o.Format {
	case Flat:
		e.form = flatForm{e}
	case Keys:
		e.form = keysForm{e}
	case Avro:
		e.form = avroForm{e}
	default:
		e.form = jsonForm{e}
	}
	return e, nil
}

// Names of headers.
const (
	HeaderUnchanged = "unchanged"          // JSON array of the columns that were not sent
	HeaderNewKey    = "__debezium.newkey"  // on the delete that a change of key begins with
	HeaderOldKey    = "__debezium.oldkey"  // on the insert that it ends with
	HeaderTruncate  = "truncate"           // on a truncate: "restart_identity" or "continue_identity"
	HeaderOp        = "op"                 // with flat and keys: c, u, d, r or t
	HeaderEarly     = "early"              // "true" while the table is loaded beside the stream: a change may come before its row
	HeaderOldFull   = "before_is_complete" // "true" where before is the whole row (REPLICA IDENTITY FULL)
)
