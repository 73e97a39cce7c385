package backfill

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/snapshot"
)

// verdict is what becomes of a change, as far as one key is concerned.
type verdict int

const (
	pass verdict = iota // the destination has what the change is about
	seen                // the rows of a chunk show it
	wait                // the key is unread: its chunk will show it
	hold                // the chunk that shows it, or not, is being read
)

// held is a change of a range that is being read. Without an Op only the key
// counts: the change itself has passed. (What has passed of a hole is held as well: its row
// may change faster than it can be read.)
type held struct {
	by     author
	key    []byte
	change millrace.Change
	leaves known // of the row with the key, where changes pass early
}

// known is what somebody who takes changes early has of a row behind one, whatever he had
// before.
type known byte

const (
	asBefore known = iota // an update did not send all values
	whole                 // all of it, or that it is not there
	lacking               // it came from another key without all values
)

// author is the transaction of a change.
type author struct {
	xid    uint32
	commit millrace.LSN
}

// in tells whether the rows of a chunk that was given away show what the
// transaction did. That is known then: see [Source.decided].
func (a author) in(v *snapshot.View) bool {
	sees, _ := v.Shows(a.xid, a.commit)
	return sees
}

// touch is one change of a transaction that may not pass, with its keys in the
// list of those that are ranked at once.
type touch struct {
	at       int // in the transaction's changes
	old, new int // -1: none
}

// sift takes out of a transaction, or a part of one, what must not reach the
// destination. conn is asked for the order of keys that is not known here.
func (s *Source) sift(ctx context.Context, t *millrace.Txn) error {
	s.passOver(t)
	any := false
	for i := range t.Changes {
		c := &t.Changes[i]
		if c.Op == millrace.Truncate {
			any = any || slices.ContainsFunc(c.Truncated.Rels, func(r *millrace.Relation) bool { return s.loads[r.OID] != nil })
		} else if c.Rel != nil && s.loads[c.Rel.OID] != nil {
			any = true
		}
	}
	if !any {
		return nil
	}
	// A TRUNCATE, and a change by another key, can change the ranges: what follows is
	// judged by the new ones.
	kept := t.Changes[:0]
	for from := 0; from < len(t.Changes); {
		to := from
		for to < len(t.Changes) && t.Changes[to].Op != millrace.Truncate && s.fits(&t.Changes[to]) {
			to++
		}
		var err error
		if kept, err = s.siftRows(ctx, t, kept, from, to); err != nil {
			return err
		}
		if to < len(t.Changes) {
			c := t.Changes[to]
			if c.Op == millrace.Truncate && s.truncate(t, &c) || c.Op != millrace.Truncate && s.begun(&c) {
				c.Early = c.Op != millrace.Truncate
				kept = append(kept, c)
			}
			to++
		}
		from = to
	}
	t.Changes = kept
	s.redirect(kept)
	return nil
}

// passOver takes out changes of tables that have joined the job later. Whether the stream has all of
// what was before depends on where it was then, and what the publication had; any snapshot of the load sees it. What
// is passed over comes before all that is not, in the order of commits, so that this holds where changes pass early as well.
func (s *Source) passOver(t *millrace.Txn) {
	if !slices.ContainsFunc(s.order, func(l *load) bool { return t.Commit < l.since }) {
		return
	}
	older := func(rel *millrace.Relation) bool {
		if rel == nil {
			return false
		}
		l := s.loads[rel.OID]
		return l != nil && t.Commit < l.since
	}
	t.Changes = slices.DeleteFunc(t.Changes, func(c millrace.Change) bool {
		if c.Op != millrace.Truncate {
			return older(c.Rel)
		}
		c.Truncated.Rels = slices.DeleteFunc(c.Truncated.Rels, older)
		return len(c.Truncated.Rels) == 0
	})
}

// fits tells whether the stream sends with a change what the ranges of its table
// are cut by.
func (s *Source) fits(c *millrace.Change) bool {
	if c.Rel == nil {
		return true
	}
	l := s.loads[c.Rel.OID]
	if l == nil || l.table == nil || l.table.Key == nil {
		return true
	}
	at, sent := l.keyIn(c.Rel)
	return at != nil && (sent || c.Op == millrace.Insert)
}

// keyIn tells where the columns of the key are in a relation of the stream, and
// whether they are sent of every old row.
func (l *load) keyIn(rel *millrace.Relation) (at []int, sent bool) {
	if l.rel != rel || l.relKey != l.table.Key {
		l.rel, l.relKey = rel, l.table.Key
		l.keyAt, l.keySent = l.table.Key.In(rel)
	}
	return l.keyAt, l.keySent
}

