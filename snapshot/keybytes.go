package snapshot

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/millrace/millrace"
)

// Keys as bytes have the layout of FoundationDB's tuple layer (design/tuple.md of
// that project): where every column of a key is of a kind whose order is known
// here, bytes compare as the server orders the keys. Values of other types are
// kept as they came, with a letter for their form in front, and their order is
// asked for at the server.
const (
	codeBytes   = 0x01
	codeText    = 0x02
	codeIntZero = 0x14
	codeFalse   = 0x26
	codeTrue    = 0x27
	codeUUID    = 0x30
)

// kind is how a column's values stand in key bytes.
type kind byte

const (
	kindServer kind = iota // order known to the server only
	kindInt                // int2, int4, int8
	kindDate               // int4 in binary form
	kindTime               // timestamp and timestamptz: int8 in binary form
	kindUUID
	kindBytes
	kindText // in a collation that compares bytes
	kindBool
)

var errKey = errors.New("malformed key")

// appendKey appends one value.
func appendKey(b []byte, k kind, v *millrace.Value) ([]byte, error) {
	raw := v.Raw
	switch k {
	case kindInt, kindDate, kindTime:
		n, err := intOf(v)
		if err != nil {
			return nil, err
		}
		return appendInt(b, n), nil
	case kindUUID:
		if v.Kind == millrace.Text {
			var err error
			if raw, err = hex.DecodeString(string(bytes.ReplaceAll(raw, []byte("-"), nil))); err != nil {
				return nil, errKey
			}
		}
		if len(raw) != 16 {
			return nil, errKey
		}
		return append(append(b, codeUUID), raw...), nil
	case kindBytes:
		if v.Kind == millrace.Text {
			if !bytes.HasPrefix(raw, []byte(`\x`)) {
				return nil, errKey
			}
			var err error
			if raw, err = hex.DecodeString(string(raw[2:])); err != nil {
				return nil, errKey
			}
		}
		return appendEscaped(append(b, codeBytes), raw), nil
	case kindText:
		return appendEscaped(append(b, codeText), raw), nil
	case kindBool:
		if len(raw) != 1 {
			return nil, errKey
		}
		if raw[0] == 't' || v.Kind == millrace.Binary && raw[0] != 0 {
			return append(b, codeTrue), nil
		}
		return append(b, codeFalse), nil
	}
	b = append(b, codeBytes)
	b = append(b, byte(v.Kind))
	return appendEscaped(b, raw), nil
}

func intOf(v *millrace.Value) (int64, error) {
	if v.Kind == millrace.Text {
		n, err := strconv.ParseInt(string(v.Raw), 10, 64)
		if err != nil {
			return 0, errKey // the value is a row's: it is not shown
		}
		return n, nil
	}
	switch len(v.Raw) {
	case 2:
		return int64(int16(binary.BigEndian.Uint16(v.Raw))), nil
	case 4:
		return int64(int32(binary.BigEndian.Uint32(v.Raw))), nil
	case 8:
		return int64(binary.BigEndian.Uint64(v.Raw)), nil
	}
	return 0, errKey
}

// appendInt writes the sign and the number of bytes as one code, and then the
// bytes, for a negative number complemented.
func appendInt(b []byte, n int64) []byte {
	u := uint64(n)
	if n < 0 {
		u = uint64(-n)
	}
	size := 0
	for x := u; x > 0; x >>= 8 {
		size++
	}
	if n < 0 {
		b = append(b, byte(codeIntZero-size))
		u = ^u
	} else {
		b = append(b, byte(codeIntZero+size))
	}
	for i := size - 1; i >= 0; i-- {
		b = append(b, byte(u>>(8*i)))
	}
	return b
}

func appendEscaped(b, raw []byte) []byte {
	for _, c := range raw {
		b = append(b, c)
		if c == 0 {
			b = append(b, 0xff)
		}
	}
	return append(b, 0)
}

