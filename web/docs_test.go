package web

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// section gives what stands between two marks of docs/monitoring.md.
func documented(t *testing.T, mark string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "docs", "monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "<!-- "+mark+": begin -->")
	text, _, ended := strings.Cut(rest, "<!-- "+mark+": end -->")
	if !ok || !ended {
		t.Fatalf("no marks of %s", mark)
	}
	return text
}

var firstColumn = regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|")

// names gives the words in the first column of the tables of a text.
func names(text string) []string {
	var all []string
	for _, m := range firstColumn.FindAllStringSubmatch(text, -1) {
		for _, n := range strings.Split(m[1], ", ") {
			all = append(all, strings.Trim(n, "`"))
		}
	}
	slices.Sort(all)
	return all
}

// fields gives the paths of all leaves of a type's JSON.
func fields(t reflect.Type, path string) []string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Slice:
		return fields(t.Elem(), path+"[]")
	case t.Kind() != reflect.Struct || t == reflect.TypeFor[Time]():
		return []string{path}
	}
	var all []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		if path != "" {
			name = path + "." + name
		}
		all = append(all, fields(t.Field(i).Type, name)...)
	}
	slices.Sort(all)
	return all
}

func compare(t *testing.T, what string, documented, real []string) {
	t.Helper()
	for _, n := range real {
		if !slices.Contains(documented, n) {
			t.Errorf("%s %s is not documented", what, n)
		}
	}
	for _, n := range documented {
		if !slices.Contains(real, n) {
			t.Errorf("%s %s is documented and does not exist", what, n)
		}
	}
	if len(slices.Compact(documented)) != len(documented) {
		t.Errorf("a %s is documented twice", what)
	}
}

// TestDocumentedStatus keeps the list of fields in step with what /status shows.
func TestDocumentedStatus(t *testing.T) {
	compare(t, "field", names(documented(t, "status")), fields(reflect.TypeFor[Status](), ""))
}

// TestDocumentedMetrics keeps the list of metrics in step with what /metrics has.
func TestDocumentedMetrics(t *testing.T) {
	compare(t, "metric", names(documented(t, "metrics")), metricNames())
	for word := range waitWords {
		if !strings.Contains(documentedAll(t), "| `"+word+"` |") {
			t.Errorf("waits_for %s is not documented", word)
		}
	}
}

func metricNames() []string {
	all := []string{"millrace_wait_seconds"}
	for name := range descriptions {
		all = append(all, "millrace_"+name)
	}
	slices.Sort(all)
	return all
}

func documentedAll(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "docs", "monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
