package capture

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/pgoutput"
	"github.com/millrace/millrace/replication"
)

// A part is cut when it has so many changes or so many bytes and another change
// comes.
const (
	maxChanges = 4096
	maxPart    = 1 << 20
)

// assembler makes transactions of messages. It is used by one goroutine.
type assembler struct {
	memory  *memory
	history *millrace.History
	from    millrace.LSN // transactions whose commit record lies below it were applied before
	put     func(*millrace.Txn) bool

	block *block
	slab  *pgoutput.Slab

	open    bool // between Begin and Commit
	skip    bool // it was applied before
	begin   pgoutput.Begin
	origin  string
	phase   millrace.Phase
	seq     uint64        // of the last change
	part    int           // of the open part
	txn     *millrace.Txn // the open part; nil until it has a change
	origins map[string]string
	count   tally
	given   millrace.LSN // End of the last transaction that was given away
}

func newAssembler(m *memory, history *millrace.History, from millrace.LSN, put func(*millrace.Txn) bool) *assembler {
	a := &assembler{memory: m, history: history, from: from, put: put, block: m.block(), origins: map[string]string{}}
	a.slab = pgoutput.NewSlab(func(n int) []millrace.Value { return a.block.moreValues(n) })
	return a
}

// errClosed is returned when the queue does not take anything any more.
var errClosed = errors.New("the source was closed")

// misplaced is the error about a message that cannot come where it came.
func misplaced(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{pgoutput.ErrMalformed}, args...)...)
}

func (a *assembler) onBegin(msg []byte) error {
	m, err := pgoutput.ParseBegin(msg)
	if err != nil {
		return err
	}
	return a.start(m)
}

// start opens a transaction.
func (a *assembler) start(m pgoutput.Begin) error {
	if a.open {
		return misplaced("transaction %d begins inside of transaction %d", m.XID, a.begin.XID)
	}
	a.open, a.begin = true, m
	// Not <=: where nothing was applied yet, both positions of the checkpoint
	// are the slot's consistent point, and a transaction may begin to commit
	// exactly there.
	a.skip = m.Commit < a.from
	a.origin, a.seq, a.part, a.phase = "", 0, 0, millrace.Committed
	return nil
}

func (a *assembler) onOrigin(msg []byte) error {
	m, err := pgoutput.ParseOrigin(msg)
	if err != nil {
		return err
	}
	a.origin = a.originName(m.Name)
	return nil
}

// originName gives the same string for the same name.
func (a *assembler) originName(b []byte) string {
	name, ok := a.origins[string(b)]
	if !ok {
		name = string(b)
		a.origins[name] = name
	}
	return name
}

// end ends the transaction. It reports the end of one that is empty, which
// moves the position like a sign of life.
func (a *assembler) end(m pgoutput.Commit) (empty millrace.LSN, err error) {
	if !a.open || m.Commit != a.begin.Commit {
		return 0, misplaced("commit at %v of a transaction that did not begin", m.Commit)
	}
	a.open = false
	if a.skip {
		a.count.redelivered++
		return 0, nil
	}
	a.count.transactions++
	a.count.lastCommit, a.count.lastEnd = m.Time, m.End
	if a.txn == nil {
		return m.End, nil
	}
	a.txn.End, a.txn.Last = m.End, true
	return 0, a.finish()
}

