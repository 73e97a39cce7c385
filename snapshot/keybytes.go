package snapshot

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum/tuple"
)

// Keys as bytes have the layout of package tuple: where every column of a key is of a
// kind whose order is known here, bytes compare as the server orders the keys. Values of
// other types are kept as they came, with a letter for their form in front, and their
// order is asked for at the server.

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

var errKey = tuple.ErrMalformed

// appendKey appends one value.
func appendKey(b []byte, k kind, v *millrace.Value) ([]byte, error) {
	raw := v.Raw
	switch k {
	case kindInt, kindDate, kindTime:
		n, err := intOf(v)
		if err != nil {
			return nil, err
		}
		return tuple.AppendInt(b, n), nil
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
		return append(append(b, tuple.UUID), raw...), nil
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
		return tuple.AppendString(b, tuple.Bytes, raw), nil
	case kindText:
		return tuple.AppendString(b, tuple.Text, raw), nil
	case kindBool:
		if len(raw) != 1 {
			return nil, errKey
		}
		return tuple.AppendBool(b, raw[0] == 't' || v.Kind == millrace.Binary && raw[0] != 0), nil
	}
	return tuple.AppendString(b, tuple.Bytes, []byte{byte(v.Kind)}, raw), nil
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

// cutKey reads one value off the front. It is in a form that the server takes
// for the column's type.
func cutKey(b []byte, k kind) (v millrace.Value, rest []byte, err error) {
	if len(b) == 0 {
		return v, nil, errKey
	}
	switch code := b[0]; {
	case code == tuple.True:
		return millrace.Value{Kind: millrace.Text, Raw: []byte("t")}, b[1:], nil
	case code == tuple.False:
		return millrace.Value{Kind: millrace.Text, Raw: []byte("f")}, b[1:], nil
	case code == tuple.UUID:
		v.Kind = millrace.Binary
		v.Raw, rest, err = tuple.CutUUID(b)
		return v, rest, err
	case tuple.IsInt(code):
		n, rest, err := tuple.CutInt(b)
		return intValue(k, n), rest, err
	case code == tuple.Text:
		v.Kind = millrace.Text
	case code == tuple.Bytes:
		v.Kind = millrace.Binary
	default:
		return v, nil, errKey
	}
	raw, rest, err := tuple.CutString([]byte{}, b)
	if err == nil && v.Kind == millrace.Binary && k != kindBytes {
		if len(raw) == 0 || raw[0] != byte(millrace.Text) && raw[0] != byte(millrace.Binary) {
			return v, nil, errKey
		}
		v.Kind, raw = millrace.ValueKind(raw[0]), raw[1:]
	}
	v.Raw = raw
	return v, rest, err
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
			if key[0] != tuple.Bytes || key[1] != byte(form) {
				return false, nil
			}
		case kindDate, kindTime:
			if key[0] == tuple.Bytes {
				return false, nil
			}
		}
		key = rest
	}
	return true, nil
}