// cutKey reads one value off the front. It is in a form that the server takes
// for the column's type.
func cutKey(b []byte, k kind) (millrace.Value, []byte, error) {
	var none millrace.Value
	if len(b) == 0 {
		return none, nil, errKey
	}
	code, b := b[0], b[1:]
	switch {
	case code == codeTrue:
		return millrace.Value{Kind: millrace.Text, Raw: []byte("t")}, b, nil
	case code == codeFalse:
		return millrace.Value{Kind: millrace.Text, Raw: []byte("f")}, b, nil
	case code == codeUUID && len(b) >= 16:
		return millrace.Value{Kind: millrace.Binary, Raw: b[:16]}, b[16:], nil
	case code >= codeIntZero-8 && code <= codeIntZero+8:
		n, rest, err := cutInt(code, b)
		return intValue(k, n), rest, err
	case code != codeBytes && code != codeText:
		return none, nil, errKey
	}
	form := millrace.Text
	if code == codeBytes {
		form = millrace.Binary
		if k != kindBytes {
			if len(b) == 0 || b[0] != byte(millrace.Text) && b[0] != byte(millrace.Binary) {
				return none, nil, errKey
			}
			form, b = millrace.ValueKind(b[0]), b[1:]
		}
	}
	raw := []byte{}
	for i := 0; i < len(b); i++ {
		switch {
		case b[i] != 0:
			raw = append(raw, b[i])
		case i+1 < len(b) && b[i+1] == 0xff:
			raw = append(raw, 0)
			i++
		default:
			return millrace.Value{Kind: form, Raw: raw}, b[i+1:], nil
		}
	}
	return none, nil, errKey
}

func cutInt(code byte, b []byte) (int64, []byte, error) {
	size, negative := int(code)-codeIntZero, code < codeIntZero
	if negative {
		size = -size
	}
	if len(b) < size {
		return 0, nil, errKey
	}
	var u uint64
	for _, c := range b[:size] {
		if negative {
			c = ^c
		}
		u = u<<8 | uint64(c)
	}
	if negative {
		return -int64(u), b[size:], nil
	}
	return int64(u), b[size:], nil
}

// intValue gives a number in the form that the column's type has: for dates and
// times, which are counted, only the binary one is a number.
func intValue(k kind, n int64) millrace.Value {
	switch k {
	case kindDate:
		return millrace.Value{Kind: millrace.Binary, Raw: binary.BigEndian.AppendUint32(nil, uint32(n))}
	case kindTime:
		return millrace.Value{Kind: millrace.Binary, Raw: binary.BigEndian.AppendUint64(nil, uint64(n))}
	}
	return millrace.Value{Kind: millrace.Text, Raw: strconv.AppendInt(nil, n, 10)}
}

// EncodeKey gives the bytes of a row's key.
func (k *Key) EncodeKey(row millrace.Row) ([]byte, error) { return k.EncodeKeyAt(row, nil) }

// EncodeKeyAt is EncodeKey for a row of another description of the table, which has
// the key's columns at these places.
func (k *Key) EncodeKeyAt(row millrace.Row, at []int) ([]byte, error) {
	b := make([]byte, 0, 16*len(k.Columns))
	for i := range k.Columns {
		c := &k.Columns[i]
		n := c.Index
		if at != nil {
			n = at[i]
		}
		v := &row[n]
		if v.Kind != millrace.Text && v.Kind != millrace.Binary {
			return nil, fmt.Errorf("%w: column %s has no value", errKey, millrace.DisplayIdent(c.Name))
		}
		var err error
		if b, err = appendKey(b, c.kind, v); err != nil {
			return nil, fmt.Errorf("column %s: %w", millrace.DisplayIdent(c.Name), err)
		}
	}
	return b, nil
}

// decodeKey gives the values of a key, to be sent to the server.
func (k *Key) decodeKey(b []byte) ([]millrace.Value, error) {
	values := make([]millrace.Value, len(k.Columns))
	for i := range k.Columns {
		var err error
		as := k.Columns[i].kind
		if as == kindServer {
			as = k.Columns[i].bare
		}
		if values[i], b, err = cutKey(b, as); err != nil {
			return nil, err
		}
	}
	if len(b) > 0 {
		return nil, errKey
	}
	return values, nil
}

// SameForm tells whether the values of a key stand in it as those of rows do that are
// read now: what was read in another form has other bytes.
func (t *ChunkTable) SameForm(key []byte) (bool, error) {
	for i := range t.Key.Columns {
		c := &t.Key.Columns[i]
		as := c.kind
		if as == kindServer {
			as = c.bare
		}
		_, rest, err := cutKey(key, as)
		if err != nil {
			return false, err
		}
		switch c.kind {
		case kindServer:
			form := millrace.Text
			if t.formats[c.Index] == 1 {
				form = millrace.Binary
			}
			if key[0] != codeBytes || key[1] != byte(form) {
				return false, nil
			}
		case kindDate, kindTime:
			if key[0] == codeBytes {
				return false, nil
			}
		}
		key = rest
	}
	return true, nil
}
