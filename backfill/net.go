package backfill

import (
	"encoding/binary"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/snapshot"
)

// Where the ranges of a table are of other columns than those that tell its rows
// apart, a row can be in one range before a change and in another behind it. Given
// away at once, a chunk could bring the newer row while the older one is still at the
// destination, in a range that was read before: a unique constraint would refuse it
// there, and a delete of the older row, which is found by what tells it apart, would
// take the newer one. So such a chunk is given away only when the stream has passed all
// that its snapshot sees, and as its rows are then: what was held is carried out on
// them here. What the destination holds is then at any time what the source held in
// those ranges at one moment.

// strict tells whether that is so.
func (s *Source) strict(l *load) bool {
	return l.table != nil && l.table.Key != nil && l.table.Key.Apart && !s.opt.Early
}

// net carries out changes on the rows of a chunk. It reports false if there is none
// of the rows that they speak of.
func net(rows *snapshot.Rows, changes []held) bool {
	if len(changes) == 0 {
		return true
	}
	places := make(map[string][]int, len(rows.Changes))
	for i := range rows.Changes {
		image := imageOf(rows.Changes[i].New)
		places[image] = append(places[image], i)
	}
	gone := map[int]bool{}
	remove := func(row millrace.Row) bool {
		image := imageOf(row)
		at := places[image]
		if len(at) == 0 {
			return false
		}
		gone[at[len(at)-1]] = true
		places[image] = at[:len(at)-1]
		return true
	}
	for i := range changes {
		c := &changes[i].change
		if c.Op != millrace.Insert && (!c.OldFull || !remove(c.Old)) {
			return false
		}
		if c.Op == millrace.Delete {
			continue
		}
		image := imageOf(c.New)
		places[image] = append(places[image], len(rows.Changes))
		rows.Changes = append(rows.Changes, millrace.Change{Op: millrace.Read, Rel: c.Rel, New: c.New})
		rows.Size += sizeOf(c.New)
	}
	kept := rows.Changes[:0]
	for i := range rows.Changes {
		if !gone[i] {
			rows.Changes[i].Seq = uint64(len(kept) + 1)
			kept = append(kept, rows.Changes[i])
		}
	}
	rows.Changes = kept
	return true
}

// imageOf gives the bytes of all values of a row.
func imageOf(row millrace.Row) string {
	n := 0
	for i := range row {
		n += 5 + len(row[i].Raw)
	}
	b := make([]byte, 0, n)
	for i := range row {
		b = append(b, byte(row[i].Kind))
		b = binary.BigEndian.AppendUint32(b, uint32(len(row[i].Raw)))
		b = append(b, row[i].Raw...)
	}
	return string(b)
}
