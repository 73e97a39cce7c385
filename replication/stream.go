package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/millrace/millrace"
)

// Options say what to stream, and how.
type Options struct {
	Slot         string
	Start        millrace.LSN // a lower one than the slot's confirmed_flush_lsn is raised to that
	Publications []string
	Binary       bool  // values in binary form where their type has one
	Streaming    bool  // transactions that outgrow the server's memory come while they are open
	Parallel     bool  // and their aborts tell position and time; from 16 on
	TwoPhase     bool  // prepared transactions come when they are prepared
	LocalOnly    bool  // transactions with an origin don't come; from 16 on
	MaxMessage   int64 // the largest message of the plugin that is taken
	BufferSize   int   // of a read
	Log          *slog.Logger
}

// minBuffer is the smallest buffer to read into: any message but one that
// carries a row fits.
const minBuffer = 8 << 10

// Stream is a connection that START_REPLICATION turned into a stream. Receive
// and Close are for one goroutine; everything else may be called from any.
type Stream struct {
	// PID is the process id of the walsender.
	PID uint32

	conn net.Conn
	in   gulp
	log  *slog.Logger

	// received and acked are what the next status update reports.
	received atomic.Uint64
	acked    atomic.Uint64

	wake    chan struct{} // acked went up, or one of the next two was set
	answer  atomic.Bool   // the server wants a status update now
	ask     atomic.Bool   // somebody wants to know the server's position
	stop    chan struct{} // closed to end the writer
	stopped chan struct{} // closed when the writer has ended
	silence time.Duration // the longest that the writer says nothing

	interrupted atomic.Bool
	mu          sync.Mutex
	broken      error // what ended the writer
	closeOnce   sync.Once
}

// ErrInterrupted is what Receive returns after Interrupt.
var ErrInterrupted = errors.New("the stream was interrupted")

// Start acquires the slot and starts to stream. The connection belongs to the
// Stream from here on, whether that succeeds or not. Until the first Ack
// nothing is reported as flushed, so the slot does not move.
func (c *Conn) Start(ctx context.Context, opt Options) (*Stream, error) {
	timeout, trip, err := c.measure(ctx)
	if err != nil {
		return nil, errors.Join(err, c.pg.Close(ctx))
	}
	if err := c.pg.SyncConn(ctx); err != nil {
		return nil, errors.Join(err, c.pg.Close(ctx))
	}
	hijacked, err := c.pg.Hijack()
	if err != nil {
		return nil, err
	}
	s := newStream(hijacked.Conn, hijacked.PID, timeout, opt)
	if trip <= nearby {
		s.in.socket.limit(receiveBuffer)
	}
	unwatch := context.AfterFunc(ctx, s.Interrupt)
	err = s.begin(startCommand(opt))
	if !unwatch() && err == nil {
		err = ErrInterrupted
	}
	if err != nil {
		_ = s.conn.Close() // the cause is the error to return
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, err
	}
	s.in.begin()
	go s.write()
	return s, nil
}

// measure gives the server's wal_sender_timeout and the shortest of a few round
// trips.
func (c *Conn) measure(ctx context.Context) (timeout, trip time.Duration, err error) {
	for i := 0; i < 4 && (i == 0 || trip > nearby); i++ {
		started := time.Now()
		if timeout, err = c.senderTimeout(ctx); err != nil {
			return 0, 0, err
		}
		if took := time.Since(started); i == 0 || took < trip {
			trip = took
		}
	}
	return timeout, trip, nil
}

func newStream(conn net.Conn, pid uint32, timeout time.Duration, opt Options) *Stream {
	return &Stream{
		PID:  pid,
		conn: conn,
		in: gulp{
			src:  conn,
			buf:  make([]byte, max(opt.BufferSize, minBuffer)),
			max:  opt.MaxMessage,
			pace: pace{socket: newSocket(conn)},
		},
		log:     opt.Log,
		wake:    make(chan struct{}, 1),
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
		silence: silence(timeout),
	}
}

func startCommand(opt Options) string {
	names := make([]string, len(opt.Publications))
	for i, p := range opt.Publications {
		names[i] = millrace.QuoteIdent(p)
	}
	version, more := 1, ""
	if opt.Streaming {
		version, more = 2, ", streaming 'on'"
	}
	if opt.TwoPhase {
		version, more = 3, more+", two_phase 'on'"
	}
	if opt.Streaming && opt.Parallel {
		version, more = 4, strings.Replace(more, "streaming 'on'", "streaming 'parallel'", 1)
	}
	if opt.LocalOnly {
		more += ", origin 'none'"
	}
	return fmt.Sprintf("START_REPLICATION SLOT %s LOGICAL %v (proto_version '%d', publication_names %s, binary '%t', messages 'true'%s)",
		millrace.QuoteIdent(opt.Slot), opt.Start, version, quote(strings.Join(names, ",")), opt.Binary, more)
}

