package apply

import (
	"time"

	"github.com/millrace/millrace"
)

// batch is what is executed at a time: whole source transactions, or parts of
// one large one. While one batch is executed the next is prepared.
//
// A batch is a list of stages that are executed in order. Within a stage every
// table has its own list of steps, and those of different tables do not depend
// on each other; what does, a TRUNCATE and changes of tables with triggers, is a
// stage of its own.
type batch struct {
	slot      int // 0 or 1: which of target.folds is ours
	txns      []*millrace.Txn
	stages    []stage
	routes    map[*millrace.Relation]*route
	recent    *route // the last one used, of recentRel: several relations that are alike share one
	recentRel *millrace.Relation
	folds     []*target // that have a fold here
	pool      foldPool
	arena     arena

	changes    int
	held       int64
	started    time.Time      // when the first part was added
	large      bool           // parts of a transaction that came in several
	open       bool           // the transaction's last part is still to come
	complete   int            // source transactions that end in it
	phase      millrace.Phase // of the one transaction in it, if that is not Committed
	deferrable bool           // a table with deferrable constraints is in it
	merges     bool           // staged rows take the place of a table's
	// unfoldable: changes contradict each other, so the row path must find out.
	unfoldable bool
	// byRow counts the transactions that have a change which goes row by row.
	byRow   int
	lastRow *millrace.Txn

	// idle is a newer position than that of the last transaction, up to which
	// the source has nothing for us; zero if there is none.
	idle    millrace.LSN
	history *millrace.History
}

// stage is one of three: works by table, changes of any tables in their order,
// or a TRUNCATE.
type stage struct {
	works    []*work
	rows     []*millrace.Change
	truncate *millrace.Change
}

// work is what one table has to do in a stage.
type work struct {
	to    *target
	fold  *fold
	steps []step
}

// step is a set of folded changes, entries lo to hi of the fold, or rows in
// their order.
type step struct {
	route  *route
	lo, hi int
	rows   []*millrace.Change
}

func (b *batch) empty() bool { return len(b.txns) == 0 }

// foldOverhead estimates what a change costs here beside the Txn's own memory:
// its entry, slots and the pointer to it.
const foldOverhead = 128

// route gives the route of a relation that is in the batch.
func (b *batch) route(rel *millrace.Relation) *route {
	if b.recentRel != rel {
		b.recent, b.recentRel = b.routes[rel], rel
	}
	return b.recent
}

// meet is route while the batch is prepared, when relations are new to it.
func (b *batch) meet(rel *millrace.Relation, known map[*millrace.Relation]*route) *route {
	if b.recent != nil && b.recentRel == rel {
		return b.recent
	}
	r := b.routes[rel]
	if r == nil {
		if b.routes == nil {
			b.routes = map[*millrace.Relation]*route{}
		}
		r = known[rel]
		b.routes[rel] = r
	}
	b.recent, b.recentRel = r, rel
	return r
}

// add takes over a transaction or part, with the routes of its relations.
func (b *batch) add(t *millrace.Txn, known map[*millrace.Relation]*route, now time.Time) {
	if b.empty() {
		b.started = now
		b.large = t.Part > 0 || !t.Last
		b.phase = t.Phase
	}
	b.txns = append(b.txns, t)
	b.changes += len(t.Changes)
	b.held += t.Size + int64(len(t.Changes))*foldOverhead
	b.open = !t.Last
	if t.Chunk != nil {
		b.idle = max(b.idle, t.End)
	}
	if t.Last {
		b.complete++
	}
	if t.From != nil {
		b.history = t.From
	}
	for i := range t.Changes {
		b.change(t, &t.Changes[i], known, now)
	}
}

func (b *batch) change(t *millrace.Txn, c *millrace.Change, known map[*millrace.Relation]*route, now time.Time) {
	switch c.Op {
	case millrace.Message:
		return
	case millrace.Truncate:
		b.stages = append(b.stages, stage{truncate: c})
		for _, rel := range c.Truncated.Rels {
			to := b.meet(rel, known).to
			b.deferrable = b.deferrable || to.deferrable
		}
		return
	}
	r := b.meet(c.Rel, known)
	b.deferrable = b.deferrable || r.to.deferrable
	if c.Op == millrace.Merge {
		b.merges = true
		b.inOrder(c)
		return
	}
	if r.to.strict {
		b.countRow(t)
		b.inOrder(c)
		return
	}
	w := b.work(r.to)
	if b.unfoldable || !r.to.cooled(now) || !b.set(w, r, c) {
		b.countRow(t)
		w.row(c)
	}
}

// countRow counts a transaction on the row path, once.
func (b *batch) countRow(t *millrace.Txn) {
	if b.lastRow == nil || b.lastRow.Commit != t.Commit {
		b.byRow++
	}
	b.lastRow = t
}

// inOrder adds a change that keeps its place among those of all tables.
func (b *batch) inOrder(c *millrace.Change) {
	if n := len(b.stages); n == 0 || b.stages[n-1].rows == nil {
		b.stages = append(b.stages, stage{})
	}
	last := &b.stages[len(b.stages)-1]
	last.rows = append(last.rows, c)
}

