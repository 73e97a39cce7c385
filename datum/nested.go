package datum

import (
	"bytes"
	"encoding/binary"
	"strconv"
)

// reader takes a binary value apart. Once it has run out of bytes it gives
// zeros, and close tells.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) uint8() byte {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if v := r.take(2); v != nil {
		return binary.BigEndian.Uint16(v)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if v := r.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

// count reads a number of things of which each takes at least least bytes.
func (r *reader) count(least int) int {
	n := int(int32(r.uint32()))
	if n < 0 || n > len(r.b)/least {
		r.bad, r.b = true, nil
		return 0
	}
	return n
}

// value reads a length and that many bytes; -1 stands for null.
func (r *reader) value() (v []byte, null bool) {
	n := int32(r.uint32())
	if n == -1 {
		return nil, true
	}
	return r.take(int(n)), false
}

func (r *reader) cstring() []byte {
	i := bytes.IndexByte(r.b, 0)
	if i < 0 {
		r.bad, r.b = true, nil
		return nil
	}
	v := r.b[:i]
	r.b = r.b[i+1:]
	return v
}

func (r *reader) close() error {
	if r.bad || len(r.b) > 0 {
		return errBinary
	}
	return nil
}

// maxDims is MAXDIM (c.h).
const maxDims = 6

// arrayText: number of dimensions, whether there are nulls, OID of the
// element's type; length and lower bound of each dimension; elements.
func arrayText(t *Type) textFunc {
	elem := textOf(t.Elem)
	if elem == nil {
		return nil
	}
	delim := t.Elem.Delim
	if delim == 0 {
		delim = ','
	}
	return func(dst, raw []byte) ([]byte, error) {
		r := reader{b: raw}
		n := int(r.uint32())
		r.take(8)
		if n < 0 || n > maxDims {
			return dst, errBinary
		}
		if n == 0 {
			return append(dst, '{', '}'), r.close()
		}
		var length, lower [maxDims]int32
		shifted := false
		for i := range n {
			length[i], lower[i] = int32(r.uint32()), int32(r.uint32())
			if length[i] <= 0 {
				return dst, errBinary
			}
			shifted = shifted || lower[i] != 1
		}
		if shifted {
			for i := range n {
				dst = strconv.AppendInt(append(dst, '['), int64(lower[i]), 10)
				dst = strconv.AppendInt(append(dst, ':'), int64(lower[i])+int64(length[i])-1, 10)
				dst = append(dst, ']')
			}
			dst = append(dst, '=')
		}
		w := arrayWriter{r: &r, elem: elem, delim: delim, length: length[:n]}
		dst, err := w.write(dst, 0)
		if err != nil {
			return dst, err
		}
		return dst, r.close()
	}
}

type arrayWriter struct {
	r      *reader
	elem   textFunc
	delim  byte
	length []int32
}

func (w *arrayWriter) write(dst []byte, dim int) (_ []byte, err error) {
	dst = append(dst, '{')
	for i := range w.length[dim] {
		if i > 0 {
			dst = append(dst, w.delim)
		}
		if dim < len(w.length)-1 {
			dst, err = w.write(dst, dim+1)
		} else {
			dst, err = w.element(dst)
		}
		if err != nil {
			return dst, err
		}
		if w.r.bad {
			return dst, errBinary
		}
	}
	return append(dst, '}'), nil
}

func (w *arrayWriter) element(dst []byte) ([]byte, error) {
	v, null := w.r.value()
	if null {
		return append(dst, "NULL"...), nil
	}
	start := len(dst)
	dst, err := w.elem(dst, v)
	if err != nil {
		return dst, err
	}
	return quoteElement(dst, start, w.delim), nil
}

// quoteElement quotes dst[start:] as array_out does, where it must be.
func quoteElement(dst []byte, start int, delim byte) []byte {
	s := dst[start:]
	must := len(s) == 0 || len(s) == 4 && bytes.EqualFold(s, []byte("null"))
	escapes := 0
	for _, c := range s {
		switch c {
		case '"', '\\':
			escapes++
			must = true
		case '{', '}', delim, ' ', '\t', '\n', '\r', '\v', '\f':
			must = true
		}
	}
	if !must {
		return dst
	}
	return requote(dst, start, escapes, false)
}

