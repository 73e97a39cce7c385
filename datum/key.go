package datum

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"strconv"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum/tuple"
)

// Collation is what must be known of the collation of text to compare it.
type Collation byte

// The collations.
const (
	CollationOther            Collation = iota // equal text is equal bytes, the order is the server's affair
	CollationBytes                             // ordered by bytes: "C" and its kin
	CollationNondeterministic                  // different bytes may be equal
)

// Key makes key bytes of the values of one column, in the layout of package
// tuple, with a code of its own for numeric. A key of several columns is their
// concatenation.
type Key struct {
	// Ordered says that the order of the bytes is that of ORDER BY … NULLS FIRST.
	Ordered bool
	// Exact says that values are equal in SQL if and only if their bytes are.
	// Without it Append gives the same for every value that is not null.
	Exact bool

	form keyForm
	c    *Codec
}

// Codes beside those of package tuple.
const (
	keyNumeric = tuple.User
	keyAny     = tuple.User + 1
)

// keyForm writes values of one type and reads them back as PostgreSQL's text.
// What is read back equals the value, but not always in how it is written
// (1.50 comes back as 1.5).
type keyForm struct {
	put func(c *Codec, dst []byte, v millrace.Value) ([]byte, error)
	get func(dst, key []byte) (text, rest []byte, err error)
}

// NewKey makes the Key of a column.
func NewKey(t *Type, mod int32, collation Collation) *Key {
	k := &Key{c: NewCodec(t, mod, Style{Plain: true})}
	base, _ := t.resolve(mod)
	k.form, k.Ordered = orderedForm(base.OID, collation)
	k.Exact = k.Ordered
	switch {
	case k.Ordered:
	case base.OID == oidInterval:
		k.form, k.Exact = keyForm{put: putInterval}, true
	case exactText(base, collation):
		k.form, k.Exact = keyForm{put: putText(base.OID == oidBpchar), get: getText}, true
	default:
		k.form = keyForm{put: func(_ *Codec, dst []byte, _ millrace.Value) ([]byte, error) { return append(dst, keyAny), nil }}
	}
	return k
}

// Append appends the key bytes of a value.
func (k *Key) Append(dst []byte, v millrace.Value) ([]byte, error) {
	switch v.Kind {
	case millrace.Null:
		return append(dst, tuple.Null), nil
	case millrace.Unchanged:
		return dst, errUnchanged
	}
	mark := len(k.c.scratch)
	dst, err := k.form.put(k.c, dst, v)
	k.c.scratch = k.c.scratch[:mark]
	return dst, err
}

// AppendText takes the first value off key and appends PostgreSQL's text for
// it. Only what is Ordered can be read back.
func (k *Key) AppendText(dst, key []byte) (text []byte, null bool, rest []byte, err error) {
	if len(key) == 0 || !k.Ordered {
		return dst, false, nil, tuple.ErrMalformed
	}
	if key[0] == tuple.Null {
		return dst, true, key[1:], nil
	}
	dst, rest, err = k.form.get(dst, key)
	return dst, false, rest, err
}

// orderedForm knows the types whose order is one of bytes.
func orderedForm(oid uint32, collation Collation) (keyForm, bool) {
	switch oid {
	case oidBool:
		return keyForm{putBool, getBool}, true
	case oidInt2, oidInt4, oidInt8:
		return keyForm{putInt(func(v millrace.Value) (int64, error) { return intValue(v, true) }), getInt(appendInt)}, true
	case oidOid:
		return keyForm{putInt(func(v millrace.Value) (int64, error) { return intValue(v, false) }), getInt(appendInt)}, true
	case oidDate:
		return keyForm{putInt(dateNumber), getInt(dateOfNumber)}, true
	case oidTime:
		return keyForm{putInt(clockOf), getInt(func(dst []byte, n int64) []byte { return appendClock(dst, n, -1) })}, true
	case oidTimestamp:
		return keyForm{putInt(timestampNumber(false)), getInt(timestampOfNumber(""))}, true
	case oidTimestamptz:
		return keyForm{putInt(timestampNumber(true)), getInt(timestampOfNumber("+00"))}, true
	case oidFloat4, oidFloat8:
		return keyForm{putDouble, getDouble}, true
	case oidNumeric:
		return keyForm{putNumeric, getNumeric}, true
	case oidUUID:
		return keyForm{putUUID, getUUID}, true
	case oidBytea:
		return keyForm{putBytea, getBytea}, true
	case oidText, oidVarchar, oidBpchar, oidName:
		if collation == CollationBytes {
			return keyForm{putText(oid == oidBpchar), getText}, true
		}
	}
	return keyForm{}, false
}

