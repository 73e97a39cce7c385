package pgserver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

// Ports come from below the range that the kernel takes for outgoing
// connections (from 32768 on Linux): a port from inside that range could be
// taken by any client while its server is down, and the server could not come
// back.
const (
	firstPort = 20000
	lastPort  = 32000
)

// takePort reserves a free port. The lock is held for as long as the server may
// use the port, also while it is stopped, so that no other process of the rig
// gets it; that nobody else listens on it is tried out.
func takePort() (int, *os.File, error) {
	for range 200 {
		p := firstPort + rand.IntN(lastPort-firstPort)
		l, err := tryLock("port-" + strconv.Itoa(p))
		if err != nil {
			return 0, nil, err
		}
		if l == nil {
			continue
		}
		probe, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
		if err != nil {
			_ = l.Close()
			continue
		}
		if err := probe.Close(); err != nil {
			return 0, nil, errors.Join(err, l.Close())
		}
		return p, l, nil
	}
	return 0, nil, fmt.Errorf("no free port between %d and %d", firstPort, lastPort)
}
