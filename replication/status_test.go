package replication

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace"
)

// report is a status update as the server gets it.
type report struct {
	at                        time.Duration // since the stream started
	written, flushed, applied millrace.LSN
	ask                       bool
}

// fakeServer is the server's end of a stream in virtual time.
type fakeServer struct {
	t       *testing.T
	conn    net.Conn
	started time.Time
	reports chan report
}

// serve starts a stream with a server that collects what it is told.
func serve(t *testing.T, timeout time.Duration) (*Stream, *fakeServer) {
	ours, theirs := net.Pipe()
	s := newStream(ours, 1, timeout, Options{MaxMessage: 1 << 20})
	f := &fakeServer{t: t, conn: theirs, started: time.Now(), reports: make(chan report, 10000)}
	go s.write()
	go f.read()
	return s, f
}

func (f *fakeServer) read() {
	defer close(f.reports)
	for {
		var head [5]byte
		if _, err := io.ReadFull(f.conn, head[:]); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(f.conn, body); err != nil {
			return
		}
		if head[0] == 'X' {
			_ = f.conn.Close()
			return
		}
		f.reports <- report{
			at:      time.Since(f.started),
			written: millrace.LSN(binary.BigEndian.Uint64(body[1:])),
			flushed: millrace.LSN(binary.BigEndian.Uint64(body[9:])),
			applied: millrace.LSN(binary.BigEndian.Uint64(body[17:])),
			ask:     body[33] == 1,
		}
	}
}

// all gives the reports that came so far.
func (f *fakeServer) all() []report {
	synctest.Wait()
	var rs []report
	for {
		select {
		case r, ok := <-f.reports:
			if !ok {
				return rs
			}
			rs = append(rs, r)
		default:
			return rs
		}
	}
}

func closeStream(t *testing.T, s *Stream) {
	t.Helper()
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestStatusWithoutReader is about a consumer that blocks for an hour: nobody
// receives, and the server must hear of us all the same.
func TestStatusWithoutReader(t *testing.T) {
	for _, timeout := range []time.Duration{0, 100 * time.Millisecond, 2 * time.Second, time.Minute} {
		t.Run(timeout.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, f := serve(t, timeout)
				defer closeStream(t, s)
				time.Sleep(time.Minute)
				limit := time.Second
				if timeout > 0 {
					limit = min(limit, timeout/2)
				}
				last := time.Duration(0)
				for _, r := range f.all() {
					if r.at-last > limit {
						t.Fatalf("silent from %v to %v", last, r.at)
					}
					if r.flushed != 0 {
						t.Fatalf("reported %v as flushed before any Ack", r.flushed)
					}
					last = r.at
				}
				if last < time.Minute-limit {
					t.Errorf("silent since %v", last)
				}
			})
		})
	}
}

func TestAckGoesOutAtOnceWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := serve(t, time.Minute)
		s.advance(100) // the server is that far
		defer closeStream(t, s)
		time.Sleep(500 * time.Millisecond)
		f.all()
		s.Ack(100)
		got := f.all()
		if len(got) != 1 || got[0].at != 500*time.Millisecond || got[0].flushed != 100 || got[0].applied != 100 || got[0].written != 100 {
			t.Errorf("got %+v", got)
		}
	})
}

func TestAcksAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := serve(t, time.Minute)
		s.advance(1 << 20) // the server is that far
		defer closeStream(t, s)
		time.Sleep(500 * time.Millisecond)
		f.all()
		for i := range 1000 {
			s.Ack(millrace.LSN(100 + i))
			time.Sleep(time.Millisecond)
		}
		got := f.all()
		if len(got) < 9 || len(got) > 12 {
			t.Errorf("%d reports for a second of acks", len(got))
		}
		time.Sleep(coalesce)
		got = append(got, f.all()...)
		if last := got[len(got)-1]; last.flushed != 1099 {
			t.Errorf("the last ack came as %+v", last)
		}
	})
}

func TestAckNeverFalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := serve(t, time.Minute)
		s.advance(1 << 20) // the server is that far
		defer closeStream(t, s)
		s.Ack(200)
		s.Ack(100)
		time.Sleep(5 * time.Second)
		s.Ack(150)
		time.Sleep(5 * time.Second)
		last := millrace.LSN(0)
		for _, r := range f.all() {
			if r.flushed < last || r.flushed != r.applied || r.written < r.flushed {
				t.Errorf("after %v came %+v", last, r)
			}
			last = r.flushed
		}
		if last != 200 {
			t.Errorf("reported %v, want 200", last)
		}
	})
}

func TestReplyIsGivenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := serve(t, time.Minute)
		defer closeStream(t, s)
		s.Ack(7)
		time.Sleep(150 * time.Millisecond)
		f.all()
		go func() {
			if _, err := f.conn.Write(signOfLife(0x1000, true)); err != nil {
				t.Error(err)
			}
		}()
		m, err := s.Receive()
		if err != nil || !m.Urgent || m.Data != nil || m.Position != 0x1000 {
			t.Fatalf("%+v, %v", m, err)
		}
		got := f.all()
		if len(got) != 1 || got[0].at != 150*time.Millisecond || got[0].written != 0x1000 || got[0].flushed != 7 || got[0].ask {
			t.Errorf("got %+v", got)
		}
	})
}

func TestRequestPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := serve(t, time.Minute)
		defer closeStream(t, s)
		time.Sleep(time.Second + 50*time.Millisecond)
		f.all()
		for range 10 { // of many waiters
			s.RequestPosition()
			time.Sleep(10 * time.Millisecond)
		}
		asked := 0
		for _, r := range f.all() {
			if r.ask {
				asked++
			}
		}
		if asked < 1 || asked > 2 {
			t.Errorf("asked %d times in 100 ms", asked)
		}
	})
}

func TestServerIsAskedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := serve(t, time.Minute)
		defer closeStream(t, s)
		time.Sleep(time.Minute + time.Millisecond)
		asked := 0
		for _, r := range f.all() {
			if r.ask {
				asked++
			}
		}
		if asked != 7 { // at 0, 10, … 60 seconds
			t.Errorf("asked %d times in a minute", asked)
		}
	})
}

func TestCloseReportsTheLastAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := serve(t, time.Minute)
		s.advance(1 << 20) // the server is that far
		s.Ack(1)
		synctest.Wait()
		s.Ack(2) // coalesced, so not sent yet
		closeStream(t, s)
		got := f.all()
		if last := got[len(got)-1]; last.flushed != 2 {
			t.Errorf("the last report was %+v", last)
		}
		closeStream(t, s) // once more does nothing
	})
}

func TestInterruptEndsReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := serve(t, time.Minute)
		defer closeStream(t, s)
		go func() {
			time.Sleep(time.Second)
			s.Interrupt()
		}()
		for range 2 {
			if _, err := s.Receive(); !errors.Is(err, ErrInterrupted) {
				t.Errorf("got %v", err)
			}
		}
	})
}

// TestStuckServerDoesNotStickClose has a server that takes nothing more.
func TestStuckServerDoesNotStickClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		s := newStream(ours, 1, time.Minute, Options{MaxMessage: 1 << 20})
		go s.write()
		s.Ack(5)
		ctx, cancel := contextFor(t, 2*time.Second)
		defer cancel()
		started := time.Now()
		_ = s.Close(ctx) // an error is right
		if took := time.Since(started); took > 3*time.Second {
			t.Errorf("Close took %v", took)
		}
	})
}

func TestLostConnectionEndsReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := serve(t, time.Minute)
		_ = f.conn.Close()
		if _, err := s.Receive(); err == nil || errors.Is(err, ErrInterrupted) {
			t.Errorf("got %v", err)
		}
		_ = s.Close(t.Context())
	})
}

func signOfLife(position millrace.LSN, urgent bool) []byte {
	b := make([]byte, keepalive)
	b[0] = 'k'
	binary.BigEndian.PutUint64(b[1:], uint64(position))
	if urgent {
		b[keepalive-1] = 1
	}
	return wire('d', b)
}

// wire frames a message of the connection.
func wire(kind byte, body []byte) []byte {
	b := []byte{kind, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(b[1:], uint32(4+len(body)))
	return append(b, body...)
}
