package datum

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// errBinary says that bytes are no value of the type in binary form.
var errBinary = errors.New("malformed binary value")

// textFunc appends the text of a value that came in binary form.
type textFunc func(dst, raw []byte) ([]byte, error)

// verbatim is for types whose binary form is their text.
func verbatim(dst, raw []byte) ([]byte, error) { return append(dst, raw...), nil }

// versioned is for types whose binary form is a version byte 1 and their text.
func versioned(dst, raw []byte) ([]byte, error) {
	if len(raw) == 0 || raw[0] != 1 {
		return dst, errBinary
	}
	return append(dst, raw[1:]...), nil
}

// sized makes a textFunc for a type of a fixed length, in bytes.
func sized(n int, f func(dst, raw []byte) []byte) textFunc {
	return func(dst, raw []byte) ([]byte, error) {
		if len(raw) != n {
			return dst, errBinary
		}
		return f(dst, raw), nil
	}
}

var scalarText = map[uint32]textFunc{
	oidBool: sized(1, func(dst, raw []byte) []byte {
		if raw[0] != 0 {
			return append(dst, 't')
		}
		return append(dst, 'f')
	}),
	oidBytea: func(dst, raw []byte) ([]byte, error) {
		return hex.AppendEncode(append(dst, '\\', 'x'), raw), nil
	},
	oidChar:     sized(1, appendChar),
	oidName:     verbatim,
	oidText:     verbatim,
	oidBpchar:   verbatim,
	oidVarchar:  verbatim,
	1790:        verbatim, // refcursor
	oidJSON:     verbatim,
	oidXML:      verbatim,
	oidJSONB:    versioned,
	oidJSONPath: versioned,
	oidInt2: sized(2, func(dst, raw []byte) []byte {
		return strconv.AppendInt(dst, int64(int16(binary.BigEndian.Uint16(raw))), 10)
	}),
	oidInt4: sized(4, func(dst, raw []byte) []byte {
		return strconv.AppendInt(dst, int64(int32(binary.BigEndian.Uint32(raw))), 10)
	}),
	oidInt8: sized(8, func(dst, raw []byte) []byte {
		return strconv.AppendInt(dst, int64(binary.BigEndian.Uint64(raw)), 10)
	}),
	oidOid: sized(4, appendUint32),
	oidXid: sized(4, appendUint32),
	oidCid: sized(4, appendUint32),
	oidXid8: sized(8, func(dst, raw []byte) []byte {
		return strconv.AppendUint(dst, binary.BigEndian.Uint64(raw), 10)
	}),
	oidTid: sized(6, func(dst, raw []byte) []byte {
		dst = appendUint32(append(dst, '('), raw)
		dst = strconv.AppendUint(append(dst, ','), uint64(binary.BigEndian.Uint16(raw[4:])), 10)
		return append(dst, ')')
	}),
	oidFloat4: sized(4, func(dst, raw []byte) []byte {
		return appendFloat(dst, float64(math.Float32frombits(binary.BigEndian.Uint32(raw))), 32)
	}),
	oidFloat8: sized(8, func(dst, raw []byte) []byte {
		return appendFloat(dst, math.Float64frombits(binary.BigEndian.Uint64(raw)), 64)
	}),
	oidNumeric: numericText,
	oidMoney: sized(8, func(dst, raw []byte) []byte {
		return appendMoney(dst, int64(binary.BigEndian.Uint64(raw)))
	}),
	oidPgLSN: sized(8, func(dst, raw []byte) []byte {
		dst = appendHexUpper(dst, binary.BigEndian.Uint32(raw))
		return appendHexUpper(append(dst, '/'), binary.BigEndian.Uint32(raw[4:]))
	}),
	oidUUID:        sized(16, appendUUID),
	oidDate:        sized(4, dateText),
	oidTime:        sized(8, timeText),
	oidTimetz:      sized(12, timetzText),
	oidTimestamp:   sized(8, timestampText),
	oidTimestamptz: sized(8, timestamptzText),
	oidInterval:    sized(16, intervalText),
	oidBit:         bitText,
	oidVarbit:      bitText,
	oidInet:        inetText,
	oidCidr:        inetText,
	oidMacaddr:     sized(6, appendMAC),
	oidMacaddr8:    sized(8, appendMAC),
	oidPoint:       sized(16, appendPoint),
	oidLseg:        sized(32, lsegText),
	oidBox:         sized(32, boxText),
	oidLine:        sized(24, lineText),
	oidCircle:      sized(24, circleText),
	oidPath:        pathText,
	oidPolygon:     polygonText,
	oidTsvector:    tsvectorText,
}

