package kafka

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
)

// TopicOptions say how topics are made. Nothing is left to the cluster's
// defaults but what is zero here.
type TopicOptions struct {
	Partitions  int           // of a table's topic; 0: 1
	Replication int           // 0: the cluster's default
	Retention   time.Duration // 0: 7 days; below 0: for ever
	Compact     bool          // keep the newest record of each key only
	// Names says where a table goes that is not to go to the topic with its name.
	Names map[millrace.TableName]string
}

const defaultRetention = 7 * 24 * time.Hour

// dest is a topic that is written to.
type dest struct {
	name       string
	id         [16]byte
	partitions int32
	limit      int      // max.message.bytes
	schema     int      // of the newest record in PREFIX.schema
	shape      string   // of that record
	key        []string // of the table's records; nil: not known yet
}

// awaitTopics waits until the topics, which were just made, can be written to.
func awaitTopics(ctx context.Context, cl *kgo.Client, names ...string) error {
	for {
		found, err := topics(ctx, cl, names...)
		if err != nil {
			return err
		}
		ready := len(found) == len(names)
		for _, t := range found {
			ready = ready && len(t.leaders) > 0 && !slices.Contains(t.leaders, -1)
		}
		if ready {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// config is the configuration of a topic of records.
func (o *TopicOptions) config() map[string]*string {
	retention := o.Retention
	if retention == 0 {
		retention = defaultRetention
	}
	ms := strconv.FormatInt(retention.Milliseconds(), 10)
	if retention < 0 {
		ms = "-1"
	}
	c := map[string]*string{"cleanup.policy": kadm.StringPtr("delete"), "retention.ms": &ms}
	if o.Compact {
		c["cleanup.policy"] = kadm.StringPtr("compact")
		delete(c, "retention.ms")
	}
	return c
}

func (o *TopicOptions) replication() int16 {
	if o.Replication > 0 {
		return int16(o.Replication)
	}
	return -1
}

// ensure makes the topics that are missing and gives what all of them are.
func (e *Endpoint) ensure(ctx context.Context, cl *kgo.Client, o *TopicOptions, names []string) (map[string]*dest, error) {
	found, err := topics(ctx, cl, names...)
	if err != nil {
		return nil, e.wrap("describe topics", err)
	}
	var missing []string
	for _, n := range names {
		if found[n] == nil {
			missing = append(missing, n)
		}
	}
	if len(missing) > 0 {
		for _, n := range missing {
			if err := e.create(ctx, cl, o, n); err != nil {
				return nil, err
			}
		}
		if err := awaitTopics(ctx, cl, missing...); err != nil {
			return nil, e.wrap("create topics", err)
		}
		if found, err = topics(ctx, cl, names...); err != nil {
			return nil, e.wrap("describe topics", err)
		}
	}
	limits, err := e.limits(ctx, cl, names)
	if err != nil {
		return nil, err
	}
	all := make(map[string]*dest, len(names))
	for _, n := range names {
		t := found[n]
		if t == nil {
			return nil, e.wrap("describe topics", fmt.Errorf("topic %s: %w", n, kerr.UnknownTopicOrPartition))
		}
		all[n] = &dest{name: n, id: t.id, partitions: int32(len(t.leaders)), limit: limits[n]}
	}
	return all, nil
}

// layout gives the partitions and the configuration of a topic of the prefix, as it is made.
func (o *TopicOptions) layout(prefix, name string) (partitions int32, config map[string]*string) {
	// So that only the topics of tables, or that of all of them, bound the size of
	// a row.
	unbounded := kadm.StringPtr(strconv.Itoa(maxRecord))
	switch name {
	case schemaTopic(prefix):
		return 1, map[string]*string{"cleanup.policy": kadm.StringPtr("compact"), "max.message.bytes": unbounded}
	case transactionTopic(prefix):
		// The order of transactions must outlive the rows.
		c := *o
		c.Compact = false
		if o.Compact {
			c.Retention = -1
		}
		config = c.config()
		config["max.message.bytes"] = unbounded
		return 1, config
	case streamTopic(prefix):
		return 1, o.config()
	}
	return int32(max(o.Partitions, 1)), o.config()
}

func (e *Endpoint) create(ctx context.Context, cl *kgo.Client, o *TopicOptions, name string) error {
	partitions, config := o.layout(e.Prefix, name)
	res, err := kadm.NewClient(cl).CreateTopic(ctx, partitions, o.replication(), config, name)
	if err == nil {
		err = res.Err
	}
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return nil
	}
	if errors.Is(err, kerr.InvalidReplicationFactor) || errors.Is(err, kerr.PolicyViolation) || errors.Is(err, kerr.InvalidTopicException) ||
		errors.Is(err, kerr.InvalidPartitions) || errors.Is(err, kerr.InvalidConfig) {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: "create topic " + name, Peer: e.Peer, Err: err,
			Hint: "correct destination.kafka.replication, partitions or topics, or create the topic as the cluster's rules want it"}
	}
	return e.wrap("create topic "+name, err)
}

// limits reads the topics' max.message.bytes.
func (e *Endpoint) limits(ctx context.Context, cl *kgo.Client, names []string) (map[string]int, error) {
	configs, err := kadm.NewClient(cl).DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return nil, e.wrap("read the topics' configuration", err)
	}
	limits := make(map[string]int, len(names))
	for _, c := range configs {
		if c.Err != nil {
			return nil, e.wrap("read the configuration of topic "+c.Name, c.Err)
		}
		for _, kv := range c.Configs {
			if kv.Key == "max.message.bytes" {
				if limits[c.Name], err = strconv.Atoi(kv.MaybeValue()); err != nil {
					return nil, e.wrap("read the configuration of topic "+c.Name, err)
				}
			}
		}
	}
	return limits, nil
}

// checkPins holds the topics against what the job has written to so far.
func (e *Endpoint) checkPins(pins map[string]Topic, now map[string]*topic) error {
	for name, pin := range pins {
		if pin.ID == "" {
			continue
		}
		t := now[name]
		var err error
		switch {
		case t == nil:
			err = errors.New("it was deleted, and with it what was delivered")
		case hex.EncodeToString(t.id[:]) != pin.ID:
			err = errors.New("it was deleted and created again, and what was delivered is gone")
		case len(t.leaders) != pin.Partitions:
			err = fmt.Errorf("it has %d partitions and had %d: keys would move to other partitions, and their order would be lost",
				len(t.leaders), pin.Partitions)
		default:
			continue
		}
		return &millrace.Error{Kind: millrace.KindResync, Op: "topic " + name, Peer: e.Peer, Err: err,
			Hint: "start over with `millrace bootstrap --restart-snapshot --yes`, which begins a new generation"}
	}
	return nil
}

func sortTables(tables []record.Table) {
	slices.SortFunc(tables, func(a, b record.Table) int {
		return strings.Compare(a.Name.Schema+"\x00"+a.Name.Name, b.Name.Schema+"\x00"+b.Name.Name)
	})
}
