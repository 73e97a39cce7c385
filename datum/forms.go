package datum

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/millrace/millrace"
)

// nodeOf is the one place that decides which form a type has.
func nodeOf(t *Type, mod int32, s Style) node {
	t, mod = t.resolve(mod)
	switch {
	case t.Kind == 'e':
		return enumLeaf(t, s)
	case t.Kind == 'c' && s.Plain && len(t.Fields) > 0:
		return compositeNode(t, s)
	case t.OID == oidInt2vector || t.OID == oidOidvector:
		return textLeaf(t)
	case t.Elem != nil:
		return arrayNode(t, mod, s)
	}
	if t.Extension == "hstore" && t.Name == "hstore" {
		return hstoreNode(s)
	}
	if n := builtinNode(t.OID, mod, s); n != nil {
		return n
	}
	if name := debeziumNames[t.Name]; name != "" && !s.Plain && (t.OID < 16384 || t.Extension == t.Name) {
		return verbatimLeaf(&Schema{Kind: String, Name: name, Version: 1})
	}
	switch t.OID {
	case oidText, oidVarchar, oidBpchar, oidName, oidJSON, oidJSONB, oidXML:
		return verbatimLeaf(&Schema{Kind: String})
	}
	if t.Extension == "citext" {
		return verbatimLeaf(&Schema{Kind: String})
	}
	return textLeaf(t)
}

// debeziumNames are the logical names of what stays text.
var debeziumNames = map[string]string{
	"json":     "io.debezium.data.Json",
	"jsonb":    "io.debezium.data.Json",
	"xml":      "io.debezium.data.Xml",
	"ltree":    "io.debezium.data.Ltree",
	"tsvector": "io.debezium.data.Tsvector",
}

// textLeaf is for types that have no better form than PostgreSQL's text.
func textLeaf(t *Type) node {
	return verbatimLeaf(&Schema{Kind: String, Postgres: t.Name})
}

func builtinNode(oid uint32, mod int32, s Style) node {
	switch oid {
	case oidBool:
		return boolLeaf
	case oidInt2:
		return intLeaf(Int16, true)
	case oidInt4:
		return intLeaf(Int32, true)
	case oidInt8:
		return intLeaf(Int64, true)
	case oidOid:
		return intLeaf(Int64, false)
	case oidFloat4:
		return floatLeaf(Float32)
	case oidFloat8:
		return floatLeaf(Float64)
	case oidNumeric:
		return numericNode(mod, s)
	case oidMoney:
		return moneyLeaf(s)
	case oidBytea:
		return byteaLeaf
	case oidUUID:
		if s.Plain {
			return verbatimLeaf(&Schema{Kind: String, Format: "uuid"})
		}
		return verbatimLeaf(&Schema{Kind: String, Name: "io.debezium.data.Uuid", Version: 1, Format: "uuid"})
	case oidBit:
		return bitLeaf(mod, s)
	case oidVarbit:
		if s.Lossy {
			return bitsLeaf(int(mod), true)
		}
		return verbatimLeaf(&Schema{Kind: String, Postgres: "varbit"})
	case oidDate:
		return dateLeaf(s)
	case oidTime:
		return timeLeaf(mod, s)
	case oidTimetz:
		return timetzLeaf(s)
	case oidTimestamp:
		return timestampLeaf(mod, s)
	case oidTimestamptz:
		return timestamptzLeaf(mod)
	case oidInterval:
		return intervalLeaf(s)
	case oidPoint:
		if !s.Plain {
			return pointNode{}
		}
	}
	return nil
}

func enumLeaf(t *Type, s Style) node {
	schema := &Schema{Kind: String, Params: [][2]string{{"allowed", strings.Join(t.Labels, ",")}}}
	if !s.Plain {
		schema.Name, schema.Version = "io.debezium.data.Enum", 1
	}
	return verbatimLeaf(schema)
}

// Names of Connect's and Debezium's decimals.
const (
	connectDecimal  = "org.apache.kafka.connect.data.Decimal"
	variableDecimal = "io.debezium.data.VariableScaleDecimal"
)

// numericMod takes a typmod of numeric apart (make_numeric_typmod); ok is false
// for one without precision.
func numericMod(mod int32) (precision, scale int, ok bool) {
	if mod < 4 {
		return 0, 0, false
	}
	mod -= 4
	return int(mod >> 16 & 0xFFFF), int((mod&0x7FF)^1024) - 1024, true
}

