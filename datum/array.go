package datum

import (
	"errors"

	"github.com/millrace/millrace"
)

// arrays is the form of an array: an array of its elements, nested for more
// dimensions. What that can't say, lower bounds other than 1, is said by
// PostgreSQL's text in a string: "[0:1]={7,8}". With Style.Flat neither of the
// two is possible.
type arrays struct {
	elem  node
	s     *Schema
	delim byte
	flat  bool
}

var errNotFlat = errors.New("holds an array of more than one dimension or with a lower bound other than 1, " +
	"for which the schema of this format has no form")

func arrayNode(t *Type, mod int32, s Style) node {
	elem := nodeOf(t.Elem, mod, s)
	delim := t.Elem.Delim
	if delim == 0 {
		delim = ','
	}
	return arrays{elem: elem, s: &Schema{Kind: Array, Items: elem.schema(), Loose: true}, delim: delim, flat: s.Flat}
}

func (n arrays) schema() *Schema { return n.s }

var errArray = errors.New("malformed array")

// token is a step through the text of an array: a brace, or an element.
type token struct {
	kind byte // '{', '}', 'e' or 0 at the end
	null bool
	text []byte // of an element; on the scratch stack if it had escapes
}

// tokens walks the text of an array behind its bounds.
type tokens struct {
	c     *Codec
	s     []byte
	delim byte
	bad   bool
}

func (w *tokens) next() token {
	for len(w.s) > 0 && (w.s[0] == w.delim || w.s[0] == ' ') {
		w.s = w.s[1:]
	}
	if len(w.s) == 0 {
		return token{}
	}
	switch b := w.s[0]; b {
	case '{', '}':
		w.s = w.s[1:]
		return token{kind: b}
	case '"':
		return w.quoted()
	}
	i, escapes := 0, false
	for i < len(w.s) && w.s[i] != w.delim && w.s[i] != '}' && w.s[i] != '{' {
		if w.s[i] == '\\' {
			escapes = true
			i++
		}
		i++
	}
	if i > len(w.s) {
		return w.fail()
	}
	text := w.s[:i]
	w.s = w.s[i:]
	if escapes {
		text = w.unescape(text)
	}
	return token{kind: 'e', text: text, null: string(text) == "NULL"}
}

func (w *tokens) quoted() token {
	escapes := false
	for i := 1; i < len(w.s); i++ {
		switch w.s[i] {
		case '\\':
			escapes = true
			i++
		case '"':
			text := w.s[1:i]
			w.s = w.s[i+1:]
			if escapes {
				text = w.unescape(text)
			}
			return token{kind: 'e', text: text}
		}
	}
	return w.fail()
}

func (w *tokens) fail() token {
	w.bad, w.s = true, nil
	return token{}
}

func (w *tokens) unescape(s []byte) []byte {
	start := len(w.c.scratch)
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		w.c.scratch = append(w.c.scratch, s[i])
	}
	return w.c.scratch[start:]
}

func (n arrays) appendJSON(c *Codec, dst []byte, v millrace.Value) ([]byte, error) {
	mark := len(c.scratch)
	defer func() { c.scratch = c.scratch[:mark] }()
	text, err := c.push(v)
	if err != nil {
		return dst, err
	}
	if len(text) > 0 && text[0] == '[' {
		if n.flat {
			return dst, errNotFlat
		}
		return AppendQuoted(dst, text)
	}
	w := tokens{c: c, s: text, delim: n.delim}
	depth, first := 0, true
	for {
		inner := len(c.scratch)
		t := w.next()
		if t.kind == 0 {
			break
		}
		if !first && t.kind != '}' {
			dst = append(dst, ',')
		}
		switch first = false; {
		case t.kind == '{':
			if depth++; n.flat && depth > 1 {
				return dst, errNotFlat
			}
			dst, first = append(dst, '['), true
		case t.kind == '}':
			dst, depth = append(dst, ']'), depth-1
		case t.null:
			dst = append(dst, "null"...)
		default:
			if dst, err = n.elem.appendJSON(c, dst, millrace.Value{Kind: millrace.Text, Raw: t.text}); err != nil {
				return dst, err
			}
		}
		c.scratch = c.scratch[:inner]
		if depth <= 0 {
			break
		}
	}
	if w.bad || depth != 0 || len(w.s) > 0 {
		return dst, errArray
	}
	return dst, nil
}

func (n arrays) fromJSON(c *Codec, dst, raw []byte) ([]byte, error) {
	if raw[0] == '"' {
		return AppendUnquoted(dst, raw)
	}
	return n.level(c, dst, raw)
}

func (n arrays) level(c *Codec, dst, raw []byte) (_ []byte, err error) {
	a := NewJSONArray(raw)
	dst = append(dst, '{')
	for i := 0; a.Next(); i++ {
		if i > 0 {
			dst = append(dst, n.delim)
		}
		switch {
		case IsJSONNull(a.Value):
			dst = append(dst, "NULL"...)
		case a.Value[0] == '[':
			if dst, err = n.level(c, dst, a.Value); err != nil {
				return dst, err
			}
		default:
			start := len(dst)
			if dst, err = n.elem.fromJSON(c, dst, a.Value); err != nil {
				return dst, err
			}
			dst = quoteElement(dst, start, n.delim)
		}
	}
	return append(dst, '}'), a.Err
}
