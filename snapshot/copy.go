package snapshot

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/session"
)

// Options say what to copy and how.
type Options struct {
	Source, Target *session.Endpoint
	Holder         *Holder
	Tables         []*Table
	// Levels, by the tables' OIDs at the target, is the order that foreign keys
	// ask for: each level is copied when those before it are there. Nil: any.
	Levels [][]uint32
	Rate   int64 // bytes a second of all streams together; 0: no limit
	// MinPart is the least size of a part of a table; 0: DefaultMinPart.
	MinPart int64
	// Replica makes the target's sessions set session_replication_role, so that
	// neither triggers nor foreign keys fire.
	Replica bool
	// MinKeyed is the least size of a table that is copied by ranges of its key, if its
	// rows are about in that order; 0: DefaultMinKeyed. Keys are those that were chosen.
	MinKeyed int64
	Keys     catalog.Keys
	// Mark is called in the transaction that holds a part's rows, before it is
	// committed, and leaves the mark that they are there.
	Mark func(ctx context.Context, tx pgx.Tx, c Copied) error
	// Marked looks for that mark, when it is not known whether the transaction
	// was committed.
	Marked func(ctx context.Context, conn *pgx.Conn, p *Part) (Marked, error)
	// LockMark reads the mark of a table that is copied by ranges of its key, and keeps
	// others from writing it until the transaction ends. Without it no table is copied so.
	LockMark func(ctx context.Context, tx pgx.Tx, oid uint32) (millrace.Mark, error)
	Tracker  *Tracker
	Log      *slog.Logger
}

// Copied is what one transaction adds to the target.
type Copied struct {
	Part        *Part
	Rows, Bytes int64
	// TableDone says that with this part the table is complete; Rows and Bytes
	// of all its parts are TableRows and TableBytes.
	TableDone             bool
	TableRows, TableBytes int64
	// Mark is that of the table with the part, if that is Keyed.
	Mark []byte
}

// Marked is what a mark says of a part.
type Marked struct {
	Done        bool  // the part is there
	Table       bool  // so is all of its table, and that is marked
	Rows, Bytes int64 // of the part, unless Table
	// Mark is that of a table that is copied by ranges of its key, of which Rows and
	// Bytes are then.
	Mark []byte
}

// copier is one Copy.
type copier struct {
	Options
	limit   *Limiter
	tables  map[*Table]*tableState
	keyed   []*keyed
	holding sync.Mutex // of the holder's session
}

// tableState counts the parts of a table. Its lock is held over the commit, so
// that exactly one part finds itself the last.
type tableState struct {
	sync.Mutex
	left        int // slots
	rows, bytes int64
	keyed       *keyed // if it is copied by ranges of its key
}

// Copy reads all tables under the holder's snapshot and writes them to the
// target. When it returns an error, what is marked is there and nothing else is.
func Copy(ctx context.Context, o Options) error {
	c := &copier{Options: o, limit: &Limiter{rate: o.Rate}, tables: map[*Table]*tableState{}}
	if c.Tracker == nil {
		c.Tracker = NewTracker(nil)
	}
	c.Tracker.expect(o.Tables)
	if o.LockMark != nil {
		if err := c.keyRanges(ctx); err != nil {
			return err
		}
	}
	for _, k := range c.keyed {
		c.tables[k.table] = &tableState{left: k.slots(), keyed: k}
	}
	pages, err := o.Holder.pages(ctx)
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	var reporting sync.WaitGroup
	reporting.Go(func() { c.Tracker.run(stop) })
	defer func() {
		close(stop)
		reporting.Wait()
		c.Tracker.Report()
	}()

	var streams []*stream
	for _, conn := range o.Holder.readers {
		streams = append(streams, &stream{src: newReader(conn)})
	}
	if len(streams) == 0 {
		streams = []*stream{{}}
	}
	o.Holder.readers = nil // they are closed here
	defer func() {
		for _, s := range streams {
			s.close()
		}
	}()
	splitInto := len(streams)
	if o.Levels != nil {
		// Where foreign keys are checked, a table that refers to itself has to
		// come in one statement.
		splitInto = 1
	}
	for _, level := range c.levels() {
		level = slices.DeleteFunc(slices.Clone(level), func(t *Table) bool { return c.tables[t] != nil })
		parts := Split(level, pages, splitInto, o.MinPart)
		for _, p := range parts {
			if c.tables[p.Table] == nil {
				c.tables[p.Table] = &tableState{left: p.Of}
			}
		}
		if err := c.run(ctx, streams, parts); err != nil {
			return err
		}
	}
	return o.Holder.Alive(ctx)
}

