package datum

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"
)

// ErrNotUTF8 is the error for text that JSON and Avro can't hold: that of a
// database with encoding SQL_ASCII.
var ErrNotUTF8 = errors.New("is not UTF-8")

const hexDigits = "0123456789abcdef"

// AppendQuoted appends s as a JSON string. Only what must be escaped is.
func AppendQuoted(dst, s []byte) ([]byte, error) {
	dst = append(dst, '"')
	from, high := 0, false
	for i, c := range s {
		if c >= utf8.RuneSelf {
			high = true
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	if high && !utf8.Valid(s) {
		return dst, ErrNotUTF8
	}
	return append(append(dst, s[from:]...), '"'), nil
}

var errJSON = errors.New("malformed JSON")

// NextJSON splits the first value off b, which may begin with white space. It
// finds where the value ends; what is inside of it is checked by who reads it.
func NextJSON(b []byte) (value, rest []byte, err error) {
	b = skipSpace(b)
	if len(b) == 0 {
		return nil, nil, errJSON
	}
	switch b[0] {
	case '"':
		n := stringEnd(b)
		if n < 0 {
			return nil, nil, errJSON
		}
		return b[:n], b[n:], nil
	case '{', '[':
		depth := 0
		for i := 0; i < len(b); i++ {
			switch b[i] {
			case '"':
				n := stringEnd(b[i:])
				if n < 0 {
					return nil, nil, errJSON
				}
				i += n - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return b[:i+1], b[i+1:], nil
				}
			}
		}
		return nil, nil, errJSON
	}
	n := bytes.IndexAny(b, ",]} \t\r\n:")
	if n < 0 {
		n = len(b)
	}
	if n == 0 {
		return nil, nil, errJSON
	}
	return b[:n], b[n:], nil
}

// stringEnd gives the length of the string literal at the start of b, or -1.
func stringEnd(b []byte) int {
	for i := 1; i < len(b); i++ {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		i += n
		slashes := 0
		for j := i - 1; j > 0 && b[j] == '\\'; j-- {
			slashes++
		}
		if slashes%2 == 0 {
			return i + 1
		}
	}
	return -1
}

func skipSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\n' || b[0] == '\r' || b[0] == '\t') {
		b = b[1:]
	}
	return b
}

// JSONObject walks the members of an object, JSONArray the elements of an array:
//
//	for o := NewJSONObject(raw); o.Next(); { use(o.Key, o.Value) }
//	if o.Err != nil …
type JSONObject struct {
	Key, Value []byte // Key as it stands in the text, with its quotes
	Err        error
	rest       []byte
	begun      bool
}

// NewJSONObject starts at an object's opening brace.
func NewJSONObject(raw []byte) JSONObject {
	raw = skipSpace(raw)
	if len(raw) < 2 || raw[0] != '{' {
		return JSONObject{Err: fmt.Errorf("%w: no object", errJSON)}
	}
	return JSONObject{rest: raw[1:]}
}

// Next goes to the next member.
func (o *JSONObject) Next() bool {
	if !separate(&o.rest, &o.Err, &o.begun, '}') {
		return false
	}
	o.Key, o.rest, o.Err = NextJSON(o.rest)
	if o.Err != nil {
		return false
	}
	rest := skipSpace(o.rest)
	if o.Key[0] != '"' || len(rest) == 0 || rest[0] != ':' {
		o.Err = errJSON
		return false
	}
	o.Value, o.rest, o.Err = NextJSON(rest[1:])
	return o.Err == nil
}

// JSONArray walks the elements of an array; see JSONObject.
type JSONArray struct {
	Value []byte
	Err   error
	rest  []byte
	begun bool
}

// NewJSONArray starts at an array's opening bracket.
func NewJSONArray(raw []byte) JSONArray {
	raw = skipSpace(raw)
	if len(raw) < 2 || raw[0] != '[' {
		return JSONArray{Err: fmt.Errorf("%w: no array", errJSON)}
	}
	return JSONArray{rest: raw[1:]}
}

// Next goes to the next element.
func (a *JSONArray) Next() bool {
	if !separate(&a.rest, &a.Err, &a.begun, ']') {
		return false
	}
	a.Value, a.rest, a.Err = NextJSON(a.rest)
	return a.Err == nil
}

// separate steps over the comma before a member, or tells that there is none.
func separate(rest *[]byte, err *error, begun *bool, end byte) bool {
	if *err != nil {
		return false
	}
	b := skipSpace(*rest)
	if len(b) == 0 {
		*err = errJSON
		return false
	}
	if b[0] == end {
		return false
	}
	if *begun {
		if b[0] != ',' {
			*err = errJSON
			return false
		}
		b = b[1:]
	}
	*begun, *rest = true, b
	return true
}

// AppendUnquoted appends what a JSON string literal stands for.
func AppendUnquoted(dst, raw []byte) ([]byte, error) {
	if len(raw) < 2 || raw[0] != '"' || raw[len(raw)-1] != '"' {
		return dst, fmt.Errorf("%w: no string", errJSON)
	}
	s := raw[1 : len(raw)-1]
	for {
		i := bytes.IndexByte(s, '\\')
		if i < 0 {
			return append(dst, s...), nil
		}
		dst = append(dst, s[:i]...)
		if i+1 >= len(s) {
			return dst, errJSON
		}
		c := s[i+1]
		s = s[i+2:]
		switch c {
		case '"', '\\', '/':
			dst = append(dst, c)
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			var r rune
			var ok bool
			if r, s, ok = escapedRune(s); !ok {
				return dst, errJSON
			}
			dst = utf8.AppendRune(dst, r)
		default:
			return dst, errJSON
		}
	}
}

// escapedRune reads the four digits behind \u, and the second half of a
// surrogate pair.
func escapedRune(s []byte) (rune, []byte, bool) {
	r, ok := fourHex(s)
	if !ok {
		return 0, s, false
	}
	s = s[4:]
	if r < 0xD800 || r > 0xDFFF {
		return r, s, true
	}
	if r >= 0xDC00 || len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, s, false
	}
	low, ok := fourHex(s[2:])
	if !ok || low < 0xDC00 || low > 0xDFFF {
		return 0, s, false
	}
	return (r-0xD800)<<10 + (low - 0xDC00) + 0x10000, s[6:], true
}

func fourHex(s []byte) (rune, bool) {
	if len(s) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range s[:4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// IsJSONNull tells whether raw is the literal null.
func IsJSONNull(raw []byte) bool { return string(raw) == "null" }