func numericNode(mod int32, s Style) node {
	if s.Plain || s.Decimal == DecimalString {
		l := verbatimLeaf(&Schema{Kind: String, Format: "number"})
		if s.Lossy && !s.Plain {
			l.put = nil
			l.get = upperNaN(l.get)
		}
		return l
	}
	precision, scale, ok := numericMod(mod)
	if !ok {
		return variableNode{strip: s.Lossy, nulls: s.Lossy}
	}
	return decimalLeaf(precision, max(scale, 0), s.Lossy, unscaled, func(dst []byte, n *big.Int, scale int) []byte {
		return appendScaled(dst, n, scale)
	})
}

// upperNaN writes NaN as Debezium does.
func upperNaN(get func(*Codec, millrace.Value) (atom, error)) func(*Codec, millrace.Value) (atom, error) {
	return func(c *Codec, v millrace.Value) (atom, error) {
		a, err := get(c, v)
		if string(a.s) == "NaN" {
			a.s = []byte("NAN")
		}
		return a, err
	}
}

var errNoDecimal = errors.New("NaN or infinity has no form under decimal: bytes; use decimal: string")

// decimalLeaf writes decimals as Connect's Decimal: the unscaled integer in two's
// complement.
func decimalLeaf(precision, scale int, nulls bool, read func([]byte, int) (*big.Int, int, error),
	write func([]byte, *big.Int, int) []byte,
) node {
	params := [][2]string{{"scale", strconv.Itoa(scale)}}
	if precision > 0 {
		params = append(params, [2]string{"connect.decimal.precision", strconv.Itoa(precision)})
	}
	return &leaf{
		s: &Schema{Kind: Bytes, Name: connectDecimal, Version: 1, Params: params},
		get: func(c *Codec, v millrace.Value) (a atom, err error) {
			text, err := c.push(v)
			if err != nil {
				return a, err
			}
			n, _, err := read(text, scale)
			switch {
			case errors.Is(err, errSpecial) && nulls:
				return atom{null: true}, nil
			case errors.Is(err, errSpecial):
				return a, errNoDecimal
			case err != nil:
				return a, err
			}
			start := len(c.scratch)
			c.scratch = twosComplement(c.scratch, n)
			return atom{s: c.scratch[start:]}, nil
		},
		put: func(dst []byte, a atom) ([]byte, error) {
			return write(dst, fromTwosComplement(a.s), scale), nil
		},
	}
}

// variableNode writes a numeric without a scale of its own as Debezium's
// VariableScaleDecimal.
type variableNode struct{ strip, nulls bool }

var variableSchema = &Schema{Kind: Struct, Name: variableDecimal, Version: 1, Doc: "Variable scaled decimal", Fields: []SchemaField{
	{Name: "scale", Schema: &Schema{Kind: Int32}},
	{Name: "value", Schema: &Schema{Kind: Bytes}},
}}

func (variableNode) schema() *Schema { return variableSchema }

// parts gives scale and bytes, the latter on the scratch stack.
func (n variableNode) parts(c *Codec, v millrace.Value) (scale, value atom, null bool, err error) {
	text, err := c.push(v)
	if err != nil {
		return scale, value, false, err
	}
	num, got, err := unscaled(text, -1)
	if errors.Is(err, errSpecial) {
		if n.nulls {
			return scale, value, true, nil
		}
		err = errNoDecimal
	}
	if err != nil {
		return scale, value, false, err
	}
	for ten, rem := big.NewInt(10), new(big.Int); n.strip && got > 0; got-- {
		q, r := new(big.Int).QuoRem(num, ten, rem)
		if r.Sign() != 0 {
			break
		}
		num = q
	}
	start := len(c.scratch)
	c.scratch = twosComplement(c.scratch, num)
	return atom{i: int64(got)}, atom{s: c.scratch[start:]}, false, nil
}

func (n variableNode) appendJSON(c *Codec, dst []byte, v millrace.Value) ([]byte, error) {
	mark := len(c.scratch)
	defer func() { c.scratch = c.scratch[:mark] }()
	scale, value, null, err := n.parts(c, v)
	if err != nil {
		return dst, err
	}
	if null {
		return append(dst, "null"...), nil
	}
	dst = strconv.AppendInt(append(dst, `{"scale":`...), scale.i, 10)
	dst, err = appendAtom(append(dst, `,"value":`...), Bytes, value)
	return append(dst, '}'), err
}

