package replication

import "syscall"

// setLowWater sets SO_RCVLOWAT, which Linux honours for epoll as well. It can't
// fail on a TCP socket.
func setLowWater(fd uintptr, bytes int) {
	_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, bytes)
}