// exactText tells whether values of a type are equal if and only if their text
// is.
func exactText(t *Type, collation Collation) bool {
	t, _ = t.resolve(-1)
	switch {
	case t.Kind == 'e':
		return true
	case t.Kind == 'c':
		for _, f := range t.Fields {
			if !exactText(f.Type, CollationNondeterministic) {
				return false
			}
		}
		return true
	case t.Range != nil:
		return exactText(t.Range, CollationNondeterministic)
	case t.Elem != nil:
		return exactText(t.Elem, collation)
	}
	switch t.OID {
	case oidText, oidVarchar, oidBpchar, oidName:
		return collation != CollationNondeterministic
	case oidBool, oidChar, oidInt2, oidInt4, oidInt8, oidOid, oidXid, oidXid8, oidCid, oidTid, oidUUID, oidBytea, oidDate, oidTime,
		oidTimetz, oidTimestamp, oidTimestamptz, oidMoney, oidPgLSN, oidBit, oidVarbit, oidInet, oidCidr, oidMacaddr, oidMacaddr8:
		return true
	}
	return t.Extension == "ltree" && t.Name == "ltree"
}

func putBool(_ *Codec, dst []byte, v millrace.Value) ([]byte, error) {
	if len(v.Raw) != 1 {
		return dst, malformed("bool", v.Raw)
	}
	return tuple.AppendBool(dst, v.Raw[0] == 't' || v.Raw[0] == 1), nil
}

func getBool(dst, key []byte) (text, rest []byte, err error) {
	switch key[0] {
	case tuple.True:
		return append(dst, 't'), key[1:], nil
	case tuple.False:
		return append(dst, 'f'), key[1:], nil
	}
	return dst, nil, tuple.ErrMalformed
}

func intValue(v millrace.Value, signed bool) (int64, error) {
	if v.Kind == millrace.Binary {
		return bigEndian(v.Raw, signed)
	}
	return parseInt(v.Raw)
}

func appendInt(dst []byte, n int64) []byte { return strconv.AppendInt(dst, n, 10) }

func dateNumber(v millrace.Value) (int64, error) {
	m, err := dateOf(v)
	return pick(m, math.MaxInt32, math.MinInt32), err
}

func dateOfNumber(dst []byte, n int64) []byte {
	switch n {
	case math.MaxInt32:
		return appendInfinity(dst, 1)
	case math.MinInt32:
		return appendInfinity(dst, -1)
	}
	return appendDateText(dst, n)
}

func timestampNumber(zone bool) func(millrace.Value) (int64, error) {
	return func(v millrace.Value) (int64, error) {
		m, err := timestampOf(v, zone)
		if m.inf != 0 {
			return pick(m, math.MaxInt64, math.MinInt64), err
		}
		return m.since2000(), err
	}
}

func timestampOfNumber(zone string) func([]byte, int64) []byte {
	return func(dst []byte, n int64) []byte {
		switch n {
		case math.MaxInt64:
			return appendInfinity(dst, 1)
		case math.MinInt64:
			return appendInfinity(dst, -1)
		}
		return appendTimestampText(dst, moment{n: n, over: true}, zone)
	}
}

func putInt(of func(millrace.Value) (int64, error)) func(*Codec, []byte, millrace.Value) ([]byte, error) {
	return func(_ *Codec, dst []byte, v millrace.Value) ([]byte, error) {
		n, err := of(v)
		if err != nil {
			return dst, err
		}
		return tuple.AppendInt(dst, n), nil
	}
}

func getInt(write func([]byte, int64) []byte) func(dst, key []byte) (text, rest []byte, err error) {
	return func(dst, key []byte) (_, _ []byte, err error) {
		n, rest, err := tuple.CutInt(key)
		if err != nil {
			return dst, nil, err
		}
		return write(dst, n), rest, nil
	}
}

func putDouble(c *Codec, dst []byte, v millrace.Value) ([]byte, error) {
	text, err := c.push(v)
	if err != nil {
		return dst, err
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return dst, err
	}
	return tuple.AppendDouble(dst, f), nil
}

func getDouble(dst, key []byte) (text, rest []byte, err error) {
	f, rest, err := tuple.CutDouble(key)
	if err != nil {
		return dst, nil, err
	}
	return appendFloat(dst, f, 64), rest, nil
}

// Classes of numeric, in order.
const (
	classNegInf = 1 + iota
	classNegative
	classZero
	classPositive
	classInf
	classNaN
)

