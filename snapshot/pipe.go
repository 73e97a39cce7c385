package snapshot

import (
	"context"
	"errors"
	"io"
	"sync"
)

const (
	chunkSize  = 256 << 10
	chunkCount = 4 // per stream: one being filled, one being emptied, two between
)

// pipe carries the bytes of one COPY from the session that reads to the one that
// writes, in chunks, so that neither waits for the other at each row. Unlike
// io.Pipe it holds some, and never more than chunkCount.
type pipe struct {
	ctx  context.Context
	full chan []byte
	free chan []byte

	filling []byte // the writer's
	rest    []byte // the reader's
	reading []byte

	limit    *Limiter
	progress func(bytes, rows int64)
	bytes    int64 // passed on
	rows     int64 // reported
	newRows  int64

	once   sync.Once
	closed chan struct{} // the reader takes no more
	err    error         // why the writer ended; read after full is closed
}

var errReaderGone = errors.New("the target takes no more rows")

func newPipe(ctx context.Context, limit *Limiter, progress func(bytes, rows int64)) *pipe {
	p := &pipe{ctx: ctx, full: make(chan []byte, chunkCount), free: make(chan []byte, chunkCount),
		limit: limit, progress: progress, closed: make(chan struct{})}
	for range chunkCount {
		p.free <- make([]byte, 0, chunkSize)
	}
	return p
}

// Write takes bytes of the source, of which a chunk can hold the end of one row
// and the start of another.
func (p *pipe) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if p.filling == nil {
			if err := p.take(); err != nil {
				return 0, err
			}
		}
		k := min(len(b), chunkSize-len(p.filling))
		p.filling = append(p.filling, b[:k]...)
		b = b[k:]
		if len(p.filling) == chunkSize {
			if err := p.flush(); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

// row counts one row.
func (p *pipe) row() { p.newRows++ }

// take gets an empty chunk.
func (p *pipe) take() error {
	select {
	case p.filling = <-p.free:
		return nil
	case <-p.closed:
		return errReaderGone
	case <-p.ctx.Done():
		return context.Cause(p.ctx)
	}
}

func (p *pipe) flush() error {
	n := len(p.filling)
	if err := p.limit.wait(p.ctx, n); err != nil {
		return err
	}
	select {
	case p.full <- p.filling:
		p.filling = nil
	case <-p.closed:
		return errReaderGone
	case <-p.ctx.Done():
		return context.Cause(p.ctx)
	}
	p.bytes += int64(n)
	p.rows += p.newRows
	p.progress(int64(n), p.newRows)
	p.newRows = 0
	return nil
}

// closeWrite ends the stream. An error makes the target's COPY fail.
func (p *pipe) closeWrite(err error) {
	if err == nil && len(p.filling) > 0 {
		err = p.flush()
	}
	p.err = err
	close(p.full)
}

// Read gives the target what has come.
func (p *pipe) Read(b []byte) (int, error) {
	for len(p.rest) == 0 {
		if p.reading != nil {
			p.free <- p.reading[:0]
			p.reading = nil
		}
		chunk, ok := <-p.full
		if !ok {
			if p.err != nil {
				return 0, p.err
			}
			return 0, io.EOF
		}
		p.reading, p.rest = chunk, chunk
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// closeRead makes the writer stop.
func (p *pipe) closeRead() { p.once.Do(func() { close(p.closed) }) }
