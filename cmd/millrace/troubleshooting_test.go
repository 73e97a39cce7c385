package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/docs"
)

// TestTroubleshooting: every hint and cure of the code is led to a section of
// docs/troubleshooting.md, by the text of its error or, where that is a server's, by its own words.
// Looked at are the literals, without what is put in.
func TestTroubleshooting(t *testing.T) {
	found := hintsOfModule(t)
	if len(found) < 350 {
		t.Errorf("only %d hints were found", len(found))
	}
	for _, h := range found {
		if !h.covered() {
			t.Errorf("%s: no section for the error %q with the hint %q", h.at, h.text, h.hints)
		}
	}
	for _, wrong := range []string{"the moon is not full", "the source is", `pg_restore: type "mood" does not exist (SQLSTATE 42704)`,
		`pg_restore: role "app" does not exist (SQLSTATE 42704)`, "copy public.orders: canceling statement due to lock timeout (SQLSTATE 55P03)"} {
		if s := docs.Find(wrong, wrong); s != nil {
			t.Errorf("%q is taken for %s", wrong, s.Title)
		}
	}
}

// TestSections: what stands in a heading leads to its section and to no other.
func TestSections(t *testing.T) {
	names := map[string]bool{}
	for _, s := range docs.Sections() {
		if names[s.Name] {
			t.Errorf("there are two sections %s", s.Name)
		}
		names[s.Name] = true
		if s.Body == "" || s.Chapter == "" {
			t.Errorf("section %q is empty or in no chapter", s.Title)
		}
		for _, text := range s.Texts {
			text = strings.ReplaceAll(text, "…", "x")
			h, isHint := strings.CutPrefix(text, "hint: ")
			got := docs.Find(text, "")
			if isHint {
				got = docs.Find("", h)
			}
			if got != s {
				t.Errorf("%q of section %q leads to %v", text, s.Title, got)
			}
		}
	}
	for text, want := range map[string]string{
		`connect to source 127.0.0.1:5432/shop: FATAL: role "nobody" does not exist (SQLSTATE 28000)`: "no-pg_hbaconf-entry",
		`connect to source 127.0.0.1:5432/shop: FATAL: database "nowhere" does not exist`:             "database-does-not-exist",
		"publication millrace_shop: lacks public.orders":                                              "publication-lacks",
		"source.postgres.url: missing":                                                                "missing",
		"slot millrace_shop: does not exist":                                                          "slot-does-not-exist",
		`pg_restore: permission denied for schema app (SQLSTATE 42501)`:                               "permission-denied-for-table",
	} {
		if s := docs.Find(text, ""); s == nil || s.Name != want {
			t.Errorf("%s leads to %+v", text, s)
		}
	}
}

// hinted is one place of the code that gives an error, a finding or a state a hint.
type hinted struct {
	at    string
	text  string   // of the error; "" if it comes from elsewhere
	hints []string // the possible ones
}

func (h hinted) covered() bool {
	if said(h.text) && docs.Find(filled(h.text), "") != nil {
		return true
	}
	for _, hint := range h.hints {
		if docs.Find("", filled(hint)) == nil {
			return false
		}
	}
	return len(h.hints) > 0
}

// said tells whether a text has more than what is put in.
func said(text string) bool { return strings.Trim(put.ReplaceAllString(text, ""), " :,()") != "" }

// filled is a text with something in the place of what is put in.
func filled(text string) string {
	return put.ReplaceAllString(strings.ReplaceAll(text, "…", " x1 "), "x1")
}

var put = regexp.MustCompile(`%[-+#0-9.]*[a-zA-Z]|…`)

// hintsOfModule walks the packages that are shipped.
func hintsOfModule(t *testing.T) []hinted {
	t.Helper()
	root := filepath.Join("..", "..")
	packages := map[string][]*ast.File{}
	set := token.NewFileSet()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && (slices.Contains([]string{"internal", "bench", "testdata", "dist"}, name) || p != root && strings.HasPrefix(name, ".") && name != "..") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(set, p, nil, 0)
		packages[filepath.Dir(p)] = append(packages[filepath.Dir(p)], f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []hinted
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		all = append(all, hintsOfPackage(set, packages[dir])...)
	}
	for i := range all {
		if rel, err := filepath.Rel(root, all[i].at); err == nil {
			all[i].at = rel
		}
	}
	return all
}

// scope is what the literals of a package are found by.
type scope struct {
	values  map[string][]ast.Expr // of the package's constants and variables, by name
	local   map[string][]ast.Expr // of those of the function that is looked at
	returns map[string][]ast.Expr // of functions
	takers  map[string]taker
}

// taker is a function that takes a hint as an argument, or has one of its own.
type taker struct{ text, hint int }

func hintsOfPackage(set *token.FileSet, files []*ast.File) []hinted {
	s := &scope{values: map[string][]ast.Expr{}, returns: map[string][]ast.Expr{},
		takers: map[string]taker{"resync": {0, -1}, "pooled": {0, -1}}}
	for _, f := range files {
		for _, d := range f.Decls {
			s.learn(d, s.values)
		}
	}
	var all []hinted
	for _, f := range files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				s.local = map[string][]ast.Expr{}
				ast.Inspect(fn, func(n ast.Node) bool { s.learn(n, s.local); return true })
			}
			ast.Inspect(d, func(n ast.Node) bool {
				if h, ok := s.hinted(n); ok {
					at := set.Position(n.Pos())
					h.at = at.Filename + ":" + strconv.Itoa(at.Line)
					all = append(all, h)
				}
				return true
			})
		}
	}
	return all
}

