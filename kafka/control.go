package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
)

// Control is the job's record in its control topic, for one process. Its methods
// may be called by one goroutine at a time.
type Control struct {
	e      *Endpoint
	cl     *kgo.Client
	reader controlReader
}

// OpenControl makes a Control. It connects when it is first used.
func (e *Endpoint) OpenControl() (*Control, error) {
	// One request at a time and no linger: a heartbeat is a record, not a load.
	cl, err := e.client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RecordDeliveryTimeout(retryWithin), kgo.ProducerLinger(0))
	if err != nil {
		return nil, err
	}
	return &Control{e: e, cl: cl}, nil
}

// Close disconnects.
func (c *Control) Close() { c.cl.Close() }

// Read gives what the control topic holds now: committed records up to the last
// stable offset, and the signs of life behind it. It changes nothing. A topic
// that does not exist is an empty State.
func (c *Control) Read(ctx context.Context) (*State, error) {
	s, err := c.reader.state(ctx, c.cl, controlTopic(c.e.Prefix, c.e.Job), c.e.Job, func(p page) int64 { return p.stable })
	return s, c.e.wrap("read the job's record", err)
}

// openWithin bounds how long ReadBehind waits for transactions that are open.
const openWithin = 2 * time.Second

// ReadBehind is Read, but waits for transactions that have written to the topic before and are
// open, unless one takes long: a commit is confirmed before its marker is in the topic.
func (c *Control) ReadBehind(ctx context.Context) (*State, error) {
	const op = "read the job's record"
	name := controlTopic(c.e.Prefix, c.e.Job)
	found, err := topics(ctx, c.cl, name)
	if err != nil || found[name] == nil {
		return newState(), c.e.wrap(op, err)
	}
	t, _, err := onlyPartition(ctx, c.cl, found[name])
	if err != nil {
		return nil, c.e.wrap(op, err)
	}
	all, err := offsets(ctx, c.cl, -1, t)
	if err != nil {
		return nil, c.e.wrap(op, err)
	}
	waiting, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	s, err := c.reader.state(waiting, c.cl, name, c.e.Job, func(page) int64 { return all[t][0] })
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		return c.Read(ctx)
	}
	return s, c.e.wrap(op, err)
}

// write produces records outside of any transaction and waits for them.
func (c *Control) write(ctx context.Context, op string, records ...*kgo.Record) error {
	err := c.cl.ProduceSync(ctx, records...).FirstErr()
	return c.e.wrap(op, err)
}

// SetState writes the job's state with its reason and hint, under the epoch that
// the record has now; or has in a moment, if somebody is just claiming the job.
func (c *Control) SetState(ctx context.Context, state record.State, reason, hint string) error {
	s, err := c.Read(ctx)
	for n := 0; n < 10 && err == nil && s.undecided; n++ {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		s, err = c.Read(ctx)
	}
	if err != nil {
		return err
	}
	if s.Job == nil {
		return noJob("write the job's state")
	}
	return c.setState(ctx, s.Checkpoint.Generation, s.Checkpoint.Epoch, stateJSON{string(state), reason, hint})
}

// SetStateAs is SetState for an instance that has read or claimed the job: once
// another one has claimed it since, or begun a new load, the error wraps
// record.ErrFenced. One that claims it at this moment is not in the way: what is
// written under an epoch that has passed is not read.
func (c *Control) SetStateAs(ctx context.Context, f record.Fence, state record.State, reason, hint string) error {
	const op = "write the job's state"
	s, err := c.Read(ctx)
	if err != nil {
		return err
	}
	if s.Job == nil {
		return noJob(op)
	}
	if s.undecided && s.Checkpoint.Epoch < f.Epoch {
		return &millrace.Error{Kind: millrace.KindRetry, Op: op, Peer: c.e.Peer, Err: errors.New("the claim's marker has not come yet")}
	}
	if s.Checkpoint.Generation != f.Generation || s.Checkpoint.Epoch != f.Epoch {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: op, Peer: c.e.Peer, Err: record.ErrFenced,
			Hint: "millrace status shows which one works on the job now"}
	}
	return c.setState(ctx, f.Generation, f.Epoch, stateJSON{string(state), reason, hint})
}

func (c *Control) setState(ctx context.Context, generation, epoch int64, s stateJSON) error {
	return c.write(ctx, "write the job's state", c.e.control(stateKey(generation, epoch), s))
}

// Exists tells whether there is a control topic.
func (c *Control) Exists(ctx context.Context) (bool, error) {
	name := controlTopic(c.e.Prefix, c.e.Job)
	found, err := topics(ctx, c.cl, name)
	return found[name] != nil, c.e.wrap("look for the job's record", err)
}

