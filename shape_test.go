package millrace

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The limits hold the tail: a file or function beyond them is looked for a seam.
// They are for code; a test is as long as its story.
const (
	fileP90    = 450
	fileMost   = 700
	functionOf = 90
)

func TestShape(t *testing.T) {
	var lengths []int
	documented := map[string]bool{}
	walkSources(t, func(file string) {
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return
		}
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, file, src, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		lines := bytes.Count(src, []byte("\n"))
		lengths = append(lengths, lines)
		if lines > fileMost {
			t.Errorf("%s has %d lines, the most is %d", file, lines, fileMost)
		}
		checkFunctions(t, set, f)
		pkg := path.Dir(filepath.ToSlash(file))
		documented[pkg] = documented[pkg] || f.Doc != nil
	})
	slices.Sort(lengths)
	if p90 := lengths[len(lengths)*9/10]; p90 > fileP90 {
		t.Errorf("the 90th percentile of file lengths is %d lines, the most is %d", p90, fileP90)
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment", pkg)
		}
	}
}

func checkFunctions(t *testing.T, set *token.FileSet, f *ast.File) {
	t.Helper()
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		from, to := set.Position(fn.Pos()), set.Position(fn.End())
		if n := to.Line - from.Line + 1; n > functionOf {
			t.Errorf("%s: function %s has %d lines, the most is %d", from, fn.Name.Name, n, functionOf)
		}
	}
}

// unwanted are words that say that something is unfinished, and paths that
// exist on one machine only. They are written so that they don't find
// themselves.
var unwanted = regexp.MustCompile(`T[O]DO|F[I]XME|(^|[\s"'(=])/(home|Users|root|w[o]rk)/`)

func TestNothingUnwanted(t *testing.T) {
	walkSources(t, func(file string) {
		switch filepath.Ext(file) {
		case ".go", ".md", ".sh", ".yml", ".yaml", ".sql", ".js", ".css", ".html", "":
		default:
			return
		}
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(src, 0) >= 0 {
			return // a program that was built here
		}
		for i, line := range bytes.Split(src, []byte("\n")) {
			// Homebrew's place on Linux is the same on every machine.
			line = bytes.ReplaceAll(line, []byte("/home/linuxbrew/"), nil)
			if m := unwanted.Find(line); m != nil {
				t.Errorf("%s:%d: %q", file, i+1, m)
			}
		}
	})
}

// TestDecisions: every decision has a number of its own, the same in its file's
// name and its heading.
func TestDecisions(t *testing.T) {
	files, err := filepath.Glob("docs/adr/0*.md")
	if err != nil || len(files) == 0 {
		t.Fatal(len(files), err)
	}
	for i, file := range files {
		number := filepath.Base(file)[:4]
		if i > 0 && filepath.Base(files[i-1])[:4] == number {
			t.Errorf("%s has the number of %s", file, files[i-1])
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if want := "# " + strings.TrimLeft(number, "0") + ". "; !strings.HasPrefix(string(text), want) {
			t.Errorf("%s does not begin with %q", file, want)
		}
	}
}
