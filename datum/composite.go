package datum

import (
	"bytes"
	"errors"

	"github.com/millrace/millrace"
)

// composites is the form of a composite type in the plain style: an object.
type composites struct {
	s      *Schema
	fields []node
	names  [][]byte // as JSON, with the colon
}

func compositeNode(t *Type, s Style) node {
	n := composites{s: &Schema{Kind: Struct, Name: t.Name}}
	for _, f := range t.Fields {
		inner := nodeOf(f.Type, f.Mod, s)
		name, err := AppendQuoted(nil, []byte(f.Name))
		if err != nil {
			return textLeaf(t)
		}
		n.fields = append(n.fields, inner)
		n.names = append(n.names, append(name, ':'))
		n.s.Fields = append(n.s.Fields, SchemaField{Name: f.Name, Schema: inner.schema(), Optional: true})
	}
	return n
}

func (n composites) schema() *Schema { return n.s }

var errComposite = errors.New("malformed composite value")

func (n composites) appendJSON(c *Codec, dst []byte, v millrace.Value) ([]byte, error) {
	mark := len(c.scratch)
	defer func() { c.scratch = c.scratch[:mark] }()
	text, err := c.push(v)
	if err != nil {
		return dst, err
	}
	if len(text) < 2 || text[0] != '(' {
		return dst, errComposite
	}
	rest := text[1:]
	for i, f := range n.fields {
		dst = append(dst, "{,"[min(i, 1)])
		dst = append(dst, n.names[i]...)
		inner := len(c.scratch)
		var field []byte
		var null bool
		if field, null, rest, err = c.field(rest); err != nil {
			return dst, err
		}
		if null {
			dst = append(dst, "null"...)
		} else if dst, err = f.appendJSON(c, dst, millrace.Value{Kind: millrace.Text, Raw: field}); err != nil {
			return dst, err
		}
		c.scratch = c.scratch[:inner]
	}
	if len(rest) != 0 {
		return dst, errComposite
	}
	return append(dst, '}'), nil
}

