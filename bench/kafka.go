package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/rig/kafkaserver"
)

// nameDebezium is the peer on the way into Kafka.
const nameDebezium = "Debezium " + debeziumVersion

// wordDebezium is its word of -contenders.
const wordDebezium = "debezium"

const kafkaVersion = kafkaserver.Version

// brokerJVM is what the broker gets that both write to.
var brokerJVM = []string{"-Xms1g", "-Xmx1g"}

// kafkaSet is a workload on the way into Kafka.
type kafkaSet struct {
	name, sql, title string
	n                int
	records          func(n int) int // of the table's topic, tombstones among them
	rows, txs        func(n int) int
	snapshot         bool
}

var kafkaSets = []kafkaSet{
	{"kafka-small", "small", "%s transactions × 3 rows", 200_000, times(4), times(3), times(1), false},
	{"kafka-insert", "insert", "one transaction, %s inserts", 1_000_000, times(1), times(1), one, false},
	{"kafka-load", "load", "first load of %s narrow rows", 1_000_000, times(1), times(1), one, true},
}

// kafkaBench has one source, one broker that both contenders write to, the worker
// that Debezium runs in, and a target for what comes out of Kafka again.
type kafkaBench struct {
	*bench
	cluster *kafkaserver.Cluster
	adm     *kadm.Client
	worker  *connect
}

func runKafka(ctx context.Context, o options) error {
	b := &kafkaBench{bench: &bench{options: o}}
	return b.between(ctx, func() error { return b.besideDebezium(ctx) })
}

// besideDebezium takes all sets that are wanted, with a broker and Debezium's worker.
func (b *kafkaBench) besideDebezium(ctx context.Context) (err error) {
	if b.cluster, err = kafkaserver.Start(ctx, kafkaserver.Options{Name: "-bench", JVM: brokerJVM}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.cluster.Close()) }()
	// By default it looks for new topics every five seconds only.
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.Brokers()...), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	b.adm = kadm.NewClient(cl)
	if b.has(wordDebezium) {
		if b.worker, err = startConnect(ctx, b.dir, b.cluster.Brokers()[0]); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.worker.close()) }()
	}
	b.report.Native = ""
	for _, w := range kafkaSets {
		if !b.wanted(w.name, true) {
			continue
		}
		sets, err := b.measureSet(ctx, w)
		for _, s := range sets {
			err = errors.Join(err, b.keep(s))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return b.conclude()
}

// conclude renders the documentation, and looks at the memory of our own.
func (b *kafkaBench) conclude() error {
	if b.write {
		path := filepath.Join(b.root, "docs", "benchmarks.md")
		if err := replaceBetween(path, beginKafka, endKafka, b.report.kafkaMarkdown()); err != nil {
			return err
		}
	}
	limits, err := loadThresholds(filepath.Join(b.root, "bench", "thresholds.json"))
	if err != nil {
		return err
	}
	return limits.checkMemory(b.done)
}

// measureSet makes the backlog, has it carried into Kafka by both contenders and,
// unless it is a first load, from there into a database.
func (b *kafkaBench) measureSet(ctx context.Context, w kafkaSet) (sets []set, err error) {
	s := b.newStage(b.size(w.n))
	s.settle = settleWithin
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, b.dropSlots(ctx), s.close(ctx), dropUnbottled(ctx, s))
	}()
	if err := b.open(ctx, s, w); err != nil {
		return nil, err
	}
	out, err := b.compete(ctx, w, s.n)
	if err != nil {
		return nil, err
	}
	sets = append(sets, out)
	if !w.snapshot {
		out, err = b.unbottle(ctx, s, w)
		sets = append(sets, out)
	}
	return sets, err
}

const settleWithin = 5 * time.Second

// compete lets both take turns. The first round warms up the JVMs and the
// broker, and is not counted.
func (b *kafkaBench) compete(ctx context.Context, w kafkaSet, n int) (out set, err error) {
	out = set{Name: w.name, Kind: kindKafka, Title: fmt.Sprintf(w.title, thousands(n)), Rows: w.rows(n), Transactions: w.txs(n)}
	for round := range b.rounds + 1 {
		contenders := []kafkaContender{&millraceRun{b: b}}
		if b.worker != nil {
			contenders = slices.Insert(contenders, 0, kafkaContender(&debeziumRun{b: b}))
		}
		for _, c := range contenders {
			m, err := b.once(ctx, w, n, round, c)
			if err != nil {
				return out, fmt.Errorf("%s: %w", c.name(), err)
			}
			if round > 0 {
				out.add(c.name(), m)
			}
		}
	}
	return out, nil
}

// run names what belongs to one run of one contender: the prefix of its topics,
// its job or connector, and its slot.
func runName(letter string, w kafkaSet, round int) string {
	return fmt.Sprintf("%s_%s_%d", letter, strings.TrimPrefix(w.name, "kafka-"), round)
}

