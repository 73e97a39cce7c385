package datum

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/millrace/millrace"
)

// Decimal says how numeric and money are written.
type Decimal uint8

// The forms of decimals.
const (
	DecimalString Decimal = iota // every digit: "123.4500", "NaN"
	DecimalBytes                 // Connect's Decimal, and VariableScaleDecimal; NaN has no form
)

// Style chooses between the forms that a type has.
type Style struct {
	// Plain is the form for people and simple programs: dates and times as ISO
	// text, composites and hstore as objects. Without it the form is
	// Debezium's: dates and times as numbers with a logical name.
	Plain   bool
	Decimal Decimal
	// Lossy takes Debezium's forms also where they lose something: intervals as
	// microseconds, timetz in UTC, bit varying without its length, decimals
	// without trailing zeros, NaN as null. What was written so can't be read back.
	Lossy bool
	// Flat refuses arrays of more than one dimension and of other lower bounds,
	// which a schema of Connect or Avro has no words for.
	Flat bool
}

// A Codec writes and reads the values of one column. It keeps memory between
// calls, so it serves one goroutine at a time.
type Codec struct {
	Type   *Type
	Mod    int32
	Schema *Schema

	node    node
	text    textFunc // nil: binary form unknown
	scratch []byte   // a stack; whoever pushes takes away again
	aux     []byte   // for one value that is written while scratch is in use
}

// node is the form of one type. Values that it is given are Text or Binary;
// those inside of others always Text.
type node interface {
	schema() *Schema
	appendJSON(c *Codec, dst []byte, v millrace.Value) ([]byte, error)
	appendAvro(c *Codec, dst []byte, v millrace.Value) ([]byte, error)
	// fromJSON appends PostgreSQL's text for a JSON value that is not null;
	// fromAvro does so for what it takes from r.
	fromJSON(c *Codec, dst, raw []byte) ([]byte, error)
	fromAvro(c *Codec, dst []byte, r *avroReader) ([]byte, error)
}

// ErrBinaryUnknown is wrapped when a value came in a binary form that is not
// understood; as text it would be.
var ErrBinaryUnknown = errors.New("its binary form is not known: it has to be sent as text")

var errUnchanged = errors.New("an unchanged TOAST value was not sent")

// NewCodec makes the codec of a column of type t with the typmod mod.
func NewCodec(t *Type, mod int32, s Style) *Codec {
	c := &Codec{Type: t, Mod: mod, node: nodeOf(t, mod, s), text: textOf(t)}
	c.Schema = c.node.schema()
	return c
}

// AppendText appends the value as PostgreSQL's text.
func (c *Codec) AppendText(dst []byte, v millrace.Value) ([]byte, error) {
	switch v.Kind {
	case millrace.Text:
		return append(dst, v.Raw...), nil
	case millrace.Binary:
		if c.text == nil {
			return dst, ErrBinaryUnknown
		}
		return c.text(dst, v.Raw)
	case millrace.Unchanged:
		return dst, errUnchanged
	}
	return dst, errors.New("null has no text")
}

// AppendJSON appends the value as JSON, null as null.
func (c *Codec) AppendJSON(dst []byte, v millrace.Value) ([]byte, error) {
	switch v.Kind {
	case millrace.Null:
		return append(dst, "null"...), nil
	case millrace.Unchanged:
		return dst, errUnchanged
	}
	return c.node.appendJSON(c, dst, v)
}

// AppendTextOfJSON appends PostgreSQL's text for what AppendJSON wrote; null
// tells that it was null.
func (c *Codec) AppendTextOfJSON(dst, raw []byte) (_ []byte, null bool, err error) {
	if IsJSONNull(raw) {
		return dst, true, nil
	}
	dst, err = c.node.fromJSON(c, dst, raw)
	return dst, false, err
}

// push puts the value's text on the scratch stack unless it is text already.
// pop(mark) takes away what was pushed since.
func (c *Codec) push(v millrace.Value) (text []byte, err error) {
	if v.Kind == millrace.Text {
		return v.Raw, nil
	}
	start := len(c.scratch)
	c.scratch, err = c.AppendText(c.scratch, v)
	return c.scratch[start:], err
}

// atom is a value on its way between PostgreSQL and an outer form: i for
// integers and booleans, s for the rest.
type atom struct {
	i int64
	s []byte
	// null: the form has no word for the value and takes null (Style.Lossy).
	null bool
}

// leaf is the form of a type that is one value outside.
type leaf struct {
	s *Schema
	// get may use the scratch stack for atom.s; its caller pops.
	get func(c *Codec, v millrace.Value) (atom, error)
	// put is the inverse, to text. Nil: what was written can't be read back.
	put func(dst []byte, a atom) ([]byte, error)
}

var errLossy = errors.New("was written in a form that loses something and can't be read back")

func (l *leaf) schema() *Schema { return l.s }

func (l *leaf) appendJSON(c *Codec, dst []byte, v millrace.Value) ([]byte, error) {
	mark := len(c.scratch)
	a, err := l.get(c, v)
	if err == nil {
		dst, err = appendAtom(dst, l.s.Kind, a)
	}
	c.scratch = c.scratch[:mark]
	return dst, err
}

