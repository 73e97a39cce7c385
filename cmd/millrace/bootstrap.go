package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/bootstrap"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/record"
)

// bootstrapFlags are the flags that bootstrap shares with run.
type bootstrapFlags struct {
	createPublication bool
	pgDump            string
}

func (f *bootstrapFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.createPublication, "create-publication", false, "create the publication if it is missing")
	c.Flags().StringVar(&f.pgDump, "pg-dump", "", "`PATH` of pg_dump, at least as new as the source (default: found in PATH)")
}

// override changes the configuration as the flags say.
func (f *bootstrapFlags) override(c *config.Config) {
	if f.createPublication {
		c.Safety.AutoCreatePublication = true
	}
}

func (a *app) bootstrapCommand() *cobra.Command {
	var f bootstrapFlags
	var restart, yes, dryRun bool
	c := &cobra.Command{
		Use:   "bootstrap",
		Short: "Record the job, create the slot, copy schema and data",
		Long: `Bootstrap does the first load: it records the job at the destination, creates the slot and,
where allowed, the publication, copies definitions and rows under one snapshot, and ends
once that is complete. Run then streams from there.

With snapshot.mode: incremental, and after an interruption, tables are read in chunks while
the stream is followed; bootstrap ends when the destination is consistent again, and run
takes up an unfinished load as well. --restart-snapshot --yes drops the slot, empties the
tables that this job copied, and starts over.`,
		Example: `  millrace bootstrap -c shop.yaml --dry-run
  millrace bootstrap -c shop.yaml`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if restart && !yes && !dryRun {
				return usage(c, errors.New("--restart-snapshot empties tables of the destination and wants --yes"))
			}
			if yes && !restart {
				return usage(c, errors.New("--yes goes with --restart-snapshot"))
			}
			s, err := a.load(f.override)
			if err != nil {
				return err
			}
			ctx, stop := withSignals(c.Context())
			defer stop()
			limitMemory(s.Config)
			if dryRun {
				return a.bootstrapPlan(ctx, s, &f, restart)
			}
			return a.bootstrap(ctx, s, &f, restart)
		},
	}
	f.add(c)
	c.Flags().BoolVar(&restart, "restart-snapshot", false, "start the first load over")
	c.Flags().BoolVar(&yes, "yes", false, "do empty the tables that were copied")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print the plan and every statement, and do nothing")
	return c
}

// loadOptions are those of a first load that instance does.
func (s *settings) loadOptions(f *bootstrapFlags, instance string) bootstrap.Options {
	return bootstrap.Options{
		Source: s.source, Target: s.target, Job: s.Job, Slot: s.Slot(), Publication: s.Publication(), Patterns: s.patterns,
		CreatePublication: s.Safety.AutoCreatePublication, AllowRemotePublication: s.Safety.AllowRemotePublicationCreate,
		SchemaMode: s.Destination.Postgres.Schema, Mode: s.Snapshot.Mode, Parallel: s.Snapshot.Parallel,
		Rate: int64(s.Snapshot.Rate), Failover: s.failover(), Timeout: s.Snapshot.Timeout, Keys: s.keys, PGDump: f.pgDump,
		Instance: instance, Heartbeat: s.Safety.HeartbeatInterval, Log: s.log, ByKey: s.share() != nil,
	}
}

// bootstrapPlan prints what a first load would do.
func (a *app) bootstrapPlan(ctx context.Context, s *settings, f *bootstrapFlags, restart bool) error {
	o := s.loadOptions(f, instanceID())
	o.Restart, o.DryRun = restart, a.stdout
	return s.runLoad(ctx, o)
}