// nothingWrong begins hints of states that want nothing but patience.
const nothingWrong = "wait: "

var (
	hintNames = []string{"hint", "cure"}
	textNames = []string{"err", "text", "format", "reason", "why"}
)

// learn takes note of what a declaration or an assignment says.
func (s *scope) learn(n ast.Node, values map[string][]ast.Expr) {
	switch n := n.(type) {
	case *ast.GenDecl:
		for _, spec := range n.Specs {
			s.learn(spec, values)
		}
	case *ast.ValueSpec:
		for i, name := range n.Names {
			if i < len(n.Values) {
				values[name.Name] = append(values[name.Name], n.Values[i])
			}
		}
	case *ast.AssignStmt:
		for i, left := range n.Lhs {
			if id, ok := left.(*ast.Ident); ok && len(n.Lhs) == len(n.Rhs) {
				values[id.Name] = append(values[id.Name], n.Rhs[i])
			}
		}
	case *ast.FuncDecl:
		t := taker{-1, -1}
		i := 0
		for _, field := range n.Type.Params.List {
			for _, name := range field.Names {
				if slices.Contains(hintNames, name.Name) {
					t.hint = i
				}
				if slices.Contains(textNames, name.Name) {
					t.text = i
				}
				i++
			}
		}
		if t.hint >= 0 {
			s.takers[n.Name.Name] = t
		}
		if strings.Contains(strings.ToLower(n.Name.Name), "hint") && n.Body != nil {
			ast.Inspect(n.Body, func(in ast.Node) bool {
				if r, ok := in.(*ast.ReturnStmt); ok && len(r.Results) > 0 {
					s.returns[n.Name.Name] = append(s.returns[n.Name.Name], r.Results[0])
				}
				return true
			})
		}
	}
}

// hinted gives what a node says of a hint, if it does.
func (s *scope) hinted(n ast.Node) (hinted, bool) {
	switch n := n.(type) {
	case *ast.CallExpr:
		t, ok := s.takers[calledName(n)]
		if !ok || max(t.hint, t.text) >= len(n.Args) {
			return hinted{}, false
		}
		var h hinted
		if t.text >= 0 {
			h.text = s.one(n.Args[t.text])
		}
		if t.hint >= 0 {
			h.hints = s.all(n.Args[t.hint], 0)
		}
		return h, len(h.hints) > 0 || t.hint < 0 // without: it is passed on
	case *ast.CompositeLit:
		var h hinted
		for _, e := range n.Elts {
			kv, ok := e.(*ast.KeyValueExpr)
			if !ok {
				return hinted{}, false
			}
			switch key, _ := kv.Key.(*ast.Ident); {
			case key == nil:
			case slices.Contains([]string{"Err", "Text", "Reason"}, key.Name):
				h.text = s.one(kv.Value)
			case slices.Contains(hintNames, strings.ToLower(key.Name)):
				h.hints = s.all(kv.Value, 0)
			}
		}
		return h, len(h.hints) > 0
	case *ast.AssignStmt:
		var h hinted
		for i, left := range n.Lhs {
			if f, ok := left.(*ast.SelectorExpr); ok && f.Sel.Name == "Hint" && len(n.Lhs) == len(n.Rhs) {
				h.hints = append(h.hints, s.all(n.Rhs[i], 0)...)
			}
		}
		return h, len(h.hints) > 0
	}
	return hinted{}, false
}

// one is the text of an expression, or "" when it is not one of the code's.
func (s *scope) one(e ast.Expr) string {
	if all := s.all(e, 0); len(all) == 1 {
		return all[0]
	}
	return ""
}

// all gives the literals that an expression can be; what it is joined with
// that is none stands as ….
func (s *scope) all(e ast.Expr, deep int) []string {
	if deep > 4 {
		return nil
	}
	var all []string
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING && text != "" && !strings.HasPrefix(text, nothingWrong) {
			all = append(all, text)
		}
	case *ast.BinaryExpr:
		left, right := s.all(e.X, deep+1), s.all(e.Y, deep+1)
		if len(left)+len(right) == 0 {
			return nil
		}
		for _, l := range orDots(left) {
			for _, r := range orDots(right) {
				all = append(all, l+r)
			}
		}
	case *ast.Ident:
		for _, v := range append(slices.Clone(s.values[e.Name]), s.local[e.Name]...) {
			all = append(all, s.all(v, deep+1)...)
		}
	case *ast.CallExpr:
		name := calledName(e)
		switch {
		case name == "hintOf": // of states in which nothing is wrong
			return nil
		case (name == "New" || name == "Errorf" || name == "Sprintf") && len(e.Args) > 0:
			return s.all(e.Args[0], deep+1)
		case name == "or" || name == "Or":
			for _, a := range e.Args {
				all = append(all, s.all(a, deep+1)...)
			}
		}
		for _, r := range s.returns[name] {
			all = append(all, s.all(r, deep+1)...)
		}
	}
	return all
}

func orDots(texts []string) []string {
	if len(texts) == 0 {
		return []string{"…"}
	}
	return texts
}

func calledName(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}