// levels gives the tables in the order in which they may be copied.
func (c *copier) levels() [][]*Table {
	if c.Levels == nil {
		return [][]*Table{c.Tables}
	}
	byOID := map[uint32]*Table{}
	for _, t := range c.Tables {
		byOID[t.Target.OID] = t
	}
	var all [][]*Table
	for _, oids := range c.Levels {
		var level []*Table
		for _, oid := range oids {
			if t := byOID[oid]; t != nil {
				level = append(level, t)
			}
		}
		all = append(all, level)
	}
	return all
}

// run copies parts on all streams.
func (c *copier) run(ctx context.Context, streams []*stream, parts []Part) error {
	group, ctx := errgroup.WithContext(ctx)
	work := make(chan *Part)
	group.Go(func() error {
		defer close(work)
		for p := range c.each(parts) {
			select {
			case work <- p:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	for _, s := range streams {
		group.Go(func() error {
			for p := range work {
				if err := c.part(ctx, s, p); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// each gives the parts of the tables that are copied by ranges of their keys, which
// are the large ones, as long as there are any, and then those that were made before.
func (c *copier) each(parts []Part) iter.Seq[*Part] {
	return func(yield func(*Part) bool) {
		for _, k := range c.keyed {
			for {
				state := c.tables[k.table]
				state.Lock()
				p := k.take()
				state.Unlock()
				if p == nil {
					break
				}
				if !yield(p) {
					return
				}
			}
		}
		for i := range parts {
			if !yield(&parts[i]) {
				return
			}
		}
	}
}

const (
	mostTries  = 6
	firstPause = time.Second
	longPause  = 15 * time.Second
)

// part copies one part. A lost connection is made again and the part repeated, as
// long as the holder has the snapshot, once it is known that it is not there.
func (c *copier) part(ctx context.Context, s *stream, p *Part) error {
	pause := firstPause
	var lost backend // whose end is not known
	for try := 1; ; try++ {
		there, err := false, error(nil)
		if lost.pid != 0 {
			there, err = c.recheck(ctx, s, p, &lost)
		}
		if err == nil && !there {
			err = c.try(ctx, s, p)
			lost = s.backend()
		}
		if err == nil {
			return nil
		}
		s.close()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !session.Retryable(err) || errors.Is(err, ErrChanged) || try == mostTries:
			return err
		}
		if c.Log != nil {
			c.Log.Warn("copy is tried again", "table", p.Table.Name(), "part", p.Number+1, "of", p.Of, "error", err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		pause = min(2*pause, longPause)
		if alive := c.holderAlive(ctx); alive != nil {
			return fmt.Errorf("the snapshot is lost: %w", errors.Join(alive, err))
		}
	}
}

// recheck finds out whether a transaction whose outcome is not known was committed,
// and counts its part then.
func (c *copier) recheck(ctx context.Context, s *stream, p *Part, lost *backend) (there bool, err error) {
	found, err := c.settled(ctx, s, p, *lost)
	if err != nil || !found.Done {
		return false, err
	}
	*lost = s.backend() // the other one is gone, and this one may write
	return true, c.settle(ctx, s, p, found)
}

func (c *copier) holderAlive(ctx context.Context) error {
	c.holding.Lock()
	defer c.holding.Unlock()
	return c.Holder.Alive(ctx)
}

// settled waits until the backend of a lost connection is gone, and only then
// looks whether it has committed the part.
func (c *copier) settled(ctx context.Context, s *stream, p *Part, lost backend) (Marked, error) {
	if err := c.openTarget(ctx, s); err != nil {
		return Marked{}, err
	}
	if err := lost.awaitEnd(ctx, s.dst); err != nil {
		return Marked{}, err
	}
	if c.Marked == nil {
		return Marked{}, nil
	}
	found, err := c.Marked(ctx, s.dst, p)
	if err == nil && p.Keyed && !found.Table {
		found.Done, err = c.tables[p.Table].keyed.has(found.Mark, p)
	}
	return found, err
}

// settle counts a part that turned out to be there. If it is the last one, nobody
// has marked the table as complete: the other parts were committed while it was
// not counted.
func (c *copier) settle(ctx context.Context, s *stream, p *Part, found Marked) error {
	state := c.tables[p.Table]
	state.Lock()
	defer state.Unlock()
	rows, bytes := state.rows+found.Rows, state.bytes+found.Bytes
	if p.Keyed && !found.Table {
		rows, bytes = found.Rows, found.Bytes
	}
	if state.left == p.Span && !found.Table && c.Mark != nil {
		tx, err := s.dst.Begin(ctx)
		if err != nil {
			return session.Wrap("copy", millrace.PeerDestination, err)
		}
		defer tx.Rollback(ctx)
		if err := c.Mark(ctx, tx, Copied{Part: p, TableDone: true, TableRows: rows, TableBytes: bytes}); err != nil {
			return err
		}
		if err := tx.Commit(ctx); err != nil {
			return tableError("copy", millrace.PeerDestination, p, err)
		}
	}
	c.Tracker.add(p.Table.Name(), bytes-state.bytes, rows-state.rows)
	state.rows, state.bytes = rows, bytes
	c.countLocked(p, state)
	return nil
}

// try copies one part in one transaction of the target.
func (c *copier) try(ctx context.Context, s *stream, p *Part) (err error) {
	if err := c.openSource(ctx, s); err != nil {
		return err
	}
	if err := c.openTarget(ctx, s); err != nil {
		return err
	}
	name, began := p.Table.Name(), time.Now()
	var moved Copied
	defer func() {
		if err != nil {
			c.Tracker.add(name, -moved.Bytes, -moved.Rows)
		}
	}()
	tx, err := s.dst.Begin(ctx)
	if err != nil {
		return session.Wrap("copy", millrace.PeerDestination, err)
	}
	defer tx.Rollback(ctx)
	if !c.Replica {
		if _, err := tx.Exec(ctx, `SET CONSTRAINTS ALL DEFERRED`); err != nil {
			return session.Wrap("copy", millrace.PeerDestination, err)
		}
	}
	moved, err = c.transfer(ctx, s, p)
	if err != nil {
		return err
	}
	if err := c.notRewritten(ctx, s, p); err != nil {
		return err
	}
	return c.commit(ctx, tx, moved, began)
}

// notRewritten proves that the table still has the file that it had under the
// snapshot. While the holder has its lock nothing else is possible; the proof
// counts when the holder has died unnoticed.
func (c *copier) notRewritten(ctx context.Context, s *stream, p *Part) error {
	oid := p.Table.Source.OID
	now, err := s.src.value(ctx, fmt.Sprintf(`SELECT pg_catalog.pg_relation_filenode(%d::pg_catalog.regclass)`, oid))
	if err != nil {
		return session.Wrap("copy", millrace.PeerSource, err)
	}
	if now != fmt.Sprint(c.Holder.Filenode(oid)) {
		return changed(p.Table.Name())
	}
	return nil
}

// commit leaves the mark and commits rows and mark together.
func (c *copier) commit(ctx context.Context, tx pgx.Tx, moved Copied, began time.Time) error {
	state := c.tables[moved.Part.Table]
	state.Lock()
	defer state.Unlock()
	moved.TableDone = state.left == moved.Part.Span
	moved.TableRows, moved.TableBytes = state.rows+moved.Rows, state.bytes+moved.Bytes
	if state.keyed != nil {
		if err := c.keyedMark(ctx, tx, state.keyed, &moved); err != nil {
			return err
		}
	}
	if c.Mark != nil {
		if err := c.Mark(ctx, tx, moved); err != nil {
			return err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return tableError("copy", millrace.PeerDestination, moved.Part, err)
	}
	state.rows, state.bytes = moved.TableRows, moved.TableBytes
	if state.keyed != nil {
		state.keyed.adapt(moved.Part, time.Since(began))
	}
	c.countLocked(moved.Part, state)
	return nil
}

func (c *copier) countLocked(p *Part, state *tableState) {
	state.left -= p.Span
	if state.left == 0 {
		c.Tracker.done(p.Table.Name())
	}
	if c.Log != nil {
		c.Log.Debug("copied", "table", p.Table.Name(), "part", p.Number+1, "of", p.Of, "rows", state.rows, "bytes", state.bytes)
	}
}
