// Command millrace carries a PostgreSQL database's history, whole and in order,
// into another PostgreSQL, into Kafka and from there, and to data platforms.
//
// Each verb has a file of its own, named after it. Results go to stdout and
// nothing else does; logs, progress and prompts go to stderr.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func main() {
	ctx := catchSignals()
	args := os.Args[1:]
	if asConnector(os.Args[0]) {
		args = append([]string{"connector"}, args...)
	}
	os.Exit(Main(ctx, args, os.Stdout, os.Stderr))
}

// Main runs one command line and returns the exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &app{stdout: stdout, stderr: stderr, terminal: isTerminal(stderr)}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil && interrupted(ctx) && errors.Is(err, context.Canceled) {
		err = errSignal
	}
	return a.report(err)
}

// app is what all verbs share: where to write, and the common flags.
type app struct {
	stdout, stderr io.Writer
	terminal       bool // stderr is one, so that bars and colour are welcome

	config    string
	from, to  string
	job       string
	tables    []string
	json      bool
	quiet     bool
	verbose   bool
	logFormat string
	isolated  bool // the environment says nothing: the demo

	words func(string) string // what an error or hint says here; nil: itself
}

func init() { cobra.EnableCommandSorting = false } // the order of a job's life

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "millrace",
		Short: "Carry a PostgreSQL database's history into PostgreSQL, Kafka or a data platform",
		Long: `Millrace copies tables of a live PostgreSQL into another PostgreSQL or into Kafka, and then
carries every transaction of the source there, atomically and exactly once, until told to
stop. What it has written to Kafka it turns into a PostgreSQL database again.

A job is described by a file (-c) or by two URLs (--from, --to). A flag beats the
environment (MILLRACE_FROM, MILLRACE_TO, MILLRACE_CONFIG), which beats the file.

Exit codes: 0 done or yes; 1 no or failed; 2 usage or configuration; 3 the job is
in state error or resync_required, so that a restart alone will not help.`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(&cobra.Command{Use: "no-help", Hidden: true})
	root.SetVersionTemplate("millrace {{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usage(c, err) })
	f := root.PersistentFlags()
	f.StringVarP(&a.config, "config", "c", "", "configuration `FILE`")
	f.StringVar(&a.from, "from", "", "`URL` or keyword string of the source")
	f.StringVar(&a.to, "to", "", "`URL` or keyword string of the destination")
	f.StringVar(&a.job, "job", "", "`NAME` of the job; default with URLs: the source database's name")
	f.StringArrayVar(&a.tables, "table", nil, "`PATTERN` of tables, such as 'public.*' or '!public.audit'; repeatable")
	f.BoolVar(&a.json, "json", false, "print results as JSON, one object per line")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "log warnings and errors only, no progress")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "log details")
	f.StringVar(&a.logFormat, "log-format", "", "`FORMAT` of logs: text or json (default: text on a terminal, else json)")
	f.SortFlags = false
	completeValues(root)
	root.AddCommand(a.verbs()...)
	for _, c := range root.Commands() {
		c.Flags().SortFlags = false
	}
	return root
}

// release is the version that `make release` stamps with the linker.
var release string

// version is the release's, or the module's where Go built it from one, else the
// commit.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}
