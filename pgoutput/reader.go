package pgoutput

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace"
)

// ErrMalformed is wrapped by every error of this package.
var ErrMalformed = errors.New("malformed pgoutput message")

// reader reads a message from front to back. The first failure sticks; what is
// read after it is zero.
type reader struct {
	name string // of the message, for errors
	size int    // of the whole message, for errors
	b    []byte // what is left
	err  error
}

// open starts to read a message that must have the tag.
func open(msg []byte, tag Tag, name string) reader {
	r := reader{name: name, size: len(msg)}
	if len(msg) == 0 || Tag(msg[0]) != tag {
		r.fail("tag is not %q", byte(tag))
		return r
	}
	r.b = msg[1:]
	return r
}

// close gives the error, which is also that bytes are left over.
func (r *reader) close() error {
	if r.err == nil && len(r.b) != 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	return r.err
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s of %d bytes: %s", ErrMalformed, r.name, r.size, fmt.Sprintf(format, args...))
	}
	r.b = nil
}

// take cuts n bytes off the front, or gives nil.
func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.fail("cut short")
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) uint8() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

// flags reads a byte of flags of which only those in known may be set.
func (r *reader) flags(known byte) byte {
	f := r.uint8()
	if f&^known != 0 {
		r.fail("unknown flags %#x", f)
	}
	return f
}

func (r *reader) uint16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) lsn() millrace.LSN { return millrace.LSN(r.uint64()) }

// epoch is 2000-01-01, the zero of PostgreSQL's timestamps, in Unix seconds.
const epoch = 946684800

// time reads microseconds since 2000-01-01. Seconds and the rest are converted
// apart, since a transaction with an origin can carry any timestamp, infinity
// too, and the sum in microseconds would overflow.
func (r *reader) time() time.Time {
	us := int64(r.uint64())
	return time.Unix(us/1e6+epoch, us%1e6*1e3).UTC()
}

// cstring reads up to a zero byte and leaves that out.
func (r *reader) cstring() []byte {
	n := bytes.IndexByte(r.b, 0)
	if n < 0 {
		r.fail("a string does not end")
		return nil
	}
	s := r.b[:n:n]
	r.b = r.b[n+1:]
	return s
}

// namespace reads a schema's name, which is empty for pg_catalog.
func (r *reader) namespace() string {
	if s := r.cstring(); len(s) > 0 || r.err != nil {
		return string(s)
	}
	return "pg_catalog"
}

// count reads a number of elements that take at least size bytes each, and so
// can't be more than the message has room for.
func (r *reader) count(n, size int) int {
	if n < 0 || n > len(r.b)/size {
		r.fail("room for %d elements, not %d", len(r.b)/size, n)
		return 0
	}
	return n
}

// tuple reads TupleData into a row of the slab. It is the innermost loop of
// the program, hence the plain slices.
func (r *reader) tuple(s *Slab) millrace.Row {
	n := r.count(int(int16(r.uint16())), 1)
	if r.err != nil {
		return nil
	}
	row := s.Row(n)
	b := r.b
	for i := range row {
		if len(b) == 0 {
			r.fail("cut short in column %d", i+1)
			return nil
		}
		switch kind := millrace.ValueKind(b[0]); kind {
		case millrace.Null, millrace.Unchanged:
			row[i] = millrace.Value{Kind: kind}
			b = b[1:]
		case millrace.Text, millrace.Binary:
			if len(b) < 5 {
				r.fail("cut short in column %d", i+1)
				return nil
			}
			// The length is signed on the wire; a negative one is larger than
			// any message here.
			end := uint64(binary.BigEndian.Uint32(b[1:])) + 5
			if end > uint64(len(b)) {
				r.fail("cut short in column %d", i+1)
				return nil
			}
			row[i] = millrace.Value{Kind: kind, Raw: b[5:end:end]}
			b = b[end:]
		default:
			r.fail("unknown kind %q of value in column %d", byte(kind), i+1)
			return nil
		}
	}
	r.b = b
	return row
}
