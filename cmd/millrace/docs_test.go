package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/docs"
)

// document is a Markdown file of the repository.
type document struct{ path, text string }

func documents(t *testing.T) []document {
	t.Helper()
	root := filepath.Join("..", "..")
	paths, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var all []document
	for _, p := range append(paths, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(p) //nolint:gosec // a document of the repository
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, document{p, string(text)})
	}
	return all
}

// blocks gives the fenced blocks of a language, without what they are indented by.
func (d document) blocks(language string) []string {
	var blocks []string
	var block *strings.Builder
	indent := ""
	for line := range strings.Lines(d.text) {
		word := strings.TrimSpace(line)
		switch {
		case block == nil && word == "```"+language:
			block, indent = &strings.Builder{}, line[:strings.Index(line, "`")]
		case block != nil && word == "```":
			blocks, block = append(blocks, block.String()), nil
		case block != nil:
			block.WriteString(strings.TrimPrefix(line, indent))
		}
	}
	return blocks
}

var (
	word       = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)
	assignment = regexp.MustCompile(`^[A-Z_]+=`)
	inlineCall = regexp.MustCompile("`(millrace [a-z-][^`]*)`")
)

// call gives the arguments of a command line of millrace, or nil for another one.
func call(line string) []string {
	line, _, _ = strings.Cut(line, " #")
	for _, end := range []string{"|", "&", ">", ";"} {
		line, _, _ = strings.Cut(line, " "+end)
	}
	words := word.FindAllString(line, -1)
	for len(words) > 0 && assignment.MatchString(words[0]) {
		words = words[1:]
	}
	if len(words) == 0 || filepath.Base(words[0]) != "millrace" {
		return nil
	}
	args := []string{}
	for _, w := range words[1:] {
		args = append(args, strings.Trim(w, `'"`))
	}
	return args
}

// parse tells what is wrong with a command line, without running it.
func parse(args []string) error {
	root := (&app{stdout: io.Discard, stderr: io.Discard}).root()
	c, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	c.InitDefaultHelpFlag()
	c.InitDefaultVersionFlag()
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	return c.ValidateArgs(c.Flags().Args())
}

// TestDocumentedCommands keeps every command line of the documents one that the
// program takes.
func TestDocumentedCommands(t *testing.T) {
	n := 0
	check := func(d document, line string) {
		args := call(line)
		if args == nil || len(args) > 0 && args[0] == "VERB" {
			return
		}
		n++
		if err := parse(args); err != nil {
			t.Errorf("%s: %s: %v", d.path, line, err)
		}
	}
	for _, d := range documents(t) {
		for _, block := range d.blocks("console") {
			for line := range strings.Lines(block) {
				if line, ok := strings.CutPrefix(line, "$ "); ok {
					check(d, strings.TrimSpace(line))
				}
			}
		}
		for _, block := range d.blocks("ini") {
			for line := range strings.Lines(block) {
				if line, ok := strings.CutPrefix(line, "ExecStart="); ok {
					check(d, strings.TrimSpace(line))
				}
			}
		}
		for _, m := range inlineCall.FindAllStringSubmatch(d.text, -1) {
			check(d, m[1])
		}
	}
	if n < 40 {
		t.Errorf("only %d command lines were found", n)
	}
	for _, wrong := range []string{"millrace replicate", "millrace run --sometime", "millrace status everything", "millrace wait --timeout 5"} {
		if parse(call(wrong)) == nil {
			t.Errorf("%s is taken for right", wrong)
		}
	}
}

var variable = regexp.MustCompile(`\$\{([A-Z_]+)\}`)

// TestDocumentedConfiguration keeps every YAML block one that is read without
// problems, and the list of keys complete.
func TestDocumentedConfiguration(t *testing.T) {
	n := 0
	for _, d := range documents(t) {
		for _, block := range d.blocks("yaml") {
			n++
			for _, m := range variable.FindAllStringSubmatch(block, -1) {
				t.Setenv(m[1], "postgres://127.0.0.1/shop")
			}
			c, problems := config.Parse([]byte(block))
			// Brokers beyond loopback want TLS, here as in a real run.
			checks := config.Checks{Kafka: func(peer millrace.Peer, k *config.Kafka, safety config.Safety) error {
				e := kafkaEndpoint(peer, k, "shop", safety)
				e.TLS.CAFile, e.TLS.CertFile, e.TLS.KeyFile = "", "", "" // there are none here
				return e.Check()
			}}
			if problems = problems.Plus(c.Validate(checks)); len(problems) > 0 {
				t.Errorf("%s: %v in\n%s", d.path, problems, block)
			}
		}
	}
	if n < 3 {
		t.Errorf("only %d blocks were found", n)
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
)

// TestDocumentedLinks follows every relative link, to the heading if it names one.
func TestDocumentedLinks(t *testing.T) {
	for _, d := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(d.text, -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			to := d.path
			if path != "" {
				to = filepath.Join(filepath.Dir(d.path), path)
			}
			text, err := os.ReadFile(to) //nolint:gosec // a document of the repository
			if err != nil {
				t.Errorf("%s: %v", d.path, err)
				continue
			}
			if anchor != "" && !hasHeading(string(text), anchor) {
				t.Errorf("%s: %s has no heading #%s", d.path, to, anchor)
			}
		}
	}
}

func hasHeading(text, anchor string) bool {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		if docs.Anchor(m[1]) == anchor {
			return true
		}
	}
	return false
}

// TestReadme keeps the README one that is read to its end.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > 120 {
		t.Errorf("%d lines, want at most 120", n)
	}
}
