package config

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// Load reads a file. The configuration it gives has the default wherever the
// file is silent or wrong, so that Validate can look for more problems.
func Load(path string) (*Config, Problems) {
	data, err := os.ReadFile(path)
	if err != nil {
		var problems Problems
		problems.add(filepath.Base(path), "%v", err)
		return Default(), problems
	}
	return Parse(data)
}

// Parse is Load for a file's contents.
func Parse(data []byte) (*Config, Problems) {
	l := loader{config: Default()}
	l.fields = fieldsOf(l.config)
	decoder := yaml.NewDecoder(bytes.NewReader(data), yaml.UseOrderedMap())
	var document any
	err := decoder.Decode(&document)
	switch {
	case errors.Is(err, io.EOF): // an empty file: Validate says what is missing
	case err != nil:
		l.problems.add("file", "%s", yamlError(err))
	default:
		var second any
		if !errors.Is(decoder.Decode(&second), io.EOF) {
			l.problems.add("file", "holds more than one YAML document")
		}
		l.section("", document)
	}
	return l.config, l.problems.sorted()
}

// yamlError gives the position and what is wrong, without the excerpt of the
// file, which may show a secret.
func yamlError(err error) string {
	text, _, _ := strings.Cut(yaml.FormatError(err, false, false), "\n")
	return text
}

type loader struct {
	config   *Config
	fields   map[string]field
	problems Problems
}

// section walks a mapping: its keys are fields, sections, or a problem.
func (l *loader) section(path string, value any) {
	if value == nil {
		return // "safety:" with nothing below it
	}
	mapping, ok := value.(yaml.MapSlice)
	if !ok {
		name := path
		if name == "" {
			name = "file"
		}
		l.problems.add(name, "want a mapping of keys to values")
		return
	}
	for _, item := range mapping {
		key, ok := item.Key.(string)
		if !ok {
			l.problems.add(join(path, "?"), "keys must be text")
			continue
		}
		l.key(join(path, key), item.Value)
	}
}

func (l *loader) key(path string, value any) {
	f, isField := l.fields[path]
	switch {
	case unavailable[path]:
		notAvailable(&l.problems, path)
	case isField:
		l.field(path, f, value)
	case l.isSection(path):
		l.section(path, value)
	default:
		if guess := l.guess(path); guess != "" {
			l.problems.add(path, "unknown key; did you mean %s?", guess)
			return
		}
		l.problems.add(path, "unknown key")
	}
}

func (l *loader) field(path string, f field, value any) {
	if value == nil {
		return // "slot:" with nothing behind it
	}
	if text, ok := value.(string); ok && !f.late {
		expanded, err := expand(text)
		if err != nil {
			l.problems.add(path, "%v", err)
			return
		}
		value = expanded
	}
	if err := f.set(value); err != nil {
		l.problems.add(path, "%v", err)
	}
}

func (l *loader) isSection(path string) bool {
	for known := range l.fields {
		if strings.HasPrefix(known, path+".") {
			return true
		}
	}
	return false
}

// guess finds the key that was most likely meant, among those of the same
// section.
func (l *loader) guess(path string) string {
	section, wrong := "", path
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		section, wrong = path[:i+1], path[i+1:]
	}
	var siblings []string
	for known := range l.fields {
		if rest, ok := strings.CutPrefix(known, section); ok {
			rest, _, _ = strings.Cut(rest, ".")
			siblings = append(siblings, rest)
		}
	}
	slices.Sort(siblings)
	best, distance := "", 3
	for _, s := range siblings {
		if d := editDistance(wrong, s); d < distance && d < len(s) {
			best, distance = s, d
		}
	}
	return best
}

// editDistance counts insertions, deletions and replacements (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		previous := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := previous
			if a[i] != b[j] {
				replaced++
			}
			previous = row[j+1]
			row[j+1] = min(replaced, previous+1, row[j]+1)
		}
	}
	return row[len(b)]
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
