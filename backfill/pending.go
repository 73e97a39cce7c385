package backfill

import (
	"context"
	"slices"
	"unsafe"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/snapshot"
)

// pending is a chunk from before its snapshot is taken until it was given away.
type pending struct {
	load *load
	in   snapshot.Range
	cut  bool   // in ends where the range may be cut, and not where it ends
	key  []byte // of a hole
	// before are the delivered transactions that no snapshot was known to see when
	// holding began. This one's has to.
	before []uint32
	passed millrace.LSN // where the stream was then
	held   []held
	size   int64 // of what is held, in bytes
	void   bool  // not to be used
	// narrowed says that its range was cut behind its last row, see narrow.
	narrowed bool

	view snapshot.View
	rows *snapshot.Rows
	// taken tells the reader whether the chunk was used, and of a table that is read in
	// one piece also that the last part was.
	taken chan bool
	// stored is closed once the destination has committed the chunk, and after is that
	// of the chunk that its reader gave away before: see offer.
	stored chan struct{}
	after  <-chan struct{}

	// Of a table that is read in one piece:
	pieces chan *snapshot.Rows
	begun  bool // the stream waits for its pieces
	part   int
}

// mostHeld bounds what is held for one chunk, in bytes.
const mostHeld = 4 << 20

// hold keeps a change until the chunk is there.
func (p *pending) hold(by author, key []byte, c *millrace.Change, leaves known) {
	if p.void {
		return
	}
	if p.size > mostHeld {
		p.void, p.held = true, nil
		return
	}
	h := held{by: by, key: key, change: *c, leaves: leaves}
	h.change.Old, h.change.New = cloneRow(c.Old), cloneRow(c.New)
	p.size += int64(unsafe.Sizeof(h)) + int64(len(key)) + sizeOf(h.change.Old) + sizeOf(h.change.New)
	p.held = append(p.held, h)
}

func sizeOf(row millrace.Row) (n int64) {
	for i := range row {
		n += int64(unsafe.Sizeof(row[i])) + int64(len(row[i].Raw))
	}
	return n
}

// cloneRow copies a row out of the transaction's memory.
func cloneRow(row millrace.Row) millrace.Row {
	if row == nil {
		return nil
	}
	clone := slices.Clone(row)
	for i := range clone {
		clone[i].Raw = slices.Clone(clone[i].Raw)
	}
	return clone
}

// inject makes a transaction of a chunk that was read, and marks its range. It
// returns nil if the chunk can't be used.
func (s *Source) inject(ctx context.Context, p *pending) (*millrace.Txn, error) {
	l := p.load
	if p.void || l.emptying {
		return nil, nil
	}
	upto := p.end()
	if p.unclear() {
		return nil, nil
	}
	newer := slices.DeleteFunc(p.held, func(h held) bool { return h.by.in(&p.view) })
	if upto != nil && p.key == nil && len(newer) > 0 {
		var err error
		if newer, err = s.within(ctx, l, newer, upto); err != nil {
			return nil, err
		}
	}
	if s.opt.Early && l.table.Key != nil && l.table.Key.Shared && len(newer) > 0 {
		return nil, nil // which of the rows of a key they are about is not known
	}
	if s.strict(l) && p.key == nil {
		if s.passed < p.view.Upto || !net(p.rows, newer) {
			return nil, nil
		}
		newer = nil
	}
	if !s.early(l) && s.limited(l) && s.passed >= p.view.Upto && netByKey(p.rows, newer) {
		newer = nil
	}
	var short [][]byte
	if s.early(l) {
		if p.key != nil && !slices.ContainsFunc(newer, func(h held) bool { return h.leaves == lacking }) && netByKey(p.rows, newer) {
			newer = nil
		}
		// On its own a key is just read once more; and of many the chunk should be smaller.
		if short = unfinished(newer); p.key != nil && len(short) > 0 || len(short) > mostHoles/2 {
			return nil, nil
		}
	}
	if p.key != nil {
		h := l.holes[string(p.key)]
		if h == nil || h.pending != p {
			return nil, nil
		}
		h.pending, h.state, h.view = nil, read, p.view
	} else {
		i := l.find(p)
		if i < 0 {
			return nil, nil
		}
		if err := s.trim(ctx, l, i, p, upto); err != nil {
			return nil, err
		}
		if string(upto) == string(l.segments[i].upto) {
			upto = nil
		}
		l.split(i, upto, p.view)
		l.rows += int64(len(p.rows.Changes))
		l.bytes += p.rows.Size
		l.file = l.table.Filenode
	}
	l.forget(s.passed)
	for _, key := range short {
		l.holes[string(key)] = &hole{state: unread}
		s.wakeWorkers()
	}
	return s.chunkTxn(p, newer), nil
}