// begun has a table read from its beginning because of a change that does not say
// which range it is in: at this point of the stream the replica identity, or the
// columns of the key, are others than those that the table was described with. The
// change turns into the emptying of the table, if there is anything of it at the
// destination, in the same transaction.
func (s *Source) begun(c *millrace.Change) (passes bool) {
	l := s.loads[c.Rel.OID]
	filled := !l.untouched()
	if filled {
		s.log.Warn("the key of the table is another one: it is read again", "table", l.name)
		s.note(l)
	}
	l.reset()
	l.changed = true
	s.wakeWorkers()
	if s.opt.Early || !filled {
		return s.opt.Early
	}
	*c = millrace.Change{Op: millrace.Truncate, Seq: c.Seq,
		Truncated: &millrace.Truncation{Rels: []*millrace.Relation{l.table.Rel}, AsDelete: true}}
	return true
}

// siftRows judges the changes from up to to, and appends what remains of them.
func (s *Source) siftRows(ctx context.Context, t *millrace.Txn, kept []millrace.Change, from, to int) ([]millrace.Change, error) {
	touches := map[*load][]touch{}
	keys := map[*load][][]byte{}
	for i := from; i < to; i++ {
		c := &t.Changes[i]
		if c.Rel == nil {
			continue
		}
		l := s.loads[c.Rel.OID]
		if l == nil {
			continue
		}
		x := touch{at: i, old: -1, new: -1}
		if err := l.keysOf(c, &x, keys); err != nil {
			return kept, s.changeError(t, c, err)
		}
		touches[l] = append(touches[l], x)
	}
	places := map[*load][]int{}
	for l := range touches {
		if l.table == nil || l.table.Key == nil || len(l.segments) == 1 {
			continue
		}
		conn, err := s.comparer(ctx, l)
		if err != nil {
			return kept, err
		}
		if places[l], err = l.table.Key.Rank(ctx, conn, keys[l], l.bounds()); err != nil {
			return kept, err
		}
	}
	next := map[*load]int{}
	for i := from; i < to; i++ {
		c := t.Changes[i]
		var l *load
		if c.Rel != nil {
			l = s.loads[c.Rel.OID]
		}
		if l == nil {
			kept = append(kept, c)
			continue
		}
		x := touches[l][next[l]]
		next[l]++
		if s.judge(l, author{t.XID, t.Commit}, &c, x, keys[l], places[l]) {
			c.Early = s.early(l)
			kept = append(kept, c)
		}
	}
	return kept, nil
}

// keysOf finds the keys of a change that fits.
func (l *load) keysOf(c *millrace.Change, x *touch, keys map[*load][][]byte) error {
	if l.table == nil || l.table.Key == nil {
		return nil
	}
	at, _ := l.keyIn(c.Rel)
	add := func(row millrace.Row) (int, error) {
		key, err := l.table.Key.EncodeKeyAt(row, at)
		if err != nil {
			return -1, err
		}
		keys[l] = append(keys[l], key)
		return len(keys[l]) - 1, nil
	}
	var err error
	if c.Old != nil {
		if x.old, err = add(c.Old); err != nil {
			return err
		}
	}
	if c.New == nil {
		return nil
	}
	if c.Old != nil {
		for _, i := range at { // sent with the old row only, being large
			if c.New[i].Kind == millrace.Unchanged {
				c.New[i] = c.Old[i]
			}
		}
	}
	if x.new, err = add(c.New); err != nil {
		return err
	}
	if x.old >= 0 && string(keys[l][x.old]) == string(keys[l][x.new]) {
		x.old = -1
	}
	return nil
}

// judge decides about a change, which it may turn into a delete or an insert, and
// tells whether it passes.
func (s *Source) judge(l *load, by author, c *millrace.Change, x touch, keys [][]byte, places []int) bool {
	look := func(n int) (verdict, *pending, []byte) {
		if n < 0 {
			v, p := l.place(nil, 0, by)
			return v, p, nil
		}
		at := 0
		if places != nil {
			at = places[n]
		}
		v, p := l.place(keys[n], at, by)
		return v, p, keys[n]
	}
	if x.old < 0 || x.new < 0 {
		v, p, key := look(max(x.old, x.new))
		leaves := whole
		if lacks(c) {
			leaves = asBefore
		}
		return s.settle(l, v, p, by, key, c, leaves)
	}
	oldV, oldP, oldKey := look(x.old)
	newV, newP, newKey := look(x.new)
	del := millrace.Change{Op: millrace.Delete, Seq: c.Seq, Rel: c.Rel, Old: c.Old, OldFull: c.OldFull}
	ins := millrace.Change{Op: millrace.Insert, Seq: c.Seq, Rel: c.Rel, New: c.New}
	if s.early(l) {
		leaves := whole
		if lacks(c) && oldV != pass {
			// Nobody has the row of the old key as it was: either it was not read, or the
			// chunk shows it as it was later.
			if leaves = lacking; newV == pass || newV == seen {
				s.hole(l, newKey)
			}
		}
		oldPasses := s.settle(l, oldV, oldP, by, oldKey, &del, whole)
		return s.settle(l, newV, newP, by, newKey, &ins, leaves) || oldPasses
	}
	if oldV == pass && newV == pass {
		return true
	}
	if oldV == hold {
		oldP.hold(by, oldKey, &del, whole)
	}
	unsent := slices.ContainsFunc(c.New, func(v millrace.Value) bool { return v.Kind == millrace.Unchanged })
	switch {
	case newV == hold && unsent:
		newP.void = true // the next snapshot shows the row
	case newV == hold:
		newP.hold(by, newKey, &ins, whole)
	case newV == pass && unsent:
		s.hole(l, newKey)
	case newV == pass:
		*c = ins
		return true
	}
	if oldV == pass {
		*c = del
		return true
	}
	return false
}

