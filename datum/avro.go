package datum

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/millrace/millrace"
)

// Avro's binary encoding (specification 1.12, "Binary Encoding"): integers are
// zigzag varints, strings and bytes have their length before them, a union has
// the number of its branch, arrays and maps come in blocks that end with 0.
// Every column is the union of null and its type, in this order.

// AppendAvro appends the value in Avro's binary encoding, as a union with null.
func (c *Codec) AppendAvro(dst []byte, v millrace.Value) ([]byte, error) {
	switch v.Kind {
	case millrace.Null:
		return append(dst, 0), nil
	case millrace.Unchanged:
		return dst, errUnchanged
	}
	return c.node.appendAvro(c, append(dst, 2), v)
}

// AppendTextOfAvro takes what AppendAvro wrote off raw and appends PostgreSQL's
// text for it.
func (c *Codec) AppendTextOfAvro(dst, raw []byte) (_ []byte, null bool, rest []byte, err error) {
	r := avroReader{b: raw}
	switch r.long() {
	case 0:
		return dst, true, r.b, r.err()
	case 1:
		dst, err = c.node.fromAvro(c, dst, &r)
		return dst, false, r.b, errors.Join(err, r.err())
	}
	return dst, false, nil, errAvro
}

// AppendTextOfAvroValue is AppendTextOfAvro for a value that is no union.
func (c *Codec) AppendTextOfAvroValue(dst, raw []byte) (_, rest []byte, err error) {
	r := avroReader{b: raw}
	dst, err = c.node.fromAvro(c, dst, &r)
	return dst, r.b, errors.Join(err, r.err())
}

var errAvro = errors.New("malformed Avro")

// AppendAvroLong appends an integer.
func AppendAvroLong(dst []byte, n int64) []byte { return binary.AppendVarint(dst, n) }

// AppendAvroBytes appends a string or bytes.
func AppendAvroBytes(dst, s []byte) []byte {
	return append(binary.AppendVarint(dst, int64(len(s))), s...)
}

type avroReader struct {
	b   []byte
	bad bool
}

func (r *avroReader) err() error {
	if r.bad {
		return errAvro
	}
	return nil
}

func (r *avroReader) long() int64 {
	n, size := binary.Varint(r.b)
	if size <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *avroReader) take(n int64) []byte {
	if n < 0 || n > int64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *avroReader) bytes() []byte { return r.take(r.long()) }

func (l *leaf) appendAvro(c *Codec, dst []byte, v millrace.Value) ([]byte, error) {
	mark := len(c.scratch)
	defer func() { c.scratch = c.scratch[:mark] }()
	a, err := l.get(c, v)
	if err != nil {
		return dst, err
	}
	if a.null {
		dst[len(dst)-1] = 0 // the branch of the union
		return dst, nil
	}
	return appendAvroAtom(dst, l.s.Kind, a)
}

func appendAvroAtom(dst []byte, kind Kind, a atom) ([]byte, error) {
	switch {
	case kind == Bool:
		return append(dst, byte(a.i)), nil
	case kind <= Int64:
		return binary.AppendVarint(dst, a.i), nil
	case kind == Float32:
		f, err := strconv.ParseFloat(string(a.s), 32)
		return binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(f))), err
	case kind == Float64:
		f, err := strconv.ParseFloat(string(a.s), 64)
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(f)), err
	case kind == String:
		if !utf8.Valid(a.s) {
			return dst, ErrNotUTF8
		}
	}
	return AppendAvroBytes(dst, a.s), nil
}

func (l *leaf) fromAvro(c *Codec, dst []byte, r *avroReader) ([]byte, error) {
	if l.put == nil {
		return dst, errLossy
	}
	mark := len(c.scratch)
	defer func() { c.scratch = c.scratch[:mark] }()
	a := c.readAvroAtom(l.s.Kind, r)
	if r.bad {
		return dst, errAvro
	}
	return l.put(dst, a)
}

func (c *Codec) readAvroAtom(kind Kind, r *avroReader) (a atom) {
	start := len(c.scratch)
	switch {
	case kind == Bool:
		if b := r.take(1); b != nil && b[0] != 0 {
			a.i = 1
		}
	case kind <= Int64:
		a.i = r.long()
	case kind == Float32:
		if b := r.take(4); b != nil {
			c.scratch = appendFloat(c.scratch, float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), 32)
			a.s = c.scratch[start:]
		}
	case kind == Float64:
		if b := r.take(8); b != nil {
			c.scratch = appendFloat(c.scratch, math.Float64frombits(binary.LittleEndian.Uint64(b)), 64)
			a.s = c.scratch[start:]
		}
	default:
		a.s = r.bytes()
	}
	return a
}

