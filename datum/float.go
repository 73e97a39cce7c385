package datum

import (
	"bytes"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// appendFloat writes a float as float4out and float8out do with
// extra_float_digits above 0. size is 32 or 64.
func appendFloat(dst []byte, f float64, size int) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	fixedBelow, exact := 15, float64(1<<53)
	if size == 32 {
		fixedBelow, exact = 6, 1<<24
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'e', -1, size)
	switch a := math.Abs(f); {
	case a == 0:
		return dst[:len(dst)-len("e+00")]
	case a > exact:
		dst = strictlyInside(dst, start, f, size)
	}
	dst = tieToEven(dst, start, f, size)
	if exp := exponentOf(dst[start:]); exp >= -4 && exp < fixedBelow {
		dst = positional(dst, start, exp)
	}
	return dst
}

// positional rewrites dst[start:] from d.ddde+xx to a number without exponent.
func positional(dst []byte, start, exp int) []byte {
	var buf [24]byte
	digits := buf[:0]
	for i := start; dst[i] != 'e'; i++ {
		if c := dst[i]; c >= '0' && c <= '9' {
			digits = append(digits, c)
		}
	}
	if dst[start] == '-' {
		start++
	}
	dst = dst[:start]
	if exp < 0 {
		dst = append(dst, "0.0000"[:1-exp]...)
		return append(dst, digits...)
	}
	for len(digits) <= exp {
		digits = append(digits, '0')
	}
	dst = append(dst, digits[:exp+1]...)
	if len(digits) > exp+1 {
		dst = append(append(dst, '.'), digits[exp+1:]...)
	}
	return dst
}

// tieToEven makes the last digit even where the float lies exactly between two
// decimals of that length, as PostgreSQL does and strconv does not (2^-12 as
// float4 is 0.00024414062|5).
func tieToEven(dst []byte, start int, f float64, size int) []byte {
	// A float with so few digits has few of them behind the binary point.
	frac, exp := math.Frexp(f)
	m := uint64(math.Abs(frac) * (1 << 53))
	if behind := 53 - exp - bits.TrailingZeros64(m); behind > 25 {
		return dst
	}
	e := bytes.IndexByte(dst[start:], 'e') + start
	last := e - 1
	if dst[last]%2 == 0 { // '0' is even
		return dst
	}
	digits := e - start - 1 // behind the point, if there is one
	if dst[start] == '-' {
		digits--
	}
	if digits > 0 {
		digits--
	}
	var buf [64]byte
	longer := strconv.AppendFloat(buf[:0], f, 'e', digits+21, 64)
	tail := longer[bytes.IndexByte(longer, '.')+1+digits:]
	if tail[0] != '5' || string(tail[1:21]) != "00000000000000000000" {
		return dst
	}
	dst[last]-- // strconv went up; one lower is as near, unless it is another float's
	if back, err := strconv.ParseFloat(string(dst[start:]), size); err != nil || back != f {
		dst[last]++
	}
	return dst
}

func exponentOf(s []byte) int {
	i := len(s) - 1
	for s[i] != 'e' {
		i--
	}
	n := 0
	for _, c := range s[i+2:] {
		n = n*10 + int(c-'0')
	}
	if s[i+1] == '-' {
		return -n
	}
	return n
}

// strictlyInside replaces the shortest digits by those that PostgreSQL prints:
// it takes no number that lies exactly between two floats, though that would
// read back as the even one of them (1e23). Only floats above 2^53 (float4:
// 2^24) have such neighbours with few digits.
func strictlyInside(dst []byte, start int, f float64, size int) []byte {
	for digits := 0; digits < 17; digits++ {
		s := string(dst[start:])
		e := len(s) - 1
		for s[e] != 'e' {
			e--
		}
		mantissa := s[:e]
		if !strings.Contains(mantissa, ".") {
			mantissa += "."
		}
		above, err1 := strconv.ParseFloat(mantissa+"0000000000000000000000000001"+s[e:], size)
		below, err2 := strconv.ParseFloat(justBelow(mantissa)+s[e:], size)
		same, err3 := strconv.ParseFloat(s, size)
		atTop := err1 != nil || err2 != nil // beyond the largest float: nothing lies between
		if err3 == nil && same == f && (atTop || above == f && below == f) {
			return dst
		}
		dst = strconv.AppendFloat(dst[:start], f, 'e', digits, size)
	}
	return dst
}

// justBelow takes a decimal with a dot a little towards zero.
func justBelow(s string) string {
	b := []byte(s)
	for i := len(b) - 1; i >= 0; i-- {
		switch c := b[i]; {
		case c >= '1' && c <= '9':
			b[i]--
			return string(b) + "9999999999999999999999999999"
		case c == '0':
			b[i] = '9'
		}
	}
	return s
}
