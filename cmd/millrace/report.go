package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/docs"
)

// The exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitJob    = 3 // the job is in state error or resync_required
)

// exit is an error with an exit code of its own. A nil err prints nothing.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// usage is a wrong command line.
func usage(c *cobra.Command, err error) error {
	return &millrace.Error{Kind: millrace.KindConfig, Op: c.CommandPath(), Err: err,
		Hint: c.CommandPath() + " --help shows what it takes"}
}

// report prints err, if there is one, and gives the exit code. It is the only
// place that prints errors.
func (a *app) report(err error) int {
	if err == nil {
		return exitDone
	}
	code := exitCode(err)
	var e *exit
	if errors.As(err, &e) {
		if err = e.err; err == nil {
			return code
		}
	}
	a.printError(err)
	return code
}

func (a *app) printError(err error) {
	label, hint, see := "error:", "hint:", "see:"
	if a.terminal && os.Getenv("NO_COLOR") == "" {
		label, hint, see = "\x1b[31m"+label+"\x1b[0m", "\x1b[36m"+hint+"\x1b[0m", "\x1b[36m"+see+"\x1b[0m"
	}
	words, call := a.words, seeCall
	if words == nil {
		words = func(text string) string { return text }
	} else {
		call = docs.See // the connector's program may have no other verb
	}
	for _, one := range problems(err) {
		fmt.Fprintln(a.stderr, label, oneLine(words(one.Error())))
		h := millrace.HintOf(one)
		if h == "" && strings.HasPrefix(one.Error(), unknownCommand) {
			h = "millrace --help lists the verbs"
		}
		if h != "" {
			fmt.Fprintln(a.stderr, hint, oneLine(words(h)))
		}
		if s := call(one.Error(), h); s != "" {
			fmt.Fprintln(a.stderr, see, s)
		}
	}
}

// problems takes apart errors that were joined.
func problems(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error }) // only the outermost error is a list
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, problems(e)...)
	}
	return all
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// unknownCommand begins cobra's error of a verb, or an argument, that there is not.
const unknownCommand = "unknown command"

// exitCode sorts errors that no verb has sorted itself.
func exitCode(err error) int {
	var e *exit
	if errors.As(err, &e) {
		return e.code
	}
	code := exitFailed
	for _, one := range problems(err) {
		switch {
		case millrace.KindOf(one) == millrace.KindConfig:
			code = exitUsage
		case millrace.KindOf(one) == millrace.KindResync:
			code = exitJob
		case strings.HasPrefix(one.Error(), unknownCommand):
			code = exitUsage
		}
	}
	return code
}

// jobExitCode sorts what ended a job: what leaves it in state error or
// resync_required has a code of its own.
func jobExitCode(err error) int {
	switch millrace.KindOf(err) {
	case millrace.KindData, millrace.KindUnknown, millrace.KindResync:
		return exitJob
	}
	return exitCode(err)
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