// work gives the table's work in the stage that is being built.
func (b *batch) work(t *target) *work {
	f := t.folds[b.slot]
	if f == nil {
		f = b.pool.get()
		t.folds[b.slot] = f
		b.folds = append(b.folds, t)
	}
	n := len(b.stages)
	if n == 0 || b.stages[n-1].works == nil {
		b.stages = append(b.stages, stage{works: make([]*work, 0, 8)})
		n++
	}
	if f.stage != n-1 {
		f.stage = n - 1
		f.base = len(f.entries)
		f.work = &work{to: t, fold: f}
		b.stages[n-1].works = append(b.stages[n-1].works, f.work)
	}
	return f.work
}

// set folds a change into the table's set step and tells whether that was
// possible.
func (b *batch) set(w *work, r *route, c *millrace.Change) bool {
	if c.Op == millrace.Amend || c.Op == millrace.Put && !r.putsInSets() {
		return false
	}
	if !r.sets && (c.Op != millrace.Insert || len(r.insert) == 0 || r.to.single != "") {
		return false
	}
	f := w.fold
	w.openSet(r)
	ok := true
	switch {
	case !r.sets: // without a key nothing can fold
		f.entries = append(f.entries, entry{state: inserted, row: c.New})
	case c.Op == millrace.Insert:
		ok = f.insert(r, c.New)
	case c.Op == millrace.Delete:
		ok = f.delete(r, c.Old, c.OldFull)
	case c.Op == millrace.Put:
		ok = (c.Old == nil || sameKey(c.Old, c.New, r.key) || f.remove(r, c.Old)) && f.put(r, c.New)
	case c.Op == millrace.Remove:
		ok = f.remove(r, c.Old)
	default:
		var folded bool
		if folded, ok = b.foldUpdate(f, r, c); !folded {
			w.closeSet()
			return false
		}
	}
	if !ok {
		b.unfoldable = true
	}
	w.closeSet()
	return true
}

// foldUpdate folds an update. It is not folded when the key changes and the row
// can't be made anew from what is known.
func (b *batch) foldUpdate(f *fold, r *route, c *millrace.Change) (folded, ok bool) {
	row, unsent := c.New, hasUnsent(r, c.New)
	if c.Old == nil {
		return true, f.update(r, c, row, unsent, &b.arena)
	}
	if unsent {
		row = b.fillKey(r, c)
	}
	if sameKey(c.Old, row, r.key) {
		return true, f.update(r, c, row, unsent, &b.arena)
	}
	was := f.find(r, c.Old, hashKey(c.Old, r.key))
	existed := was == nil || was.state == updated
	if unsent && c.OldFull {
		row, unsent = b.arena.merge(row, c.Old)
	}
	if unsent {
		if was != nil && was.row != nil {
			row, unsent = b.arena.merge(row, was.row)
		} else {
			unsent = hasUnsent(r, row)
		}
	}
	if unsent || r.partial && existed {
		return false, true
	}
	return true, f.delete(r, c.Old, c.OldFull) && f.insert(r, row)
}

// fillKey gives the new row with the key's values taken from the old one where
// they were not sent again.
func (b *batch) fillKey(r *route, c *millrace.Change) millrace.Row {
	row := c.New
	for _, k := range r.key {
		if row[k].Kind != millrace.Unchanged {
			continue
		}
		if &row[0] == &c.New[0] {
			row = b.arena.row(len(c.New))
			copy(row, c.New)
		}
		row[k] = c.Old[k]
	}
	return row
}

// openSet makes the last step a set for the route.
func (w *work) openSet(r *route) {
	if n := len(w.steps); n > 0 {
		if s := &w.steps[n-1]; s.rows == nil && s.route == r {
			return
		}
	}
	w.fold.base = len(w.fold.entries)
	w.steps = append(w.steps, step{route: r, lo: w.fold.base, hi: w.fold.base})
}

// hasSets tells whether a step is a set that does something.
func (w *work) hasSets() bool {
	for i := range w.steps {
		if s := &w.steps[i]; s.rows == nil && s.hi > s.lo {
			return true
		}
	}
	return false
}

func (w *work) closeSet() { w.steps[len(w.steps)-1].hi = len(w.fold.entries) }

// row adds a change to the table's last step, a row step.
func (w *work) row(c *millrace.Change) {
	if n := len(w.steps); n == 0 || w.steps[n-1].rows == nil {
		w.steps = append(w.steps, step{})
	}
	s := &w.steps[len(w.steps)-1]
	s.rows = append(s.rows, c)
}

// last gives the last transaction that ends in the batch.
func (b *batch) last() *millrace.Txn { return b.txns[len(b.txns)-1] }

// source gives the last source transaction that ends in the batch, nil if there
// are only chunks.
func (b *batch) source() *millrace.Txn {
	for i := len(b.txns) - 1; i >= 0; i-- {
		if b.txns[i].Chunk == nil {
			return b.txns[i]
		}
	}
	return nil
}

// release gives the transactions back to their maker and empties the batch.
func (b *batch) release() {
	for i, t := range b.txns {
		t.Release()
		b.txns[i] = nil
	}
	for i, t := range b.folds {
		b.pool.put(t.folds[b.slot])
		t.folds[b.slot] = nil
		b.folds[i] = nil
	}
	clear(b.stages)
	b.arena.reset()
	clear(b.routes)
	*b = batch{slot: b.slot, txns: b.txns[:0], routes: b.routes, stages: b.stages[:0], folds: b.folds[:0], pool: b.pool, arena: b.arena}
}
