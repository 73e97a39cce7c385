package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/check"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/session"
)

func (a *app) checkCommand() *cobra.Command {
	var f bootstrapFlags
	c := &cobra.Command{
		Use:   "check",
		Short: "Find everything that stands in the way of a job",
		Long: `Check looks at the configuration, the source and the destination and reports all problems at
once, each with the SQL or the setting that cures it. It changes nothing.

Exit code 1 when there are problems, 2 when some are in the configuration; warnings alone
are exit code 0.`,
		Example: `  millrace check -c shop.yaml
  millrace check --from postgres://… --to postgres://… --table 'public.*'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, problems, err := a.configure(f.override)
			if err != nil {
				return err
			}
			return a.check(c.Context(), s, problems, &f)
		},
	}
	f.add(c)
	return c
}

func (s *settings) checkOptions(f *bootstrapFlags) check.Options {
	var other check.Destination
	if s.kafka != nil {
		other = kafkaDestination{s}
	}
	var origin check.Origin
	if s.prefix != nil {
		origin = kafkaOrigin{s}
	}
	return check.Options{
		Other: other, Origin: origin,
		Source: s.source, Target: s.target, Job: s.Job, Slot: s.Slot(), Publication: s.Publication(), Patterns: s.patterns,
		CreatePublication: s.Safety.AutoCreatePublication, AllowRemotePublication: s.Safety.AllowRemotePublicationCreate,
		SchemaMode: s.Destination.Postgres.Schema, Mode: s.Snapshot.Mode, Parallel: s.Snapshot.Parallel,
		Keys: s.keys, PGDump: f.pgDump, Failover: s.failover(), Log: s.log,
	}
}

func (a *app) check(ctx context.Context, s *settings, problems config.Problems, f *bootstrapFlags) error {
	report, err := check.Run(ctx, s.checkOptions(f))
	if err != nil {
		return err
	}
	report.Problems = slices.DeleteFunc(report.Problems, func(found check.Finding) bool {
		// The side could not be connected to since its URL is wrong, as said.
		return slices.ContainsFunc(problems, func(p config.Problem) bool {
			return p.Path == found.Subject+".postgres.url" || strings.HasPrefix(p.Path, found.Subject+".") && strings.Contains(p.Message, "not available")
		})
	})
	report.Problems = append(configFindings(problems), report.Problems...)
	if err := a.printReport(report); err != nil {
		return err
	}
	switch {
	case len(problems) > 0:
		return &exit{code: exitUsage}
	case len(report.Problems) > 0:
		return &exit{code: exitFailed}
	}
	return nil
}

func configFindings(problems config.Problems) []check.Finding {
	found := []check.Finding{}
	for _, p := range problems {
		found = append(found, check.Finding{Subject: p.Path, Text: p.Message,
			Cure: configHint(p)})
	}
	return found
}

func (a *app) printReport(report check.Report) error {
	if a.json {
		return a.printJSON(withLinks(report))
	}
	var b strings.Builder
	printFindings(&b, "problem", report.Problems)
	printFindings(&b, "warning", report.Warnings)
	fmt.Fprintf(&b, "%s, %s\n", plural(len(report.Problems), "problem"), plural(len(report.Warnings), "warning"))
	_, err := fmt.Fprint(a.stdout, b.String())
	return err
}

func printFindings(b *strings.Builder, kind string, list []check.Finding) {
	for _, f := range list {
		fmt.Fprintf(b, "%s: %s\n", kind, oneLine(f.String()))
		if f.Cure != "" {
			fmt.Fprintf(b, "  cure: %s\n", oneLine(f.Cure))
		}
		if see := seeCall(f.String(), f.Cure); see != "" {
			fmt.Fprintf(b, "  see: %s\n", see)
		}
	}
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// preflight looks at everything before a first load changes anything. What can't
// be reached is an error to try again, not a finding.
func (s *settings) preflight(ctx context.Context, f *bootstrapFlags) error {
	if err := s.reachable(ctx); err != nil {
		return err
	}
	report, err := check.Run(ctx, s.checkOptions(f))
	if err != nil {
		return err
	}
	if len(report.Problems) > 0 {
		// A side that was lost meanwhile shows up as a problem.
		if err := s.reachable(ctx); err != nil {
			return err
		}
	}
	for _, w := range report.Warnings {
		if !s.warned[w] { // a first load is tried again and again while a server is away
			s.log.Warn(oneLine(w.String()), "hint", oneLine(w.Cure))
		}
		s.warned[w] = true
	}
	errs := make([]error, len(report.Problems))
	for i, p := range report.Problems {
		errs[i] = &millrace.Error{Kind: millrace.KindPreflight, Op: p.Subject, Err: errors.New(p.Text), Hint: p.Cure}
	}
	return errors.Join(errs...)
}

func (s *settings) reachable(ctx context.Context) error {
	ends := []*session.Endpoint{s.source, s.target}
	switch {
	case s.kafka != nil:
		if _, _, err := s.readLedger(ctx); err != nil {
			return err
		}
		ends = ends[:1]
	case s.prefix != nil:
		if _, err := s.prefix.ReadWritten(ctx); err != nil {
			return err
		}
		ends = ends[1:]
	}
	for _, e := range ends {
		conn, err := e.Connect(ctx, session.Check)
		if err != nil {
			return err
		}
		conn.Close(ctx)
	}
	return nil
}
