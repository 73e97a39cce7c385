package schema

import "strings"

// token is a piece of SQL as pg_dump writes it. Blanks belong to the token that
// follows them, so that the text of all tokens is the whole.
type token struct {
	blank string
	text  string
	depth int // of parentheses, those of a pair counted as outside
}

// is tells whether the token is the key word or sign.
func (t token) is(text string) bool { return t.text == text }

// lex parts a statement into words, numbers, strings, quoted names and signs.
// It knows what definitions of tables, indexes and constraints contain; pg_dump
// writes no comments into them, and key words in capitals.
func lex(sql string) []token {
	var tokens []token
	depth := 0
	for i := 0; i < len(sql); {
		start := i
		for i < len(sql) && strings.IndexByte(" \t\r\n", sql[i]) >= 0 {
			i++
		}
		blank := sql[start:i]
		if i == len(sql) {
			if blank != "" {
				tokens = append(tokens, token{blank: blank, depth: depth})
			}
			break
		}
		end := i + tokenLen(sql[i:])
		t := token{blank: blank, text: sql[i:end], depth: depth}
		switch t.text {
		case "(":
			depth++
		case ")":
			depth--
			t.depth = depth
		}
		tokens = append(tokens, t)
		i = end
	}
	return tokens
}

// tokenLen gives the length of the token at the start of s, which is no blank.
func tokenLen(s string) int {
	switch c := s[0]; {
	case (c == 'E' || c == 'e') && strings.HasPrefix(s[1:], "'"):
		return 1 + stringLen(s[1:], true)
	case c == '\'':
		return stringLen(s, false)
	case c == '"':
		return nameLen(s)
	case c == '$':
		return dollarLen(s)
	case isWord(c):
		i := 1
		for i < len(s) && (isWord(s[i]) || s[i] == '$') {
			i++
		}
		return i
	}
	return 1
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c >= 0x80
}

func stringLen(s string, escapes bool) int {
	for i := 1; i < len(s); i++ {
		switch {
		case escapes && s[i] == '\\':
			i++
		case s[i] == '\'' && strings.HasPrefix(s[i+1:], "'"):
			i++
		case s[i] == '\'':
			return i + 1
		}
	}
	return len(s)
}

func nameLen(s string) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '"' && strings.HasPrefix(s[i+1:], `"`):
			i++
		case s[i] == '"':
			return i + 1
		}
	}
	return len(s)
}

// dollarLen gives the length of a string in dollar quotes, or 1.
func dollarLen(s string) int {
	i := 1
	for i < len(s) && isWord(s[i]) {
		i++
	}
	if i == len(s) || s[i] != '$' {
		return 1
	}
	tag := s[:i+1]
	if j := strings.Index(s[len(tag):], tag); j >= 0 {
		return 2*len(tag) + j
	}
	return len(s)
}

// join is the inverse of lex.
func join(tokens []token) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteString(t.blank)
		b.WriteString(t.text)
	}
	return b.String()
}

// elements parts the tokens between the parentheses of a list at its commas.
// open is the index of the opening parenthesis; the index of the closing one is
// returned, or -1 when there is none.
func elements(tokens []token, open int) (parts [][]token, closing int) {
	inner := tokens[open].depth + 1
	start := open + 1
	for i := start; i < len(tokens); i++ {
		switch t := tokens[i]; {
		case t.is(")") && t.depth == inner-1:
			if i > start || len(parts) > 0 {
				parts = append(parts, tokens[start:i])
			}
			return parts, i
		case t.is(",") && t.depth == inner:
			parts = append(parts, tokens[start:i])
			start = i + 1
		}
	}
	return nil, -1
}

// endsWith tells whether the tokens end with the words.
func endsWith(tokens []token, words ...string) bool {
	if len(tokens) > 0 && tokens[len(tokens)-1].text == "" {
		tokens = tokens[:len(tokens)-1]
	}
	if len(tokens) < len(words) {
		return false
	}
	for i, t := range tokens[len(tokens)-len(words):] {
		if !t.is(words[i]) {
			return false
		}
	}
	return true
}
