package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Unbottling is measured against the direct way: the same backlog from the source
// into the target, and from the topics into the target.

const (
	unbottledDB = "bench_unbottled" // the template: what was there before the backlog, through Kafka
	nameDirect  = nameMillrace + ", PostgreSQL → PostgreSQL"
	nameOut     = nameMillrace + ", Kafka → PostgreSQL"
)

const unbottleConfiguration = `job: bench_out
source:
  kafka: {brokers: ["%s"], prefix: %s}
destination:
  postgres: {url: "%s", schema: create}
http: {listen: "127.0.0.1:0"}
`

// bottle names the job, and the prefix, of the topics that are read.
func bottle(w kafkaSet) string { return "u_" + strings.TrimPrefix(w.name, "kafka-") }

func (b *kafkaBench) configureOut(w kafkaSet, db string) (string, error) {
	path := filepath.Join(b.dir, db+".yaml")
	text := fmt.Sprintf(unbottleConfiguration, b.cluster.Brokers()[0], bottle(w), b.target.URL(db))
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// openUnbottled loads what is there before the backlog into topics and from there
// into the template, with both jobs.
func (b *kafkaBench) openUnbottled(ctx context.Context, s *stage, w kafkaSet) error {
	if err := s.target.recreate(ctx, unbottledDB, ""); err != nil {
		return err
	}
	in, err := b.configure(bottle(w), "consistent")
	if err != nil {
		return err
	}
	out, err := b.configureOut(w, unbottledDB)
	if err != nil {
		return err
	}
	for _, config := range []string{in, out} {
		if err := b.millraceCommand(ctx, "bootstrap", config); err != nil {
			return err
		}
	}
	return s.target.exec(ctx, unbottledDB, "VACUUM ANALYZE")
}

func dropUnbottled(ctx context.Context, s *stage) error {
	return s.target.exec(ctx, "postgres", "DROP DATABASE IF EXISTS "+unbottledDB+" WITH (FORCE)")
}

// unbottle has the backlog written to the topics, and then both ways take turns.
func (b *kafkaBench) unbottle(ctx context.Context, s *stage, w kafkaSet) (set, error) {
	out := set{Name: "unbottle-" + strings.TrimPrefix(w.name, "kafka-"), Kind: kindUnbottle, Title: fmt.Sprintf(w.title, thousands(s.n)), Rows: w.rows(s.n), Transactions: w.txs(s.n)}
	if err := b.millraceCommand(ctx, "run", filepath.Join(b.dir, bottle(w)+".yaml"), "--until-current"); err != nil {
		return out, err
	}
	return out, b.turns(ctx, s, &out, b.rounds, []contender{drain{&directApplier{}}, drain{&unbottleApplier{b: b, w: w}}})
}

// directApplier is the program from one PostgreSQL to the other.
type directApplier struct{ millraceApplier }

func (*directApplier) name() string { return nameDirect }

// unbottleApplier is the program from the topics to the target. What it says of the
// source's CPU time is the broker's.
type unbottleApplier struct {
	program
	b      *kafkaBench
	w      kafkaSet
	config string
	broker time.Duration
}

func (*unbottleApplier) name() string                          { return nameOut }
func (*unbottleApplier) prepare(context.Context, *stage) error { return nil }

func (a *unbottleApplier) arm(ctx context.Context, s *stage) (err error) {
	if err := s.target.recreate(ctx, runDB, unbottledDB); err != nil {
		return err
	}
	a.config, err = a.b.configureOut(a.w, runDB)
	return err
}

func (a *unbottleApplier) start(ctx context.Context, s *stage) error {
	a.broker = cpuOf(a.b.cluster.PID(1))
	return a.launch(ctx, s.millrace, a.config)
}

func (a *unbottleApplier) observe(_ context.Context, _ *stage, m *sample) {
	m.SourceCPU = seconds(cpuOf(a.b.cluster.PID(1)) - a.broker)
	a.figures(m)
}

func (a *unbottleApplier) disarm(context.Context, *stage) error { return a.end() }
