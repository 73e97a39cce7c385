package rig

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/rig/pgserver"
)

// Proxy is a TCP proxy in front of a server, for faults of the network.
type Proxy struct {
	target   string
	listener net.Listener
	pumps    sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond // signals every change of what follows
	conns   map[net.Conn]struct{}
	stalled bool
	refuse  bool
	closed  bool
	delay   time.Duration
	allow   int64 // bytes towards the client until all is cut; negative: no limit
}

// NewProxy puts a proxy in front of a server; it is gone at the test's end.
func NewProxy(t testing.TB, p *Postgres) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x := &Proxy{target: p.Addr(), listener: l, conns: map[net.Conn]struct{}{}, allow: -1}
	x.changed = sync.NewCond(&x.mu)
	x.pumps.Go(x.accept)
	t.Cleanup(x.close)
	return x
}

// Addr is where the proxy listens.
func (x *Proxy) Addr() string { return x.listener.Addr().String() }

// URL is the address of a database behind the proxy, for the superuser.
func (x *Proxy) URL(db string) string { return pgserver.URL(x.Addr(), db) }

// Cut closes all connections; new ones are taken.
func (x *Proxy) Cut() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cutLocked()
}

func (x *Proxy) cutLocked() {
	for c := range x.conns {
		// A reset, as from a host that has lost its memory, and not the
		// orderly end that io.EOF is. Either error would mean it is gone.
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
	clear(x.conns)
	x.changed.Broadcast()
}

// CutAfter cuts all connections once n more bytes have gone to the clients,
// wherever in a message that is.
func (x *Proxy) CutAfter(n int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.allow = n
}

// Stall stops carrying bytes either way; connections stay open.
func (x *Proxy) Stall() { x.set(func() { x.stalled = true }) }

// Resume undoes Stall.
func (x *Proxy) Resume() { x.set(func() { x.stalled = false }) }

// Delay holds every piece of data back for that long.
func (x *Proxy) Delay(d time.Duration) { x.set(func() { x.delay = d }) }

// Refuse closes new connections at once, or takes them again. Cut ends those
// that are open.
func (x *Proxy) Refuse(on bool) { x.set(func() { x.refuse = on }) }

// Connections is how many clients are connected.
func (x *Proxy) Connections() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.conns) / 2
}

func (x *Proxy) set(change func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	change()
	x.changed.Broadcast()
}

func (x *Proxy) close() {
	x.mu.Lock()
	x.closed = true
	_ = x.listener.Close() // ends accept
	x.cutLocked()
	x.mu.Unlock()
	x.pumps.Wait()
}

func (x *Proxy) accept() {
	for {
		client, err := x.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			x.pumps.Go(func() { x.join(client) })
		}
	}
}

// join carries bytes between a client and the server until one side ends.
func (x *Proxy) join(client net.Conn) {
	defer client.Close()
	if x.refuses() {
		return
	}
	server, err := net.DialTimeout("tcp", x.target, 10*time.Second)
	if err != nil {
		return // the client sees what it would see without the proxy: an end
	}
	defer server.Close()
	if !x.add(client, server) {
		return
	}
	defer x.remove(client, server)
	var both sync.WaitGroup
	both.Go(func() { x.pump(server, client, false); _ = server.Close() })
	both.Go(func() { x.pump(client, server, true); _ = client.Close() })
	both.Wait()
}

func (x *Proxy) refuses() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.refuse || x.closed
}

func (x *Proxy) add(conns ...net.Conn) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range conns {
		x.conns[c] = struct{}{}
	}
	return !x.closed
}

func (x *Proxy) remove(conns ...net.Conn) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range conns {
		delete(x.conns, c)
	}
}

func (x *Proxy) pump(to io.Writer, from io.Reader, towardsClient bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			n, cut := x.pass(n, towardsClient)
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
			if cut {
				x.Cut()
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits for as long as the proxy holds data back and says how many of n
// bytes may go on, and whether that is the end.
func (x *Proxy) pass(n int, towardsClient bool) (int, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if d := x.delay; d > 0 {
		x.mu.Unlock()
		time.Sleep(d)
		x.mu.Lock()
	}
	for x.stalled && !x.closed {
		x.changed.Wait()
	}
	if !towardsClient || x.allow < 0 {
		return n, false
	}
	if int64(n) < x.allow {
		x.allow -= int64(n)
		return n, false
	}
	n = int(x.allow)
	x.allow = -1
	return n, true
}
