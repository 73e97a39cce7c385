// Command testsummary runs `go test` and tells its result in few lines: one for
// each package, the whole output of what failed, the names and reasons of what
// was skipped, and as the last line "N passed, N failed, N skipped". Its exit
// code is not 0 if anything failed, did not build or did not end.
//
//	testsummary [-race PACKAGES] [GO TEST FLAGS] PACKAGES [-args BINARY FLAGS]
//
// The packages named after -race, by one comma-separated list of paths below the
// module, are left out of the run proper and tested with the race detector in a
// run of their own before it, so that every test runs once. Up to three tests that fail
// only since they waited for something for too long run once more, alone, and are named.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	// The first Ctrl-C reaches go test as well, which then ends by itself; what
	// ran until then is still reported.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsummary:", err)
	}
	if err != nil || !ok {
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (bool, error) {
	args, tail := cutTail(args)
	raced, args := cutRace(args)
	began := time.Now()
	s := newSummary(out)
	var err error
	for _, pass := range passes(raced, args) {
		if err = s.run(ctx, pass, tail); err != nil {
			break // what ran until now is reported all the same
		}
	}
	if err == nil {
		err = s.again(ctx, tail)
	}
	return s.finish(time.Since(began)), err
}

func (s *summary) run(ctx context.Context, p pass, tail []string) error {
	pkgs, err := list(ctx, p.packages)
	if err != nil {
		return err
	}
	pkgs = slices.DeleteFunc(pkgs, func(name string) bool { return slices.Contains(p.without, name) })
	if len(pkgs) == 0 {
		return nil
	}
	for _, name := range pkgs {
		s.flags[shortName(name)] = p.flags
	}
	return goTest(ctx, s, slices.Concat(p.flags, pkgs, tail))
}

// cutTail takes off -args and what follows, which is for the test binaries.
func cutTail(args []string) (rest, tail []string) {
	i := slices.Index(args, "-args")
	if i < 0 {
		return args, nil
	}
	return args[:i], args[i:]
}

func cutRace(args []string) (raced, rest []string) {
	if len(args) > 1 && args[0] == "-race" {
		return strings.FieldsFunc(args[1], func(r rune) bool { return r == ',' }), args[2:]
	}
	return nil, args
}

// pass is one run of go test.
type pass struct {
	flags, packages, without []string
}

func passes(raced, args []string) []pass {
	flags, packages := splitPackages(args)
	all := pass{flags: flags, packages: packages}
	if len(raced) == 0 {
		return []pass{all}
	}
	for _, p := range raced {
		all.without = append(all.without, strings.TrimSuffix(modulePath+"/"+strings.TrimPrefix(p, "./"), "/."))
	}
	paths := make([]string, len(raced))
	for i, p := range raced {
		paths[i] = "./" + strings.TrimPrefix(p, "./")
	}
	return []pass{{flags: append([]string{"-race"}, flags...), packages: paths}, all}
}

const modulePath = "github.com/millrace/millrace"

// splitPackages parts the arguments where the packages begin: at the first one
// that starts with a dot.
func splitPackages(args []string) (flags, packages []string) {
	i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, ".") })
	if i < 0 {
		return args, []string{"."}
	}
	return args[:i], args[i:]
}

// list resolves patterns, so that packages can be left out.
func list(ctx context.Context, patterns []string) ([]string, error) {
	out, err := command(ctx, append([]string{"list"}, patterns...)...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("go list: %s", exit.Stderr)
	}
	return strings.Fields(string(out)), err
}

// goTest feeds the events of one run of go test to the summary.
func goTest(ctx context.Context, s *summary, args []string) error {
	cmd := command(ctx, append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := s.read(events); err != nil {
		return errors.Join(err, cmd.Wait())
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && s.failed() {
		return nil // said in detail
	}
	if err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	return nil
}

func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}
