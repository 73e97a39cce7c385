package backfill

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// The size of chunks: the first, and the time that one should take to be read.
// Reading holds back nothing but what old row versions the snapshot needs.
const (
	firstRows = 1000
	mostRows  = 200_000
	leastRows = 10
	wanted    = 300 * time.Millisecond
)

// mostActive bounds the ranges of a table that the stream has not passed yet.
const mostActive = 64

// work reads chunks, one after the other.
func (s *Source) work(ctx context.Context) {
	var r *snapshot.ChunkReader
	defer func() {
		if r != nil {
			r.Close()
		}
	}()
	pause := retryFirst
	var after <-chan struct{}
	for {
		p, l := s.next(ctx)
		if p == nil && l == nil {
			return
		}
		var err error
		if p == nil {
			err = s.cut(ctx, &r, l)
		} else {
			l, p.after = p.load, after
			err = s.readOn(ctx, &r, p)
			s.giveUp(p)
			after = p.after
		}
		switch {
		case err == nil:
			pause = retryFirst
			continue
		case ctx.Err() != nil:
			return
		case !session.Retryable(err) && !errors.Is(err, snapshot.ErrRewritten):
			s.fail(err)
			return
		}
		s.log.Warn("a chunk is read again", "table", l.name, "cause", err)
		if r != nil {
			r.Close()
			r = nil
		}
		if !sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, retryMost)
	}
}

const (
	retryFirst = 50 * time.Millisecond
	retryMost  = 10 * time.Second
)

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// next waits for something to read, and begins to hold changes of it, or for a table
// that is to be cut.
func (s *Source) next(ctx context.Context) (*pending, *load) {
	for {
		s.mu.Lock()
		p := s.nextLocked()
		if p != nil {
			if s.resting > 0 && p.cut {
				s.wakeWorkers() // its range can be shared
			}
			s.mu.Unlock()
			return p, nil
		}
		if l := s.toCut(); l != nil {
			s.mu.Unlock()
			return nil, l
		}
		idle := s.idle
		s.resting++
		s.mu.Unlock()
		timer := time.NewTimer(time.Second) // what is active becomes less by itself
		over := false
		select {
		case <-ctx.Done():
			over = true
		case <-idle:
		case <-timer.C:
		}
		timer.Stop()
		s.mu.Lock()
		s.resting--
		s.mu.Unlock()
		if over {
			return nil, nil
		}
	}
}

func (s *Source) nextLocked() *pending {
	if s.paused || s.err != nil {
		return nil
	}
	if time.Since(s.ranged) < holesFirst {
		if p := s.nextHole(); p != nil {
			return p
		}
	}
	if p := s.nextRange(); p != nil {
		s.ranged = time.Now()
		return p
	}
	return s.nextHole()
}

// holesFirst is for how long holes come before ranges, since the stream may have to wait for
// holes. After that it is a range's turn: rows that move as fast as they can be read on their own would
// keep the load from going on.
const holesFirst = 2 * wanted

func (s *Source) nextHole() *pending {
	for _, l := range s.order {
		if l.emptying {
			continue
		}
		for key, h := range l.holes {
			if h.state == unread && h.pending == nil {
				h.pending = s.begin(l, snapshot.Range{}, []byte(key))
				return h.pending
			}
		}
	}
	return nil
}

func (s *Source) nextRange() *pending {
	for _, l := range s.order {
		if l.emptying || l.activeRanges() >= mostActive {
			continue
		}
		for i := range l.segments {
			g := &l.segments[i]
			if g.state != unread || g.pending != nil {
				continue
			}
			return s.beginRange(l, i)
		}
	}
	return s.share()
}

// beginRange begins with the next chunk of an unread range.
func (s *Source) beginRange(l *load, i int) *pending {
	g := &l.segments[i]
	in := snapshot.Range{Upto: g.upto}
	if i > 0 {
		in.After = l.segments[i-1].upto
	}
	if len(g.cuts) > 0 {
		in.Upto = g.cuts[0]
	}
	g.pending = s.begin(l, in, nil)
	g.pending.cut = len(g.cuts) > 0
	return g.pending
}

