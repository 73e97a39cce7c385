package snapshot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
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
	// Mark is called in the transaction that holds a part's rows, before it is
	// committed, and leaves the mark that they are there.
	Mark func(ctx context.Context, tx pgx.Tx, c Copied) error
	// Marked looks for that mark, when it is not known whether the transaction
	// was committed.
	Marked  func(ctx context.Context, conn *pgx.Conn, p *Part) (Marked, error)
	Tracker *Tracker
	Log     *slog.Logger
}

// Copied is what one transaction adds to the target.
type Copied struct {
	Part        *Part
	Rows, Bytes int64
	// TableDone says that with this part the table is complete; Rows and Bytes
	// of all its parts are TableRows and TableBytes.
	TableDone             bool
	TableRows, TableBytes int64
}

// Marked is what a mark says of a part.
type Marked struct {
	Done        bool  // the part is there
	Table       bool  // so is all of its table, and that is marked
	Rows, Bytes int64 // of the part, unless Table
}

// copier is one Copy.
type copier struct {
	Options
	limit   *Limiter
	tables  map[*Table]*tableState
	holding sync.Mutex // of the holder's session
}

// tableState counts the parts of a table. Its lock is held over the commit, so
// that exactly one part finds itself the last.
type tableState struct {
	sync.Mutex
	left        int
	rows, bytes int64
}

// Copy reads all tables under the holder's snapshot and writes them to the
// target. When it returns an error, what is marked is there and nothing else is.
func Copy(ctx context.Context, o Options) error {
	c := &copier{Options: o, limit: &Limiter{rate: o.Rate}, tables: map[*Table]*tableState{}}
	if c.Tracker == nil {
		c.Tracker = NewTracker(nil)
	}
	c.Tracker.expect(o.Tables)
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
		for i := range parts {
			select {
			case work <- &parts[i]:
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

const (
	mostTries  = 6
	firstPause = time.Second
	longPause  = 15 * time.Second
)

// part copies one part. A lost connection is made again and the part repeated,
// as long as the holder has the snapshot.
func (c *copier) part(ctx context.Context, s *stream, p *Part) error {
	pause := firstPause
	for try := 1; ; try++ {
		lost := s.backend()
		err := c.try(ctx, s, p)
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
		found, err := c.settled(ctx, s, p, lost)
		if err == nil && found.Done {
			err = c.settle(ctx, s, p, found)
			if err == nil {
				return nil
			}
		}
		if err != nil && !session.Retryable(err) {
			return err
		}
	}
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
	return c.Marked(ctx, s.dst, p)
}

// settle counts a part that turned out to be there. If it is the last one, nobody
// has marked the table as complete: the other parts were committed while it was
// not counted.
func (c *copier) settle(ctx context.Context, s *stream, p *Part, found Marked) error {
	state := c.tables[p.Table]
	state.Lock()
	defer state.Unlock()
	if state.left == 1 && !found.Table && c.Mark != nil {
		tx, err := s.dst.Begin(ctx)
		if err != nil {
			return session.Wrap("copy", millrace.PeerDestination, err)
		}
		defer tx.Rollback(ctx)
		if err := c.Mark(ctx, tx, Copied{Part: p, TableDone: true, TableRows: state.rows + found.Rows, TableBytes: state.bytes + found.Bytes}); err != nil {
			return err
		}
		if err := tx.Commit(ctx); err != nil {
			return tableError("copy", millrace.PeerDestination, p, err)
		}
	}
	state.rows, state.bytes = state.rows+found.Rows, state.bytes+found.Bytes
	c.Tracker.add(p.Table.Name(), found.Bytes, found.Rows)
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
	name := p.Table.Name()
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
	return c.commit(ctx, tx, moved)
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
func (c *copier) commit(ctx context.Context, tx pgx.Tx, moved Copied) error {
	state := c.tables[moved.Part.Table]
	state.Lock()
	defer state.Unlock()
	moved.TableDone = state.left == 1
	moved.TableRows, moved.TableBytes = state.rows+moved.Rows, state.bytes+moved.Bytes
	if c.Mark != nil {
		if err := c.Mark(ctx, tx, moved); err != nil {
			return err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return tableError("copy", millrace.PeerDestination, moved.Part, err)
	}
	state.rows, state.bytes = moved.TableRows, moved.TableBytes
	c.countLocked(moved.Part, state)
	return nil
}

func (c *copier) countLocked(p *Part, state *tableState) {
	state.left--
	if state.left == 0 {
		c.Tracker.done(p.Table.Name())
	}
	if c.Log != nil {
		c.Log.Debug("copied", "table", p.Table.Name(), "part", p.Number+1, "of", p.Of, "rows", state.rows, "bytes", state.bytes)
	}
}
