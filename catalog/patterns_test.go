package catalog

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
)

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		patterns string // separated by spaces
		in, out  []millrace.TableName
	}{
		{"public.orders", []millrace.TableName{name("public", "orders")},
			[]millrace.TableName{name("public", "orders2"), name("other", "orders"), name("public", "Orders")}},
		{"PUBLIC.Orders", []millrace.TableName{name("public", "orders")}, []millrace.TableName{name("public", "Orders")}},
		{`public."Orders"`, []millrace.TableName{name("public", "Orders")}, []millrace.TableName{name("public", "orders")}},
		{`"a.b".c`, []millrace.TableName{name("a.b", "c")}, []millrace.TableName{name("a", "b")}},
		{`s."a""b"`, []millrace.TableName{name("s", `a"b`)}, []millrace.TableName{name("s", "ab")}},
		{`s.a"B"c`, []millrace.TableName{name("s", "aBc")}, []millrace.TableName{name("s", "abc")}},
		{`s."*"`, []millrace.TableName{name("s", "*")}, []millrace.TableName{name("s", "x")}},
		{"public.*", []millrace.TableName{name("public", "a"), name("public", "ä.Ö")}, []millrace.TableName{name("publico", "a")}},
		{"p*.o?d*s", []millrace.TableName{name("p", "ords"), name("pq", "old_orders")}, []millrace.TableName{name("p", "ods"), name("p", "orders_")}},
		{"*.*", []millrace.TableName{name("a", "b"), name("public", "x")}, nil},
		{"*.$x", []millrace.TableName{name("a", "$x")}, []millrace.TableName{name("a", "x")}},
		{"s.été?", []millrace.TableName{name("s", "étés"), name("s", "été日")}, []millrace.TableName{name("s", "été")}},
		{"public.* !public.audit", []millrace.TableName{name("public", "a")}, []millrace.TableName{name("public", "audit")}},
		{"public.* !public.audit* public.audit_keep", []millrace.TableName{name("public", "audit_keep")}, []millrace.TableName{name("public", "audit")}},
		{"!public.audit public.*", []millrace.TableName{name("public", "audit")}, nil},
		{"!public.audit", []millrace.TableName{name("public", "a"), name("x", "audit")}, []millrace.TableName{name("public", "audit")}},
		{"", []millrace.TableName{name("public", "a")}, nil},
	} {
		p, errs := ParsePatterns(strings.Fields(c.patterns))
		if len(errs) > 0 {
			t.Errorf("%s: %v", c.patterns, errs)
			continue
		}
		for _, n := range c.in {
			if !p.Match(n) {
				t.Errorf("%s does not match %s", c.patterns, n)
			}
		}
		// What is the system's never matches, by whatever pattern.
		for _, n := range append(c.out, name("pg_catalog", "pg_class"), name("information_schema", "tables"),
			name("millrace", "job_state"), name("pg_temp_3", "t")) {
			if p.Match(n) {
				t.Errorf("%s matches %s", c.patterns, n)
			}
		}
	}
}

func TestWrongPatterns(t *testing.T) {
	for text, want := range map[string]string{
		"orders":         "schema is missing",
		"":               "schema is missing",
		"!":              "schema is missing",
		"public.":        "empty name",
		".orders":        "empty name",
		`"".""`:          "empty name",
		"db.public.a":    "too many dots",
		`public."orders`: "closing double quote",
		"public.[ab]":    "must stand in double quotes",
		"public.a|b":     "must stand in double quotes",
		"public.a, b.c":  "must stand in double quotes",
		"public.a b":     "must stand in double quotes",
		"!!public.a":     "must stand in double quotes",
		"public.a\x00":   "NUL",
	} {
		_, errs := ParsePatterns([]string{"public.fine", text})
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), want) {
			t.Errorf("%q: got %v, want %s", text, errs, want)
		}
	}
}

func TestExplicitAndUnmatched(t *testing.T) {
	p, errs := ParsePatterns([]string{"public.*", "public.v", "public.w", "!public.w", "x.*", "!y.z"})
	if errs != nil {
		t.Fatal(errs)
	}
	for n, want := range map[millrace.TableName]bool{
		name("public", "v"): true, name("public", "t"): false, name("public", "w"): false, name("y", "z"): false,
	} {
		if got := p.Explicit(n); got != want {
			t.Errorf("Explicit(%s) = %v", n, got)
		}
	}
	got := p.Unmatched([]millrace.TableName{name("public", "a"), name("public", "v"), name("y", "z")})
	if !slices.Equal(got, []string{"public.w", "!public.w", "x.*"}) {
		t.Error(got)
	}
}

// FuzzPatterns compares with a regular expression, the way psql does it.
func FuzzPatterns(f *testing.F) {
	for _, s := range []string{"public.*", `"A.b".c?`, "!*.*", `s."a""b"*c`, "a*a*.a*b", `"`, "..", "É.é"} {
		f.Add(s, "public", "orders")
	}
	f.Fuzz(func(t *testing.T, text, schema, table string) {
		p, errs := ParsePatterns([]string{text})
		if errs != nil {
			return
		}
		one := &p.list[0]
		n := name(schema, table)
		want := asRegexp(one.schema).MatchString(schema) && asRegexp(one.name).MatchString(table)
		if one.match(n) != want {
			t.Errorf("%q on %q: got %v", text, n, !want)
		}
		if lit, ok := one.literal(); ok {
			again, errs := ParsePatterns([]string{lit.SQL()})
			if errs != nil || !again.list[0].match(lit) {
				t.Errorf("%q names %s, which does not match itself: %v", text, lit.SQL(), errs)
			}
		}
	})
}

func asRegexp(g glob) *regexp.Regexp {
	var b strings.Builder
	for _, r := range g {
		switch r.kind {
		case literal:
			b.WriteString(regexp.QuoteMeta(string(r.r)))
		case anyOne:
			b.WriteString("(?s:.)")
		case anyMany:
			b.WriteString("(?s:.*)")
		}
	}
	return regexp.MustCompile(`\A` + b.String() + `\z`)
}
