package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/check"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/hooks"
	"github.com/millrace/millrace/kafka"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/web"
)

// settings are what flags, environment and file come to.
type settings struct {
	*config.Config
	source, target *session.Endpoint
	// kafka is the destination, if that is not target.
	kafka *kafka.Endpoint
	// prefix is the source, if that is not source.
	prefix   *kafka.Endpoint
	patterns catalog.Patterns
	keys     catalog.Keys
	log      *slog.Logger
	warned   map[check.Finding]bool // what preflight has said
	journal  *web.Journal           // what was logged
}

// override says what a verb's own flags change before the check.
type override func(*config.Config)

// load reads the configuration and reports all its problems at once.
func (a *app) load(overrides ...override) (*settings, error) {
	s, problems, err := a.configure(overrides...)
	if err == nil && len(problems) > 0 {
		err = configError(problems)
	}
	return s, err
}

// loadTarget is load for verbs that can do without the source: with --to and
// --job alone they look at the destination only, and s.source is nil.
func (a *app) loadTarget() (*settings, error) {
	s, problems, err := a.configure()
	if err != nil {
		return nil, err
	}
	without := func(p config.Problem) bool { return p.Path == "source.postgres.url" && p.Message == "missing" }
	if s.Job != "" && slices.ContainsFunc(problems, without) {
		problems = slices.DeleteFunc(problems, without)
		s.source = nil
	}
	if len(problems) > 0 {
		return nil, configError(problems)
	}
	return s, nil
}

// configure is load with the problems apart: the settings can be used as far as
// there are none.
func (a *app) configure(overrides ...override) (*settings, config.Problems, error) {
	journal := web.NewJournal()
	log, err := a.logger(journal)
	if err != nil {
		return nil, nil, err
	}
	c, problems := a.read()
	for _, set := range overrides {
		set(c)
	}
	if len(problems) == 1 && problems[0].Path == noFile {
		return nil, nil, configError(problems)
	}
	problems = problems.Plus(c.Validate(config.Checks{
		Patterns: func(texts []string) []error {
			_, errs := catalog.ParsePatterns(texts)
			return errs
		},
		Keys: func(texts map[string][]string) []error {
			_, errs := catalog.ParseKeys(texts)
			return errs
		},
		Conn: func(peer millrace.Peer, conn string, safety config.Safety) error {
			e := session.Static(peer, conn, c.Job)
			e.TLS = session.TLSPolicy{Require: safety.RequireTLS, InsecureSkipVerify: safety.InsecureSkipTLSVerify}
			_, err := e.Config()
			return cause(err)
		},
		Webhook: func(url string, safety config.Safety) error { return hooks.CheckURL(url, safety.RequireTLS) },
		Kafka: func(peer millrace.Peer, k *config.Kafka, safety config.Safety) error {
			return kafkaEndpoint(peer, k, c.Job, safety).Check()
		},
	}))
	chosen, _ := catalog.ParseKeys(c.Keys) // checked above
	s := &settings{Config: c, patterns: parsePatterns(c), keys: chosen, log: log, journal: journal, warned: map[check.Finding]bool{}}
	s.source = s.endpoint(millrace.PeerSource, c.SourceConn)
	s.target = s.endpoint(millrace.PeerDestination, c.TargetConn)
	if k := &c.Destination.Kafka; k.Set() {
		s.kafka = kafkaEndpoint(millrace.PeerDestination, k, c.Job, c.Safety)
		s.kafka.Timeout, s.kafka.Log = c.Resources.ConnectionTimeout, log
	}
	if k := &c.Source.Kafka; k.Set() {
		s.prefix = kafkaEndpoint(millrace.PeerSource, k, c.Job, c.Safety)
		s.prefix.Timeout, s.prefix.Log = c.Resources.ConnectionTimeout, log
	}
	if !a.isolated {
		a.warnOfPasswords(log)
	}
	return s, problems, nil
}

