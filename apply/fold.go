package apply

import (
	"bytes"
	"hash/maphash"
	"math/bits"

	"github.com/millrace/millrace"
)

// fold is one table's part of a batch: the net effect of its changes, by key.
//
// A key is compared by the bytes that the source stores. Two keys that the
// target takes for equal may differ in them (1.0 and 1.00, -0 and 0), but at
// most one of them is alive at a time, and the source sends a change of the key
// when one becomes the other. So the net effect is right as long as what was
// inserted and deleted in the batch leaves nothing behind, and deletes run
// before updates and these before inserts.
type fold struct {
	entries []entry
	// base is where the entries of the set step that is being built start;
	// slots that point below it are free.
	base  int
	slots []uint32 // open addressing: index into entries plus one
	work  *work    // of the stage that is being built
	stage int      // its number
}

// entry is the net effect on the row with one key.
type entry struct {
	hash  uint32
	state state
	// unsent: row has values that were not sent and are not known.
	unsent bool
	key    millrace.Row // a row whose key columns are the key
	row    millrace.Row // the new values of inserted and updated
}

// state is what the changes so far add up to.
type state byte

const (
	nothing  state = iota // inserted and deleted again
	inserted              // did not exist before the set
	updated               // existed before
	deleted               // existed before
	replaced              // existed before, deleted and inserted again
	put                   // may have existed before, see Put
	removed               // as well
)

var seed = maphash.MakeSeed()

// hashKey hashes the key columns of a row.
func hashKey(row millrace.Row, key []int) uint32 {
	var h uint64
	for _, k := range key {
		h = bits.RotateLeft64(h, 7) ^ maphash.Bytes(seed, row[k].Raw)
	}
	return uint32(h ^ h>>32)
}

func sameKey(a, b millrace.Row, key []int) bool {
	for _, k := range key {
		if !sameValue(&a[k], &b[k]) {
			return false
		}
	}
	return true
}

func sameValue(a, b *millrace.Value) bool { return a.Kind == b.Kind && bytes.Equal(a.Raw, b.Raw) }

// find gives the entry with the key, or nil.
func (f *fold) find(r *route, row millrace.Row, hash uint32) *entry {
	if len(f.slots) == 0 {
		return nil
	}
	mask := uint32(len(f.slots) - 1)
	for at := hash & mask; ; at = (at + 1) & mask {
		n := int(f.slots[at]) - 1
		if n < f.base {
			return nil
		}
		if e := &f.entries[n]; e.hash == hash && sameKey(e.key, row, r.key) {
			return e
		}
	}
}

// add makes an entry for a key that has none.
func (f *fold) add(e entry) {
	f.entries = append(f.entries, e)
	if 2*(len(f.entries)-f.base) > len(f.slots) {
		f.grow()
		return
	}
	f.place(len(f.entries) - 1)
}

func (f *fold) place(n int) {
	mask := uint32(len(f.slots) - 1)
	at := f.entries[n].hash & mask
	for int(f.slots[at]) > f.base {
		at = (at + 1) & mask
	}
	f.slots[at] = uint32(n + 1)
}

const fewSlots = 64

func (f *fold) grow() {
	size := max(fewSlots, 2*len(f.slots))
	f.slots = make([]uint32, size)
	for n := f.base; n < len(f.entries); n++ {
		f.place(n)
	}
}

// reset forgets all but the memory.
func (f *fold) reset() {
	clear(f.entries) // what they refer to is released
	clear(f.slots)
	f.entries, f.base, f.work, f.stage = f.entries[:0], 0, nil, -1
}

// foldPool keeps the memory of folds from batch to batch, whichever table it
// was for: a table that is written once does not hold on to it.
type foldPool struct {
	free    []*fold
	entries int // room in them
}

// poolMost bounds what is kept, in entries: some 4 MiB.
const poolMost = 1 << 16

func (p *foldPool) get() *fold {
	n := len(p.free)
	if n == 0 {
		return &fold{stage: -1}
	}
	f := p.free[n-1]
	p.free = p.free[:n-1]
	p.entries -= cap(f.entries)
	return f
}

