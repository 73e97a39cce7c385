package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/airbyte"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/check"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/docs"
	"github.com/millrace/millrace/session"
)

// connectorName is the name under which the program is the connector alone.
const connectorName = "source-postgres-millrace"

// asConnector tells whether the program was called by the connector's name.
func asConnector(argv0 string) bool {
	return strings.TrimSuffix(filepath.Base(argv0), ".exe") == connectorName
}

func (a *app) connectorCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "connector",
		Short: "Speak a data platform's protocol on stdout",
		Long: `Connector is a source connector in Airbyte's protocol, to be run by a data platform: one JSON
message a line on stdout, and nothing else there. A copy of the program, or a link to it,
that is named ` + connectorName + ` is the connector alone.

All verbs but spec read their configuration from the JSON file behind --config, whose
members spec describes.`,
		Args:             cobra.NoArgs,
		PersistentPreRun: func(*cobra.Command, []string) { a.words = inConnectorWords },
		RunE:             func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.connectorSpec(), a.connectorCheck(), a.connectorDiscover(), a.connectorRead(), a.connectorFlow())
	return c
}

func (a *app) connectorSpec() *cobra.Command {
	return &cobra.Command{
		Use:   "spec",
		Short: "Describe the configuration",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return airbyte.NewWriter(a.stdout).Send(airbyte.Spec())
		},
	}
}

func (a *app) connectorCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Find everything that stands in the way of reading",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			w := airbyte.NewWriter(a.stdout)
			status := airbyte.ConnectionStatus{Status: "SUCCEEDED"}
			if err := a.checkConnector(c.Context(), w); err != nil {
				status = airbyte.ConnectionStatus{Status: "FAILED", Message: inWords(err)}
			}
			return w.Send(&airbyte.Message{Type: "CONNECTION_STATUS", ConnectionStatus: &status})
		},
	}
}

func (a *app) checkConnector(ctx context.Context, w *airbyte.Writer) error {
	k, err := a.connectorOfFile(w)
	if err != nil {
		return err
	}
	found, err := k.look(ctx)
	if err != nil {
		return err
	}
	for _, f := range found.Warnings {
		k.log.Warn(f.String(), "hint", inConnectorWords(f.Cure))
	}
	return errors.Join(problemsOf(found.Report), k.cfg.CheckKeys(found.Tables))
}

// problemsOf makes one error of what a check has found.
func problemsOf(r check.Report) error {
	var errs []error
	for _, f := range r.Problems {
		errs = append(errs, &millrace.Error{Kind: millrace.KindConfig, Op: f.Subject, Err: errors.New(f.Text), Hint: f.Cure})
	}
	return errors.Join(errs...)
}