// unfinished gives the keys of rows that a chunk leaves out for what has passed early, though
// not all of their values were sent with that.
func unfinished(newer []held) (keys [][]byte) {
	leaves := map[string]known{}
	for i := range newer {
		if h := &newer[i]; h.leaves != asBefore || leaves[string(h.key)] == asBefore {
			leaves[string(h.key)] = h.leaves
		}
	}
	for key, k := range leaves {
		if k != whole {
			keys = append(keys, []byte(key))
		}
	}
	return keys
}

// piece gives the next part of a table that is read in one piece.
func (s *Source) piece(ctx context.Context, p *pending) (*millrace.Txn, error) {
	if !p.begun && !s.beginPieces(p) {
		return nil, nil
	}
	var rows *snapshot.Rows
	select {
	case rows = <-p.pieces:
	case <-s.wakeable(ctx).Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := p.load
	l.rows += int64(len(rows.Changes))
	l.bytes += rows.Size
	t := &millrace.Txn{Chunk: &millrace.Chunk{Table: l.name, Snapshot: p.view.String(), Upto: p.view.Upto},
		From: s.history, Changes: rows.Changes, Size: rows.Size, Part: p.part}
	p.part++
	if !rows.Final {
		s.redirect(t.Changes)
		return t, nil
	}
	s.whole = nil
	t.Last, t.End = true, s.passed
	for i := range p.held {
		if !p.held[i].by.in(&p.view) && !s.early(l) {
			t.Changes = append(t.Changes, p.held[i].change)
			t.Size += sizeOf(p.held[i].change.Old) + sizeOf(p.held[i].change.New)
		}
	}
	s.redirect(t.Changes)
	l.split(l.find(p), nil, p.view)
	l.file = l.table.Filenode
	l.forget(s.passed)
	t.Marks = map[millrace.TableName]millrace.Mark{l.name: l.mark()}
	p.taken <- true
	return t, nil
}

// beginPieces has the stream wait from here on. What came of it since the table was
// ready to be read, such as the rest of a large transaction, can have made the
// snapshot useless.
func (s *Source) beginPieces(p *pending) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	// What has passed early and is newer than the rows would be behind itself: there is
	// no key to leave these rows out by.
	p.void = p.void || s.opt.Early && slices.ContainsFunc(p.held, func(h held) bool { return !h.by.in(&p.view) })
	p.begun = !p.void
	if p.void {
		s.whole = nil
	}
	p.taken <- p.begun
	return p.begun
}

// within leaves those changes whose key is not behind the chunk's last one.
func (s *Source) within(ctx context.Context, l *load, changes []held, upto []byte) ([]held, error) {
	keys := make([][]byte, len(changes))
	for i := range changes {
		keys[i] = changes[i].key
	}
	conn, err := s.comparer(ctx, l)
	if err != nil {
		return nil, err
	}
	ranks, err := l.table.Key.Rank(ctx, conn, keys, [][]byte{upto})
	if err != nil {
		return nil, err
	}
	kept := changes[:0]
	for i := range changes {
		if ranks[i] == 0 {
			kept = append(kept, changes[i])
		}
	}
	return kept, nil
}

// chunkTxn makes the transaction: the rows, and behind them what the snapshot does
// not see. Where changes pass early, that has come already, and the rows that it
// was about are left out.
func (s *Source) chunkTxn(p *pending, newer []held) *millrace.Txn {
	changes := p.rows.Changes
	if s.early(p.load) {
		touched := map[string]bool{}
		for i := range newer {
			touched[string(newer[i].key)] = true
		}
		kept := changes[:0]
		for i := range changes {
			if !touched[string(p.rows.Keys[i])] {
				changes[i].Early = true
				kept = append(kept, changes[i])
			}
		}
		changes, newer = kept, nil
	}
	size := p.rows.Size
	for i := range newer {
		c := newer[i].change
		c.Seq = uint64(len(changes) + 1)
		changes = append(changes, c)
		size += sizeOf(c.Old) + sizeOf(c.New)
	}
	s.redirect(changes)
	return &millrace.Txn{
		Chunk: &millrace.Chunk{Table: p.load.name, Snapshot: p.view.String(), Upto: p.view.Upto},
		From:  s.history, Changes: changes, Last: true, Size: size, End: s.passed,
		Marks: map[millrace.TableName]millrace.Mark{p.load.name: p.load.mark()},
	}
}