func appendAtom(dst []byte, kind Kind, a atom) ([]byte, error) {
	switch {
	case a.null:
		return append(dst, "null"...), nil
	case kind == Bool:
		return strconv.AppendBool(dst, a.i != 0), nil
	case kind <= Int64:
		return strconv.AppendInt(dst, a.i, 10), nil
	case kind <= Float64:
		if c := a.s[len(a.s)-1]; c == 'N' || c == 'y' { // NaN, Infinity
			return append(append(append(dst, '"'), a.s...), '"'), nil
		}
		return append(dst, a.s...), nil
	case kind == Bytes:
		dst = append(dst, '"')
		dst = base64.StdEncoding.AppendEncode(dst, a.s)
		return append(dst, '"'), nil
	}
	return AppendQuoted(dst, a.s)
}

func (l *leaf) fromJSON(c *Codec, dst, raw []byte) (_ []byte, err error) {
	if l.put == nil {
		return dst, errLossy
	}
	mark := len(c.scratch)
	defer func() { c.scratch = c.scratch[:mark] }()
	a, err := c.readAtom(l.s.Kind, raw)
	if err != nil {
		return dst, err
	}
	return l.put(dst, a)
}

func (c *Codec) readAtom(kind Kind, raw []byte) (a atom, err error) {
	switch {
	case kind == Bool:
		switch string(raw) {
		case "true":
			a.i = 1
		case "false":
		default:
			err = fmt.Errorf("%w: no boolean", errJSON)
		}
		return a, err
	case kind <= Int64:
		a.i, err = parseInt(raw)
		return a, err
	case kind <= Float64:
		a.s = raw
		if raw[0] == '"' {
			a.s = raw[1 : len(raw)-1]
		}
		if _, err = strconv.ParseFloat(string(a.s), 64); errors.Is(err, strconv.ErrRange) {
			err = nil // as float4 and float8 it is checked by who takes it
		}
		return a, err
	}
	start := len(c.scratch)
	if c.scratch, err = AppendUnquoted(c.scratch, raw); err != nil {
		return a, err
	}
	a.s = c.scratch[start:]
	if kind == Bytes {
		n, err := base64.StdEncoding.Decode(a.s, a.s)
		a.s = a.s[:n]
		return a, err
	}
	return a, nil
}

// parseInt reads a decimal integer without allocating.
func parseInt(s []byte) (int64, error) {
	neg := len(s) > 0 && s[0] == '-'
	digits := s
	if neg {
		digits = s[1:]
	}
	if len(digits) == 0 || len(digits) > 19 {
		return 0, malformed("integer", s)
	}
	var n uint64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, malformed("integer", s)
		}
		n = n*10 + uint64(c-'0')
	}
	switch {
	case neg && n <= 1<<63:
		return -int64(n), nil
	case !neg && n < 1<<63:
		return int64(n), nil
	}
	return 0, malformed("integer", s)
}

// verbatimLeaf keeps PostgreSQL's text.
func verbatimLeaf(s *Schema) *leaf {
	return &leaf{
		s:   s,
		get: func(c *Codec, v millrace.Value) (a atom, err error) { a.s, err = c.push(v); return a, err },
		put: func(dst []byte, a atom) ([]byte, error) { return append(dst, a.s...), nil },
	}
}

var boolLeaf = &leaf{
	s: &Schema{Kind: Bool},
	get: func(_ *Codec, v millrace.Value) (a atom, err error) {
		if len(v.Raw) != 1 {
			return a, malformed("bool", v.Raw)
		}
		if v.Raw[0] == 't' || v.Raw[0] == 1 {
			a.i = 1
		}
		return a, nil
	},
	put: func(dst []byte, a atom) ([]byte, error) { return append(dst, "ft"[a.i]), nil },
}

// intLeaf is for what is an integer in text as well.
func intLeaf(kind Kind, signed bool) *leaf {
	return &leaf{
		s: &Schema{Kind: kind},
		get: func(_ *Codec, v millrace.Value) (a atom, err error) {
			if v.Kind == millrace.Binary {
				a.i, err = bigEndian(v.Raw, signed)
			} else {
				a.i, err = parseInt(v.Raw)
			}
			return a, err
		},
		put: func(dst []byte, a atom) ([]byte, error) { return strconv.AppendInt(dst, a.i, 10), nil },
	}
}

func bigEndian(raw []byte, signed bool) (int64, error) {
	var u uint64
	for _, b := range raw {
		u = u<<8 | uint64(b)
	}
	switch {
	case len(raw) != 2 && len(raw) != 4 && len(raw) != 8:
		return 0, errBinary
	case !signed:
		return int64(u), nil
	}
	shift := 64 - 8*len(raw)
	return int64(u<<shift) >> shift, nil
}

func floatLeaf(kind Kind) *leaf {
	l := verbatimLeaf(&Schema{Kind: kind})
	get := l.get
	l.get = func(c *Codec, v millrace.Value) (atom, error) {
		a, err := get(c, v)
		if err == nil && len(a.s) == 0 {
			err = malformed("float", a.s)
		}
		return a, err
	}
	return l
}

var byteaLeaf = &leaf{
	s: &Schema{Kind: Bytes, Format: "byte"},
	get: func(c *Codec, v millrace.Value) (a atom, err error) {
		if v.Kind == millrace.Binary {
			return atom{s: v.Raw}, nil
		}
		if len(v.Raw) < 2 || v.Raw[0] != '\\' || v.Raw[1] != 'x' {
			return a, malformed("bytea", v.Raw)
		}
		start := len(c.scratch)
		c.scratch, err = hex.AppendDecode(c.scratch, v.Raw[2:])
		return atom{s: c.scratch[start:]}, err
	},
	put: func(dst []byte, a atom) ([]byte, error) {
		return hex.AppendEncode(append(dst, '\\', 'x'), a.s), nil
	},
}