func (s *Source) begin(l *load, in snapshot.Range, key []byte) *pending {
	return &pending{load: l, in: in, key: key, before: slices.Clone(s.delivered), passed: s.passed, taken: make(chan bool, 2), stored: make(chan struct{})}
}

// wakeWorkers has those who read chunks look for work.
func (s *Source) wakeWorkers() {
	close(s.idle)
	s.idle = make(chan struct{})
}

// giveUp ends the holding for a chunk that was not given away.
func (s *Source) giveUp(p *pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = slices.DeleteFunc(s.ready, func(o *pending) bool { return o == p })
	if s.whole == p {
		s.whole = nil
	}
	if i := p.load.find(p); i >= 0 {
		p.load.widen(i)
	}
	if p.key == nil {
		s.ranged = time.Now() // however long that took, holes come next
	}
	if h := p.load.holes[string(p.key)]; p.key != nil && h != nil && h.pending == p {
		h.pending = nil
	}
}

func (s *Source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		s.failed.Store(true)
	}
	s.wakeLocked()
}

// readOn reads a chunk and has it given away. Nil means that the next one is to be
// looked for, also if this one could not be used.
func (s *Source) readOn(ctx context.Context, r **snapshot.ChunkReader, p *pending) (err error) {
	if *r == nil {
		if *r, err = snapshot.NewChunkReader(ctx, s.opt.Endpoint, s.limit); err != nil {
			return err
		}
	}
	s.mu.Lock()
	table, most, changed := p.load.table, p.load.size, p.load.changed
	s.mu.Unlock()
	if changed {
		return s.rewritten(ctx, *r, p.load)
	}
	began := time.Now()
	if p.view, err = (*r).Begin(ctx, table); err != nil {
		if errors.Is(err, snapshot.ErrRewritten) {
			return errors.Join((*r).Abandon(ctx), s.rewritten(ctx, *r, p.load))
		}
		return err
	}
	if s.file(p.load) != table.Filenode {
		return errors.Join((*r).Abandon(ctx), s.rewritten(ctx, *r, p.load))
	}
	if !s.usable(p) {
		if err := (*r).Abandon(ctx); err != nil {
			return err
		}
		sleep(ctx, notVisible)
		return nil
	}
	switch {
	case table.Key == nil:
		return s.readWhole(ctx, *r, table, p)
	case p.key != nil:
		p.rows, err = (*r).One(ctx, table, p.key)
	default:
		p.rows, err = (*r).Range(ctx, table, p.in, most, s.opt.ChunkBytes)
	}
	if errors.Is(err, snapshot.ErrOrder) {
		s.misordered(p.load)
		return (*r).Abandon(ctx)
	}
	if err == nil {
		err = (*r).End(ctx, p.view)
	}
	if err != nil {
		return err
	}
	took, n := time.Since(began), len(p.rows.Changes)
	used, err := s.offer(ctx, p)
	switch {
	case err != nil || p.key != nil: // one row says nothing of chunks
	case !used:
		s.resize(p.load, most/2)
	case !p.rows.Final:
		s.adapt(p.load, n, most, took)
	}
	return err
}

// notVisible is the pause after a snapshot that does not see what was delivered.
const notVisible = 20 * time.Millisecond

// adapt makes the next chunk larger or smaller than the one of n rows, by at most two.
func (s *Source) adapt(l *load, n, most int, took time.Duration) {
	switch {
	case n < most: // the bytes were the limit: what is read beyond it is wasted
		s.resize(l, n+n/8)
	case took < wanted/2:
		s.resize(l, 2*most)
	case took > 2*wanted:
		s.resize(l, most/2)
	}
}

func (s *Source) resize(l *load, rows int) {
	s.mu.Lock()
	l.size = max(leastRows, min(rows, mostRows))
	s.mu.Unlock()
}

