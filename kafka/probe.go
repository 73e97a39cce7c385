package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
)

// Probe finds what stands in the way of writing: rights, numbers of replicas,
// limits. It changes nothing. fresh says that the topics are yet to be made.
func (c *Control) Probe(ctx context.Context, o *TopicOptions, fresh bool) (problems []error, err error) {
	adm := kadm.NewClient(c.cl)
	if fresh {
		if e := c.mayCreate(ctx, adm, o); e != nil {
			problems = append(problems, e)
		}
	}
	if e := c.mayTransact(ctx); e != nil {
		if millrace.KindOf(e) == millrace.KindRetry {
			return problems, e
		}
		problems = append(problems, e)
	}
	if e := c.limitsOfBrokers(ctx, adm); e != nil {
		problems = append(problems, e)
	}
	return problems, nil
}

// mayTransact asks who coordinates the transactional id, which needs the right
// to use it and fences nobody. On a fresh cluster the first one to ask has to
// wait for a while.
func (c *Control) mayTransact(ctx context.Context) error {
	req := kmsg.NewPtrFindCoordinatorRequest()
	id := transactionalID(c.e.Prefix, c.e.Job)
	req.CoordinatorType, req.CoordinatorKey, req.CoordinatorKeys = 1, id, []string{id}
	for tries := 0; ; tries++ {
		res, err := req.RequestWith(ctx, c.cl)
		if err == nil {
			err = kerr.ErrorForCode(res.ErrorCode)
			for _, co := range res.Coordinators {
				err = errors.Join(err, kerr.ErrorForCode(co.ErrorCode))
			}
		}
		if !errors.Is(err, kerr.CoordinatorNotAvailable) || tries == 100 {
			return c.e.wrap("use transactional id "+id, err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// mayCreate has the cluster check the creation of a topic, without doing it.
func (c *Control) mayCreate(ctx context.Context, adm *kadm.Client, o *TopicOptions) error {
	name := transactionTopic(c.e.Prefix)
	res, err := adm.ValidateCreateTopics(ctx, 1, o.replication(), nil, name)
	if err == nil {
		err = res[name].Err
	}
	switch {
	case err == nil, errors.Is(err, kerr.TopicAlreadyExists):
		return nil
	case errors.Is(err, kerr.InvalidReplicationFactor):
		return &millrace.Error{Kind: millrace.KindPreflight, Op: "create topics", Peer: c.e.Peer, Err: err,
			Hint: "lower destination.kafka.replication to the number of brokers"}
	case errors.Is(err, kerr.PolicyViolation):
		return &millrace.Error{Kind: millrace.KindPreflight, Op: "create topics", Peer: c.e.Peer, Err: err,
			Hint: "create the job's topics as the cluster's policy wants them before the first load; those that exist are used"}
	}
	return c.e.wrap("create topics", err)
}

// limitsOfBrokers looks at what bounds a transaction. Where the right to read it
// is missing, the defaults are taken to hold.
func (c *Control) limitsOfBrokers(ctx context.Context, adm *kadm.Client) error {
	if longest := maxTimeout(ctx, adm); longest < transactionTimeout {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: "write transactions", Peer: c.e.Peer,
			Err:  fmt.Errorf("the brokers end transactions after %v, Millrace asks for %v", longest, transactionTimeout),
			Hint: fmt.Sprintf("set transaction.max.timeout.ms of the brokers to at least %d", transactionTimeout/time.Millisecond)}
	}
	return nil
}

// Forgetful finds settings under which the cluster can lose what it has confirmed: of the
// topics that the prefix has, and of the brokers where they are yet to be made. Where the right to
// read them is missing, nothing is found.
func (c *Control) Forgetful(ctx context.Context, o *TopicOptions) (found []error, err error) {
	all, err := topics(ctx, c.cl)
	if err != nil {
		return nil, c.e.wrap("list topics", err)
	}
	var names []string
	for name := range all {
		if strings.HasPrefix(name, c.e.Prefix+".") {
			names = append(names, name)
		}
	}
	adm := kadm.NewClient(c.cl)
	if len(names) == 0 {
		return c.forgetfulBrokers(ctx, adm, o), nil
	}
	replicas, err := adm.ListTopics(ctx, names...)
	if err != nil {
		return nil, c.e.wrap("describe topics", err)
	}
	configs, err := adm.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return nil, nil
	}
	unclean, alone := []string{}, []string{}
	for _, r := range configs {
		s := safetyOf(r.Configs)
		if s.unclean {
			unclean = append(unclean, r.Name)
		}
		if s.insync == 1 && replicas[r.Name].Partitions.NumReplicas() > 1 {
			alone = append(alone, r.Name)
		}
	}
	return c.forgetful(unclean, alone, "its topics"), nil
}

// forgetfulBrokers is Forgetful for what the brokers give to new topics.
func (c *Control) forgetfulBrokers(ctx context.Context, adm *kadm.Client, o *TopicOptions) []error {
	brokers, err := adm.ListBrokers(ctx)
	if err != nil || len(brokers) == 0 {
		return nil
	}
	configs, err := adm.DescribeBrokerConfigs(ctx, brokers[0].NodeID)
	if err != nil {
		return nil
	}
	var unclean, alone []string
	for _, r := range configs {
		s := safetyOf(r.Configs)
		replication := s.replication
		if o.Replication > 0 {
			replication = o.Replication
		}
		if s.unclean {
			unclean = append(unclean, "the brokers' default")
		}
		if s.insync == 1 && replication > 1 {
			alone = append(alone, "the brokers' default")
		}
	}
	return c.forgetful(unclean, alone, "the brokers")
}

// safety is what configs say of keeping what was confirmed.
type safety struct {
	unclean             bool
	insync, replication int
}

func safetyOf(configs []kadm.Config) (s safety) {
	for _, kv := range configs {
		switch kv.Key {
		case "unclean.leader.election.enable":
			s.unclean = kv.MaybeValue() == "true"
		case "min.insync.replicas":
			s.insync, _ = strconv.Atoi(kv.MaybeValue()) // a number that can't be read says nothing
		case "default.replication.factor":
			s.replication, _ = strconv.Atoi(kv.MaybeValue())
		}
	}
	return s
}

// forgetful makes findings of lists of topics.
func (c *Control) forgetful(unclean, alone []string, of string) (found []error) {
	const why = ": the cluster can lose transactions that it has confirmed, which stops the job and those that read (resync_required)"
	slices.Sort(unclean)
	slices.Sort(alone)
	if len(unclean) > 0 {
		found = append(found, &millrace.Error{Kind: millrace.KindPreflight, Op: "keep what is written", Peer: c.e.Peer,
			Err:  fmt.Errorf("unclean.leader.election.enable=true (%s)%s", some(unclean), why),
			Hint: "set unclean.leader.election.enable=false of " + of})
	}
	if len(alone) > 0 {
		found = append(found, &millrace.Error{Kind: millrace.KindPreflight, Op: "keep what is written", Peer: c.e.Peer,
			Err:  fmt.Errorf("min.insync.replicas=1 with several replicas (%s): a record is confirmed while only one broker has it%s", some(alone), why),
			Hint: "set min.insync.replicas=2 of " + of + ", with three replicas"})
	}
	return found
}

// some names a few of many.
func some(names []string) string {
	const few = 3
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:few], ", ") + " and " + strconv.Itoa(len(names)-few) + " more"
}
