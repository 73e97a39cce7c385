package datum

import (
	"encoding/binary"
	"errors"
	"math/big"
	"strconv"
)

// Signs of a numeric in binary form (utils/adt/numeric.c).
const (
	numericPos    = 0x0000
	numericNeg    = 0x4000
	numericNaN    = 0xC000
	numericPosInf = 0xD000
	numericNegInf = 0xF000
)

// numericText: int16 number of digits, int16 weight of the first digit, uint16
// sign, uint16 digits to show behind the point; digits of base 10000.
func numericText(dst, raw []byte) ([]byte, error) {
	if len(raw) < 8 || len(raw) != 8+2*int(binary.BigEndian.Uint16(raw)) {
		return dst, errBinary
	}
	weight := int(int16(binary.BigEndian.Uint16(raw[2:])))
	scale := int(binary.BigEndian.Uint16(raw[6:]))
	switch binary.BigEndian.Uint16(raw[4:]) {
	case numericPos:
	case numericNeg:
		dst = append(dst, '-')
	case numericNaN:
		return append(dst, "NaN"...), nil
	case numericPosInf:
		return append(dst, "Infinity"...), nil
	case numericNegInf:
		return append(dst, "-Infinity"...), nil
	default:
		return dst, errBinary
	}
	digits := raw[8:]
	digit := func(i int) uint { // of weight weight-i
		if i < 0 || 2*i >= len(digits) {
			return 0
		}
		return uint(binary.BigEndian.Uint16(digits[2*i:]))
	}
	if weight < 0 {
		dst = append(dst, '0')
	} else {
		dst = strconv.AppendUint(dst, uint64(digit(0)), 10)
		for i := 1; i <= weight; i++ {
			dst = appendFour(dst, digit(i))
		}
	}
	if scale > 0 {
		dst = append(dst, '.')
		end := len(dst) + scale
		for i := weight + 1; len(dst) < end; i++ {
			dst = appendFour(dst, digit(i))
		}
		dst = dst[:end]
	}
	return dst, nil
}

func appendFour(dst []byte, d uint) []byte {
	return append(dst, byte('0'+d/1000%10), byte('0'+d/100%10), byte('0'+d/10%10), byte('0'+d%10))
}

var errSpecial = errors.New("NaN and infinity have no decimal")

// unscaled reads the text of a finite numeric as an integer and the number of
// digits behind the point. Behind is padded with zeros up to scale, when that
// is not negative.
func unscaled(text []byte, scale int) (n *big.Int, got int, err error) {
	var buf []byte
	point := -1
	for _, c := range text {
		switch {
		case c == '.' && point < 0:
			point = len(buf)
		case c == '-' && len(buf) == 0, c >= '0' && c <= '9':
			buf = append(buf, c)
		default:
			return nil, 0, errSpecial
		}
	}
	if point >= 0 {
		got = len(buf) - point
	}
	for got < scale {
		buf = append(buf, '0')
		got++
	}
	if scale >= 0 && got > scale {
		return nil, 0, errors.New("has more digits behind the point than its type")
	}
	n, ok := new(big.Int).SetString(string(buf), 10)
	if !ok {
		return nil, 0, malformed("numeric", text)
	}
	return n, got, nil
}

// twosComplement appends the shortest big-endian two's complement form, as
// Java's BigInteger.toByteArray gives it.
func twosComplement(dst []byte, n *big.Int) []byte {
	if n.Sign() >= 0 {
		if n.BitLen()%8 == 0 {
			dst = append(dst, 0)
		}
		return append(dst, n.Bytes()...)
	}
	width := new(big.Int).Not(n).BitLen()/8 + 1
	mod := new(big.Int).Lsh(big.NewInt(1), uint(8*width))
	b := mod.Add(mod, n).Bytes()
	for range width - len(b) {
		dst = append(dst, 0xFF)
	}
	return append(dst, b...)
}

// fromTwosComplement is the inverse of twosComplement.
func fromTwosComplement(b []byte) *big.Int {
	n := new(big.Int).SetBytes(b)
	if len(b) > 0 && b[0]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	return n
}

// appendScaled writes an unscaled integer with digits behind the point, as
// PostgreSQL prints it.
func appendScaled(dst []byte, n *big.Int, scale int) []byte {
	s := new(big.Int).Abs(n).String()
	if n.Sign() < 0 {
		dst = append(dst, '-')
	}
	for len(s) <= scale {
		s = "0" + s
	}
	dst = append(dst, s[:len(s)-scale]...)
	if scale > 0 {
		dst = append(append(dst, '.'), s[len(s)-scale:]...)
	}
	return dst
}
