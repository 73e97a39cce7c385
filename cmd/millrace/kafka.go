package main

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/bootstrap"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/check"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/datum"
	"github.com/millrace/millrace/kafka"
	krecord "github.com/millrace/millrace/kafka/record"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/spool"
)

// kind names the destination's kind.
func (s *settings) kind() string {
	if s.kafka != nil {
		return "kafka"
	}
	return "postgres"
}

func kafkaEndpoint(peer millrace.Peer, k *config.Kafka, job string, safety config.Safety) *kafka.Endpoint {
	return &kafka.Endpoint{
		Peer: peer, Brokers: k.Brokers, Prefix: k.Prefix, Job: job,
		TLS: kafka.TLS{Enable: k.TLS.Enable, CAFile: k.TLS.CA, CertFile: k.TLS.Cert, KeyFile: k.TLS.Key, ServerName: k.TLS.ServerName,
			Require: safety.RequireTLS, InsecureSkipVerify: safety.InsecureSkipTLSVerify},
		SASL: kafka.SASL{Mechanism: k.SASL.Mechanism, User: k.SASL.User, Password: k.SASL.Password.Get},
	}
}

// kafkaSink gives the options of the sink, without spool and encoder.
func (s *settings) kafkaSink() (kafka.Options, error) {
	k := &s.Destination.Kafka
	o := kafka.Options{Endpoint: s.kafka, Layout: k.Layout, Keys: s.keys, Group: s.Apply.Group, MaxHeld: int64(s.Resources.MaxInflight) / 2, Log: s.log,
		Topics: kafka.TopicOptions{Partitions: k.Partitions, Replication: k.Replication, Retention: k.Retention, Compact: k.Compact,
			Names: map[millrace.TableName]string{}}}
	for table, topic := range k.Topics {
		name, err := catalog.ParseTableName(table)
		if err != nil {
			return o, &millrace.Error{Kind: millrace.KindConfig, Op: "destination.kafka.topics", Err: err}
		}
		o.Topics.Names[name] = topic
	}
	return o, nil
}

// encode makes what the options lack to write records: the encoder of the
// configured format, and descriptions of tables.
func (s *settings) encode(ctx context.Context, to *kafka.Options) error {
	k := &s.Destination.Kafka
	database, err := s.databaseName(ctx)
	if err != nil {
		return err
	}
	o := krecord.Options{Format: krecord.Format(k.Format), Prefix: k.Prefix, Database: database, Version: version(),
		Toast: krecord.Toast(k.Toast), Lossy: k.Types == config.TypesDebezium,
		Topic: func(t millrace.TableName) string {
			if n := to.Topics.Names[t]; n != "" {
				return n
			}
			return kafka.TopicOf(k.Prefix, t)
		}}
	if k.Decimal == "bytes" {
		o.Decimal = datum.DecimalBytes
	}
	if o.Format.NeedsRegistry() {
		password, err := k.Registry.Password.Get()
		if err != nil {
			return err
		}
		o.Registry, err = krecord.NewRegistry(krecord.RegistryOptions{URL: k.Registry.URL, User: k.Registry.User, Password: password,
			RequireTLS: s.Safety.RequireTLS})
		if err != nil {
			return &millrace.Error{Kind: millrace.KindConfig, Op: "destination.kafka.registry", Err: err}
		}
	}
	if to.Encoder, err = krecord.NewEncoder(o); err != nil {
		return &millrace.Error{Kind: millrace.KindConfig, Op: "destination.kafka.format", Err: err}
	}
	to.Describe = func(ctx context.Context, rel *millrace.Relation, key []int) (*krecord.TableVersion, error) {
		return s.describeTable(ctx, o, rel, key)
	}
	return nil
}

