package replication

import (
	"net"
	"syscall"
)

// rawConn gives the connection beneath TLS.
func rawConn(conn net.Conn) net.Conn {
	if outer, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return outer.NetConn()
	}
	return conn
}

// limitReceiveBuffer fixes the size of the socket's receive buffer.
func limitReceiveBuffer(conn net.Conn) {
	if tcp, ok := rawConn(conn).(*net.TCPConn); ok {
		// Without it the stream is only slower.
		_ = tcp.SetReadBuffer(receiveBuffer)
	}
}

// lowWater sets how many bytes must have arrived for a socket to count as
// readable.
type lowWater struct {
	raw   syscall.RawConn
	bytes int
	apply func(fd uintptr)
}

// newLowWater gives nil for what is no TCP socket.
func newLowWater(conn net.Conn) *lowWater {
	tcp, ok := rawConn(conn).(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	l := &lowWater{raw: raw}
	l.apply = func(fd uintptr) { setLowWater(fd, l.bytes) }
	return l
}

func (l *lowWater) set(bytes int) {
	if l == nil {
		return
	}
	l.bytes = bytes
	// Fails only on a connection that is closed.
	_ = l.raw.Control(l.apply)
}
