package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestTroubleshooting: every error and finding of the code that comes with a hint
// has a heading in docs/troubleshooting.md which one finds by its words. Looked
// at are the texts that stand in the code as literals, without what is put in.
// Kafka and the connector have guides of their own.
func TestTroubleshooting(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	var headings []string
	for _, m := range regexp.MustCompile(`(?m)^### (.+)$`).FindAllStringSubmatch(string(text), -1) {
		headings = append(headings, strings.Split(m[1], " · ")...)
	}
	found := hintedTexts(t)
	if len(found) < 100 {
		t.Errorf("only %d texts were found", len(found))
	}
	for _, x := range found {
		if !slices.ContainsFunc(headings, func(h string) bool { return covers(h, x.text) }) {
			t.Errorf("%s: %q has no heading", x.at, x.text)
		}
	}
	for _, wrong := range []string{"the moon is not full", "the source is"} {
		if slices.ContainsFunc(headings, func(h string) bool { return covers(h, wrong) }) {
			t.Errorf("%q is taken for covered", wrong)
		}
	}
}

// said are the fixed words of a text; one that has only what is put in is found
// by that.
func said(text string) bool { return strings.Trim(verbs.ReplaceAllString(text, ""), " :,()") != "" }

var verbs = regexp.MustCompile(`%[-+#0-9.]*[a-zA-Z]|…`)

// covers tells whether a heading stands for a text: each of its pieces between
// ellipses is there, in order, and together they are at least two words.
func covers(heading, text string) bool {
	text = strings.ToLower(verbs.ReplaceAllString(text, "…"))
	// What the text is about stands before it in the heading, as in the error.
	if _, rest, ok := strings.Cut(heading, "…: "); ok {
		heading = rest
	}
	if heading == text {
		return true
	}
	words := 0
	for _, piece := range strings.Split(strings.ToLower(heading), "…") {
		piece = strings.Trim(piece, " `\"")
		if piece == "" {
			continue
		}
		_, rest, ok := strings.Cut(text, piece)
		if !ok {
			return false
		}
		text = rest
		words += len(strings.Fields(piece))
	}
	return words >= 2
}

type hinted struct{ at, text string }

// hintedTexts walks the packages that are shipped.
func hintedTexts(t *testing.T) []hinted {
	t.Helper()
	var all []hinted
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && (slices.Contains([]string{"internal", "bench", "testdata", "dist", "docs", "kafka", "airbyte"}, name) || p != root && strings.HasPrefix(name, ".") && name != "..") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "connector") {
			return nil
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, p, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if text := hintedText(n); said(text) {
				at := set.Position(n.Pos())
				rel, err := filepath.Rel(root, at.Filename)
				if err != nil {
					t.Error(err)
				}
				all = append(all, hinted{rel + ":" + strconv.Itoa(at.Line), text})
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// textArgument says which argument of the functions that make errors with a hint,
// or findings with a cure, is the text.
var textArgument = map[string]int{"dataError": 1, "problem": 2, "warn": 2, "resync": 0, "pooled": 0}

// hintedText is the literal of an error with a hint, or "".
func hintedText(n ast.Node) string {
	switch n := n.(type) {
	case *ast.CallExpr:
		if i, ok := textArgument[calledName(n)]; ok && i < len(n.Args) {
			return literal(n.Args[i])
		}
	case *ast.CompositeLit:
		text, hint := "", false
		for _, e := range n.Elts {
			kv, ok := e.(*ast.KeyValueExpr)
			if !ok {
				return ""
			}
			switch key, _ := kv.Key.(*ast.Ident); {
			case key == nil:
			case key.Name == "Err":
				text = literal(kv.Value)
			case key.Name == "Hint":
				hint = true
			}
		}
		if hint {
			return text
		}
	}
	return ""
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

// literal is a string, or that of errors.New and fmt.Errorf.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return s
		}
	case *ast.BinaryExpr:
		return literal(e.X) + literal(e.Y)
	case *ast.CallExpr:
		if name := calledName(e); (name == "New" || name == "Errorf") && len(e.Args) > 0 {
			return literal(e.Args[0])
		}
	}
	return ""
}