func (n variableNode) fromJSON(c *Codec, dst, raw []byte) ([]byte, error) {
	if n.strip {
		return dst, errLossy
	}
	mark := len(c.scratch)
	defer func() { c.scratch = c.scratch[:mark] }()
	var scale, value atom
	o := NewJSONObject(raw)
	for o.Next() {
		var err error
		switch string(o.Key) {
		case `"scale"`:
			scale, err = c.readAtom(Int32, o.Value)
		case `"value"`:
			value, err = c.readAtom(Bytes, o.Value)
		}
		if err != nil {
			return dst, err
		}
	}
	return n.put(dst, scale, value, o.Err)
}

// maxScale is more than a numeric has digits behind the point (NUMERIC_MAX_DISPLAY_SCALE is 1000, stored ones go to 16383).
const maxScale = 1 << 14

func (variableNode) put(dst []byte, scale, value atom, err error) ([]byte, error) {
	if err != nil || scale.i < 0 || scale.i > maxScale {
		return dst, errors.Join(errors.New("malformed VariableScaleDecimal"), err)
	}
	return appendScaled(dst, fromTwosComplement(value.s), int(scale.i)), nil
}

// moneyLeaf writes money without its symbol and separators.
func moneyLeaf(s Style) node {
	if !s.Plain && s.Decimal == DecimalBytes {
		return decimalLeaf(0, 2, s.Lossy, func(text []byte, scale int) (*big.Int, int, error) {
			plain, err := moneyDigits(nil, text)
			if err != nil {
				return nil, 0, err
			}
			return unscaled(plain, scale)
		}, func(dst []byte, n *big.Int, _ int) []byte { return appendMoney(dst, n.Int64()) })
	}
	return &leaf{
		s: &Schema{Kind: String, Format: "number"},
		get: func(c *Codec, v millrace.Value) (a atom, err error) {
			text, err := c.push(v)
			if err != nil {
				return a, err
			}
			start := len(c.scratch)
			c.scratch, err = moneyDigits(c.scratch, text)
			return atom{s: c.scratch[start:]}, err
		},
		put: func(dst []byte, a atom) ([]byte, error) {
			n, _, err := unscaled(a.s, 2)
			if err != nil || !n.IsInt64() {
				return dst, malformed("money", a.s)
			}
			return appendMoney(dst, n.Int64()), nil
		},
	}
}

func moneyDigits(dst, text []byte) ([]byte, error) {
	for _, ch := range text {
		switch {
		case ch == '$' || ch == ',':
		case ch == '-' || ch == '.' || ch >= '0' && ch <= '9':
			dst = append(dst, ch)
		default:
			return dst, malformed("money under lc_monetary C", text)
		}
	}
	return dst, nil
}

// bitLeaf: bit(1) is a boolean to Debezium. Without a length in the type, which
// pg_catalog."bit" has not, the bits themselves must show it.
func bitLeaf(mod int32, s Style) node {
	if s.Plain || mod < 1 && !s.Lossy {
		return verbatimLeaf(&Schema{Kind: String, Postgres: "bit"})
	}
	if mod != 1 {
		return bitsLeaf(int(mod), false)
	}
	return &leaf{
		s: &Schema{Kind: Bool},
		get: func(c *Codec, v millrace.Value) (a atom, err error) {
			text, err := c.push(v)
			if err != nil || len(text) != 1 {
				return a, errors.Join(malformed("bit(1)", v.Raw), err)
			}
			a.i = int64(text[0] - '0')
			return a, nil
		},
		put: func(dst []byte, a atom) ([]byte, error) { return append(dst, "01"[a.i]), nil },
	}
}

// bitsLeaf is Debezium's Bits: the bits as a number, its least byte first. The
// length is not in it.
func bitsLeaf(length int, varying bool) *leaf {
	l := &leaf{
		s: &Schema{Kind: Bytes, Name: "io.debezium.data.Bits", Version: 1, Params: [][2]string{{"length", strconv.Itoa(length)}}},
		get: func(c *Codec, v millrace.Value) (a atom, err error) {
			text, err := c.push(v)
			if err != nil {
				return a, err
			}
			start := len(c.scratch)
			for end := len(text); end > 0; end -= 8 {
				var b byte
				for _, bit := range text[max(end-8, 0):end] {
					b = b<<1 | bit&1
				}
				c.scratch = append(c.scratch, b)
			}
			return atom{s: c.scratch[start:]}, nil
		},
	}
	if !varying {
		l.put = func(dst []byte, a atom) ([]byte, error) {
			if len(a.s) != (length+7)/8 {
				return dst, fmt.Errorf("%d bytes for bit(%d)", len(a.s), length)
			}
			for i := length - 1; i >= 0; i-- {
				dst = append(dst, '0'+a.s[i/8]>>(i%8)&1)
			}
			return dst, nil
		}
	}
	return l
}