// field reads one field and the comma or parenthesis behind it (record_in).
func (c *Codec) field(s []byte) (field []byte, null bool, rest []byte, err error) {
	if len(s) > 0 && (s[0] == ',' || s[0] == ')') {
		return nil, true, s[1:], nil
	}
	if end := bytes.IndexAny(s, `,)"\`); end >= 0 && s[end] != '"' && s[end] != '\\' {
		return s[:end], false, s[end+1:], nil
	}
	start, in := len(c.scratch), false
	for i := 0; i < len(s); i++ {
		switch b := s[i]; {
		case b == '\\' && i+1 < len(s), b == '"' && in && i+1 < len(s) && s[i+1] == '"':
			i++
			c.scratch = append(c.scratch, s[i])
		case b == '"':
			in = !in
		case !in && (b == ',' || b == ')'):
			return c.scratch[start:], false, s[i+1:], nil
		default:
			c.scratch = append(c.scratch, b)
		}
	}
	return nil, false, nil, errComposite
}

func (n composites) fromJSON(c *Codec, dst, raw []byte) (_ []byte, err error) {
	values := make([][]byte, len(n.fields))
	o := NewJSONObject(raw)
	for o.Next() {
		for i, name := range n.names {
			if bytes.Equal(o.Key, name[:len(name)-1]) {
				values[i] = o.Value
			}
		}
	}
	if o.Err != nil {
		return dst, o.Err
	}
	dst = append(dst, '(')
	for i, f := range n.fields {
		if i > 0 {
			dst = append(dst, ',')
		}
		if values[i] == nil || IsJSONNull(values[i]) {
			continue
		}
		start := len(dst)
		if dst, err = f.fromJSON(c, dst, values[i]); err != nil {
			return dst, err
		}
		dst = quoteField(dst, start, false)
	}
	return append(dst, ')'), nil
}

// pairs walks the text of an hstore.
type pairs struct {
	c          *Codec
	s          []byte
	key, value []byte
	null       bool
	bad        bool
}

func (p *pairs) next() bool {
	if len(p.s) > 1 && p.s[0] == ',' && p.s[1] == ' ' {
		p.s = p.s[2:]
	}
	if len(p.s) == 0 || p.bad {
		return false
	}
	p.key = p.quoted()
	if !bytes.HasPrefix(p.s, []byte("=>")) {
		p.bad = true
		return false
	}
	p.s = p.s[2:]
	if p.null = bytes.HasPrefix(p.s, []byte("NULL")); p.null {
		p.s = p.s[4:]
		return true
	}
	p.value = p.quoted()
	return !p.bad
}

func (p *pairs) quoted() []byte {
	w := tokens{c: p.c, s: p.s}
	if len(p.s) == 0 || p.s[0] != '"' {
		p.bad = true
		return nil
	}
	t := w.quoted()
	p.s, p.bad = w.s, w.bad
	return t.text
}

// hstoreObject appends an hstore's text as a JSON object, in PostgreSQL's order.
func (c *Codec) hstoreObject(dst, text []byte) (_ []byte, err error) {
	p := pairs{c: c, s: text}
	dst = append(dst, '{')
	for i := 0; p.next(); i++ {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = AppendQuoted(dst, p.key); err != nil {
			return dst, err
		}
		dst = append(dst, ':')
		if p.null {
			dst = append(dst, "null"...)
		} else if dst, err = AppendQuoted(dst, p.value); err != nil {
			return dst, err
		}
	}
	if p.bad {
		return dst, malformed("hstore", text)
	}
	return append(dst, '}'), nil
}

// hstoreOfObject is the inverse.
func hstoreOfObject(c *Codec, dst, raw []byte) (_ []byte, err error) {
	o := NewJSONObject(raw)
	for i := 0; o.Next(); i++ {
		if i > 0 {
			dst = append(dst, ',', ' ')
		}
		for _, half := range [...][]byte{o.Key, o.Value} {
			if IsJSONNull(half) {
				dst = append(dst, "NULL"...)
			} else {
				mark := len(c.scratch)
				c.scratch, err = AppendUnquoted(c.scratch, half)
				dst = appendHstore(dst, c.scratch[mark:])
				c.scratch = c.scratch[:mark]
			}
			if err != nil {
				return dst, err
			}
			if &half[0] == &o.Key[0] {
				dst = append(dst, '=', '>')
			}
		}
	}
	return dst, o.Err
}

// hstores is the form of hstore in the plain style: an object.
type hstores struct{}

var hstoreSchema = &Schema{Kind: Map}

func (hstores) schema() *Schema { return hstoreSchema }

func (hstores) appendJSON(c *Codec, dst []byte, v millrace.Value) ([]byte, error) {
	mark := len(c.scratch)
	defer func() { c.scratch = c.scratch[:mark] }()
	text, err := c.push(v)
	if err != nil {
		return dst, err
	}
	return c.hstoreObject(dst, text)
}

func (hstores) fromJSON(c *Codec, dst, raw []byte) ([]byte, error) {
	return hstoreOfObject(c, dst, raw)
}

// hstoreNode: to Debezium an hstore is a string that holds the object.
func hstoreNode(s Style) node {
	if s.Plain {
		return hstores{}
	}
	return &leaf{
		s: &Schema{Kind: String, Name: "io.debezium.data.Json", Version: 1},
		get: func(c *Codec, v millrace.Value) (a atom, err error) {
			text, err := c.push(v)
			if err != nil {
				return a, err
			}
			c.aux, err = c.hstoreObject(c.aux[:0], text) // unescaping uses scratch
			return atom{s: c.aux}, err
		},
		put: func(dst []byte, a atom) ([]byte, error) { return hstoreOfObject(&Codec{}, dst, a.s) },
	}
}

// pointNode is Debezium's form of a point: its coordinates, and again as WKB.
type pointNode struct{}

var pointSchema = &Schema{
	Kind: Struct, Name: "io.debezium.data.geometry.Point", Version: 1, Doc: "Geometry (POINT)",
	Fields: []SchemaField{
		{Name: "x", Schema: &Schema{Kind: Float64}},
		{Name: "y", Schema: &Schema{Kind: Float64}},
		{Name: "wkb", Schema: &Schema{Kind: Bytes}, Optional: true},
		{Name: "srid", Schema: &Schema{Kind: Int32}, Optional: true},
	},
}

func (pointNode) schema() *Schema { return pointSchema }

// coordinates gives the texts of both.
func coordinates(c *Codec, v millrace.Value) (x, y []byte, err error) {
	text, err := c.push(v)
	if err != nil {
		return nil, nil, err
	}
	comma := bytes.IndexByte(text, ',')
	if comma < 2 || len(text) < comma+3 || text[0] != '(' || text[len(text)-1] != ')' {
		return nil, nil, malformed("point", text)
	}
	return text[1:comma], text[comma+1 : len(text)-1], nil
}

func (pointNode) appendJSON(c *Codec, dst []byte, v millrace.Value) ([]byte, error) {
	mark := len(c.scratch)
	defer func() { c.scratch = c.scratch[:mark] }()
	x, y, err := coordinates(c, v)
	if err != nil {
		return dst, err
	}
	var buf [21]byte
	wkb, err := appendWKB(buf[:0], x, y)
	if err != nil {
		return dst, err
	}
	for _, part := range [...]struct {
		name string
		kind Kind
		s    []byte
	}{{`{"x":`, Float64, x}, {`,"y":`, Float64, y}, {`,"wkb":`, Bytes, wkb}} {
		if dst, err = appendAtom(append(dst, part.name...), part.kind, atom{s: part.s}); err != nil {
			return dst, err
		}
	}
	return append(dst, `,"srid":null}`...), nil
}

func (pointNode) fromJSON(c *Codec, dst, raw []byte) ([]byte, error) {
	var x, y atom
	var err error
	o := NewJSONObject(raw)
	for o.Next() && err == nil {
		switch string(o.Key) {
		case `"x"`:
			x, err = c.readAtom(Float64, o.Value)
		case `"y"`:
			y, err = c.readAtom(Float64, o.Value)
		}
	}
	if err = errors.Join(err, o.Err); err != nil {
		return dst, err
	}
	dst = append(append(dst, '('), x.s...)
	dst = append(append(dst, ','), y.s...)
	return append(dst, ')'), nil
}