// describeTable adds what the catalog says of a table now. A table that is gone,
// or has another shape by now, is described by what the stream says of it.
func (s *settings) describeTable(ctx context.Context, o krecord.Options, rel *millrace.Relation, key []int) (*krecord.TableVersion, error) {
	conn, err := s.source.Connect(ctx, session.Watch)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	found, err := catalog.Describe(ctx, conn, []uint32{rel.OID})
	if err != nil {
		return nil, session.Wrap("describe a table", millrace.PeerSource, err)
	}
	constraints, err := catalog.Constraints(ctx, conn, []uint32{rel.OID})
	if err != nil {
		return nil, session.Wrap("describe a table", millrace.PeerSource, err)
	}
	return krecord.NewTableVersion(o, rel, key, found[rel.OID], constraints[rel.OID]), nil
}

// databaseName is what source.db of the envelope says.
func (s *settings) databaseName(ctx context.Context) (string, error) {
	conn, err := s.source.Connect(ctx, session.Watch)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return conn.Config().Database, nil
}

// tableFacts reads what the sink has to know of tables and the stream does not
// say, as it is now.
func (s *settings) tableFacts(ctx context.Context, tables []record.Table) (func(*millrace.Relation) *kafka.TableFacts, error) {
	conn, err := s.source.Connect(ctx, session.Watch)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	oids := make([]uint32, len(tables))
	for i := range tables {
		oids[i] = tables[i].OID
	}
	return bootstrap.FactsOf(ctx, conn, oids)
}

// loadKafka does the first load into Kafka.
func (s *settings) loadKafka(ctx context.Context, o bootstrap.Options) error {
	sink, err := s.kafkaSink()
	if err != nil {
		return err
	}
	ctl, err := s.kafka.OpenControl()
	if err != nil {
		return err
	}
	state, err := ctl.Read(ctx)
	if err == nil && state.Job == nil {
		err = refuseRivals(ctx, ctl, s)
	}
	ctl.Close()
	if err != nil {
		return err
	}
	if bootstrap.Besides(state.Job) && !o.Restart {
		return nil // the slot tells whether another instance works on it
	}
	if o.DryRun != nil {
		return bootstrap.RunKafka(ctx, bootstrap.KafkaOptions{Options: o, Sink: sink, State: state})
	}
	if rt := state.Newest(o.Instance); rt != nil && time.Since(rt.HeartbeatAt) < silentBeats*s.Safety.HeartbeatInterval {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: "first load",
			Err:  fmt.Errorf("another instance works on job %s: pid %d on %s", s.Job, rt.PID, rt.Host),
			Hint: "stop it first; if it was killed, its heartbeat counts for " + (silentBeats * s.Safety.HeartbeatInterval).String()}
	}
	if err := s.encode(ctx, &sink); err != nil {
		return err
	}
	return bootstrap.RunKafka(ctx, bootstrap.KafkaOptions{Options: o, Sink: sink, State: state})
}

// refuseRivals: a prefix belongs to one job.
func refuseRivals(ctx context.Context, ctl *kafka.Control, s *settings) error {
	others, err := ctl.Rivals(ctx)
	if err != nil || len(others) == 0 {
		return err
	}
	return &millrace.Error{Kind: millrace.KindPreflight, Op: "destination", Peer: millrace.PeerDestination,
		Err:  fmt.Errorf("prefix %s belongs to job %s already", s.kafka.Prefix, others[0]),
		Hint: "choose another prefix; or clean that job up and delete all topics of the prefix"}
}

// newKafkaSink makes the sink of a run.
func (r *runner) newKafkaSink(ctx context.Context, sp *spool.Spool) (*kafka.Sink, error) {
	o, err := r.kafkaSink()
	if err != nil {
		return nil, err
	}
	o.Spool = sp
	o.OnClaim = func(cp millrace.Checkpoint) { r.keeper.know(cp.Generation, cp.Epoch) }
	o.Facts = func(rel *millrace.Relation) *kafka.TableFacts {
		if facts := r.facts.Load(); facts != nil {
			return (*facts)(rel)
		}
		return nil
	}
	err = r.retry(ctx, func() error { return r.encode(ctx, &o) })
	return kafka.New(o), err
}

// readFacts reads the facts of the tables that the stream takes up, for a sink into
// Kafka, which is claimed behind that.
func (r *runner) readFacts(ctx context.Context, j *record.Job) error {
	if r.kafka == nil {
		return nil
	}
	facts, err := r.tableFacts(ctx, j.Tables)
	if err == nil {
		r.facts.Store(&facts)
	}
	return err
}

