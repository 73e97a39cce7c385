package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"time"

	"github.com/millrace/millrace"
)

const (
	// coalesce is the least time between two status updates that only say that
	// more is durable, or only ask for the server's position.
	coalesce = 100 * time.Millisecond
	// askEvery is how often the server is asked for its position in any case:
	// of a server that is idle, or writes what is not published, nothing else
	// may ever come.
	askEvery = 10 * time.Second
	// longestSilence bounds the time between two status updates. It is short
	// so that the stream also survives a wal_sender_timeout that is lowered
	// while it runs.
	longestSilence = time.Second
)

// silence is how long to say nothing to a server with that wal_sender_timeout.
func silence(timeout time.Duration) time.Duration {
	if timeout <= 0 {
		return longestSilence
	}
	return max(min(timeout/4, longestSilence), 10*time.Millisecond)
}

// Ack says that everything up to the position is durable. It is reported at
// once if nothing was within the last 100 ms, else with the next report. It
// never blocks; a lower value than before is ignored.
func (s *Stream) Ack(durable millrace.LSN) {
	for {
		old := s.acked.Load()
		if uint64(durable) <= old {
			return
		}
		if s.acked.CompareAndSwap(old, uint64(durable)) {
			s.signal()
			return
		}
	}
}

// RequestPosition asks the server for a sign of life, at most every 100 ms.
func (s *Stream) RequestPosition() {
	s.ask.Store(true)
	s.signal()
}

func (s *Stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default: // the writer will look anyway
	}
}

// write sends status updates until stop. Nothing that the reader or the
// consumer of the stream waits for can hold it up.
func (s *Stream) write() {
	defer close(s.stopped)
	var (
		sent, asked time.Time // when
		reported    uint64    // the last acked position sent
	)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		next := sent.Add(s.silence)
		if s.acked.Load() != reported {
			next = earlier(next, sent.Add(coalesce))
		}
		nextAsk := asked.Add(askEvery)
		if s.ask.Load() {
			nextAsk = earlier(nextAsk, asked.Add(coalesce))
		}
		answer := s.answer.Swap(false)
		if ask := !now.Before(nextAsk); ask || answer || !now.Before(next) {
			if ask {
				s.ask.Store(false)
				asked = now
			}
			reported = s.flushed()
			if err := s.send(reported, ask); err != nil {
				s.fail(err)
				return
			}
			sent = now
			continue
		}
		timer.Reset(earlier(next, nextAsk).Sub(now))
		select {
		case <-s.stop:
			return
		case <-s.wake:
		case <-timer.C:
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// flushed is what is reported as durable: what was acknowledged, but nothing that the
// server has not reached. After a start it reads its log anew from before what the
// destination holds, and would let go of what it is still to read: the slot may
// remember from former streams where it could go on then.
func (s *Stream) flushed() uint64 { return min(s.acked.Load(), s.received.Load()) }

// send writes one status update.
func (s *Stream) send(acked uint64, ask bool) error {
	const size = 1 + 8 + 8 + 8 + 8 + 1
	var b [frameHeader + size]byte
	b[0] = 'd'
	binary.BigEndian.PutUint32(b[1:], 4+size)
	b[5] = 'r'
	binary.BigEndian.PutUint64(b[6:], s.received.Load()) // written
	binary.BigEndian.PutUint64(b[14:], acked)            // flushed; 0 says nothing
	binary.BigEndian.PutUint64(b[22:], acked)            // applied
	binary.BigEndian.PutUint64(b[30:], uint64(time.Now().UnixMicro()-epoch))
	if ask {
		b[38] = 1
	}
	_, err := s.conn.Write(b[:])
	return err
}

// epoch is 2000-01-01, the zero of PostgreSQL's timestamps, in microseconds.
const epoch = 946684800 * 1000000

// fail ends the stream because it can't be written to.
func (s *Stream) fail(err error) {
	s.mu.Lock()
	if s.broken == nil {
		s.broken = err
	}
	s.mu.Unlock()
	_ = s.conn.SetReadDeadline(time.Unix(1, 0))
}

// Close reports the last Ack, ends the stream and waits until the server has
// let go of the slot, as long as the context permits. It must not be called
// while Receive runs: Interrupt ends that.
func (s *Stream) Close(ctx context.Context) error {
	var err error
	s.closeOnce.Do(func() { err = s.close(ctx) })
	return err
}

func (s *Stream) close(ctx context.Context) error {
	unwatch := context.AfterFunc(ctx, func() { _ = s.conn.SetWriteDeadline(time.Unix(1, 0)) })
	close(s.stop)
	<-s.stopped
	unwatch()
	s.mu.Lock()
	broken := s.broken
	s.mu.Unlock()
	if broken != nil {
		return s.conn.Close()
	}
	return errors.Join(s.leave(ctx), s.conn.Close())
}

// leave says the last words and reads until the server hangs up. A connection
// that is closed with something still unread is reset, and the server could
// lose what was sent to it last.
func (s *Stream) leave(ctx context.Context) error {
	if err := s.conn.SetReadDeadline(time.Time{}); err != nil { // of Interrupt
		return err
	}
	unwatch := context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(time.Unix(1, 0)) })
	defer unwatch()
	if err := s.send(s.flushed(), false); err != nil {
		return err
	}
	if _, err := s.conn.Write([]byte{'X', 0, 0, 0, 4}); err != nil { // Terminate
		return err
	}
	// What TLS says about it does not matter any more.
	if _, err := io.Copy(io.Discard, rawConn(s.conn)); err != nil {
		return err
	}
	return nil
}