// inWords gives an error with its hint and the link of its section as one text, for those who see no other.
func inWords(err error) string {
	var lines []string
	for _, one := range problems(err) {
		line, hint := oneLine(inConnectorWords(one.Error())), millrace.HintOf(one)
		if hint != "" {
			line += " (" + oneLine(inConnectorWords(hint)) + ")"
		}
		if see := docs.See(one.Error(), hint); see != "" {
			line += " " + see
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func (a *app) connectorDiscover() *cobra.Command {
	return &cobra.Command{
		Use:   "discover",
		Short: "List the tables that can be read",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			w := airbyte.NewWriter(a.stdout)
			return a.fail(w, a.discover(c.Context(), w))
		},
	}
}

func (a *app) discover(ctx context.Context, w *airbyte.Writer) error {
	k, err := a.connectorOfFile(w)
	if err != nil {
		return err
	}
	found, err := k.look(ctx)
	if err != nil {
		return err
	}
	if found.Server == nil {
		return problemsOf(found.Report)
	}
	streams := make([]airbyte.Stream, 0, len(found.Tables))
	for _, t := range found.Tables {
		published := k.cfg.CreateSlot && found.Publication == nil || found.Publication != nil && found.Publication.Table(t.OID) != nil
		s, err := k.cfg.Discover(t, published)
		if err != nil {
			return err
		}
		streams = append(streams, s)
	}
	return w.Send(&airbyte.Message{Type: "CATALOG", Catalog: &airbyte.Catalog{Streams: streams}})
}

// fail tells the platform why a verb failed, and gives the exit code.
func (a *app) fail(w *airbyte.Writer, err error) error {
	if err == nil {
		return nil
	}
	if e := w.Error(traceOf(err)); e != nil {
		return &exit{exitFailed, errors.Join(err, e)}
	}
	return &exit{exitFailed, err}
}

// traceOf is what the platform is told about an error.
func traceOf(err error) airbyte.TraceError {
	kind := "system_error"
	switch millrace.KindOf(problems(err)[0]) {
	case millrace.KindConfig, millrace.KindPreflight, millrace.KindResync:
		kind = "config_error"
	case millrace.KindRetry:
		kind = "transient_error"
	}
	return airbyte.TraceError{Message: inWords(err), InternalMessage: oneLine(err.Error()), FailureType: kind}
}

// connector is what the connector's verbs share.
type connector struct {
	cfg      *airbyte.Config
	out      *airbyte.Writer
	log      *slog.Logger
	source   *session.Endpoint
	patterns catalog.Patterns
	job      string
}

// connectorOfFile reads the configuration behind --config.
func (a *app) connectorOfFile(w *airbyte.Writer) (*connector, error) {
	if a.config == "" {
		return nil, &millrace.Error{Kind: millrace.KindConfig, Op: "connector", Err: errors.New("--config is missing"), Hint: "give the JSON file that spec describes"}
	}
	data, err := os.ReadFile(a.config)
	if err != nil {
		return nil, &millrace.Error{Kind: millrace.KindConfig, Op: "--config", Err: err, Hint: "correct the path"}
	}
	level := slog.LevelInfo
	if a.verbose {
		level = slog.LevelDebug
	}
	return newConnector(data, w, slog.New(seeing{airbyte.NewLogger(w, level).Handler()}))
}

func newConnector(data []byte, w *airbyte.Writer, log *slog.Logger) (*connector, error) {
	cfg, err := airbyte.ParseConfig(data)
	if err != nil {
		return nil, err
	}
	k := &connector{cfg: cfg, out: w, log: log}
	var errs []error
	if k.patterns, errs = catalog.ParsePatterns(cfg.Patterns()); len(errs) > 0 {
		return nil, &millrace.Error{Kind: millrace.KindConfig, Op: "tables", Err: errors.Join(errs...),
			Hint: `patterns are written as for pg_dump -t, with a schema, such as public.* or public."Odd name"`}
	}
	k.source = session.Static(millrace.PeerSource, cfg.Conn(), "connector")
	k.source.Log = k.log
	k.source.TLS = session.TLSPolicy{Require: cfg.Secure()}
	k.source.Certificates = k.certificates()
	c, err := k.source.Config()
	if err != nil {
		return nil, err
	}
	if k.job = config.CleanJob(c.Database); k.job == "" {
		k.job = "connector"
	}
	k.source.Job = k.job
	return k, nil
}

// certificates gives those of the configuration; nil: there are none.
func (k *connector) certificates() *session.Certificates {
	c := &session.Certificates{Root: k.cfg.SSL.CACertificate, Cert: k.cfg.SSL.ClientCertificate, Key: k.cfg.SSL.ClientKey, Password: k.cfg.SSL.ClientKeyPassword}
	if c.Root == "" && c.Cert == "" && c.Key == "" {
		return nil
	}
	return c
}

func (k *connector) slot() string { return or(k.cfg.Replication.Slot, "millrace_"+k.job) }

func (k *connector) publication() string { return or(k.cfg.Replication.Publication, k.slot()) }

// look finds out what is there, and what is wrong with it.
func (k *connector) look(ctx context.Context) (*check.Source, error) {
	return check.RunSource(ctx, check.Options{
		Source: k.source, Job: k.job, Slot: k.slot(), Publication: k.publication(), Patterns: k.patterns,
		CreatePublication: k.cfg.CreateSlot, AllowRemotePublication: k.cfg.CreateSlot, Log: k.log,
	})
}
