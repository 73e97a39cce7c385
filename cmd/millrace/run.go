package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/config"
)

// runFlags are the flags of run.
type runFlags struct {
	bootstrapFlags
	bootstrap    bool
	standby      bool
	untilCurrent bool
	until        string

	untilLSN    millrace.LSN
	untilLoaded bool // until the first load is complete
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run",
		Short: "Stream until stopped",
		Long: `Run streams from where the destination is until it is stopped with SIGTERM or SIGINT. Lost
and refused connections are tried again without end.

Alone it creates neither slot nor publication: a missing one is an error. With
--bootstrap it does the first load before, if that is not complete.`,
		Example: `  millrace run -c shop.yaml
  millrace run --bootstrap --create-publication --from postgres://… --to postgres://… --table 'public.*'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(c); err != nil {
				return err
			}
			s, err := a.load(f.override)
			if err != nil {
				return err
			}
			ctx, stop := withSignals(c.Context())
			defer stop()
			limitMemory(s.Config)
			limitProcessors()
			return newRunner(a, s, f).run(ctx)
		},
	}
	c.Flags().BoolVar(&f.bootstrap, "bootstrap", false, "do the first load before, if it is not complete")
	c.Flags().BoolVar(&f.standby, "standby", false, "wait behind a living instance until it ends")
	c.Flags().BoolVar(&f.untilCurrent, "until-current", false, "stop once all is delivered that was committed at the start")
	c.Flags().StringVar(&f.until, "until", "", "stop once all is delivered that was committed before this `LSN`")
	f.add(c)
	return c
}

func (f *runFlags) check(c *cobra.Command) error {
	if f.until != "" && f.untilCurrent {
		return usage(c, errors.New("--until and --until-current exclude each other"))
	}
	if f.until != "" {
		lsn, err := millrace.ParseLSN(f.until)
		if err != nil {
			return usage(c, fmt.Errorf("--until: %w", err))
		}
		f.untilLSN = lsn
	}
	if f.createPublication && !f.bootstrap {
		return usage(c, errors.New("--create-publication needs --bootstrap: run alone creates nothing"))
	}
	return nil
}

// reserve is what a process has resident beside what the Go runtime counts:
// the program's own pages.
const reserve = 24 << 20

// limitMemory makes the collector keep the process within the budget.
func limitMemory(c *config.Config) {
	budget := int64(c.Resources.MemoryBudget)
	debug.SetMemoryLimit(max(budget-reserve, budget/2))
}

// limitProcessors keeps the program to one processor where it shares two with
// the servers. It needs less than half of one, and with two of them the scheduler
// wakes a second thread at each step that a transaction takes, only to find
// nothing left to do: see docs/adr/0018-one-processor-of-two.md.
func limitProcessors() {
	if os.Getenv("GOMAXPROCS") == "" && runtime.NumCPU() <= 2 {
		runtime.GOMAXPROCS(1)
	}
}

// end tells everybody how the run ended: those who wait, the record, the log
// and, by the exit code, whoever started it.
func (r *runner) end(ctx context.Context, err error) error {
	state, reason, hint := r.verdict(ctx, err)
	r.progress.End(err)
	within, tell := lastWrite, tellWithin
	if !interrupted(ctx) {
		within, tell = lastWriteOfError, tellWithinOfError
	}
	r.tellEnd(state, reason, hint, err)
	defer r.hooks.Close(tell)
	if werr := r.keeper.finish(within, state, reason, hint); werr != nil {
		r.log.Warn("the job's record was not written", "state", state, "cause", werr)
	}
	r.closeHTTP()
	if err == nil {
		r.log.Info("stopped", "held", r.progress.Held(), "reason", or(reason, "stopped by a signal, before the first load was complete"))
		return nil
	}
	return &exit{jobExitCode(err), err}
}
