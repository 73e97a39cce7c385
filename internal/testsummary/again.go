package main

import (
	"context"
	"maps"
	"slices"
	"strings"
)

// Of so many tests, at most, is it believed that the machine was busy.
const maxAgain = 3

// tooLate stands in the output of a test that gave up waiting (rig.Eventually). What a
// test finds to be wrong, a panic and a race have other words, and are never repeated.
const tooLate = ": not within "

// again repeats, alone, the tests that failed only since they waited for too long beside
// all others. Those that pass are named at the end, so that a wait which gets longer is
// seen before it is a failure.
func (s *summary) again(ctx context.Context, tail []string) error {
	late := s.late()
	if len(late) > maxAgain {
		return nil
	}
	for _, t := range late {
		alone := newSummary(s.out)
		args := slices.Concat(s.flags[t.pkg], []string{"-run", "^" + t.name + "$", path(t.pkg)}, tail)
		if err := goTest(ctx, alone, args); err != nil {
			return err
		}
		if !alone.failed() && alone.results[t] == "pass" {
			s.forgive(t)
		}
	}
	return nil
}

// late are the failed tests, without subtests, whose every failure is a wait. There are
// none if anything else has failed.
func (s *summary) late() (late []test) {
	for _, t := range slices.SortedFunc(maps.Keys(s.results), compare) {
		switch {
		case s.results[t] != "fail" || t.name != "" && s.hasFailedSubtest(t):
		case t.name == "" && s.explained(t.pkg):
		case !strings.Contains(s.failures[t], tooLate):
			return nil
		default:
			name, _, _ := strings.Cut(t.name, "/")
			if top := (test{t.pkg, name}); !slices.Contains(late, top) {
				late = append(late, top)
			}
		}
	}
	if len(s.open) > 0 {
		return nil
	}
	return late
}

func (s *summary) hasFailedSubtest(t test) bool {
	for u, r := range s.results {
		if r == "fail" && u.pkg == t.pkg && strings.HasPrefix(u.name, t.name+"/") {
			return true
		}
	}
	return false
}

// forgive makes a pass of a test and of its subtests.
func (s *summary) forgive(t test) {
	for u, r := range s.results {
		if r == "fail" && u.pkg == t.pkg && (u.name == t.name || strings.HasPrefix(u.name, t.name+"/")) {
			s.results[u] = "pass"
		}
	}
	if !s.explained(t.pkg) {
		delete(s.results, test{pkg: t.pkg})
	}
	s.forgiven = append(s.forgiven, t)
}

func path(pkg string) string {
	if pkg == rootPackage {
		return modulePath
	}
	return modulePath + "/" + pkg
}
