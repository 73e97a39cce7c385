// Package tuple writes values as bytes that compare as the values do, in the layout of
// FoundationDB's tuple layer (design/tuple.md of that project). A tuple is its elements
// one behind the other: no element is the beginning of another one.
//
// What an element stands for, and whether that has the order of a type of PostgreSQL, is
// for those to know who write it: packages datum and snapshot.
package tuple

import (
	"encoding/binary"
	"errors"
	"math"
)

// The codes that elements begin with. An integer begins with zero, more or less the
// number of its bytes.
const (
	Null   = 0x00
	Bytes  = 0x01
	Text   = 0x02
	zero   = 0x14
	Double = 0x21
	False  = 0x26
	True   = 0x27
	UUID   = 0x30
	// User is the first of those that are free for others.
	User = 0x40
)

// ErrMalformed says that bytes are not what this package, or who writes elements of
// their own, has written.
var ErrMalformed = errors.New("malformed key bytes")

// AppendInt appends an integer: the code says sign and number of bytes; those of a
// negative one are complemented.
func AppendInt(dst []byte, n int64) []byte {
	u, sign := uint64(n), 1
	if n < 0 {
		u, sign = -u, -1
	}
	size := 0
	for rest := u; rest > 0; rest >>= 8 {
		size++
	}
	if n < 0 {
		u = ^u
	}
	dst = append(dst, byte(zero+sign*size))
	for i := size - 1; i >= 0; i-- {
		dst = append(dst, byte(u>>(8*i)))
	}
	return dst
}

// IsInt tells whether a code is one of an integer.
func IsInt(code byte) bool { return code >= zero-8 && code <= zero+8 }

// CutInt takes an integer off the front.
func CutInt(b []byte) (n int64, rest []byte, err error) {
	if len(b) == 0 || !IsInt(b[0]) {
		return 0, nil, ErrMalformed
	}
	size, negative := int(b[0])-zero, b[0] < zero
	if negative {
		size = -size
	}
	if len(b) < 1+size {
		return 0, nil, ErrMalformed
	}
	var u uint64
	for _, c := range b[1 : 1+size] {
		if negative {
			c = ^c
		}
		u = u<<8 | uint64(c)
	}
	if negative {
		u = -u
	}
	return int64(u), b[1+size:], nil
}

// AppendBool appends a truth value.
func AppendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, True)
	}
	return append(dst, False)
}

// AppendString appends the bytes of a string, with 00 as 00 FF, and 00 at the end.
func AppendString(dst []byte, code byte, s ...[]byte) []byte {
	dst = append(dst, code)
	for _, part := range s {
		for _, c := range part {
			if dst = append(dst, c); c == 0 {
				dst = append(dst, 0xFF)
			}
		}
	}
	return append(dst, 0)
}

// CutString takes a string off the front, whatever its code, and appends it to dst.
func CutString(dst, b []byte) (s, rest []byte, err error) {
	for i := 1; i < len(b); i++ {
		switch {
		case b[i] != 0:
			dst = append(dst, b[i])
		case i+1 < len(b) && b[i+1] == 0xFF:
			dst = append(dst, 0)
			i++
		default:
			return dst, b[i+1:], nil
		}
	}
	return dst, nil, ErrMalformed
}

// AppendDouble appends a number that is compared as SQL does it: its bits with the sign
// flipped, or all of them if it is negative. Both zeros are one, and all NaN are.
func AppendDouble(dst []byte, f float64) []byte {
	switch {
	case f == 0:
		f = 0 // also minus zero
	case math.IsNaN(f):
		f = math.NaN()
	}
	u := math.Float64bits(f)
	if u>>63 != 0 {
		u = ^u
	} else {
		u |= 1 << 63
	}
	return binary.BigEndian.AppendUint64(append(dst, Double), u)
}

// CutDouble takes one off the front.
func CutDouble(b []byte) (f float64, rest []byte, err error) {
	if len(b) < 9 || b[0] != Double {
		return 0, nil, ErrMalformed
	}
	u := binary.BigEndian.Uint64(b[1:])
	if u>>63 != 0 {
		u &^= 1 << 63
	} else {
		u = ^u
	}
	return math.Float64frombits(u), b[9:], nil
}

// CutUUID takes the 16 bytes of one off the front.
func CutUUID(b []byte) (id, rest []byte, err error) {
	if len(b) < 17 || b[0] != UUID {
		return nil, nil, ErrMalformed
	}
	return b[1:17], b[17:], nil
}
