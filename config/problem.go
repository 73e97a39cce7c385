package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	Path    string // such as resources.max_inflight, or a flag
	Message string
}

func (p Problem) String() string { return p.Path + ": " + p.Message }

// Problems is a report.
type Problems []Problem

func (p *Problems) add(path, format string, args ...any) {
	*p = append(*p, Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

// missing is the problem of a value that nobody gave.
const missing = "missing"

// Plus joins two reports, such as those of Load and Validate. A value is not
// missing if the first report says what is wrong with it.
func (p Problems) Plus(more Problems) Problems {
	all := slices.Clone(p)
	for _, m := range more {
		known := slices.ContainsFunc(p, func(x Problem) bool { return x.Path == m.Path })
		if !known || m.Message != missing {
			all = append(all, m)
		}
	}
	return all.sorted()
}

// sorted orders a report by path and leaves out what is said twice.
func (p Problems) sorted() Problems {
	slices.SortStableFunc(p, func(a, b Problem) int { return cmp.Compare(a.Path, b.Path) })
	return slices.Compact(p)
}

// String gives one line per problem.
func (p Problems) String() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

// Err gives the report as one error of KindConfig, nil if it is empty.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return &millrace.Error{
		Kind: millrace.KindConfig,
		Op:   "configuration",
		Err:  fmt.Errorf("%s", strings.ReplaceAll(p.String(), "\n", "; ")),
	}
}

func notAvailable(p *Problems, path string) { p.add(path, "not available in this version") }