// putNumeric: class, then the power of ten of the first digit that is not zero,
// then the digits up to the last that is not zero, each plus 1, and an end that
// is lower than any. Negative numbers have all that complemented. So the order
// is: class, magnitude, digits; and trailing zeros do not count.
func putNumeric(c *Codec, dst []byte, v millrace.Value) ([]byte, error) {
	text, err := c.push(v)
	if err != nil {
		return dst, err
	}
	dst = append(dst, keyNumeric)
	switch string(text) {
	case "NaN":
		return append(dst, classNaN), nil
	case "Infinity":
		return append(dst, classInf), nil
	case "-Infinity":
		return append(dst, classNegInf), nil
	}
	class, flip := byte(classPositive), byte(0)
	if len(text) > 0 && text[0] == '-' {
		class, flip, text = classNegative, 0xFF, text[1:]
	}
	point := bytes.IndexByte(text, '.')
	if point < 0 {
		point = len(text)
	} else {
		text = bytes.TrimRight(text, "0")
	}
	first := bytes.IndexAny(text, "123456789")
	if first < 0 {
		return append(dst, classZero), nil
	}
	power := point - first - 1
	if first > point {
		power++
	}
	dst = append(dst, class)
	var magnitude [4]byte
	binary.BigEndian.PutUint32(magnitude[:], uint32(power)+1<<31)
	for _, b := range magnitude {
		dst = append(dst, b^flip)
	}
	last := bytes.LastIndexAny(text, "123456789")
	for _, d := range text[first : last+1] {
		switch {
		case d == '.':
		case d >= '0' && d <= '9':
			dst = append(dst, (d-'0'+1)^flip)
		default:
			return dst, malformed("numeric", text)
		}
	}
	return append(dst, flip), nil
}

func getNumeric(dst, key []byte) (text, rest []byte, err error) {
	if len(key) < 2 || key[0] != keyNumeric {
		return dst, nil, tuple.ErrMalformed
	}
	class, rest := key[1], key[2:]
	switch class {
	case classNaN:
		return append(dst, "NaN"...), rest, nil
	case classInf:
		return append(dst, "Infinity"...), rest, nil
	case classNegInf:
		return append(dst, "-Infinity"...), rest, nil
	case classZero:
		return append(dst, '0'), rest, nil
	}
	flip := byte(0)
	if class == classNegative {
		flip = 0xFF
		dst = append(dst, '-')
	}
	if len(rest) < 5 {
		return dst, nil, tuple.ErrMalformed
	}
	power := int64(binary.BigEndian.Uint32(rest)^uint32(flip)*0x01010101) - 1<<31
	digits, rest, ok := bytes.Cut(rest[4:], []byte{flip})
	if !ok || power > 1<<18 || power < -1<<18 {
		return dst, nil, tuple.ErrMalformed
	}
	if power < 0 {
		dst = append(dst, '0', '.')
		for range -power - 1 {
			dst = append(dst, '0')
		}
	}
	for i, d := range digits {
		if i > 0 && int64(i) == power+1 {
			dst = append(dst, '.')
		}
		dst = append(dst, (d^flip)-1+'0')
	}
	for i := int64(len(digits)); i <= power; i++ {
		dst = append(dst, '0')
	}
	return dst, rest, nil
}

func putUUID(_ *Codec, dst []byte, v millrace.Value) (_ []byte, err error) {
	dst = append(dst, tuple.UUID)
	if v.Kind == millrace.Binary {
		return append(dst, v.Raw...), nil
	}
	if len(v.Raw) != 36 {
		return dst, malformed("uuid", v.Raw)
	}
	for _, part := range [...][2]int{{0, 8}, {9, 13}, {14, 18}, {19, 23}, {24, 36}} {
		if dst, err = hex.AppendDecode(dst, v.Raw[part[0]:part[1]]); err != nil {
			return dst, malformed("uuid", v.Raw)
		}
	}
	return dst, nil
}

func getUUID(dst, key []byte) (text, rest []byte, err error) {
	id, rest, err := tuple.CutUUID(key)
	if err != nil {
		return dst, nil, err
	}
	return appendUUID(dst, id), rest, nil
}

func putBytea(c *Codec, dst []byte, v millrace.Value) ([]byte, error) {
	a, err := byteaLeaf.get(c, v)
	return tuple.AppendString(dst, tuple.Bytes, a.s), err
}

func getBytea(dst, key []byte) (text, rest []byte, err error) {
	if key[0] != tuple.Bytes {
		return dst, nil, tuple.ErrMalformed
	}
	raw, rest, err := tuple.CutString(nil, key)
	return hex.AppendEncode(append(dst, '\\', 'x'), raw), rest, err
}

// putText: with padded, spaces at the end do not count.
func putText(padded bool) func(*Codec, []byte, millrace.Value) ([]byte, error) {
	return func(c *Codec, dst []byte, v millrace.Value) ([]byte, error) {
		text, err := c.push(v)
		if padded {
			text = bytes.TrimRight(text, " ")
		}
		return tuple.AppendString(dst, tuple.Text, text), err
	}
}

func getText(dst, key []byte) (text, rest []byte, err error) {
	if key[0] != tuple.Text {
		return dst, nil, tuple.ErrMalformed
	}
	return tuple.CutString(dst, key)
}

// putInterval: SQL takes a month for 30 days and a day for 24 hours when it
// compares intervals. Whole days and what is left of one can't overflow.
func putInterval(_ *Codec, dst []byte, v millrace.Value) ([]byte, error) {
	iv, err := intervalValue(v)
	if err != nil {
		return dst, err
	}
	days, micros := floorDiv(iv.micros, microsInDay)
	return tuple.AppendInt(tuple.AppendInt(dst, days+int64(iv.days)+30*int64(iv.months)), micros), nil
}