// file gives the file that a load has read so far, or will.
func (s *Source) file(l *load) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.file == 0 {
		return l.table.Filenode
	}
	return l.file
}

// usable tells whether the chunk's snapshot sees everything that was delivered
// before changes of its range were held. Transactions that it sees need not be
// looked for any more: later snapshots see them as well.
func (s *Source) usable(p *pending) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delivered = slices.DeleteFunc(s.delivered, p.view.Sees)
	if p.view.Xmin < s.floor || p.void || p.view.From != 0 && p.view.From < p.passed {
		return false
	}
	return !slices.ContainsFunc(p.before, func(xid uint32) bool { return !p.view.Sees(xid) })
}

// readWhole reads a table that has no key, in one transaction of many parts. From
// the first to the last of them the stream waits.
func (s *Source) readWhole(ctx context.Context, r *snapshot.ChunkReader, table *snapshot.ChunkTable, p *pending) error {
	if err := r.Flushed(ctx, p.view); err != nil {
		return err
	}
	if err := s.decided(ctx, p); err != nil {
		return err
	}
	p.pieces = make(chan *snapshot.Rows)
	s.mu.Lock()
	void := p.void || s.whole != nil || p.unclear()
	if !void {
		s.whole = p
		s.wakeLocked()
	}
	s.mu.Unlock()
	if !void {
		select {
		case used := <-p.taken:
			void = !used
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if void {
		return r.Abandon(ctx)
	}
	err := r.All(ctx, table, s.opt.ChunkBytes, func(rows *snapshot.Rows) error {
		select {
		case p.pieces <- rows:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	if err != nil && ctx.Err() == nil {
		s.fail(err) // what was given away of it has to be taken back
	}
	if err != nil {
		return err
	}
	select {
	case <-p.taken: // the last piece counts: nothing is left to be given up
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return r.Abandon(ctx)
}

// rewritten describes a table anew that has other columns, other keys, another name or
// another file now. With another file what was read of it is not to be trusted, since a
// rewrite is not in the stream: it is emptied.
func (s *Source) rewritten(ctx context.Context, r *snapshot.ChunkReader, l *load) error {
	table, err := snapshot.DescribeChunks(ctx, r.Conn(), l.oid, !s.text.Load(), s.opt.Keys)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.file != 0 && l.file != table.Filenode && l.table.Shape != table.Shape {
		return &millrace.Error{Kind: millrace.KindData, Op: "load", Peer: millrace.PeerSource, Table: l.name,
			Err: errors.New("its columns were changed and it was rewritten while it was loaded"), Hint: "read it again with millrace table resnapshot"}
	}
	before := l.table
	l.table, l.changed = table, false
	if err := l.reform(); err != nil {
		return markError(l.name, err)
	}
	if l.emptying {
		// Until then what comes is judged by the key that the ranges are cut by.
		l.table, l.changed = before, true
		s.startOver(l)
		return nil
	}
	if l.file != 0 && l.file != table.Filenode {
		s.log.Warn("the table has another file: it is read again", "table", l.name)
		s.startOver(l)
	}
	return nil
}

// misordered has keys compared at the server that turned out not to have the
// order of their bytes. What was judged by that is read again.
func (s *Source) misordered(l *load) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.Warn("the keys of the table are not in the order of their bytes: it is read again", "table", l.name)
	l.asks()
	s.startOver(l)
}

// startOver has the table emptied at the destination, between two transactions of
// the stream, and read from its beginning.
func (s *Source) startOver(l *load) {
	l.emptying = true
	s.wakeLocked()
}

// ask asks for the server's position while only that is waited for.
func (s *Source) ask(ctx context.Context) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var quiet quietPrimary
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		waits := s.deciding > 0 || slices.ContainsFunc(s.order, func(l *load) bool { return l.active() > 0 })
		at := s.passed
		s.mu.Unlock()
		if waits {
			s.opt.Stream.RequestPosition()
		}
		quiet.look(ctx, s, waits, at)
	}
}
