package backfill

import (
	"encoding/binary"
	"slices"
	"time"

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

// limited tells whether rows of the table with different keys can be in each other's way
// at the destination: it has further unique columns. A value may have moved from a row
// that was read to one of the chunk, or, of what was held, the other way. So such a chunk
// is given away as its rows are where the stream is, as above.
func (s *Source) limited(l *load) bool {
	return l.table != nil && l.table.Key != nil && l.table.Limited && !l.table.Key.Apart && !l.table.Key.Shared
}

// A chunk of a limited table does not wait any more after so many in a row that have
// waited for that long, or of whose rows so much changed meanwhile that they could not be
// used: behind a stream that always lags the load would make no headway. Then what the
// destination refuses is read again.
const (
	mostLate = 10
	longWait = time.Minute
)

// waited counts the chunks that were late.
func (l *load) waited(void bool, took time.Duration) {
	if void || took > longWait {
		l.late++
		return
	}
	l.late = 0
}

// netByKey carries out changes on the rows of a chunk, which their keys tell apart. If
// that can't be done it reports false, and the rows stay as they are.
func netByKey(rows *snapshot.Rows, changes []held) bool {
	if len(changes) == 0 {
		return true
	}
	all, keys, size := slices.Clone(rows.Changes), slices.Clone(rows.Keys), rows.Size
	at := make(map[string]int, len(keys))
	for i, key := range keys {
		at[string(key)] = i
	}
	for i := range changes {
		c, key := &changes[i].change, changes[i].key
		n, there := at[string(key)]
		if there != (c.Op != millrace.Insert) {
			return false
		}
		switch c.Op {
		case millrace.Insert:
			if lacks(c) { // a row that came from another key, whose large values were not sent
				return false
			}
			at[string(key)] = len(all)
			all = append(all, millrace.Change{Op: millrace.Read, Rel: c.Rel, New: c.New})
			keys = append(keys, key)
			size += sizeOf(c.New)
		case millrace.Update:
			row := updated(&all[n], c)
			if row == nil {
				return false
			}
			size += sizeOf(row) - sizeOf(all[n].New)
			all[n] = millrace.Change{Op: millrace.Read, Rel: c.Rel, New: row}
		case millrace.Delete:
			delete(at, string(key))
			size -= sizeOf(all[n].New)
			all[n].New = nil
		default:
			return false
		}
	}
	rows.Changes, rows.Keys, rows.Size = rows.Changes[:0:0], rows.Keys[:0:0], size
	for i := range all {
		if all[i].New != nil {
			all[i].Seq = uint64(len(rows.Changes) + 1)
			rows.Changes, rows.Keys = append(rows.Changes, all[i]), append(rows.Keys, keys[i])
		}
	}
	return true
}

// updated gives a row as an update leaves it, or nil if it does not fit the row.
func updated(old, c *millrace.Change) millrace.Row {
	row := slices.Clone(c.New)
	for i := range row {
		if row[i].Kind != millrace.Unchanged {
			continue
		}
		if !slices.EqualFunc(old.Rel.Columns, c.Rel.Columns, func(a, b millrace.Column) bool { return a.Name == b.Name }) {
			return nil
		}
		row[i] = old.New[i]
	}
	return row
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
