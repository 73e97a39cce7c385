package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestConnectorWords: no text of a package that the connector is made of names a
// verb or a setting that it does not have.
func TestConnectorWords(t *testing.T) {
	engine := regexp.MustCompile("`?millrace (bootstrap|run|table|check|status|wait|cleanup)|" +
		`\b(snapshot\.(mode|parallel|timeout|rate)|apply\.[a-z_]+|resources\.[a-z_]+|safety\.[a-z_]+)\b|--[a-z]+`)
	seen := 0
	for _, dir := range []string{"backfill", "capture", "catalog", "relay", "replication", "session", "snapshot"} {
		files, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(lit.Value)
				if err != nil || !engine.MatchString(text) {
					return true
				}
				seen++
				if words := inConnectorWords(text); engine.MatchString(words) {
					t.Errorf("%s: %q says %q to whoever runs the connector: add what it means there to connectorWords", file, text, words)
				}
				return true
			})
		}
	}
	if seen < 5 {
		t.Errorf("only %d hints name a verb or a setting: this test looks in the wrong place", seen)
	}
}
