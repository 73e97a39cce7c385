package web

import (
	"encoding/json"
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

var (
	metric  = regexp.MustCompile(`\bmillrace_[a-z_]+`)
	rule    = regexp.MustCompile(`(?m)^ {6}- alert: (\w+)$`)
	runbook = regexp.MustCompile(`(?m)^ {10}runbook: (\S+)$`)
)

// TestMonitoringFiles: every metric that a rule, a test of one or a panel uses
// exists, every rule has what one needs who is woken up by it, and is tested.
// make interop has promtool read them.
func TestMonitoringFiles(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join("..", "monitoring", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	exist := metricNames()
	for _, name := range []string{"alerts.yml", "alerts_test.yml", "grafana.json"} {
		used := metric.FindAllString(read(name), -1)
		if len(used) < 10 {
			t.Errorf("%s: only %d metrics", name, len(used))
		}
		for _, m := range used {
			plain := m
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				if s := strings.TrimSuffix(m, suffix); slices.Contains(exist, s) {
					plain = s
				}
			}
			if !slices.Contains(exist, plain) {
				t.Errorf("%s uses %s, which does not exist", name, m)
			}
		}
	}
	if !json.Valid([]byte(read("grafana.json"))) {
		t.Error("grafana.json is no JSON")
	}
	rules, tests := read("alerts.yml"), read("alerts_test.yml")
	blocks := strings.Split(rules, "      - alert: ")[1:]
	if len(blocks) < 10 || len(rule.FindAllString(rules, -1)) != len(blocks) {
		t.Errorf("%d rules", len(blocks))
	}
	for _, b := range blocks {
		name, _, _ := strings.Cut(b, "\n")
		for _, part := range []string{"\n        expr: ", "severity: ", "summary: ", "description: ", "runbook: "} {
			if !strings.Contains(b, part) {
				t.Errorf("%s has no %s", name, strings.TrimSpace(part))
			}
		}
		if !strings.Contains(tests, "alertname: "+name) {
			t.Errorf("%s is not tested", name)
		}
	}
	for _, m := range runbook.FindAllStringSubmatch(rules, -1) {
		path, anchor, _ := strings.Cut(m[1], "#")
		b, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(path)))
		if err != nil {
			t.Error(err)
		}
		heading := strings.ReplaceAll(anchor, "-", " ")
		if anchor != "" && !strings.Contains(strings.ToLower(string(b)), "# "+heading+"\n") {
			t.Errorf("%s has no heading %q", path, heading)
		}
	}
}
