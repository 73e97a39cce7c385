package session

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// promptConn is a TCP connection whose reads and writes do not tell the Go
// scheduler that a system call may block, since on this socket none does. An
// ordinary one wakes the runtime's monitor thread when the program was idle, and
// that then looks around fifty times at intervals of 20 µs: at some hundred small
// transactions a second it took half of the program's time, and on a machine with
// two processors as much from the servers (docs/adr/0026).
type promptConn struct {
	*net.TCPConn
	in, out transfer
}

// transfer is one direction.
type transfer struct {
	mu   sync.Mutex
	trap uintptr
	name string
	wait func(func(fd uintptr) bool) error
	once func(fd uintptr) bool // what wait calls, made once
	buf  []byte
	n    int
	err  error
}

func prompt(conn net.Conn) net.Conn {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return conn
	}
	c := &promptConn{TCPConn: tcp}
	c.in.init(syscall.SYS_READ, "read", raw.Read)
	c.out.init(syscall.SYS_WRITE, "write", raw.Write)
	return c
}

func (t *transfer) init(trap uintptr, name string, wait func(func(fd uintptr) bool) error) {
	t.trap, t.name, t.wait, t.once = trap, name, wait, t.attempt
}

// attempt makes the call; false means that it would block.
func (t *transfer) attempt(fd uintptr) bool {
	for {
		n, _, errno := syscall.RawSyscall(t.trap, fd, uintptr(unsafe.Pointer(&t.buf[0])), uintptr(len(t.buf)))
		switch errno {
		case 0:
			t.n = int(n)
			return true
		case syscall.EAGAIN:
			return false
		case syscall.EINTR:
		default:
			t.err = os.NewSyscallError(t.name, errno)
			return true
		}
	}
}

// some moves at least a byte of b. Of the errors those of the network poller are
// net.OpErrors already.
func (t *transfer) some(b []byte) (int, error) {
	t.buf, t.n, t.err = b, 0, nil
	err := t.wait(t.once)
	t.buf = nil
	if err != nil {
		return 0, err
	}
	return t.n, t.err
}

func (c *promptConn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	n, err := c.in.some(b)
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

func (c *promptConn) Write(b []byte) (int, error) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	done := 0
	for done < len(b) {
		n, err := c.out.some(b[done:])
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// NetConn gives the connection beneath.
func (c *promptConn) NetConn() net.Conn { return c.TCPConn }