// bootstrap does the first load, with a heartbeat in the record meanwhile.
func (a *app) bootstrap(ctx context.Context, s *settings, f *bootstrapFlags, restart bool) error {
	book, err := s.openLedger(ctx)
	if err != nil {
		return err
	}
	k := newKeeper(s)
	if err := k.start(ctx, book); err != nil {
		_ = book.Close(context.WithoutCancel(ctx)) // nothing depends on it
		return err
	}
	o := s.loadOptions(f, k.instance())
	o.Restart = restart
	l := newLoad(a, s.log, k.poke)
	o.Progress = l
	err = s.doLoad(ctx, o, f)
	l.close()
	if werr := k.finish(lastWrite, "", "", ""); werr != nil {
		s.log.Debug("remove the heartbeat", "cause", werr)
	}
	if interrupted(ctx) && errors.Is(err, errSignal) {
		s.log.Info("stopped by a signal: the first load is not complete")
		return nil
	}
	if err != nil {
		return &exit{jobExitCode(err), err}
	}
	if beside, err := loadsBeside(ctx, s); err != nil {
		return err
	} else if beside {
		r := newRunner(a, s, runFlags{bootstrapFlags: *f, untilLoaded: true})
		if err := r.run(ctx); err != nil || interrupted(ctx) {
			return err
		}
	}
	return a.printLoaded(ctx, s)
}

// loadsBeside tells whether the rest of the first load is done beside the stream.
func loadsBeside(ctx context.Context, s *settings) (bool, error) {
	j, _, err := s.readLedger(ctx)
	return j != nil && j.ConsistentFrom == 0, err
}

// doLoad checks everything before the first load begins. On a job that has a
// record already bootstrap.Run knows best what is possible.
func (s *settings) doLoad(ctx context.Context, o bootstrap.Options, f *bootstrapFlags) error {
	j, _, err := s.readLedger(ctx)
	if err == nil && j == nil {
		err = s.preflight(ctx, f)
	}
	if err != nil {
		return err
	}
	return s.runLoad(ctx, o)
}

func (s *settings) runLoad(ctx context.Context, o bootstrap.Options) error {
	if s.prefix != nil {
		return bootstrap.FromKafka(ctx, o, s.prefix)
	}
	if s.kafka != nil {
		return s.loadKafka(ctx, o)
	}
	return bootstrap.Run(ctx, o)
}

// printLoaded says what the record now holds.
func (a *app) printLoaded(ctx context.Context, s *settings) error {
	j, _, err := s.readLedger(ctx)
	if err != nil {
		return err
	}
	if j == nil {
		return noJob(s)
	}
	var rows, bytes int64
	for i := range j.Tables {
		rows += j.Tables[i].Rows
		bytes += j.Tables[i].Bytes
	}
	if a.json {
		return a.printJSON(map[string]any{"job": j.Name, "tables": len(j.Tables), "rows_copied": rows,
			"bytes_copied": bytes, "consistent_from": j.ConsistentFrom})
	}
	return printf(a.stdout, "%d tables, %s rows, %s: consistent from %s\n", len(j.Tables), count(rows), size(bytes), j.ConsistentFrom)
}

// firstLoad does what is left of the first load, in the course of run.
func (r *runner) firstLoad(ctx context.Context) error {
	if !r.flags.bootstrap {
		if err := r.unfinished(); err != nil {
			return err
		}
	}
	r.keeper.follow(record.Bootstrapping, "the first load begins")
	o := r.loadOptions(&r.flags.bootstrapFlags, r.keeper.instance())
	l := newLoad(r.app, r.log, r.keeper.poke)
	o.Progress, o.OnWait = l, r.keeper.waits
	r.mu.Lock()
	r.load, r.loading = l, true
	r.mu.Unlock()
	err := r.retry(ctx, func() error { return r.doLoad(ctx, o, &r.flags.bootstrapFlags) })
	l.close()
	if err != nil {
		return err
	}
	if err := r.reread(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	r.loading = false
	if r.record.ConsistentFrom == 0 {
		r.load = nil // the stream's part of it is shown by the engine
	}
	r.mu.Unlock()
	return nil
}