// read merges the three places: a flag beats the environment, which beats the
// file.
func (a *app) read() (*config.Config, config.Problems) {
	path, from, to := a.config, a.from, a.to
	if !a.isolated {
		path = or(path, os.Getenv("MILLRACE_CONFIG"))
		from, to = or(from, os.Getenv("MILLRACE_FROM")), or(to, os.Getenv("MILLRACE_TO"))
	}
	if path == "" {
		return config.FromURLs(from, to, a.job, a.tables)
	}
	if _, err := os.Stat(path); err != nil {
		// Nothing else can be said of what it would hold.
		return config.Default(), config.Problems{{Path: noFile, Message: err.Error()}}
	}
	c, problems := config.Load(path)
	if from != "" {
		c.SetSource(from)
	}
	if to != "" {
		c.SetDestination(to)
	}
	if a.job != "" {
		c.Job = a.job
	}
	if len(a.tables) > 0 {
		c.SetTables(a.tables)
	}
	return c, problems
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// failover tells whether the slot is to be copied to standbys. PostgreSQL does
// not copy one that has two-phase commit: what was prepared before the copy was
// made could be lost.
func (s *settings) failover() bool { return s.Source.Postgres.Failover && !s.Source.Postgres.TwoPhase }

func (s *settings) endpoint(peer millrace.Peer, conn func() (string, error)) *session.Endpoint {
	return &session.Endpoint{
		Peer: peer, Conn: conn, Job: s.Job, Log: s.log, Timeout: s.Resources.ConnectionTimeout,
		TLS: session.TLSPolicy{Require: s.Safety.RequireTLS, InsecureSkipVerify: s.Safety.InsecureSkipTLSVerify},
	}
}

// cause gives what an error of package session says without its operation,
// which the path of the key names.
func cause(err error) error {
	var e *millrace.Error
	if !errors.As(err, &e) {
		return err
	}
	if e.Hint != "" {
		return fmt.Errorf("%w (%s)", e.Err, e.Hint)
	}
	return e.Err
}

// configError is one error per problem.
func configError(problems config.Problems) error {
	errs := make([]error, len(problems))
	for i, p := range problems {
		errs[i] = &millrace.Error{Kind: millrace.KindConfig, Op: p.Path, Err: errors.New(p.Message), Hint: configHint(p)}
	}
	return errors.Join(errs...)
}

// configHint says what cures a problem of the configuration.
func configHint(p config.Problem) string {
	missing := p.Message == "missing"
	switch {
	case p.Path == "source.postgres.url" && missing:
		return "give a configuration file with -c, or --from and --to"
	case p.Path == "destination.postgres.url" && missing:
		return "add it to the file, or give --to"
	case p.Path == "job":
		return "job: NAME in the file, or --job NAME"
	case strings.Contains(p.Message, "environment variable"):
		return "export it for this process (systemd: EnvironmentFile=); a plain ${ is written $${"
	case strings.Contains(p.Message, "not available in this version"):
		return "take it out: this version can't do that, and ignores nothing"
	case p.Path == "source.postgres.tables", p.Path == "source.kafka.tables":
		return "patterns are written as for pg_dump -t, with a schema, such as 'public.*' or 'public.\"Odd name\"'"
	case p.Path == "resources.memory_budget":
		return "raise it, or lower what has to fit into it"
	case strings.HasSuffix(p.Path, ".url"):
		return "correct the connection string; @, / and % in a password are written %40, %2F and %25, or use libpq's keyword=value form"
	case p.Path == noFile:
		return "correct the path behind -c or in MILLRACE_CONFIG"
	}
	return "correct it in the configuration: docs/configuration.md describes all keys"
}

// noFile is the path of the one problem of a file that can't be read.
const noFile = "configuration file"

// hasPassword looks for a password that stands in the text itself, in URL or in
// keyword form.
var hasPassword = regexp.MustCompile(`(?i)://[^/@:]*:[^/@]+@|[?& ]password=|^password=`)

func (a *app) warnOfPasswords(log *slog.Logger) {
	for flag, value := range map[string]string{"--from": a.from, "--to": a.to} {
		if hasPassword.MatchString(value) {
			log.Warn("a password on the command line can be read by others on this machine", "flag", flag,
				"hint", "use ~/.pgpass, a service file, the environment or ${VAR} in a configuration file")
		}
	}
}