func (p *foldPool) put(f *fold) {
	if p.entries+cap(f.entries) > poolMost {
		return
	}
	f.reset()
	p.free = append(p.free, f)
	p.entries += cap(f.entries)
}

// The methods below fold one change in. They return false where the change
// contradicts what went before: the row path finds out which of them is true.

func (f *fold) insert(r *route, row millrace.Row) bool {
	h := hashKey(row, r.key)
	e := f.find(r, row, h)
	switch {
	case e == nil:
		f.add(entry{hash: h, state: inserted, key: row, row: row})
	case e.state == nothing:
		e.state, e.row, e.unsent = inserted, row, false
	case e.state == deleted:
		e.state, e.row, e.unsent = replaced, row, false
	case e.state == removed:
		e.state, e.row, e.unsent = put, row, false
	default:
		return false
	}
	return true
}

// delete folds the deletion of the row with old's key; full tells that old is
// the whole row as it was.
func (f *fold) delete(r *route, old millrace.Row, full bool) bool {
	h := hashKey(old, r.key)
	e := f.find(r, old, h)
	switch {
	case e == nil:
		f.add(entry{hash: h, state: deleted, key: old})
		return true
	case full && !e.was(r, old):
		return false
	case e.state == inserted:
		e.state = nothing
	case e.state == updated || e.state == replaced:
		e.state = deleted
	case e.state == put:
		e.state = removed
	default:
		return false
	}
	e.row, e.unsent = nil, false
	return true
}

// update folds an update that leaves the key as it is.
func (f *fold) update(r *route, c *millrace.Change, row millrace.Row, unsent bool, a *arena) bool {
	h := hashKey(row, r.key)
	e := f.find(r, row, h)
	switch {
	case e == nil:
		f.add(entry{hash: h, state: updated, unsent: unsent, key: row, row: row})
		return true
	case e.state == nothing || e.state == deleted || e.state == removed:
		return false
	case c.OldFull && !e.was(r, c.Old):
		return false
	case !unsent:
		e.row, e.unsent = row, false
		return true
	}
	e.row, e.unsent = a.merge(row, e.row)
	return true
}

// was tells whether old, a whole row as it was before a change, can be the row
// as the entry knows it. Under FULL the key is one of the target; where the
// source has several rows with it, they must not be taken for one.
func (e *entry) was(r *route, old millrace.Row) bool {
	if e.row == nil {
		return true
	}
	for _, i := range r.insert {
		if v := &e.row[i]; v.Kind != millrace.Unchanged && !sameValue(v, &old[i]) {
			return false
		}
	}
	return true
}

// hasUnsent tells whether a row has values that were not sent.
func hasUnsent(r *route, row millrace.Row) bool {
	for _, i := range r.insert {
		if row[i].Kind == millrace.Unchanged {
			return true
		}
	}
	return false
}

// arena makes rows for merged values. Its memory is reused batch by batch.
type arena struct {
	free []millrace.Value
	all  [][]millrace.Value
	used int
}

const arenaChunk = 4096

func (a *arena) row(n int) millrace.Row {
	if len(a.free) < n {
		if a.used == len(a.all) {
			a.all = append(a.all, make([]millrace.Value, max(arenaChunk, n)))
		}
		if a.free = a.all[a.used]; len(a.free) < n {
			a.free = make([]millrace.Value, n)
			a.all[a.used] = a.free
		}
		a.used++
	}
	row := a.free[:n:n]
	a.free = a.free[n:]
	return row
}

// merge puts a row's values over those that it was sent without.
func (a *arena) merge(over, under millrace.Row) (row millrace.Row, unsent bool) {
	row = a.row(len(over))
	for i := range over {
		row[i] = over[i]
		if over[i].Kind == millrace.Unchanged && i < len(under) {
			row[i] = under[i]
			unsent = unsent || under[i].Kind == millrace.Unchanged
		}
	}
	return row, unsent
}

func (a *arena) reset() {
	const keep = 16 // chunks
	if len(a.all) > keep {
		a.all = a.all[:keep:keep]
	}
	for _, chunk := range a.all {
		clear(chunk) // what the values refer to is released
	}
	a.free, a.used = nil, 0
}
