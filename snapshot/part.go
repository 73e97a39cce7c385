package snapshot

import (
	"cmp"
	"fmt"
	"slices"
)

// Part is what one COPY reads: a table, or the rows of one on a range of pages.
type Part struct {
	Table  *Table
	Number int // from 0
	Of     int // how many parts the table has
	// First and End are pages: First <= page < End. The last part has no end,
	// since tables grow; under one snapshot each visible row has one place.
	First, End uint32
	Bytes      int64 // estimated
	// Keyed parts are ranges of keys: Span of the Of slots that the table is cut
	// into, from Number on.
	Keyed bool
	Span  int
	where string
}

// Whole tells whether the part is all of the table.
func (p *Part) Whole() bool { return p.Of == 1 }

// Last tells whether the part goes on to the table's end.
func (p *Part) Last() bool { return p.Number == p.Of-1 }

func (p *Part) String() string {
	if p.Whole() {
		return p.Table.Name().String()
	}
	return fmt.Sprintf("%s part %d of %d", p.Table.Name(), p.Number+1, p.Of)
}

// DefaultMinPart is the least size of a part: a smaller one costs more in
// statements and transactions than it gives in balance.
const DefaultMinPart = 32 << 20

// Split makes the parts that streams side by side read, largest first, so that
// none is left alone with a large table at the end. Pages are those of the main
// fork, by the table's OID at the source.
func Split(tables []*Table, pages map[uint32]int64, streams int, least int64) []Part {
	var total int64
	for _, t := range tables {
		total += t.Source.Bytes
	}
	// A quarter of a stream's share keeps all of them busy to the end.
	if least <= 0 {
		least = DefaultMinPart
	}
	most := max(least, total/int64(4*max(1, streams)))
	var parts []Part
	for _, t := range tables {
		n := int64(1)
		if streams > 1 && len(t.Columns) > 0 {
			n = min((t.Source.Bytes+most-1)/most, pages[t.Source.OID])
		}
		n = max(1, n)
		for i := range n {
			parts = append(parts, Part{Table: t, Number: int(i), Of: int(n), Span: 1, Bytes: t.Source.Bytes / n,
				First: uint32(pages[t.Source.OID] * i / n), End: uint32(pages[t.Source.OID] * (i + 1) / n)})
		}
	}
	slices.SortStableFunc(parts, func(a, b Part) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return parts
}

// readSQL gives the command that reads the part.
func (p *Part) readSQL() string {
	name, cols := p.Table.Name().SQL(), p.Table.columnList()
	if p.Whole() {
		return fmt.Sprintf("COPY %s (%s) TO STDOUT%s", name, cols, p.Table.format())
	}
	if p.Keyed {
		return fmt.Sprintf("COPY (SELECT %s FROM ONLY %s WHERE %s) TO STDOUT%s", cols, name, p.where, p.Table.format())
	}
	where := fmt.Sprintf("ctid >= '(%d,0)'::pg_catalog.tid", p.First)
	if !p.Last() {
		where += fmt.Sprintf(" AND ctid < '(%d,0)'::pg_catalog.tid", p.End)
	}
	return fmt.Sprintf("COPY (SELECT %s FROM ONLY %s WHERE %s) TO STDOUT%s", cols, name, where, p.Table.format())
}

func (t *Table) writeSQL() string {
	return fmt.Sprintf("COPY %s (%s) FROM STDIN%s", t.Target.Name.SQL(), t.columnList(), t.format())
}

func (t *Table) format() string {
	if t.Binary {
		return " (FORMAT binary)"
	}
	return ""
}