// row reads a change of one row. An unmatched relation has no rel.
func (a *assembler) row(m replication.Message, rel *millrace.Relation) error {
	if !a.open {
		return misplaced("change outside of a transaction")
	}
	a.seq++ // also of what is passed over: a position must not depend on patterns
	if rel == nil {
		a.count.passedOver++
		return nil
	}
	if a.skip {
		return nil
	}
	if err := a.makeRoom(); err != nil {
		return err
	}
	data := m.Data
	if !m.Owned {
		data = a.block.copy(data)
	}
	c := millrace.Change{Seq: a.seq, Rel: rel}
	switch pgoutput.TagOf(data) {
	case pgoutput.TagInsert:
		i, err := pgoutput.ParseInsert(data, a.slab)
		if err != nil {
			return err
		}
		c.Op, c.New = millrace.Insert, i.New
		a.count.inserts++
	case pgoutput.TagUpdate:
		u, err := pgoutput.ParseUpdate(data, a.slab)
		if err != nil {
			return err
		}
		c.Op, c.Old, c.OldFull, c.New = millrace.Update, u.Old, u.OldFull, u.New
		a.count.updates++
	case pgoutput.TagDelete:
		d, err := pgoutput.ParseDelete(data, a.slab)
		if err != nil {
			return err
		}
		c.Op, c.Old, c.OldFull = millrace.Delete, d.Old, d.OldFull
		a.count.deletes++
	}
	if err := checkRow(&c); err != nil {
		return err
	}
	*a.block.change(a.txn) = c
	a.txn.Size += changeSize + int64(len(data)) + int64(len(c.Old)+len(c.New))*valueSize
	return nil
}

// checkRow holds the tuples against the relation, and fills what was not sent
// because it did not change: under REPLICA IDENTITY FULL the old row has it.
func checkRow(c *millrace.Change) error {
	n := len(c.Rel.Columns)
	if c.New != nil && len(c.New) != n || c.Old != nil && len(c.Old) != n {
		return misplaced("%v of table %v: rows of %d and %d values, but %d columns", c.Op, c.Rel.Name, len(c.Old), len(c.New), n)
	}
	if c.OldFull && c.Op == millrace.Update {
		for i := range c.New {
			if c.New[i].Kind == millrace.Unchanged {
				c.New[i] = c.Old[i]
			}
		}
	}
	return nil
}

// truncate adds a TRUNCATE of tables that are all in the job's set.
func (a *assembler) truncate(rels []*millrace.Relation, restart bool) error {
	if !a.open {
		return misplaced("truncate outside of a transaction")
	}
	a.seq++
	if len(rels) == 0 {
		a.count.passedOver++
		return nil
	}
	if a.skip {
		return nil
	}
	if err := a.makeRoom(); err != nil {
		return err
	}
	*a.block.change(a.txn) = millrace.Change{
		Op:        millrace.Truncate,
		Seq:       a.seq,
		Truncated: &millrace.Truncation{Rels: rels, RestartIdentity: restart},
	}
	a.txn.Size += changeSize + int64(len(rels))*8
	a.count.truncates++
	return nil
}

// size is that of the open part.
func (a *assembler) size() int64 {
	if a.txn == nil {
		return 0
	}
	return a.txn.Size
}

// makeRoom opens a part if there is none, and cuts one that is full.
func (a *assembler) makeRoom() error {
	if a.txn != nil && (len(a.txn.Changes) >= maxChanges || a.txn.Size >= maxPart) {
		if err := a.finish(); err != nil {
			return err
		}
		a.part++
	}
	if a.txn != nil {
		return nil
	}
	if a.block.given >= blockBytes {
		a.block.unref()
		a.block = a.memory.block()
		a.slab.Reset()
	}
	t := a.block.txn()
	t.XID, t.Commit, t.Time, t.Origin = a.begin.XID, a.begin.Commit, a.begin.Time, a.origin
	t.From, t.Part, t.Size, t.Phase = a.history, a.part, txnSize, a.phase
	a.txn = t
	return nil
}

// finish gives the open part away.
func (a *assembler) finish() error {
	t := a.txn
	a.txn = nil
	a.given = max(a.given, t.End)
	a.block.given += t.Size
	a.memory.held.Add(t.Size)
	if !a.put(t) {
		t.Release()
		return errClosed
	}
	return nil
}

// close gives back what was not finished.
func (a *assembler) close() {
	if t := a.txn; t != nil {
		a.txn = nil
		t.Size = 0 // was never counted as held
		t.Release()
	}
	a.block.unref()
}
