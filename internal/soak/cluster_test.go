package soak

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

const (
	killBroker  fault = "kill of a broker"           // SIGKILL, started again a moment later
	stopBroker  fault = "orderly stop of a broker"   // it hands its partitions over, if there is anybody
	pauseBroker fault = "a broker that stands still" // SIGSTOP for a while
	moveLeaders fault = "move of all leaders"        // while everybody is up
)

// cluster is Kafka, of which one node at a time fails.
type cluster struct {
	rng   *rand.Rand
	k     *rig.Kafka
	adm   *kadm.Client
	nodes int
}

func startCluster(t *testing.T, nodes int) *cluster {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if v, err := strconv.ParseUint(os.Getenv("MILLRACE_SEED"), 10, 64); err == nil {
		seed = v
	}
	t.Logf("MILLRACE_SEED=%d repeats the choice of moments", seed)
	t.Attr("seed", strconv.FormatUint(seed, 10))
	c := &cluster{rng: rand.New(rand.NewPCG(seed, 0)), k: rig.StartKafka(t, rig.KafkaOptions{Nodes: nodes}), nodes: nodes}
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.k.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	c.adm = kadm.NewClient(cl)
	return c
}

// spread makes all faults happen in random order at random moments, and gives how
// many of each did. It ends early when one of the jobs has ended by itself.
func (c *cluster) spread(ctx context.Context, t *testing.T, faults map[fault]int, length time.Duration, jobs []*blackbox.Job, do func(fault)) map[fault]int {
	t.Helper()
	var order []fault
	for _, f := range slices.Sorted(maps.Keys(faults)) {
		order = append(order, slices.Repeat([]fault{f}, faults[f])...)
	}
	c.rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	mean := length / time.Duration(len(order)+1)
	done := map[fault]int{}
	next := time.Now()
	for _, f := range order {
		next = next.Add(mean)
		if !pause(ctx, time.Until(next)-mean/2+time.Duration(c.rng.Int64N(int64(mean)))) {
			return done
		}
		for _, j := range jobs {
			if !j.Running() {
				t.Errorf("job %s ended by itself with code %d before a %s", j.Name, j.ExitCode(), f)
				return done
			}
		}
		t.Logf("%s", f)
		do(f)
		done[f]++
	}
	return done
}

// fail makes something happen to the cluster. One node at a time: with two of three it
// goes on.
func (c *cluster) fail(ctx context.Context, t *testing.T, f fault) {
	t.Helper()
	c.inSync(t)
	node := 1 + c.rng.IntN(c.nodes)
	down := time.Duration(c.rng.Int64N(int64(4 * time.Second)))
	if c.nodes == 1 {
		down = 0
	}
	switch f {
	case killBroker:
		c.k.Kill(t, node)
		pause(ctx, down)
		c.k.Restart(t, node)
	case stopBroker:
		c.k.Stop(t, node)
		pause(ctx, down)
		c.k.Restart(t, node)
	case pauseBroker:
		c.k.Pause(t, node)
		pause(ctx, down)
		c.k.Continue(t, node)
	case moveLeaders:
		if err := c.moveLeaders(ctx); err != nil {
			t.Errorf("move the leaders: %v", err)
		}
	}
}

// moveLeaders makes the next replica of each partition the preferred one, and
// has it elected; those of transactions and of the job's record too.
func (c *cluster) moveLeaders(ctx context.Context) error {
	all, err := c.adm.ListTopicsWithInternal(ctx)
	if err != nil {
		return err
	}
	var moved kadm.AlterPartitionAssignmentsReq
	parts := kadm.TopicsSet{}
	for name, d := range all {
		for _, p := range d.Partitions {
			moved.Assign(name, p.Partition, append(slices.Clone(p.Replicas[1:]), p.Replicas[0]))
			parts.Add(name, p.Partition)
		}
	}
	answers, err := c.adm.AlterPartitionAssignments(ctx, moved)
	if err != nil {
		return err
	}
	answers.Each(func(r kadm.AlterPartitionAssignmentsResponse) { err = errors.Join(err, r.Err) })
	if err != nil {
		return err
	}
	_, err = c.adm.ElectLeaders(ctx, kadm.ElectPreferredReplica, parts) // one that leads already is no matter
	return err
}

// inSync waits until every partition has a leader and all of its replicas.
func (c *cluster) inSync(t *testing.T) {
	t.Helper()
	lacks := "nothing was listed"
	rig.Eventually(t, 2*time.Minute, func() bool {
		all, err := c.adm.ListTopicsWithInternal(t.Context())
		if err != nil {
			lacks = err.Error()
		}
		if err != nil || len(all) == 0 {
			return false
		}
		for _, d := range all {
			for _, p := range d.Partitions {
				if p.Leader < 0 || len(p.ISR) < len(p.Replicas) {
					lacks = fmt.Sprintf("%s [%d] has leader %d and %v of %v", d.Topic, p.Partition, p.Leader, p.ISR, p.Replicas)
					return false
				}
			}
		}
		return true
	}, "the replicas are not in sync:", &lacks)
}
