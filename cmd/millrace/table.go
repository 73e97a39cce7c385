package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/bootstrap"
	"github.com/millrace/millrace/catalog"
)

func (a *app) tableCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "table",
		Short: "Change the set of tables of a job, running or stopped",
		Long: `Table changes which tables a job carries. The job may be running: its stream starts anew
within a second, which takes as long as a reconnect, and goes on where it was. A stopped job
takes the change up at its next run.`,
	}
	var f bootstrapFlags
	add := a.tableVerb("add", "Load more tables beside the stream", `Add takes tables of the source into the job: it makes them at the destination, adds them to
the publication where that is the job's own or --create-publication allows it, and has them
loaded in chunks while the stream goes on. Their load begins once all transactions have ended
that were open before. Into Kafka, a table that the job had before begins with a record t.`, `  millrace table add -c shop.yaml public.invoices 'billing.*'`, &f,
		"is loaded beside the stream")
	f.add(add)
	again := a.tableVerb("resnapshot", "Read tables again, in place", `Resnapshot reads tables of the job again, in chunks beside the stream, and writes what
differs in one transaction of the destination: readers see the old or the new rows, and rows
that are right are not touched. Until then the table stays as it is. It also cures a job that
has stopped at a change of such a table, which is passed over then. Into Kafka all rows come
once more, to be taken as insert or update.`, `  millrace table resnapshot -c shop.yaml public.orders`, nil,
		"is read again")
	drop := a.tableVerb("drop", "Take tables out of the job", `Drop takes tables out of the job and, where that is the job's own, out of the publication.
Their rows, or their topics, stay at the destination. From a publication of somebody else
they have to be excluded in the configuration before.`, `  millrace table drop -c shop.yaml public.audit`, nil,
		"is no longer carried")
	c.AddCommand(add, again, drop)
	return c
}

// tableChanges change the set of tables of a job, by their verbs.
var tableChanges = map[string]func(context.Context, *settings, bootstrap.Options) ([]millrace.TableName, error){
	"add": func(ctx context.Context, _ *settings, o bootstrap.Options) ([]millrace.TableName, error) {
		return bootstrap.AddTables(ctx, o)
	},
	"resnapshot": func(ctx context.Context, _ *settings, o bootstrap.Options) ([]millrace.TableName, error) {
		return bootstrap.Resnapshot(ctx, o)
	},
	"drop": func(ctx context.Context, s *settings, o bootstrap.Options) ([]millrace.TableName, error) {
		return bootstrap.DropTables(ctx, o, func(t millrace.TableName) bool { return !s.patterns.Empty() && !s.patterns.Match(t) })
	},
}

// changeTables does one of them, for the tables that the patterns match.
func (s *settings) changeTables(ctx context.Context, verb string, patterns catalog.Patterns, f *bootstrapFlags) ([]millrace.TableName, error) {
	if s.prefix != nil {
		return nil, &millrace.Error{Kind: millrace.KindConfig, Op: "table " + verb, Err: errors.New("not available in this version for a Kafka source"),
			Hint: "new tables of the prefix join by themselves, as far as source.kafka.tables selects them"}
	}
	o := s.loadOptions(f, instanceID())
	o.Patterns = patterns
	if s.kafka != nil {
		sink, err := s.kafkaSink()
		if err != nil {
			return nil, err
		}
		o.Into = &sink
	}
	return tableChanges[verb](ctx, s, o)
}

// changeTables does one of them for the page, while the job runs.
func (r *runner) changeTables(ctx context.Context, verb string, tables []string) ([]string, error) {
	patterns, errs := catalog.ParsePatterns(tables)
	if len(errs) > 0 {
		return nil, &millrace.Error{Kind: millrace.KindConfig, Op: "table " + verb, Err: errs[0], Hint: "name tables as schema.table"}
	}
	changed, err := r.settings.changeTables(ctx, verb, patterns, &r.flags.bootstrapFlags)
	names := make([]string, len(changed))
	for i, n := range changed {
		names[i] = n.String()
	}
	return names, err
}

// tableVerb is one of the verbs: it names tables by patterns.
func (a *app) tableVerb(name, short, long, example string, f *bootstrapFlags, done string) *cobra.Command {
	return &cobra.Command{
		Use: name + " TABLE…", Short: short, Long: long, Example: example, Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			patterns, errs := catalog.ParsePatterns(args)
			if len(errs) > 0 {
				return usage(c, errs[0])
			}
			if f == nil {
				f = &bootstrapFlags{}
			}
			s, err := a.load(f.override)
			if err != nil {
				return err
			}
			ctx, stop := withSignals(c.Context())
			defer stop()
			names, err := s.changeTables(ctx, name, patterns, f)
			if err != nil {
				return &exit{jobExitCode(err), err}
			}
			if s.kafka != nil && name == "drop" {
				return a.printTables(name, names, done+"; its topic stays")
			}
			return a.printTables(name, names, done)
		},
	}
}

func (a *app) printTables(verb string, names []millrace.TableName, done string) error {
	for _, n := range names {
		var err error
		if a.json {
			err = a.printJSON(map[string]any{"action": verb, "table": n.String()})
		} else {
			err = printf(a.stdout, "%s %s\n", n, done)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lookEvery is how often a run looks whether the set of tables was changed.
const lookEvery = time.Second

// watchSet has the stream start anew when somebody has changed the set of tables.
func (r *runner) watchSet(ctx context.Context, e *engine) {
	var book ledger
	defer func() {
		if book != nil {
			_ = book.Close(context.WithoutCancel(ctx)) // it was only read
		}
	}()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if book == nil || book.Closed() {
			var err error
			if book, err = r.openLedger(ctx); err != nil {
				book = nil
				continue
			}
		}
		if r.otherSet(ctx, book) {
			e.backfill.StartAnew()
		}
	}
}

// otherSet tells whether the set of tables is another one than the stream has taken
// up.
func (r *runner) otherSet(ctx context.Context, book ledger) bool {
	r.reading.Lock()
	defer r.reading.Unlock()
	j, _, err := book.Read(ctx)
	taken := r.taken.Load()
	if err != nil || j == nil || taken < 0 || j.Set == taken {
		return false
	}
	r.taken.Store(-1) // until the stream has started anew
	r.mu.Lock()
	cp := r.cp
	r.mu.Unlock()
	r.remember(j, cp)
	return true
}

// addKeys adds the foreign keys of tables that were loaded after the first load, where
// the destination has any.
func (r *runner) addKeys(ctx context.Context) {
	if r.kafka != nil || r.prefix != nil { // of which the stream sees to it
		return
	}
	o := r.loadOptions(&r.flags.bootstrapFlags, r.keeper.instance())
	if err := r.retry(ctx, func() error { return bootstrap.AddKeys(ctx, o) }); err != nil && ctx.Err() == nil {
		r.log.Warn("foreign keys of added tables could not be made; the next run tries again", "cause", err, "hint", millrace.HintOf(err))
	}
}

// followLoads does what is left to do each time that all tables are there which are loaded
// after the first load. It begins with what an earlier run has left.
func (r *runner) followLoads(ctx context.Context, e *engine) {
	for {
		r.addKeys(ctx)
		select {
		case <-e.loaded:
		case <-ctx.Done():
			return
		}
		if _, err := r.awaitMarks(ctx); err != nil {
			return
		}
		if err := r.reread(ctx); err != nil && ctx.Err() == nil {
			r.log.Debug("read the record", "cause", err)
		}
	}
}
