package session

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// pair gives the two ends of a connection, both as sessions have them.
func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	there := make(chan net.Conn, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		there <- conn
	}()
	a, err = dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b = prompt(<-there)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// TestPromptTransfer: much more than the buffers of the kernel hold, both ways
// at once, with reads of odd sizes.
func TestPromptTransfer(t *testing.T) {
	a, b := pair(t)
	sent := make([]byte, 8<<20)
	if _, err := rand.Read(sent); err != nil {
		t.Fatal(err)
	}
	for _, end := range []net.Conn{a, b} {
		go func() {
			if n, err := end.Write(sent); n != len(sent) || err != nil {
				t.Errorf("wrote %d of %d: %v", n, len(sent), err)
			}
		}()
	}
	for _, end := range []net.Conn{a, b} {
		got := make([]byte, len(sent))
		for done := 0; done < len(got); {
			n, err := end.Read(got[done:min(done+9973, len(got))])
			if n <= 0 || err != nil {
				t.Fatal(n, err)
			}
			done += n
		}
		if !bytes.Equal(got, sent) {
			t.Error("other bytes have come")
		}
	}
}

func TestPromptEnds(t *testing.T) {
	a, b := pair(t)
	if n, err := a.Read(nil); n != 0 || err != nil {
		t.Error("an empty read:", n, err)
	}
	if err := a.SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func([]byte) (int, error){"read": a.Read, "write": a.Write} {
		n, err := do(make([]byte, 1))
		var timeout net.Error
		if n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("%s behind the deadline: %d %v", what, n, err)
		}
	}
	if err := a.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() {
		_, err := a.Read(make([]byte, 1))
		closed <- err
	}()
	if _, err := b.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if err := <-closed; err != nil {
		t.Error("behind a deadline that was taken back:", err)
	}
	go func() {
		_, err := b.Read(make([]byte, 1))
		closed <- err
	}()
	b.Close()
	if err := <-closed; !errors.Is(err, net.ErrClosed) {
		t.Error("a read while the connection is closed:", err)
	}
	if n, err := a.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Error("a read behind the other end's close:", n, err)
	}
	for range 100 { // the first may come before the reset
		if _, err := a.Write(make([]byte, 1<<16)); err != nil {
			return
		}
	}
	t.Error("writes to a connection that the other end has closed succeed")
}
