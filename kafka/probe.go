package kafka

import (
	"context"
	"errors"
	"fmt"
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
