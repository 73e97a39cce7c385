package millrace

import "time"

// History names the history that positions belong to. Positions of different
// histories can't be compared.
type History struct {
	System     string // pg_control_system().system_identifier, decimal
	Timeline   int32
	Generation int64 // raised by every bootstrap of the job
}

// Txn is the only traveller: a committed source transaction, or one of the
// consecutive parts of a large one. A Txn without changes is a sign of life
// that only moves End.
type Txn struct {
	XID    uint32
	Commit LSN       // LSN of the commit record; zero in a sign of life
	End    LSN       // end of the commit record: what is acknowledged once the last part is durable
	Time   time.Time // commit time at the source
	Origin string    // replication origin, "" for local transactions
	Phase  Phase     // what has happened to it; Committed but for sources that were asked for more
	From   *History

	// Chunk is set if the changes are not those of a source transaction but
	// rows of a snapshot, followed by the changes of these rows that the stream
	// had before and the snapshot does not show. Such a Txn has no Commit. Its End,
	// unless it is zero, is a position that the stream had passed before it.
	Chunk *Chunk
	// Marks are stored in the same step, with the last part.
	Marks map[TableName]Mark

	Changes []Change
	// Tally stands for the changes of an AppliedAhead, one entry a table.
	Tally []Tally
	// Cursor is the source's bookmark behind this Txn, where the LSN is none; the
	// sink stores it in the same step. It stands in the last part.
	Cursor []byte
	Part   int  // 0, 1, … within a transaction
	Last   bool // the transaction is complete with this part

	// Urgent asks that a sign of life is made durable at once, since somebody
	// waits for it: the server, a shutdown, or a client of /wait.
	Urgent bool

	// Size is the memory that the part holds, in bytes: tuples and structs.
	Size int64

	free   func(*Txn)
	stored func(committed bool)
}

// Phase says what has happened to a transaction. A source gives only committed
// ones, unless the sink can hold a transaction that is prepared.
type Phase byte

// The phases of a two-phase commit, beside Committed, and AppliedAhead.
const (
	// Committed: the whole of it, at its commit.
	Committed Phase = iota
	// Prepared: the changes of a transaction that was prepared and is not
	// decided. Commit is the position of the prepare record, End is zero: a sign
	// of life behind it moves the position.
	Prepared
	// CommitPrepared: the one with this XID that was prepared is committed. There
	// are no changes.
	CommitPrepared
	// RollbackPrepared: it is rolled back. Commit and End are zero as well.
	RollbackPrepared
	// AppliedAhead: the one with this XID is committed, of which an Ahead has all
	// changes. There are none here, but for their Tally.
	AppliedAhead
)

// Tally counts the changes of one table in a transaction that was applied ahead.
type Tally struct {
	Rel                       *Relation
	Inserts, Updates, Deletes int64
	Bytes                     int64 // of memory that they have taken
}

// Chunk says where the rows of a Txn were read.
type Chunk struct {
	Table TableName
	// Snapshot is the one they were read in, as pg_current_snapshot() shows it,
	// and Upto a position of the source's log read after it, which is flushed.
	// Both are zero where there are no rows and only Marks are carried.
	Snapshot string
	Upto     LSN
}

// Idle tells whether t is a sign of life.
func (t *Txn) Idle() bool { return t.Commit == 0 && t.Chunk == nil && t.Phase == Committed }

// OnRelease sets what Release calls. The maker of the Txn owns its memory.
func (t *Txn) OnRelease(free func(*Txn)) { t.free = free }

// OnStored sets what is called once the destination has committed t, or has let go
// of it for good: for a maker that has only so much under way, or wants to know of more than
// positions say. It must not block.
func (t *Txn) OnStored(stored func(committed bool)) { t.stored = stored }

// Stored takes what OnStored has set, nil if there is nothing. It is for a sink that
// commits t later than it releases it, and calls it behind the commit. Release calls
// what nobody has taken.
func (t *Txn) Stored() (stored func(committed bool)) {
	stored, t.stored = t.stored, nil
	return stored
}

// Release gives the memory back to its maker. Whoever holds the Txn last calls
// it once; neither the Txn nor any Row or Value of it may be used afterwards.
func (t *Txn) Release() {
	if stored := t.Stored(); stored != nil {
		stored(false)
	}
	if f := t.free; f != nil {
		t.free = nil
		f(t)
	}
}
