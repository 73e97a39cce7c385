package snapshot

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/session"
)

// A large table is copied by ranges of its key instead of pages where that is
// about as fast: then the mark of what is there outlives the snapshot, and a load
// that is interrupted goes on at it, beside the stream. Pages would be of no use:
// rows move.

// The least size of a table that is copied by ranges of its key, and into how many it
// is cut: such a table into 64, a larger one into more. A part is some of them, and a
// transaction of the target.
const (
	DefaultMinKeyed = 1 << 30
	leastRanges     = 64
	mostRanges      = 4096
)

// How long a part should take to be copied: as long is lost when the load is
// interrupted.
const (
	partAtLeast = time.Second
	partAtMost  = 4 * time.Second
)

// InOrder is the least correlation of the key's first column with the place of rows
// at which reading by the key is about as fast as reading by pages.
const InOrder = 0.9

// wideRow is the size in bytes from which a row has a page of its own, so that its
// place does not matter.
const wideRow = 4 << 10

// keyed is a table that is copied by ranges of its key. Its slots are the ranges
// between its cuts.
type keyed struct {
	table *Table
	chunk *ChunkTable
	cuts  []Cut
	index map[string]int // of the slot that ends at a key
	next  int            // the first slot that was given to nobody
	span  int            // slots of the next part
	mark  Mark           // with nothing read yet
}

func (k *keyed) slots() int { return len(k.cuts) + 1 }

// take gives the next part, nil if there is none.
func (k *keyed) take() *Part {
	if k.next >= k.slots() {
		return nil
	}
	p := &Part{Table: k.table, Keyed: true, Number: k.next, Span: min(k.span, k.slots()-k.next), Of: k.slots()}
	p.Bytes = k.table.Source.Bytes * int64(p.Span) / int64(p.Of)
	if p.Number > 0 {
		p.where = k.chunk.Key.tuple("") + " > " + k.cuts[p.Number-1].literal
	}
	if end := p.Number + p.Span; end < k.slots() {
		if p.where != "" {
			p.where += " AND "
		}
		p.where += k.chunk.Key.tuple("") + " <= " + k.cuts[end-1].literal
	}
	if p.where == "" {
		p.where = "true"
	}
	k.next += p.Span
	return p
}

// adapt makes parts that take some seconds. It is called under the lock of the
// table's state.
func (k *keyed) adapt(p *Part, took time.Duration) {
	switch {
	case p.Span != k.span:
	case took < partAtLeast:
		k.span *= 2
	case took > partAtMost:
		k.span = max(1, k.span/2)
	}
}

// decode tells which slots a mark has.
func (k *keyed) decode(text []byte) (there []bool, err error) {
	there = make([]bool, k.slots())
	if len(text) == 0 {
		return there, nil
	}
	var m Mark
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, err
	}
	from := 0
	for i := range m.Ranges {
		end := k.slots()
		if i < len(m.Ranges)-1 {
			at, ok := k.index[m.Ranges[i].Upto]
			if !ok {
				return nil, fmt.Errorf("the mark of table %s is not of this load", k.table.Name())
			}
			end = at + 1
		}
		for ; from < end; from++ {
			there[from] = m.Ranges[i].State == Done
		}
	}
	return there, nil
}

// with adds a part to a mark.
func (k *keyed) with(text []byte, p *Part) ([]byte, error) {
	there, err := k.decode(text)
	if err != nil {
		return nil, err
	}
	for i := p.Number; i < p.Number+p.Span; i++ {
		there[i] = true
	}
	m := k.mark
	for i := 1; i <= len(there); i++ {
		if i < len(there) && there[i] == there[i-1] {
			continue
		}
		r := MarkRange{State: Unread}
		if there[i-1] {
			r.State = Done
		}
		if i < len(there) {
			r.Upto = hex.EncodeToString(k.cuts[i-1].Key)
		}
		m.Ranges = append(m.Ranges, r)
	}
	return json.Marshal(m)
}

// has tells whether a mark has all of a part.
func (k *keyed) has(text []byte, p *Part) (bool, error) {
	there, err := k.decode(text)
	if err != nil {
		return false, err
	}
	for i := p.Number; i < p.Number+p.Span; i++ {
		if !there[i] {
			return false, nil
		}
	}
	return true, nil
}

// keyRanges finds the tables that are copied by ranges of their keys. It runs under
// the snapshot.
func (c *copier) keyRanges(ctx context.Context) error {
	least := c.MinKeyed
	if least <= 0 {
		least = DefaultMinKeyed
	}
	conn := c.Holder.Conn()
	for _, t := range c.Tables {
		if c.Levels != nil || t.Source.Bytes < least || len(t.Columns) == 0 {
			continue // where foreign keys are checked, a table comes in one statement
		}
		chunk, err := DescribeChunks(ctx, conn, t.Source.OID, true, c.Keys)
		if err != nil {
			return err
		}
		inOrder, err := chunk.InOrder(ctx, conn)
		if err != nil {
			return err
		}
		if !inOrder || chunk.Key.path != "" { // whose operators the streams' sessions would not find
			continue
		}
		cuts, err := chunk.Cuts(ctx, conn, int(min(mostRanges, leastRanges*t.Source.Bytes/least)))
		if err != nil {
			return err
		}
		if len(cuts) > 0 {
			c.keyed = append(c.keyed, newKeyed(t, chunk, cuts, c.Holder.Filenode(t.Source.OID)))
		}
	}
	return nil
}

func newKeyed(t *Table, chunk *ChunkTable, cuts []Cut, file uint32) *keyed {
	k := &keyed{table: t, chunk: chunk, cuts: cuts, span: 1, index: map[string]int{}, mark: Mark{File: file, Key: chunk.Key.columnNames()}}
	for i := range cuts {
		k.index[hex.EncodeToString(cuts[i].Key)] = i
	}
	return k
}

const correlationSQL = `
SELECT COALESCE((SELECT abs(s.correlation)::float8 FROM pg_catalog.pg_stats s
                  WHERE s.schemaname = $1 AND s.tablename = $2 AND s.attname = $3 AND NOT s.inherited), 0)`

// InOrder tells whether rows can be read in the order of the key about as fast as in
// the order in which they lie, as far as the statistics know.
func (t *ChunkTable) InOrder(ctx context.Context, q catalog.Querier) (bool, error) {
	if t.Key == nil {
		return false, nil
	}
	if t.Rows > 0 && t.Bytes/t.Rows >= wideRow {
		return t.indexed, nil
	}
	var correlation float64
	err := q.QueryRow(ctx, correlationSQL, t.Rel.Name.Schema, t.Rel.Name.Name, t.Key.Columns[0].Name).Scan(&correlation)
	return t.indexed && math.Abs(correlation) >= InOrder, session.Wrap("read statistics", millrace.PeerSource, err)
}

// keyedMark leaves the mark of a table that is copied by ranges of its key. What is
// there is read from the destination, since a transaction whose outcome is not known
// may have added to it: the row is locked until that is over.
func (c *copier) keyedMark(ctx context.Context, tx pgx.Tx, k *keyed, moved *Copied) error {
	m, err := c.LockMark(ctx, tx, k.table.Source.OID)
	if err != nil {
		return err
	}
	moved.TableRows, moved.TableBytes = m.Rows+moved.Rows, m.Bytes+moved.Bytes
	moved.Mark, err = k.with(m.State, moved.Part)
	return err
}
