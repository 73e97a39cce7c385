package snapshot

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// reader is a session at the source that sends the output of COPY on as it
// comes. pgconn.CopyTo would hold each row in memory, and a row can have a
// gigabyte; here a row is never whole. The framing is that of the protocol's
// section "Message Formats": a type byte, a length that counts itself, a body.
type reader struct {
	pg  *pgconn.PgConn // for all that is not COPY
	buf []byte
}

const readBuffer = 256 << 10

func newReader(conn *pgx.Conn) *reader { return &reader{pg: conn.PgConn()} }

func (r *reader) closed() bool { return r.pg.IsClosed() }

// close ends the session without waiting for a server that may be gone.
func (r *reader) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = r.pg.Close(ctx) // there is nothing to save
}

// value runs a query that gives one value.
func (r *reader) value(ctx context.Context, sql string) (string, error) {
	results, err := r.pg.Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 1 {
		return "", fmt.Errorf("unexpected answer to %s", sql)
	}
	return string(results[0].Rows[0][0]), nil
}

// rowWriter takes the bytes of rows; row is called once per message.
type rowWriter interface {
	io.Writer
	row()
}

// copyTo runs COPY … TO STDOUT. After an error of anything but the server the
// session is closed.
func (r *reader) copyTo(ctx context.Context, to rowWriter, sql string) (pgconn.CommandTag, error) {
	// pgconn reads in the background when a write takes longer than some milliseconds,
	// as on a machine that is busy, and goes on waiting for what comes next: the
	// answer to the COPY would be its, and not ours.
	if err := r.pg.SyncConn(ctx); err != nil {
		return pgconn.CommandTag{}, err
	}
	raw, err := r.pg.Hijack()
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	conn := raw.Conn
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // makes what blocks fail
	tag, failure, err := r.exchange(conn, to, sql)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close() // what was under way is in an unknown state
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return tag, err
	}
	if r.pg, err = pgconn.Construct(raw); err != nil {
		_ = conn.Close() // nobody has it any more
		return tag, err
	}
	if failure != nil {
		return tag, failure
	}
	return tag, nil
}

// exchange sends the query and reads until the server is ready again. failure is
// the server's.
func (r *reader) exchange(conn net.Conn, to rowWriter, sql string) (tag pgconn.CommandTag, failure *pgconn.PgError, err error) {
	query, err := (&pgproto3.Query{String: sql}).Encode(nil)
	if err != nil {
		return tag, nil, err
	}
	if _, err := conn.Write(query); err != nil {
		return tag, nil, err
	}
	if r.buf == nil {
		r.buf = make([]byte, readBuffer)
	}
	in := gulp{from: conn, buf: r.buf}
	for {
		kind, length, err := in.header()
		if err != nil {
			return tag, failure, err
		}
		if kind == 'd' {
			if err := in.pass(to, length); err != nil {
				return tag, failure, err
			}
			to.row()
			continue
		}
		body, err := in.body(length)
		if err != nil {
			return tag, failure, err
		}
		switch kind {
		case 'C':
			tag = pgconn.NewCommandTag(string(body[:max(0, len(body)-1)]))
		case 'E':
			var e pgproto3.ErrorResponse
			if err := e.Decode(body); err != nil {
				return tag, failure, err
			}
			failure = pgconn.ErrorResponseToPgError(&e)
		case 'Z':
			return tag, failure, nil
		case 'H', 'c', 'N', 'S', 'A': // begin and end of the copy, notices, settings
		default:
			return tag, failure, fmt.Errorf("unexpected message %q during COPY", kind)
		}
	}
}

// gulp reads a connection in large pieces.
type gulp struct {
	from io.Reader
	buf  []byte
	r, w int // what is read and not yet used
}

// header reads the type and the length of the body.
func (g *gulp) header() (kind byte, length int, err error) {
	b, err := g.body(5)
	if err != nil {
		return 0, 0, err
	}
	length = int(int32(binary.BigEndian.Uint32(b[1:]))) - 4
	if length < 0 {
		return 0, 0, fmt.Errorf("malformed message of type %q", b[0])
	}
	return b[0], length, nil
}

// body gives n bytes, valid until the next call. All but rows are small.
func (g *gulp) body(n int) ([]byte, error) {
	if n > len(g.buf) {
		return nil, fmt.Errorf("message of %d bytes is too long", n)
	}
	if g.w-g.r < n {
		g.w = copy(g.buf, g.buf[g.r:g.w])
		g.r = 0
		for g.w < n {
			k, err := g.from.Read(g.buf[g.w:])
			if g.w += k; err != nil && g.w < n {
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return nil, err
			}
		}
	}
	b := g.buf[g.r : g.r+n]
	g.r += n
	return b, nil
}

// pass hands n bytes on as they come.
func (g *gulp) pass(to io.Writer, n int) error {
	for n > 0 {
		if g.r == g.w {
			k, err := g.from.Read(g.buf)
			g.r, g.w = 0, k
			if err != nil && k == 0 {
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return err
			}
		}
		k := min(n, g.w-g.r)
		if _, err := to.Write(g.buf[g.r : g.r+k]); err != nil {
			return err
		}
		g.r += k
		n -= k
	}
	return nil
}
