package millrace

import "slices"

// ValueKind tells how a value came.
type ValueKind byte

// The kinds of values in a tuple; the letters are those of the protocol
// (section "Logical Replication Message Formats", TupleData).
const (
	Null      ValueKind = 'n'
	Unchanged ValueKind = 'u' // an unchanged TOASTed value that was not sent
	Text      ValueKind = 't'
	Binary    ValueKind = 'b'
)

// Value is one column's value as PostgreSQL sent it. Raw is nil unless Kind is
// Text or Binary; it belongs to the Txn that holds the change and is valid
// until that is released.
type Value struct {
	Kind ValueKind
	Raw  []byte
}

// Row is one value per column of the Relation.
type Row []Value

// Op is what a change does.
type Op byte

// The operations.
const (
	Insert   Op = 'I'
	Update   Op = 'U'
	Delete   Op = 'D'
	Truncate Op = 'T'
	Message  Op = 'M'
	// Read is a row that a chunk of a snapshot read: New is all of it. It stands
	// only in a Txn that has a Chunk, and there is no row with its key at the
	// destination yet, unless changes of ranges not read yet pass at once.
	Read Op = 'R'
	// Merge makes the rows of Rel those that were staged for it: see package backfill.
	// It stands only in a Txn that has a Chunk.
	Merge Op = 'G'
	// Put makes New the row with its key, whether or not one is there, and Remove sees
	// to it that there is none with the key in Old. They come from a log that has lost
	// changes which later ones of the same key have made void. Rel has a key, and
	// every column of a Put a value.
	//
	// They, and Amend, also stand for changes of a table that is loaded beside the stream
	// of a log: the rows may come behind them. A Put that has Old moves: there is no row
	// with Old's key behind it, if that is another one. Amend writes what New has sent
	// into the row with Old's key, or New's without Old, and moves it to New's key. If there is no such
	// row, that is fine: another Put brings all of it.
	Put    Op = 'P'
	Remove Op = 'X'
	Amend  Op = 'A'
)

func (o Op) String() string {
	switch o {
	case Insert:
		return "insert"
	case Update:
		return "update"
	case Delete:
		return "delete"
	case Truncate:
		return "truncate"
	case Message:
		return "message"
	case Read:
		return "read"
	case Merge:
		return "merge"
	case Put:
		return "put"
	case Remove:
		return "remove"
	case Amend:
		return "amend"
	}
	return "unknown"
}

// Change is one change of a transaction.
type Change struct {
	Op Op
	// Early: its table is loaded beside the stream, for a destination that takes any
	// change. The row that it is about may come behind it, or be there as it was later.
	Early bool
	Seq   uint64 // ordinal in the transaction, from 1
	Rel   *Relation
	// Old is the old tuple where the server sent one: all columns under
	// REPLICA IDENTITY FULL (OldFull), else only the key columns have values
	// and the rest is Null without meaning. Nil when none was sent.
	Old     Row
	OldFull bool
	New     Row
	// Truncated is set for a Truncate; Rel is then nil.
	Truncated *Truncation
}

// Loosen makes of an early change what holds behind it, whether or not its row is there.
func (c *Change) Loosen() {
	switch c.Op {
	case Insert, Read:
		c.Op, c.Old = Put, nil
		if slices.ContainsFunc(c.New, func(v Value) bool { return v.Kind == Unchanged }) {
			c.Op = Amend
		}
	case Delete:
		c.Op = Remove
	case Update:
		c.Op = Put
		for i := range c.New {
			switch {
			case c.New[i].Kind != Unchanged:
			case c.OldFull:
				c.New[i] = c.Old[i]
			default:
				c.Op = Amend
			}
		}
	}
	c.OldFull = false
}

// Truncation is one TRUNCATE command: all its tables go in one statement.
type Truncation struct {
	Rels            []*Relation
	RestartIdentity bool
	// AsDelete asks for DELETE: readers see the old rows until the transaction
	// that it is in is committed.
	AsDelete bool
}
