package kafka

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
)

// Encoded is one record of a change. Its slices are valid until the next call
// of the Format.
type Encoded struct {
	Key, Value []byte // nil: null
	// Row has the values of the key's columns, for naming the row in an error;
	// nil for a record that belongs to none.
	Row millrace.Row
	// Canonical is the same for keys that are equal in SQL: it chooses the
	// partition. Nil for a record without key.
	Canonical []byte
	Headers   []kgo.RecordHeader // those that only some records have
	Event     bool               // it counts as a change; tombstones don't
}

// Format makes records of changes. It is used by one goroutine at a time.
type Format interface {
	// Begin says that the changes which follow belong to the transaction, or
	// chunk, with this id.
	Begin(id string, t *millrace.Txn)
	// Encode makes the records of a change: several where the key changed and
	// where a tombstone follows. key are the columns of the record key.
	Encode(c *millrace.Change, rel *millrace.Relation, key []int, emit func(*Encoded) error) error
}