// open makes the databases, the slots of all runs and then the backlog.
func (b *kafkaBench) open(ctx context.Context, s *stage, w kafkaSet) error {
	if err := errors.Join(b.dropSlots(ctx), s.open(ctx, workloadSQL(w.sql))); err != nil {
		return err
	}
	if w.snapshot { // no WAL is needed
		if err := s.source.dropSlot(ctx, baseSlot); err != nil {
			return err
		}
		return s.source.exec(ctx, sourceDB, fmt.Sprintf("CALL generate(%d)", s.n), "VACUUM (FREEZE, ANALYZE)")
	}
	for round := range b.rounds + 1 {
		config, err := b.configure(runName("m", w, round), "none")
		if err != nil {
			return err
		}
		if err := b.millraceCommand(ctx, "bootstrap", config); err != nil {
			return err
		}
	}
	if err := errors.Join((&millraceApplier{}).prepare(ctx, s), b.openUnbottled(ctx, s, w)); err != nil {
		return err
	}
	return s.generate(ctx)
}

func (b *kafkaBench) dropSlots(ctx context.Context) error {
	return b.source.exec(ctx, "postgres",
		"SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE active_pid IS NOT NULL",
		"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
}

// kafkaContender carries one backlog, or one first load, into Kafka.
type kafkaContender interface {
	name() string
	letter() string
	arm(ctx context.Context, w kafkaSet, name string) error
	start(ctx context.Context, w kafkaSet, name string) error
	pid() int
	cpu() time.Duration // since start
	broken(ctx context.Context, name string) error
	failure(err error) error // with the end of what it printed
	// done tells whether more than what lies in the topics is asked for.
	done() bool
	disarm(ctx context.Context, name string) error
}

func (b *kafkaBench) once(ctx context.Context, w kafkaSet, n, round int, c kafkaContender) (m sample, err error) {
	name := runName(c.letter(), w, round)
	defer func() { err = errors.Join(err, c.disarm(context.WithoutCancel(ctx), name)) }()
	if err := c.arm(ctx, w, name); err != nil {
		return m, err
	}
	if err := errors.Join(b.source.exec(ctx, "postgres", "CHECKPOINT"), settle(ctx, settleWithin)); err != nil {
		return m, err
	}
	busy, source, broker := machineBusy(), cpuOfTree(b.source.PID()), cpuOf(b.cluster.PID(1))
	began := time.Now()
	if err := c.start(ctx, w, name); err != nil { // it may outlive the time that it is given
		return m, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	watch := watchMemory(c.pid())
	if err := b.awaitTopics(ctx, w, n, name, c); err != nil {
		watch.stop()
		return m, c.failure(err)
	}
	m.Seconds = seconds(time.Since(began))
	m.SourceCPU, m.TargetCPU = seconds(cpuOfTree(b.source.PID())-source), seconds(cpuOf(b.cluster.PID(1))-broker)
	m.ClientCPU = seconds(c.cpu())
	m.PeakBytes, m.MedianBytes = watch.stop()
	m.ForeignCPU = max(0, seconds(machineBusy()-busy)-m.SourceCPU-m.TargetCPU-m.ClientCPU)
	if round == 0 {
		err = b.count(ctx, name+"."+tableOfSet(w), w.records(n))
	}
	return m, err
}

func tableOfSet(w kafkaSet) string {
	if w.snapshot {
		return "public.narrow"
	}
	return "public.item"
}

// awaitTopics polls until a read_committed consumer can read everything: the
// table's records are complete, nothing is held back behind an open transaction,
// and the row that was committed last is there.
func (b *kafkaBench) awaitTopics(ctx context.Context, w kafkaSet, n int, prefix string, c kafkaContender) error {
	table, marker := prefix+"."+tableOfSet(w), prefix+".public."+markerTable
	lastLook := time.Now()
	for {
		stable, err := b.adm.ListCommittedOffsets(ctx, table, marker)
		if err != nil && !errors.Is(err, kerr.LeaderNotAvailable) { // a topic that is just being made
			return err
		}
		at, ok := stable.Lookup(table, 0)
		last, marked := stable.Lookup(marker, 0)
		if ok && at.Err == nil && at.Offset >= int64(w.records(n)) && (w.snapshot || marked && last.Err == nil && last.Offset > 0) && c.done() {
			high, err := b.adm.ListEndOffsets(ctx, table)
			if err != nil {
				return err
			}
			if h, ok := high.Lookup(table, 0); ok && h.Err == nil && h.Offset == at.Offset {
				return nil
			}
		}
		if time.Since(lastLook) > time.Second {
			lastLook = time.Now()
			if err := c.broken(ctx, prefix); err != nil {
				return err
			}
		}
		if err := pause(ctx, 2*pollEvery); err != nil {
			return fmt.Errorf("wait for %d records, %d are there: %w", w.records(n), at.Offset, err)
		}
	}
}

// count reads the topic as a read_committed consumer, to the end.
func (b *kafkaBench) count(ctx context.Context, topic string, want int) error {
	ends, err := b.adm.ListEndOffsets(ctx, topic)
	if err != nil {
		return err
	}
	end, _ := ends.Lookup(topic, 0)
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.cluster.Brokers()...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		return err
	}
	defer cl.Close()
	got := 0
	for next := int64(0); next < end.Offset; {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if next = r.Offset + 1; !r.Attrs.IsControl() {
				got++
			}
		})
	}
	if got != want {
		return fmt.Errorf("topic %s has %d records, want %d", topic, got, want)
	}
	return nil
}