// extensionText lists the types of extensions whose binary form is known.
var extensionText = map[[2]string]textFunc{
	{"citext", "citext"}:   verbatim,
	{"hstore", "hstore"}:   hstoreText,
	{"ltree", "ltree"}:     versioned,
	{"ltree", "lquery"}:    versioned,
	{"ltree", "ltxtquery"}: versioned,
}

// textOf gives the function for a type, or nil if its binary form means nothing
// without the server (the reg types), or nothing that is worth knowing.
func textOf(t *Type) textFunc {
	t, _ = t.resolve(-1)
	switch {
	case t.Kind == 'e':
		return verbatim // sent as the label
	case t.Kind == 'c':
		return compositeText(t)
	case t.Kind == 'r' && t.Range != nil:
		return rangeText(t)
	case t.Kind == 'm' && t.Range != nil:
		return multirangeText(t)
	case t.OID == oidInt2vector || t.OID == oidOidvector:
		return nil
	case t.Elem != nil:
		return arrayText(t)
	}
	if f := scalarText[t.OID]; f != nil {
		return f
	}
	return extensionText[[2]string{t.Extension, t.Name}]
}

// BinaryKnown tells whether values of the type can be understood in binary
// form. Where they can't be, the source has to send text.
func BinaryKnown(t *Type) bool { return textOf(t) != nil }

func appendUint32(dst, raw []byte) []byte {
	return strconv.AppendUint(dst, uint64(binary.BigEndian.Uint32(raw)), 10)
}

// appendChar writes the type "char" as charout does: a zero byte is nothing,
// bytes above 0x7F are octal.
func appendChar(dst, raw []byte) []byte {
	switch c := raw[0]; {
	case c == 0:
		return dst
	case c < utf8.RuneSelf:
		return append(dst, c)
	default:
		return append(dst, '\\', '0'+c>>6, '0'+c>>3&7, '0'+c&7)
	}
}

// appendMoney writes cents as cash_out does under lc_monetary C.
func appendMoney(dst []byte, cents int64) []byte {
	u := uint64(cents)
	if cents < 0 {
		u = -u
		dst = append(dst, '-')
	}
	dst = append(dst, '$')
	var digits [24]byte
	d := strconv.AppendUint(digits[:0], u/100, 10)
	for i, c := range d {
		if i > 0 && (len(d)-i)%3 == 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, c)
	}
	return append(dst, '.', byte('0'+u%100/10), byte('0'+u%10))
}

func appendHexUpper(dst []byte, v uint32) []byte {
	start := len(dst)
	dst = strconv.AppendUint(dst, uint64(v), 16)
	for i := start; i < len(dst); i++ {
		if dst[i] >= 'a' {
			dst[i] -= 'a' - 'A'
		}
	}
	return dst
}

func appendUUID(dst, raw []byte) []byte {
	dst = hex.AppendEncode(dst, raw[:4])
	for _, part := range [...][]byte{raw[4:6], raw[6:8], raw[8:10], raw[10:16]} {
		dst = hex.AppendEncode(append(dst, '-'), part)
	}
	return dst
}

func bitText(dst, raw []byte) ([]byte, error) {
	if len(raw) < 4 {
		return dst, errBinary
	}
	n := int(int32(binary.BigEndian.Uint32(raw)))
	raw = raw[4:]
	if n < 0 || len(raw) != (n+7)/8 {
		return dst, errBinary
	}
	for i := range n {
		dst = append(dst, '0'+raw[i/8]>>(7-i%8)&1)
	}
	return dst, nil
}

func malformed(what string, raw []byte) error {
	return fmt.Errorf("not the text of a %s (%d bytes)", what, len(raw))
}