// Beat writes the instance's sign of life, with this machine's clock.
func (c *Control) Beat(ctx context.Context, r *record.Runtime) error {
	now := time.Now().UTC()
	rec := c.e.control(keyRuntime+r.Instance, runtimeJSON{Instance: r.Instance, Host: r.Host, PID: r.PID, Version: r.Version,
		HTTP: r.HTTP, Condition: r.Condition, StartedAt: r.StartedAt, HeartbeatAt: now})
	if err := c.write(ctx, "write the heartbeat", rec); err != nil {
		return err
	}
	r.HeartbeatAt = now
	return nil
}

// Delete removes the job's record. What stays is the number of its last
// generation: records of it are in the topics, which stay as well. It takes the
// job over for that, so that a former instance writes nothing any more.
func (c *Control) Delete(ctx context.Context) error {
	const op = "remove the job's record"
	s, err := c.Read(ctx)
	if err != nil || s.Job == nil {
		return err
	}
	cl, err := c.e.producer(maxBatch, transactionTimeout, 0)
	if err != nil {
		return err
	}
	defer cl.Close()
	if s, err = fence(ctx, c.e, cl); err != nil || s.Job == nil {
		return c.e.wrap(op, err)
	}
	cp := s.Checkpoint
	cp.Epoch, cp.Seq = cp.Epoch+1, cp.Seq+1
	records := []*kgo.Record{c.e.control(keyJob, jobJSON{Format: s.Job.Format, Generation: s.Generation, Gone: true}),
		c.e.checkpoint(&cp, s.Number)}
	for _, key := range s.leftovers() {
		records = append(records, c.e.control(key, nil))
	}
	return c.e.wrap(op, commitControl(ctx, cl, records))
}

// Leave removes the instance's sign of life.
func (c *Control) Leave(ctx context.Context, instance string) error {
	return c.write(ctx, "remove the heartbeat", c.e.control(keyRuntime+instance, nil))
}

// controlConfig is the configuration of the control topic. One record a commit comes
// into it, and its active segment is never compacted, so that segments are small.
func controlConfig() map[string]*string {
	return map[string]*string{
		"cleanup.policy":            kadm.StringPtr("compact"),
		"segment.bytes":             kadm.StringPtr(strconv.Itoa(16 << 20)),
		"segment.ms":                kadm.StringPtr("600000"),
		"min.cleanable.dirty.ratio": kadm.StringPtr("0.1"),
		"delete.retention.ms":       kadm.StringPtr("600000"),
		"max.message.bytes":         kadm.StringPtr(strconv.Itoa(8 << 20)),
	}
}

// Create makes the control topic, unless it exists. replication -1 is the
// broker's default.
func (c *Control) Create(ctx context.Context, replication int) error {
	name := controlTopic(c.e.Prefix, c.e.Job)
	res, err := kadm.NewClient(c.cl).CreateTopic(ctx, 1, int16(replication), controlConfig(), name)
	if err == nil {
		err = res.Err
	}
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return nil
	}
	if err != nil {
		return c.e.wrap("create topic "+name, err)
	}
	return c.e.wrap("create topic "+name, awaitTopics(ctx, c.cl, name))
}

// Rivals names the other jobs that have a control topic at the prefix.
func (c *Control) Rivals(ctx context.Context) ([]string, error) {
	all, err := topics(ctx, c.cl)
	if err != nil {
		return nil, c.e.wrap("list topics", err)
	}
	var jobs []string
	for name := range all {
		if job, ok := strings.CutPrefix(name, controlPrefix(c.e.Prefix)); ok && job != c.e.Job {
			jobs = append(jobs, job)
		}
	}
	return jobs, nil
}

// OneLayout refuses a prefix that has records in the other layout: whoever reads it
// could not tell which of them are the newer ones.
func (c *Control) OneLayout(ctx context.Context, layout string) error {
	other := streamTopic(c.e.Prefix)
	if layout == LayoutStream {
		other = transactionTopic(c.e.Prefix)
	}
	found, err := topics(ctx, c.cl, other)
	if err != nil || found[other] == nil {
		return c.e.wrap("look for topics", err)
	}
	return &millrace.Error{Kind: millrace.KindPreflight, Op: "choose the layout", Peer: c.e.Peer,
		Err:  fmt.Errorf("prefix %s has topic %s, of the other layout", c.e.Prefix, other),
		Hint: "choose another prefix, or delete the topics of this one"}
}