// quote writes a string for the grammar of replication commands, which knows no
// escapes but the doubled quote.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// begin sends the command and waits until the server has switched to copying.
func (s *Stream) begin(command string) error {
	query, err := (&pgproto3.Query{String: command}).Encode(nil)
	if err != nil {
		return err
	}
	if _, err := s.conn.Write(query); err != nil {
		return err
	}
	for {
		f, err := s.frame()
		if err != nil {
			return err
		}
		switch f.kind {
		case 'W': // CopyBothResponse
			return nil
		case 'N', 'S':
		default:
			return fmt.Errorf("unexpected answer %q to START_REPLICATION", f.kind)
		}
	}
}

// Message is what came: a message of the plugin, or a sign of life.
type Message struct {
	// Data is the plugin's message, nil for a sign of life. It is valid until
	// the next Receive, unless it is Owned: then it is the caller's for good.
	Data  []byte
	Owned bool
	// LSN is where Data stands in the log.
	LSN millrace.LSN
	// Position says up to where the server has sent everything, so far as the
	// message says so: a sign of life does.
	Position millrace.LSN
	// Urgent is set for a sign of life to which the server wants an answer. It
	// gets one at once with the last Ack, whatever the caller does.
	Urgent bool
}

// The sizes of the messages inside CopyData.
const (
	dataHeader = 1 + 8 + 8 + 8 // 'w', position, end, time
	keepalive  = 1 + 8 + 8 + 1 // 'k', end, time, reply requested
)

// Receive waits for the next message.
func (s *Stream) Receive() (Message, error) {
	for {
		f, err := s.frame()
		if err != nil {
			return Message{}, err
		}
		switch f.kind {
		case 'd': // CopyData
			return s.message(f)
		case 'N', 'S':
		case 'c', 'C': // CopyDone, CommandComplete: the server shuts down
			return Message{}, fmt.Errorf("the server ended the stream: %w", io.EOF)
		default:
			return Message{}, fmt.Errorf("unexpected message %q in the stream", f.kind)
		}
	}
}

func (s *Stream) message(f frame) (Message, error) {
	b := f.body
	if len(b) >= dataHeader && b[0] == 'w' {
		m := Message{Data: b[dataHeader:], Owned: f.owned, LSN: millrace.LSN(binary.BigEndian.Uint64(b[1:]))}
		s.advance(m.LSN)
		return m, nil
	}
	if len(b) == keepalive && b[0] == 'k' {
		m := Message{Position: millrace.LSN(binary.BigEndian.Uint64(b[1:])), Urgent: b[17] != 0}
		s.advance(m.Position)
		if m.Urgent {
			s.answer.Store(true)
			s.signal()
		}
		return m, nil
	}
	return Message{}, fmt.Errorf("malformed CopyData of %d bytes", len(b))
}

// advance raises the position that is reported as received. Only the reader
// calls it.
func (s *Stream) advance(to millrace.LSN) {
	if uint64(to) > s.received.Load() {
		s.received.Store(uint64(to))
	}
}

// Expect says how many bytes of the messages that follow are the protocol's and
// no row's: inside of a block each has the number of a subtransaction.
func (s *Stream) Expect(extra int64) { s.in.extra = extra }

// Skip passes over the message that Receive has refused with TooLarge.
func (s *Stream) Skip() error {
	if err := s.in.skip(); err != nil {
		return s.cause(err)
	}
	return nil
}

// Received is how far the server's log was received: every transaction that
// ends at or before it has come.
func (s *Stream) Received() millrace.LSN { return millrace.LSN(s.received.Load()) }

// Ready tells whether Receive would return without reading from the network.
func (s *Stream) Ready() bool { return s.in.ready() }

// frame reads the next message of the connection and deals with those that can
// come at any time.
func (s *Stream) frame() (frame, error) {
	if s.interrupted.Load() {
		return frame{}, ErrInterrupted
	}
	f, err := s.in.next()
	if err != nil {
		return frame{}, s.cause(err)
	}
	switch f.kind {
	case 'E':
		var e pgproto3.ErrorResponse
		if err := e.Decode(f.body); err != nil {
			return frame{}, fmt.Errorf("decode error of the server: %w", err)
		}
		return frame{}, pgconn.ErrorResponseToPgError(&e)
	case 'N':
		var n pgproto3.NoticeResponse
		if err := n.Decode(f.body); err == nil && s.log != nil {
			s.log.Debug("notice of the source", "severity", n.Severity, "message", n.Message)
		}
	}
	return f, nil
}

// cause finds out why reading failed.
func (s *Stream) cause(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.broken != nil:
		return s.broken
	case s.interrupted.Load():
		return ErrInterrupted
	}
	return err
}

// Interrupt makes Receive return ErrInterrupted, at once and ever after.
func (s *Stream) Interrupt() {
	s.interrupted.Store(true)
	// Fails only on a connection that is closed, and then Receive fails too.
	_ = s.conn.SetReadDeadline(time.Unix(1, 0))
}
