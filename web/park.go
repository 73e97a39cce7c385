package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

const (
	// answerWithin bounds the write of an answer to a client that may be gone.
	answerWithin = 5 * time.Second
	// sweepEvery is how often connections of clients that have gone are looked
	// for: a parked connection has nobody who reads from it.
	sweepEvery = 5 * time.Second
)

// lot holds the requests that are parked.
type lot struct {
	mu   sync.Mutex
	all  map[*parked]struct{}
	gone chan struct{} // holds a token when one has left
}

func (l *lot) add(p *parked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = make(map[*parked]struct{})
		l.gone = make(chan struct{}, 1)
	}
	l.all[p] = struct{}{}
}

func (l *lot) remove(p *parked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, p)
	select {
	case l.gone <- struct{}{}:
	default:
	}
}

func (l *lot) list() []*parked {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*parked, 0, len(l.all))
	for p := range l.all {
		all = append(all, p)
	}
	return all
}

// sweep gives up those whose client has gone, until done.
func (l *lot) sweep(done <-chan struct{}) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-done:
			return
		}
		for _, p := range l.list() {
			if hungUp(p.conn) {
				p.finish(errGone)
			}
		}
	}
}

// empty waits until all that were woken have their answer, at most until ctx
// ends; what is left is cut off.
func (l *lot) empty(ctx context.Context) {
	for {
		l.mu.Lock()
		n, gone := len(l.all), l.gone
		l.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-gone:
		case <-ctx.Done():
			for _, p := range l.list() {
				p.finish(errGone)
			}
			return
		}
	}
}

// errGone ends a wait that nobody wants to have answered any more.
var errGone = errors.New("the client has gone")

// parked is a wait whose connection was taken from the HTTP server. Between two
// steps nothing runs for it: the progress or a timer wakes it.
type parked struct {
	s     *Server
	w     *pending
	conn  net.Conn
	timer *time.Timer

	mu   sync.Mutex
	stop func() // takes the wish for the next step back
	done bool
}

// park takes the connection over. It is false where it can't be.
func (s *Server) park(w http.ResponseWriter, p *pending) bool {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return false
	}
	_ = conn.SetDeadline(time.Time{}) // that of the server; the answer sets its own
	k := &parked{s: s, w: p, conn: conn}
	s.parked.add(k)
	k.mu.Lock()
	k.timer = time.AfterFunc(time.Until(p.deadline), func() { k.finish(context.DeadlineExceeded) })
	k.mu.Unlock()
	k.step()
	return true
}

// step looks where the wait stands, and either answers or waits for more.
func (k *parked) step() {
	ctx, cancel := context.WithDeadline(context.Background(), k.w.deadline)
	defer cancel()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.done {
		return
	}
	next, err := k.s.step(ctx, k.w)
	if err != nil || next == nil {
		k.answer(err)
		return
	}
	k.stop = k.s.notify(next, func() { go k.step() })
}

// finish answers from outside of a step.
func (k *parked) finish(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.done {
		if k.stop != nil {
			k.stop()
		}
		k.answer(err)
	}
}

// answer writes the answer and closes the connection. k.mu is held.
func (k *parked) answer(err error) {
	k.done = true
	k.timer.Stop()
	defer k.s.waiting.Add(-1)
	defer k.s.parked.remove(k)
	defer k.conn.Close()
	if errors.Is(err, errGone) {
		return
	}
	code := k.s.conclude(k.w, err)
	body, err := json.Marshal(k.w.answer)
	if err != nil {
		return
	}
	body = append(body, '\n')
	res := &http.Response{StatusCode: code, ProtoMajor: 1, ProtoMinor: 1, Close: true, ContentLength: int64(len(body)),
		Header: http.Header{"Content-Type": {"application/json"}, "Cache-Control": {"no-store"}},
		Body:   io.NopCloser(bytes.NewReader(body))}
	_ = k.conn.SetWriteDeadline(time.Now().Add(answerWithin))
	_ = res.Write(k.conn) // the client may be gone
}

// hungUp tells whether the other side has closed a connection, without reading
// from it or waiting.
func hungUp(c net.Conn) bool {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	ended := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		ended = err == nil && n == 0 || errors.Is(err, syscall.ECONNRESET)
		return true
	})
	return ended || err != nil
}