// hole has a key read on its own.
func (s *Source) hole(l *load, key []byte) {
	l.holes[string(key)] = &hole{state: unread}
	s.note(l)
	s.wakeWorkers()
}

// lacks tells whether a change brings a row without all of its values.
func lacks(c *millrace.Change) bool {
	for i := range c.New {
		if c.New[i].Kind == millrace.Unchanged && (!c.OldFull || c.Old[i].Kind == millrace.Unchanged) {
			return true
		}
	}
	return false
}

// settle does what the verdict about a change of one key asks for. leaves is what the
// change leaves of the row with the key, where it passes early.
func (s *Source) settle(l *load, v verdict, p *pending, by author, key []byte, c *millrace.Change, leaves known) bool {
	switch v {
	case pass:
		return true
	case hold:
		if s.early(l) && p.key == nil {
			c = &millrace.Change{}
		}
		p.hold(by, key, c, leaves)
		return s.early(l)
	case seen, wait:
		// What passed early can be taken back by what a chunk shows: its row is not
		// in the chunk then, and only the stream says so. The stream repeats all that
		// the chunk shows, in order.
		return s.early(l)
	}
	return false
}

// early tells whether changes of what is not read yet pass. Without a key nothing
// would tell the rows that they bring from those that the chunk shows.
func (s *Source) early(l *load) bool { return s.opt.Early && l.table != nil && l.table.Key != nil }

// place judges one key, which lies in the segment with the number. What holds the
// change is returned as well.
func (l *load) place(key []byte, at int, by author) (verdict, *pending) {
	if h := l.holes[string(key)]; h != nil && key != nil {
		return judgeState(h.state, &h.view, h.pending, by)
	}
	g := &l.segments[at]
	return judgeState(g.state, &g.view, g.pending, by)
}

func judgeState(st state, v *snapshot.View, p *pending, by author) (verdict, *pending) {
	switch {
	case st == done:
		return pass, nil
	case st == read && by.in(v):
		return seen, nil
	case st == read:
		return pass, nil
	case p != nil:
		return hold, p
	}
	return wait, nil
}

// truncate judges a TRUNCATE and takes tables out of it; it tells whether any
// remain.
func (s *Source) truncate(t *millrace.Txn, c *millrace.Change) bool {
	rels := make([]*millrace.Relation, 0, len(c.Truncated.Rels))
	for _, rel := range c.Truncated.Rels {
		l := s.loads[rel.OID]
		if l == nil || s.truncateLoad(l, author{t.XID, t.Commit}) {
			rels = append(rels, rel)
		}
	}
	c.Truncated = &millrace.Truncation{Rels: rels, RestartIdentity: c.Truncated.RestartIdentity}
	return len(rels) > 0
}

func (s *Source) truncateLoad(l *load, by author) bool {
	older, newer := false, false
	for i := range l.segments {
		g := &l.segments[i]
		if g.pending != nil {
			g.pending.void = true
		}
		switch {
		case g.state == done, g.state == read && !by.in(&g.view):
			older = true
		case g.state == read:
			newer = true
		}
	}
	for key, h := range l.holes {
		if h.pending != nil {
			h.pending.void = true
		}
		switch {
		case h.state == read && by.in(&h.view):
			newer = true
		case h.state == unread:
			delete(l.holes, key) // the next rows come after the TRUNCATE
			s.note(l)
		}
	}
	switch {
	case !newer:
		return true
	case !older && !s.early(l):
		return false
	}
	// Where changes pass early, rows that are older than it can be at the destination
	// beside those that a snapshot has shown.
	l.reset()
	s.note(l)
	s.wakeWorkers()
	return true
}

// changeError names the change that could not be judged.
func (s *Source) changeError(t *millrace.Txn, c *millrace.Change, err error) error {
	return &millrace.Error{Kind: millrace.KindData, Op: "match a change with the rows that are loaded", Peer: millrace.PeerSource,
		Table: c.Rel.Name, LSN: t.Commit, Err: err, Hint: "read the table again with millrace table resnapshot"}
}

// comparer gives the session that is asked for the order of keys, nil if none is
// needed.
func (s *Source) comparer(ctx context.Context, l *load) (*pgx.Conn, error) {
	if l.table.Key.Native {
		return nil, nil
	}
	if s.asker != nil && !s.asker.IsClosed() {
		return s.asker, nil
	}
	conn, err := s.connect(ctx)
	s.asker = conn
	return conn, err
}
