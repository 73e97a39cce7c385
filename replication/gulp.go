package replication

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/millrace/millrace"
)

// A walsender sends each message of pgoutput with a system call of its own. A
// reader that is always ready costs it a wake-up for each, too, and decoding,
// which is what limits the throughput, more than twice the time. If instead the
// reader sleeps while its receive buffer fills up, the calls only append to the
// sender's buffer. So the reader pauses before a read, and takes large gulps.
// Two things belong to that: a small receive buffer of fixed size, since one
// that the kernel enlarges never fills, and a low-water mark that keeps what
// arrives during the pause from waking the thread that polls the network.
//
// All that is about a server nearby. Over a distance a small buffer would bound
// the throughput to its size a round trip, so it is left to the kernel there.
//
// There are two stable states: with the buffer full, sending is cheap, and so
// much comes in a pause that it fills again; with the buffer open, sending is
// dear, and it does not. A longer pause, once, leads from the latter into the
// former. It is made when much begins to come, and now and then while reads at a
// high rate find the buffer open.
//
// A pause must cost nothing when there is little to do, so there is one only
// while much is coming in. And it bounds what can be read to a buffer a pause.
// That is a gain while messages are small and their number is what costs; with
// large ones there is no pause after a read that found the buffer full. Measured
// with rows of 450 bytes, the walsender takes the same time either way, and a
// buffer a pause is less than two cores can apply.
const (
	receiveBuffer = 64 << 10
	pause         = time.Millisecond
	longPause     = 4 * time.Millisecond
	hotRate       = 2 << 20  // bytes per second above which reads are paced
	highRate      = 16 << 20 // and above which an open buffer is to be filled
	openReads     = 64       // after that many reads that did not find it full
	hotWindow     = 5 * time.Millisecond
	hotFor        = 50 * time.Millisecond // how long one hot window has an effect
	largeMessage  = 256
	nearby        = 500 * time.Microsecond // the longest round trip for a small buffer
)

// frame is one message of the connection.
type frame struct {
	kind  byte
	body  []byte // valid until the next frame, unless owned
	owned bool
}

const frameHeader = 1 + 4 // kind, length

// gulp reads frames in large reads.
type gulp struct {
	src io.Reader
	buf []byte
	r,
	w int // what was read and not consumed is buf[r:w]
	max int64 // the largest message of the plugin
	// extra is what a message may have beyond that: see Stream.Expect.
	extra int64
	pace
}

// ready tells whether a whole frame is in the buffer.
func (g *gulp) ready() bool {
	have := g.w - g.r
	return have >= frameHeader && int64(have) >= 1+int64(binary.BigEndian.Uint32(g.buf[g.r+1:]))
}

// next reads a frame. One that does not fit into the buffer gets memory of its
// own, but never more than the limit.
func (g *gulp) next() (frame, error) {
	if err := g.need(frameHeader); err != nil {
		return frame{}, err
	}
	kind := g.buf[g.r]
	size := int64(binary.BigEndian.Uint32(g.buf[g.r+1:])) - 4 // the length counts itself
	switch {
	case size < 0:
		return frame{}, errors.New("malformed message: its length does not count itself")
	case kind == 'd' && size > g.max+g.extra+dataHeader:
		return frame{}, g.tooLarge(size)
	case kind != 'd' && frameHeader+size > int64(len(g.buf)):
		return frame{}, fmt.Errorf("malformed message: %q of %d bytes", kind, size)
	case frameHeader+size > int64(len(g.buf)):
		return g.large(kind, size)
	}
	end := frameHeader + int(size)
	if err := g.need(end); err != nil {
		return frame{}, err
	}
	f := frame{kind: kind, body: g.buf[g.r+frameHeader : g.r+end : g.r+end]}
	g.r += end
	g.frames++
	return f, nil
}

