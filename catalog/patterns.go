package catalog

import (
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace"
)

// Patterns is a list of table patterns. Each is written as pg_dump -t takes
// it, with a schema: parts are folded to lower case unless they are quoted, *
// stands for any characters and ? for one, and ! in front excludes. The last
// pattern that matches a table decides. Where all patterns exclude, and in an
// empty list, every table that none excludes is in.
//
// The zero value is the empty list.
type Patterns struct {
	list         []pattern
	onlyExcludes bool
}

type pattern struct {
	text         string
	exclude      bool
	schema, name glob
}

// glob is one part of a pattern, compiled.
type glob []globRune

type globRune struct {
	r    rune
	kind globKind
}

type globKind byte

const (
	literal globKind = iota
	anyOne           // ?
	anyMany          // *
)

// ParsePatterns reads patterns. There is one error per pattern that is wrong.
func ParsePatterns(texts []string) (Patterns, []error) {
	p := Patterns{onlyExcludes: true}
	var errs []error
	for _, text := range texts {
		one, err := parsePattern(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("table pattern %q: %w", text, err))
			continue
		}
		p.list = append(p.list, one)
		p.onlyExcludes = p.onlyExcludes && one.exclude
	}
	return p, errs
}

func parsePattern(text string) (pattern, error) {
	p := pattern{text: text}
	rest := strings.TrimSpace(text)
	if after, ok := strings.CutPrefix(rest, "!"); ok {
		p.exclude = true
		rest = strings.TrimSpace(after)
	}
	parts, err := splitPattern(rest)
	if err != nil {
		return p, err
	}
	switch {
	case len(parts) == 1:
		return p, errors.New("the schema is missing, as in public.orders or *.orders")
	case len(parts) > 2:
		return p, errors.New(`too many dots: put a name that has some in double quotes`)
	case len(parts[0]) == 0 || len(parts[1]) == 0:
		return p, errors.New("empty name")
	}
	p.schema, p.name = parts[0], parts[1]
	return p, nil
}

// splitPattern compiles the parts between dots.
func splitPattern(s string) ([]glob, error) {
	parts := []glob{{}}
	quoted := false
	runes := []rune(s)
	for i := 0; i < len(runes); i++ {
		r := runes[i]
		last := &parts[len(parts)-1]
		switch {
		case r == 0:
			return nil, errors.New("names hold no NUL characters")
		case r == '"' && quoted && i+1 < len(runes) && runes[i+1] == '"':
			*last = append(*last, globRune{r: '"'})
			i++
		case r == '"':
			quoted = !quoted
		case quoted:
			*last = append(*last, globRune{r: r})
		case r == '.':
			parts = append(parts, glob{})
		case r == '*':
			*last = append(*last, globRune{kind: anyMany})
		case r == '?':
			*last = append(*last, globRune{kind: anyOne})
		case strings.ContainsRune(`[](){}|+^\!,; `+"\t\r\n", r):
			// pg_dump takes some of these as a regular expression. We do not,
			// and nobody should find out by a table that is missing.
			return nil, fmt.Errorf("%q must stand in double quotes", r)
		default:
			*last = append(*last, globRune{r: lower(r)})
		}
	}
	if quoted {
		return nil, errors.New("the closing double quote is missing")
	}
	return parts, nil
}

// lower folds as PostgreSQL folds identifiers in multi-byte encodings.
func lower(r rune) rune {
	if r >= 'A' && r <= 'Z' {
		return r + 'a' - 'A'
	}
	return r
}

// match is the usual two-pointer walk: on a mismatch the last * takes one
// character more.
func (g glob) match(s string) bool {
	runes := []rune(s)
	gi, si := 0, 0
	star, mark := -1, 0
	for si < len(runes) {
		switch {
		case gi < len(g) && g[gi].kind == anyMany:
			star, mark = gi, si
			gi++
		case gi < len(g) && (g[gi].kind == anyOne || g[gi].r == runes[si]):
			gi++
			si++
		case star >= 0:
			mark++
			gi, si = star+1, mark
		default:
			return false
		}
	}
	for gi < len(g) && g[gi].kind == anyMany {
		gi++
	}
	return gi == len(g)
}

// literal gives the one string that g matches, if it has no wildcards.
func (g glob) literal() (string, bool) {
	var b strings.Builder
	for _, r := range g {
		if r.kind != literal {
			return "", false
		}
		b.WriteRune(r.r)
	}
	return b.String(), true
}

func (p *pattern) match(n millrace.TableName) bool {
	return p.schema.match(n.Schema) && p.name.match(n.Name)
}

// literal gives the table that the pattern names, if it names one.
func (p *pattern) literal() (millrace.TableName, bool) {
	schema, ok1 := p.schema.literal()
	name, ok2 := p.name.literal()
	return millrace.TableName{Schema: schema, Name: name}, ok1 && ok2
}

// SystemSchema tells whether a schema is the system's or our own: its tables
// are never replicated.
func SystemSchema(name string) bool {
	return strings.HasPrefix(name, "pg_") || name == "information_schema" || name == "millrace"
}

// Match tells whether a table is selected.
func (p Patterns) Match(n millrace.TableName) bool {
	if SystemSchema(n.Schema) {
		return false
	}
	in := len(p.list) == 0 || p.onlyExcludes
	for i := range p.list {
		if p.list[i].match(n) {
			in = !p.list[i].exclude
		}
	}
	return in
}

// Explicit tells whether a table is selected and a pattern without wildcards
// names it.
func (p Patterns) Explicit(n millrace.TableName) bool {
	if !p.Match(n) {
		return false
	}
	for i := range p.list {
		if name, ok := p.list[i].literal(); ok && !p.list[i].exclude && name == n {
			return true
		}
	}
	return false
}

// Unmatched gives the patterns that match none of the tables, as they were
// written: misspelled, most likely.
func (p Patterns) Unmatched(tables []millrace.TableName) []string {
	var texts []string
	for i := range p.list {
		found := false
		for _, n := range tables {
			if found = !SystemSchema(n.Schema) && p.list[i].match(n); found {
				break
			}
		}
		if !found {
			texts = append(texts, p.list[i].text)
		}
	}
	return texts
}

// Empty tells whether there are no patterns.
func (p Patterns) Empty() bool { return len(p.list) == 0 }

// Strings gives the patterns as they were written.
func (p Patterns) Strings() []string {
	texts := make([]string, len(p.list))
	for i := range p.list {
		texts[i] = p.list[i].text
	}
	return texts
}

// ParseTableName reads the name of one table, written as in a pattern.
func ParseTableName(text string) (millrace.TableName, error) {
	p, errs := ParsePatterns([]string{text})
	if len(errs) > 0 {
		return millrace.TableName{}, errs[0]
	}
	if name, ok := p.list[0].literal(); ok && !p.list[0].exclude {
		return name, nil
	}
	return millrace.TableName{}, fmt.Errorf("%q: want the name of one table", text)
}