func (n variableNode) appendAvro(c *Codec, dst []byte, v millrace.Value) ([]byte, error) {
	mark := len(c.scratch)
	defer func() { c.scratch = c.scratch[:mark] }()
	scale, value, null, err := n.parts(c, v)
	switch {
	case err != nil:
		return dst, err
	case null:
		dst[len(dst)-1] = 0
		return dst, nil
	}
	return AppendAvroBytes(binary.AppendVarint(dst, scale.i), value.s), nil
}

func (n variableNode) fromAvro(_ *Codec, dst []byte, r *avroReader) ([]byte, error) {
	if n.strip {
		return dst, errLossy
	}
	scale := atom{i: r.long()}
	return n.put(dst, scale, atom{s: r.bytes()}, r.err())
}

func (n arrays) appendAvro(c *Codec, dst []byte, v millrace.Value) ([]byte, error) {
	mark := len(c.scratch)
	defer func() { c.scratch = c.scratch[:mark] }()
	text, err := c.push(v)
	if err != nil {
		return dst, err
	}
	if len(text) > 1 && (text[0] == '[' || text[1] == '{') {
		return dst, errNotFlat
	}
	// The length of a block stands before it: one pass to count, one to write.
	count := int64(0)
	for w := (tokens{c: c, s: text, delim: n.delim}); ; {
		t := w.next()
		if t.kind == 0 {
			break
		}
		if t.kind == 'e' {
			count++
		}
	}
	if count > 0 {
		dst = binary.AppendVarint(dst, count)
	}
	w := tokens{c: c, s: text, delim: n.delim}
	for range count + 1 {
		inner := len(c.scratch)
		switch t := w.next(); {
		case t.kind != 'e': // the opening brace
		case t.null:
			dst = append(dst, 0)
		default:
			if dst, err = n.elem.appendAvro(c, append(dst, 2), millrace.Value{Kind: millrace.Text, Raw: t.text}); err != nil {
				return dst, err
			}
		}
		c.scratch = c.scratch[:inner]
	}
	if w.bad {
		return dst, errArray
	}
	return append(dst, 0), nil
}

func (n arrays) fromAvro(c *Codec, dst []byte, r *avroReader) (_ []byte, err error) {
	dst = append(dst, '{')
	first := true
	for count := r.long(); count != 0 && !r.bad; count = r.long() {
		if count < 0 { // with the block's size in bytes
			count = -count
			r.long()
		}
		for ; count > 0 && !r.bad; count-- {
			if !first {
				dst = append(dst, n.delim)
			}
			first = false
			if r.long() == 0 {
				dst = append(dst, "NULL"...)
				continue
			}
			start := len(dst)
			if dst, err = n.elem.fromAvro(c, dst, r); err != nil {
				return dst, err
			}
			dst = quoteElement(dst, start, n.delim)
		}
	}
	return append(dst, '}'), r.err()
}

// appendWKB appends a point as well-known binary, little endian.
func appendWKB(dst, x, y []byte) ([]byte, error) {
	dst = append(dst, 1, 1, 0, 0, 0)
	for _, s := range [...][]byte{x, y} {
		f, err := strconv.ParseFloat(string(s), 64)
		if err != nil {
			return dst, err
		}
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(f))
	}
	return dst, nil
}

func (pointNode) appendAvro(c *Codec, dst []byte, v millrace.Value) ([]byte, error) {
	mark := len(c.scratch)
	defer func() { c.scratch = c.scratch[:mark] }()
	x, y, err := coordinates(c, v)
	if err != nil {
		return dst, err
	}
	var buf [21]byte
	wkb, err := appendWKB(buf[:0], x, y)
	if err != nil {
		return dst, err
	}
	dst = append(dst, wkb[5:]...) // two doubles, little endian in Avro as well
	dst = AppendAvroBytes(append(dst, 2), wkb)
	return append(dst, 0), nil
}

func (pointNode) fromAvro(c *Codec, dst []byte, r *avroReader) ([]byte, error) {
	mark := len(c.scratch)
	defer func() { c.scratch = c.scratch[:mark] }()
	x, y := c.readAvroAtom(Float64, r), c.readAvroAtom(Float64, r)
	if r.long() == 1 {
		r.bytes()
	}
	if r.long() == 1 {
		r.long()
	}
	dst = append(append(dst, '('), x.s...)
	dst = append(append(dst, ','), y.s...)
	return append(dst, ')'), r.err()
}

// The plain style has no Avro: composites and hstore are objects of JSON there.

var errPlainAvro = errors.New("the plain style has no Avro form")

func (composites) appendAvro(_ *Codec, dst []byte, _ millrace.Value) ([]byte, error) {
	return dst, errPlainAvro
}
func (composites) fromAvro(_ *Codec, dst []byte, _ *avroReader) ([]byte, error) {
	return dst, errPlainAvro
}
func (hstores) appendAvro(_ *Codec, dst []byte, _ millrace.Value) ([]byte, error) {
	return dst, errPlainAvro
}
func (hstores) fromAvro(_ *Codec, dst []byte, _ *avroReader) ([]byte, error) {
	return dst, errPlainAvro
}