// need reads until n bytes are in the buffer.
func (g *gulp) need(n int) error {
	for g.w-g.r < n {
		if g.r > 0 {
			g.w = copy(g.buf, g.buf[g.r:g.w])
			g.r = 0
		}
		g.rest()
		got, err := g.src.Read(g.buf[g.w:])
		g.saw(got)
		g.w += got
		if err != nil && g.w-g.r < n {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// large reads the body of a frame into memory of its own.
func (g *gulp) large(kind byte, size int64) (frame, error) {
	g.r += frameHeader
	body := make([]byte, size)
	n := copy(body, g.buf[g.r:g.w])
	g.r += n
	got, err := io.ReadFull(g.src, body[n:])
	g.saw(got)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	return frame{kind: kind, body: body, owned: true}, nil
}

// TooLarge is in the chain of the error about a message beyond the limit.
type TooLarge struct {
	Size, Limit int64
	// Head are the first bytes of the plugin's message, so that the reader can
	// say what it is about.
	Head []byte
}

func (e *TooLarge) Error() string {
	return fmt.Sprintf("a change of %d bytes is larger than resources.max_message, %d bytes", e.Size, e.Limit)
}

// headSize is enough for the tag of a change, its subtransaction inside of a
// block, and its relation.
const headSize = 1 + 4 + 4

func (g *gulp) tooLarge(size int64) error {
	e := &TooLarge{Size: size - dataHeader - g.extra, Limit: g.max}
	if err := g.need(frameHeader + dataHeader + headSize); err == nil {
		e.Head = append(e.Head, g.buf[g.r+frameHeader+dataHeader:][:headSize]...)
	}
	return &millrace.Error{
		Kind: millrace.KindData,
		Op:   "receive",
		Peer: millrace.PeerSource,
		Err:  e,
		Hint: fmt.Sprintf("raise resources.max_message to at least %dMiB; resources.memory_budget must hold four such changes", (e.Size+1<<20-1)>>20),
	}
}

// skip passes over the frame that next has refused.
func (g *gulp) skip() error {
	rest := 1 + int64(binary.BigEndian.Uint32(g.buf[g.r+1:]))
	for {
		have := min(rest, int64(g.w-g.r))
		g.r += int(have)
		if rest -= have; rest == 0 {
			return nil
		}
		n, err := g.src.Read(g.buf)
		g.saw(n)
		g.r, g.w = 0, n
		if err != nil && n == 0 {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
}

// pace decides when to pause before a read.
type pace struct {
	socket *socket
	since  time.Time // start of the window
	bytes  int       // read in the window
	until  time.Time // pace reads until then
	last   int       // size of the last read
	frames int       // frames since the last read
	open   int       // reads since the buffer was found full
	long   bool      // the next pause is a long one
	now    time.Time // of the last read
}

// begin takes a new stream for one with much to send.
func (p *pace) begin() {
	p.now = time.Now()
	p.since, p.until = p.now, p.now.Add(hotFor)
}

// saw counts a read.
func (p *pace) saw(n int) {
	p.last, p.frames = n, 0
	p.bytes += n
	p.open++
	if n >= receiveBuffer {
		p.open = 0
	}
	p.now = time.Now()
	dt := p.now.Sub(p.since)
	if dt < hotWindow {
		return
	}
	rate := float64(p.bytes) / dt.Seconds()
	p.since, p.bytes = p.now, 0
	if rate <= hotRate {
		return
	}
	if !p.now.Before(p.until) || rate > highRate && p.open >= openReads {
		p.long, p.open = true, 0
	}
	p.until = p.now.Add(hotFor)
}

// rest pauses if there is much to do and all that has arrived was read.
func (p *pace) rest() {
	if !p.now.Before(p.until) || p.last >= receiveBuffer && p.last > p.frames*largeMessage || !p.socket.drained() {
		return
	}
	d := pause
	if p.long {
		d, p.long = longPause, false
	}
	p.socket.lowWater(receiveBuffer)
	time.Sleep(d)
	p.socket.lowWater(1)
}
