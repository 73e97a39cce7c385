package replication

import "syscall"

// setLowWater sets SO_RCVLOWAT, which Linux honours for epoll as well. It can't
// fail on a TCP socket.
func setLowWater(fd uintptr, bytes int) {
	_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, bytes)
}

// peek tells whether something can be read. An error counts as that: the read
// will report it.
func peek(fd uintptr) bool {
	var b [1]byte
	_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return err != syscall.EAGAIN
}