// kafkaLedger is a record in a control topic.
type kafkaLedger struct {
	*kafka.Control
	closed bool
}

func (l *kafkaLedger) Read(ctx context.Context) (*record.Job, millrace.Checkpoint, error) {
	s, err := l.Control.Read(ctx)
	if err != nil {
		return nil, millrace.Checkpoint{}, err
	}
	return s.Job, s.Checkpoint, nil
}

// Newest judges the heartbeat by this machine's clock: Kafka has none to ask.
func (l *kafkaLedger) Newest(ctx context.Context, except string) (*record.Runtime, time.Duration, error) {
	s, err := l.Control.Read(ctx)
	if err != nil {
		return nil, 0, err
	}
	rt := s.Newest(except)
	if rt == nil {
		return nil, 0, nil
	}
	return rt, time.Since(rt.HeartbeatAt), nil
}

func (l *kafkaLedger) Ready(ctx context.Context) (bool, error) { return l.Exists(ctx) }

// HeldOn can't tell: the control topic keeps the newest checkpoint only.
func (l *kafkaLedger) HeldOn(_ context.Context, timeline int32, _ millrace.LSN) (bool, error) {
	return false, &millrace.Error{Kind: millrace.KindPreflight, Op: "wait",
		Err: fmt.Errorf("a position of timeline %d can't be compared: a Kafka destination records the present timeline only", timeline), Hint: takeNewToken}
}

// Settle has nothing to do: what is read committed is durable.
func (l *kafkaLedger) Settle(context.Context) error { return nil }

func (l *kafkaLedger) Closed() bool { return l.closed }

func (l *kafkaLedger) Close(context.Context) error {
	l.closed = true
	l.Control.Close()
	return nil
}

// kafkaDestination is what check looks at.
type kafkaDestination struct{ s *settings }

func (d kafkaDestination) Record(ctx context.Context) (*record.Job, millrace.Checkpoint, error) {
	return d.s.readLedger(ctx)
}

func (d kafkaDestination) Check(ctx context.Context, job *record.Job, tables []*catalog.Table) (problems, warnings []check.Finding, err error) {
	o, err := d.s.kafkaSink()
	if err != nil {
		return nil, nil, err
	}
	ctl, err := d.s.kafka.OpenControl()
	if err != nil {
		return nil, nil, err
	}
	defer ctl.Close()
	for _, f := range bootstrap.TopicProblems(&o, tables) {
		problems = append(problems, check.Finding(f))
	}
	found, err := ctl.Probe(ctx, &o.Topics, job == nil)
	for _, e := range found {
		problems = append(problems, check.Finding{Subject: "destination", Text: e.Error(), Cure: millrace.HintOf(e)})
	}
	if err != nil {
		return problems, nil, err
	}
	refused := []error{ctl.OneLayout(ctx, o.Layout)}
	if job == nil {
		refused = append(refused, refuseRivals(ctx, ctl, d.s))
	}
	for _, e := range refused {
		if e != nil {
			problems = append(problems, check.Finding{Subject: "destination", Text: e.Error(), Cure: millrace.HintOf(e)})
		}
	}
	forgetful, err := ctl.Forgetful(ctx, &o.Topics)
	for _, e := range forgetful {
		warnings = append(warnings, check.Finding{Subject: "destination", Text: e.Error(), Cure: millrace.HintOf(e)})
	}
	if err != nil {
		return problems, warnings, err
	}
	if n := d.s.Destination.Kafka.Partitions; n > 1 {
		warnings = append(warnings, check.Finding{Subject: "destination",
			Text: fmt.Sprintf("with %d partitions a topic, the order of a table's changes is kept for each key, not for the table", n),
			Cure: "use partitions: 1 where consumers need the table's order, or rebuild whole transactions (docs/kafka.md)"})
	}
	return problems, warnings, nil
}

// destinationServer names the destination without secrets.
func (s *settings) destinationServer() string {
	if s.kafka != nil {
		return s.kafka.String()
	}
	return s.target.Redacted()
}
