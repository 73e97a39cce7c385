package replication

import (
	"crypto/tls"
	"net"
	"syscall"
)

// rawConn gives the connection beneath TLS and package session's own.
func rawConn(conn net.Conn) net.Conn {
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return conn
		}
		conn = outer.NetConn()
	}
}

// socket is what pacing needs of the TCP socket beneath a connection. A nil
// socket, of a connection over something else, can do nothing.
type socket struct {
	tcp *net.TCPConn
	raw syscall.RawConn
	tls bool // what is read comes in records, not as it lies in the socket

	bytes             int  // argument of setLowWater
	found             bool // result of peek
	setLowWater, peek func(fd uintptr)
}

func newSocket(conn net.Conn) *socket {
	tcp, ok := rawConn(conn).(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	_, encrypted := conn.(*tls.Conn)
	s := &socket{tcp: tcp, raw: raw, tls: encrypted}
	s.setLowWater = func(fd uintptr) { setLowWater(fd, s.bytes) }
	s.peek = func(fd uintptr) { s.found = peek(fd) }
	return s
}

// limit fixes the size of the receive buffer.
func (s *socket) limit(bytes int) {
	if s != nil {
		// Without it the stream is only slower.
		_ = s.tcp.SetReadBuffer(bytes)
	}
}

// lowWater sets how many bytes must have arrived for the socket to count as
// readable.
func (s *socket) lowWater(bytes int) {
	if s != nil {
		s.bytes = bytes
		// Fails only on a connection that is closed.
		_ = s.raw.Control(s.setLowWater)
	}
}

// drained tells whether everything that has arrived was read. Without TLS a
// read that does not fill its buffer has done that.
func (s *socket) drained() bool {
	if s == nil || !s.tls {
		return true
	}
	s.found = true
	_ = s.raw.Control(s.peek) // likewise
	return !s.found
}
