package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// event is one line of `go test -json` (go doc test2json).
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build-output
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
	Key, Value  string // of attr
}

// test names one test; the name is empty for the package itself.
type test struct {
	pkg, name string
}

func (t test) String() string {
	if t.name == "" {
		return t.pkg
	}
	return t.pkg + "." + t.name
}

// summary collects the events of all runs.
type summary struct {
	out     io.Writer
	output  map[test]*strings.Builder // of those that have not ended
	results map[test]string           // pass, fail or skip
	reasons map[test]string           // of those skipped
	open    map[string]bool           // packages that have started and not ended
	builds  map[string]string         // what the compiler said
	parents map[test]bool             // tests with subtests: only those count
	slow    []timing                  // packages
	tests   []timing

	failures map[test]string     // what failed tests printed
	flags    map[string][]string // of go test, by package
	forgiven []test              // failed beside others, passed alone
}

// rootPackage is what the module's root is called here.
const rootPackage = "millrace"

// longTest is from when on a test may be named as a long one, in seconds.
const longTest = 5

type timing struct {
	name    string
	seconds float64
}

func newSummary(out io.Writer) *summary {
	return &summary{
		out: out, output: map[test]*strings.Builder{}, results: map[test]string{}, reasons: map[test]string{},
		open: map[string]bool{}, builds: map[string]string{}, parents: map[test]bool{},
		failures: map[test]string{}, flags: map[string][]string{},
	}
}

// read takes the events of one run until its output ends.
func (s *summary) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				s.printf("%s", line) // what go says before it runs anything
			} else {
				s.add(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *summary) add(e event) {
	t := test{shortName(e.Package), e.Test}
	switch e.Action {
	case "start":
		s.open[t.pkg] = true
	case "run":
		for i, c := range t.name {
			if c == '/' { // a name may hold more of them than there are levels
				s.parents[test{t.pkg, t.name[:i]}] = true
			}
		}
	case "attr":
		// What a test wants to be seen although it passes.
		s.printf("%s: %v: %s\n", e.Key, t, e.Value)
	case "build-output":
		s.builds[e.ImportPath] += e.Output
	case "output":
		s.outputOf(t).WriteString(e.Output)
	case "pass", "fail", "skip":
		s.end(t, e)
	}
}

// shortName is a package's path below the module.
func shortName(pkg string) string {
	return cmp.Or(strings.TrimPrefix(strings.TrimPrefix(pkg, modulePath), "/"), rootPackage)
}

func (s *summary) outputOf(t test) *strings.Builder {
	b := s.output[t]
	if b == nil {
		b = &strings.Builder{}
		s.output[t] = b
	}
	return b
}

func (s *summary) end(t test, e event) {
	out := s.outputOf(t).String()
	delete(s.output, t)
	if t.name == "" {
		s.endPackage(t, e, out)
		return
	}
	s.results[t] = e.Action
	if !strings.Contains(t.name, "/") && e.Elapsed >= longTest {
		s.tests = append(s.tests, timing{t.String(), e.Elapsed})
	}
	switch e.Action {
	case "skip":
		s.reasons[t] = reason(out)
	case "fail":
		s.failures[t] = out
		s.printf("%s", out)
	}
}

func (s *summary) endPackage(t test, e event, out string) {
	delete(s.open, t.pkg)
	switch e.Action {
	case "skip":
		return // no test files
	case "fail":
		s.results[t] = "fail"
		s.printf("%s%s", s.builds[e.FailedBuild], s.unfinished(t.pkg))
		s.printf("%s", out)
	case "pass":
		s.printf("ok   %-28s %6.1fs\n", t.pkg, e.Elapsed)
	}
	s.slow = append(s.slow, timing{t.pkg, e.Elapsed})
}

// unfinished is the output of tests that were running when their package ended:
// a panic stands there.
func (s *summary) unfinished(pkg string) string {
	var b strings.Builder
	for _, t := range slices.SortedFunc(maps.Keys(s.output), compare) {
		if t.pkg == pkg && t.name != "" {
			b.WriteString(s.output[t].String())
			s.results[t] = "fail"
			delete(s.output, t)
		}
	}
	return b.String()
}

func compare(a, b test) int { return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.name, b.name)) }

// reason is the text of t.Skip: the last line that begins with a file's name.
func reason(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for _, l := range slices.Backward(lines) {
		if _, text, ok := strings.Cut(strings.TrimSpace(l), ".go:"); ok {
			if _, text, ok = strings.Cut(text, ": "); ok {
				return text
			}
		}
	}
	return "no reason given"
}

// failed tells whether anything has failed so far.
func (s *summary) failed() bool {
	return len(s.open) > 0 || slices.Contains(slices.Collect(maps.Values(s.results)), "fail")
}

// finish prints the end of the report and says whether all is well.
func (s *summary) finish(took time.Duration) bool {
	for _, pkg := range slices.Sorted(maps.Keys(s.open)) {
		s.results[test{pkg: pkg}] = "fail"
		s.printf("%s: did not end\n", pkg)
	}
	count := map[string]int{}
	for _, t := range slices.SortedFunc(maps.Keys(s.results), compare) {
		r := s.results[t]
		if r != "fail" && s.parents[t] || t.name == "" && s.explained(t.pkg) {
			continue // its subtests, or its tests, are counted
		}
		count[r]++
		switch r {
		case "skip":
			s.printf("skipped: %v: %s\n", t, s.reasons[t])
		case "fail":
			s.printf("failed: %v\n", t)
		}
	}
	for _, t := range s.forgiven {
		s.printf("late: %v: waited for too long beside other tests, and passed alone\n", t)
	}
	s.printSlow(took)
	if count["pass"]+count["fail"]+count["skip"] == 0 {
		s.printf("no test ran\n")
		count["fail"]++
	}
	s.printf("%d passed, %d failed, %d skipped\n", count["pass"], count["fail"], count["skip"])
	return count["fail"] == 0
}

// explained tells whether a failed package has failed tests to show for it; if
// not, the package itself counts.
func (s *summary) explained(pkg string) bool {
	for t, r := range s.results {
		if t.pkg == pkg && t.name != "" && r == "fail" {
			return true
		}
	}
	return false
}

// printSlow names the packages and the tests that took longest, which is where a
// suite that outgrows its time would have to be cut.
func (s *summary) printSlow(took time.Duration) {
	if len(s.tests) > 0 {
		s.printf("longest tests: %s\n", longest(s.tests, 25))
	}
	s.printf("took %.0fs, longest: %s\n", took.Seconds(), longest(s.slow, 3))
}

func longest(all []timing, n int) string {
	slices.SortFunc(all, func(a, b timing) int { return cmp.Compare(b.seconds, a.seconds) })
	var names []string
	for _, t := range all[:min(n, len(all))] {
		names = append(names, fmt.Sprintf("%s %.0fs", t.name, t.seconds))
	}
	return strings.Join(names, ", ")
}

// printf writes to the terminal or pipe that the report goes to; if that is
// gone there is nobody to tell.
func (s *summary) printf(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format, args...) }