// requote puts dst[start:] into double quotes, in place. escapes is the number
// of quotes and backslashes in it; they get a backslash, or with double are
// doubled.
func requote(dst []byte, start, escapes int, double bool) []byte {
	n := len(dst)
	for range escapes + 2 {
		dst = append(dst, 0)
	}
	w := len(dst) - 1
	dst[w] = '"'
	for i := n - 1; i >= start; i-- {
		c := dst[i]
		w--
		dst[w] = c
		if c == '"' || c == '\\' {
			w--
			if double {
				dst[w] = c
			} else {
				dst[w] = '\\'
			}
		}
	}
	dst[start] = '"'
	return dst
}

// quoteField quotes dst[start:] as record_out does (special: parentheses), or
// range_out (also brackets).
func quoteField(dst []byte, start int, brackets bool) []byte {
	s := dst[start:]
	must, escapes := len(s) == 0, 0
	for _, c := range s {
		switch c {
		case '"', '\\':
			escapes++
			must = true
		case '(', ')', ',', ' ', '\t', '\n', '\r', '\v', '\f':
			must = true
		case '[', ']':
			must = must || brackets
		}
	}
	if !must {
		return dst
	}
	return requote(dst, start, escapes, true)
}

// compositeText: number of fields; each the OID of its type and its value.
func compositeText(t *Type) textFunc {
	fields := make([]textFunc, len(t.Fields))
	for i, f := range t.Fields {
		if fields[i] = textOf(f.Type); fields[i] == nil {
			return nil
		}
	}
	return func(dst, raw []byte) ([]byte, error) {
		r := reader{b: raw}
		if n := r.count(8); n != len(fields) {
			return dst, errBinary
		}
		dst = append(dst, '(')
		for i, f := range fields {
			if i > 0 {
				dst = append(dst, ',')
			}
			r.uint32()
			v, null := r.value()
			if null {
				continue
			}
			start := len(dst)
			var err error
			if dst, err = f(dst, v); err != nil {
				return dst, err
			}
			dst = quoteField(dst, start, false)
		}
		return append(dst, ')'), r.close()
	}
}

// Flags of a range in binary form (utils/rangetypes.h).
const (
	rangeEmpty    = 0x01
	rangeLowerInc = 0x02
	rangeUpperInc = 0x04
	rangeLowerInf = 0x08
	rangeUpperInf = 0x10
)

func rangeText(t *Type) textFunc {
	sub := textOf(t.Range)
	if sub == nil {
		return nil
	}
	bound := func(dst []byte, r *reader) ([]byte, error) {
		v, null := r.value()
		if null || r.bad {
			return dst, errBinary
		}
		start := len(dst)
		dst, err := sub(dst, v)
		if err != nil {
			return dst, err
		}
		return quoteField(dst, start, true), nil
	}
	return func(dst, raw []byte) (_ []byte, err error) {
		r := reader{b: raw}
		flags := r.uint8()
		if flags&rangeEmpty != 0 {
			return append(dst, "empty"...), r.close()
		}
		open, end := byte('('), byte(')')
		if flags&rangeLowerInc != 0 {
			open = '['
		}
		if flags&rangeUpperInc != 0 {
			end = ']'
		}
		dst = append(dst, open)
		if flags&rangeLowerInf == 0 {
			if dst, err = bound(dst, &r); err != nil {
				return dst, err
			}
		}
		dst = append(dst, ',')
		if flags&rangeUpperInf == 0 {
			if dst, err = bound(dst, &r); err != nil {
				return dst, err
			}
		}
		return append(dst, end), r.close()
	}
}

// multirangeText: number of ranges, ranges with their lengths.
func multirangeText(t *Type) textFunc {
	one := rangeText(t)
	if one == nil {
		return nil
	}
	return func(dst, raw []byte) (_ []byte, err error) {
		r := reader{b: raw}
		dst = append(dst, '{')
		for i := range r.count(5) {
			if i > 0 {
				dst = append(dst, ',')
			}
			v, null := r.value()
			if null || r.bad {
				return dst, errBinary
			}
			if dst, err = one(dst, v); err != nil {
				return dst, err
			}
		}
		return append(dst, '}'), r.close()
	}
}
