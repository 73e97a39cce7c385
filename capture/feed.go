package capture

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/pgoutput"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/session"
)

// feed is what one Start set up: a stream, and the goroutine that reads it.
type feed struct {
	src    *Source
	stream *replication.Stream
	guard  *timelineGuard // nil unless the source is a standby
	line   int32          // timeline
	queue  *queue
	asm    *assembler
	rels   relations

	streamed streamed
	ahead    *ahead // of the transaction that is applied while it is open
	mayAhead bool

	truncated chan struct{}  // token: a table of the set was truncated
	sightings chan *sighting // from watch
	sighting  *sighting      // that the stream has not passed yet
	seen      map[uint32]uint32

	asked  atomic.Bool // somebody waits for the server's position
	lost   atomic.Bool // the stream failed
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

func (s *Source) newFeed(stream *replication.Stream, history *millrace.History, from millrace.Checkpoint, tables []Table) *feed {
	f := &feed{
		src:       s,
		stream:    stream,
		line:      history.Timeline,
		queue:     newQueue(s.opt.MaxInflight/2, from.Acked),
		truncated: make(chan struct{}, 1),
		sightings: make(chan *sighting),
		seen:      filenodes(tables),
		streamed:  newStreamed(s.opt.Spool),
		// What a table's load has not read yet must not be applied, and what is
		// prepared goes its own way.
		mayAhead: len(from.Tables) == 0 && !s.twoPhase,
	}
	f.asm = newAssembler(&s.memory, history, from.End, f.queue.put)
	f.rels = newRelations(s.opt, tables, f.side)
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

func (f *feed) start() {
	f.tasks.Go(f.run)
	f.tasks.Go(func() { f.watch(f.seen) })
}

// stop ends the goroutines and drops what is queued. The stream stays open.
func (f *feed) stop() {
	f.cancel()
	f.queue.close()
	f.stream.Interrupt()
	f.tasks.Wait()
}

func (f *feed) failed() bool { return f.lost.Load() }

func (f *feed) run() {
	err := f.receive()
	f.src.stats.add(&f.asm.count)
	f.asm.close()
	if !errors.Is(err, errClosed) && !errors.Is(err, replication.ErrInterrupted) {
		err = f.explain(err)
		defer f.queue.fail(err)
	}
	if f.ahead != nil && f.src.cuts.add(time.Now()) {
		f.src.log.Info("several sessions in a row have ended while a transaction was applied ahead of its commit: that is not tried for a while", "for", restAhead)
	}
	f.stopAhead(f.ahead)
	if err := f.streamed.close(); err != nil {
		f.src.log.Warn("forget transactions that were not committed", "cause", err)
	}
}

// explain makes the error that Next returns.
func (f *feed) explain(err error) error {
	var large *replication.TooLarge
	var known *millrace.Error
	var full *spoolError
	switch {
	case errors.As(err, &full):
		f.src.whole.Store(true)
		return &millrace.Error{Kind: millrace.KindRetry, Op: "stream", Err: err,
			Hint: "until the next start transactions are taken once they are committed; to take them earlier, " + millrace.HintOf(full.err)}
	case errors.As(err, &large) && errors.As(err, &known):
		known.LSN = f.asm.begin.Commit
		if rel := f.rels.named(pgoutput.ChangedOID(large.Head)); rel != nil {
			known.Table = rel.Name
		}
		return err
	case errors.As(err, &known):
		if known.Kind == millrace.KindData && known.LSN == 0 && f.asm.open {
			known.LSN = f.asm.begin.Commit
		}
		return err
	case errors.Is(err, pgoutput.ErrMalformed):
		return &millrace.Error{Kind: millrace.KindData, Op: "decode", Peer: millrace.PeerSource, LSN: f.asm.begin.Commit, Err: err}
	}
	f.lost.Store(true)
	return session.Wrap("stream", millrace.PeerSource, err)
}

// receive is the loop of the goroutine. What was assembled becomes visible to
// Next before it waits for the network, and so does a commit that comes alone:
// the sign of life that follows it does not hold it up.
func (f *feed) receive() error {
	for {
		if !f.stream.Ready() {
			f.src.stats.add(&f.asm.count)
			f.queue.publish()
		}
		m, err := f.stream.Receive()
		if err != nil {
			if err = f.spare(err); err != nil {
				return err
			}
			continue
		}
		if m.Data == nil {
			if err := f.onSignOfLife(m); err != nil {
				return err
			}
			continue
		}
		f.asm.count.bytes += int64(len(m.Data))
		if err := f.onMessage(m); err != nil {
			return err
		}
	}
}

// onSignOfLife turns the server's position into progress, unless a transaction
// is open: its changes lie before that position and are not all here.
func (f *feed) onSignOfLife(m replication.Message) error {
	f.src.stats.position.Store(uint64(m.Position))
	if f.asm.open {
		return nil
	}
	if err := f.passed(m.Position); err != nil {
		return err
	}
	urgent := m.Urgent || f.asked.Swap(false)
	f.queue.idle(f.asm.history, m.Position, millrace.LSN(f.src.acked.Load()), urgent)
	return nil
}

func (f *feed) onMessage(m replication.Message) error {
	if f.streamed.block != nil {
		return f.inBlock(m.Data)
	}
	switch tag := pgoutput.TagOf(m.Data); tag {
	case pgoutput.TagInsert, pgoutput.TagUpdate, pgoutput.TagDelete:
		rel, err := f.rels.get(pgoutput.ChangedOID(m.Data))
		if err != nil {
			return err
		}
		return f.asm.row(m, rel)
	case pgoutput.TagBegin:
		return f.asm.onBegin(m.Data)
	case pgoutput.TagCommit:
		c, err := pgoutput.ParseCommit(m.Data)
		if err != nil {
			return err
		}
		return f.end(c)
	case pgoutput.TagRelation:
		return f.onRelation(m)
	case pgoutput.TagTruncate:
		return f.onTruncate(m.Data)
	case pgoutput.TagOrigin:
		return f.asm.onOrigin(m.Data)
	case pgoutput.TagType:
		t, err := pgoutput.ParseType(m.Data)
		if err == nil {
			f.rels.nameType(t)
		}
		return err
	case pgoutput.TagMessage:
		return f.onLogicalMessage(m.Data)
	case pgoutput.TagStreamStart:
		return f.onStreamStart(m.Data)
	case pgoutput.TagStreamAbort:
		return f.onStreamAbort(m.Data)
	case pgoutput.TagStreamCommit:
		return f.onStreamCommit(m.Data)
	case pgoutput.TagBeginPrepare:
		return f.onBeginPrepare(m.Data)
	case pgoutput.TagPrepare:
		return f.onPrepare(m.Data)
	case pgoutput.TagStreamPrepare:
		return f.onStreamPrepare(m.Data)
	case pgoutput.TagCommitPrepared:
		return f.onCommitPrepared(m.Data)
	case pgoutput.TagRollbackPrepared:
		return f.onRollbackPrepared(m.Data)
	default:
		return fmt.Errorf("%w: unknown message %q", pgoutput.ErrMalformed, byte(tag))
	}
}

// end ends the transaction that is open.
func (f *feed) end(c pgoutput.Commit) error {
	empty, err := f.asm.end(c)
	if empty != 0 {
		f.queue.idle(f.asm.history, empty, millrace.LSN(f.src.acked.Load()), false)
	}
	return err
}

func (f *feed) onRelation(m replication.Message) error {
	rel, err := pgoutput.ParseRelation(m.Data)
	if err != nil {
		return err
	}
	// Everything that commits before this transaction has come.
	if err := f.passed(f.asm.begin.Commit); err != nil {
		return err
	}
	return f.rels.add(f.ctx, rel)
}

func (f *feed) onTruncate(msg []byte) error {
	m, err := pgoutput.ParseTruncate(msg)
	if err != nil {
		return err
	}
	rels := make([]*millrace.Relation, 0, len(m.OIDs))
	for _, oid := range m.OIDs {
		rel, err := f.rels.get(oid)
		if err != nil {
			return err
		}
		if rel != nil {
			rels = append(rels, rel)
			token(f.truncated)
		}
	}
	return f.asm.truncate(rels, m.RestartIdentity)
}

func (f *feed) onLogicalMessage(msg []byte) error {
	m, err := pgoutput.ParseMessage(msg)
	if err != nil {
		return err
	}
	f.asm.count.messages++
	if !m.Transactional {
		f.src.log.Debug("non-transactional message passed over", "prefix", string(m.Prefix), "bytes", len(m.Content), "lsn", m.LSN)
	}
	return nil
}

// side opens a second connection to the source for a moment.
func (f *feed) side(ctx context.Context, use func(*pgx.Conn) error) error {
	conn, err := f.src.opt.Endpoint.Connect(ctx, session.Watch)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	return session.Wrap("look at the source", millrace.PeerSource, use(conn))
}

// closeConn says goodbye to a connection that is not needed any more.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	_ = conn.Close(ctx) // nothing depends on it
}
