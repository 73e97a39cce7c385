package soak

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// election is a round whose topics are led by a broker that dies while the only other one that
// has them is down, and lacks what was written meanwhile.
type election struct {
	name string
	// cut are the topics that lose it, by their last part: all but these are on the third broker.
	cut []string
	// away: the job that reads is stopped before, and started behind the election; again: so is the job that writes, before
	// the leader dies.
	away, again bool
	// knows: the job that writes still has what its record has lost. It goes on, unless it sees the loss.
	knows bool
	// says is in the reason of the job that reads, which stops; "": it has lost nothing.
	says string

	prefix  string
	db, far *rig.DB
	in, out *blackbox.Job
	started int
}

// TestUncleanElection: followers that lack confirmed records are elected (min.insync.replicas=1,
// unclean.leader.election.enable=true). Whatever of a prefix is lost, the job that writes says so, unless it has it still, and so does the
// job that reads if it has applied what is gone, or would never see it; no target has a gap.
func TestUncleanElection(t *testing.T) {
	if !full() {
		t.Skip("make soak; TestLostTransactions (kafka) is the short form, with one broker")
	}
	c := startCluster(t, 3)
	all := []*election{
		{name: "all", cut: []string{"transaction", "public.t", "millrace"}, says: "was read up to offset"},
		{name: "record", cut: []string{"millrace"}, again: true},
		{name: "record of one that runs", cut: []string{"millrace"}, knows: true},
		{name: "order", cut: []string{"transaction"}, away: true, says: "the cluster has lost them"},
		{name: "order, started again", cut: []string{"transaction"}, away: true, again: true, says: "the cluster has lost them"},
		{name: "rows", cut: []string{"public.t"}, away: true, says: "records of the transaction are missing"},
		{name: "stream", cut: []string{"stream"}, away: true, says: "the cluster has lost them"},
	}
	source, target := rig.Shared(t, rig.Newest), rig.Start(t, rig.Newest)
	for i, e := range all {
		e.begin(t, c, fmt.Sprintf("unclean%d", i), source.NewDB(t), target.NewDB(t))
		e.place(t, c)
	}
	for _, e := range all {
		e.write(t, 3)
		e.applied(t)
		if e.away {
			e.out.Stop(t)
		}
	}
	c.inSync(t)
	c.k.Stop(t, 2)
	c.insync(t, all, 1)
	for _, e := range all {
		e.write(t, 3)
		if !e.away {
			e.applied(t)
		}
		if e.again {
			e.in.Stop(t)
		}
	}
	c.k.Kill(t, 1)
	c.k.Restart(t, 2)
	c.insync(t, all, 2)
	for _, e := range all {
		t.Run(e.name, e.judge)
	}
}

func (e *election) begin(t *testing.T, c *cluster, prefix string, db, far *rig.DB) {
	t.Helper()
	e.prefix, e.db, e.far = prefix, db, far
	db.SQL(t, "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (0, 'loaded'); CREATE PUBLICATION millrace_"+db.Name+" FOR ALL TABLES")
	const extra = "resources: {retry_backoff: {min: 100ms, max: 1s}}\n"
	kafka := fmt.Sprintf(`brokers: ["%s"], prefix: %s`, strings.Join(c.k.Brokers(), `", "`), prefix)
	layout := ""
	if slices.Contains(e.cut, "stream") {
		layout = ", layout: stream"
	}
	e.in = blackbox.NewJob(t, blackbox.Options{Name: db.Name, Source: db, Kafka: "{" + kafka + layout + ", replication: 3}", Extra: extra})
	e.out = blackbox.NewJob(t, blackbox.Options{Name: "back_" + db.Name, Source: db, Target: far, From: "{" + kafka + "}", Extra: extra})
	e.in.Start(t, "--bootstrap")
	e.out.Start(t, "--bootstrap")
	e.applied(t)
}

// place moves the topics that are to be cut to brokers 1 and 2, and the others to 3.
func (e *election) place(t *testing.T, c *cluster) {
	t.Helper()
	var move kadm.AlterPartitionAssignmentsReq
	parts := kadm.TopicsSet{}
	loose := []kadm.AlterConfig{{Name: "min.insync.replicas", Value: kadm.StringPtr("1")}, {Name: "unclean.leader.election.enable", Value: kadm.StringPtr("true")}}
	places := e.places(t, c)
	for name, on := range places {
		move.Assign(name, 0, on)
		parts.Add(name, 0)
		if _, err := c.adm.AlterTopicConfigs(t.Context(), loose, name); err != nil {
			t.Fatal(err)
		}
	}
	answers, err := c.adm.AlterPartitionAssignments(t.Context(), move)
	if err == nil {
		answers.Each(func(r kadm.AlterPartitionAssignmentsResponse) {
			if r.Err != nil {
				err = r.Err
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, 2*time.Minute, func() bool {
		if _, err := c.adm.ElectLeaders(t.Context(), kadm.ElectPreferredReplica, parts); err != nil {
			return false
		}
		now, err := c.adm.ListTopics(t.Context())
		if err != nil {
			return false
		}
		for name, on := range places {
			p, ok := now[name].Partitions[0]
			if !ok || p.Leader != on[0] || len(p.Replicas) != len(on) || len(p.ISR) != len(on) {
				return false
			}
		}
		return true
	}, "the topics are where they are to be")
}

// places are the brokers of each topic of the prefix, its leader first. It waits until the broker
// that is asked knows all of them.
func (e *election) places(t *testing.T, c *cluster) (places map[string][]int32) {
	t.Helper()
	topics := 4 // of the table, the order, the descriptions, and the job's record
	if slices.Contains(e.cut, "stream") {
		topics = 3
	}
	rig.Eventually(t, time.Minute, func() bool {
		all, err := c.adm.ListTopics(t.Context())
		places = e.placesOf(all)
		return err == nil && len(places) == topics
	}, "all topics are known")
	return places
}

func (e *election) placesOf(all kadm.TopicDetails) map[string][]int32 {
	places := map[string][]int32{}
	for name := range all {
		rest, ok := strings.CutPrefix(name, e.prefix+".")
		if !ok {
			continue
		}
		places[name] = []int32{3}
		for _, cut := range e.cut {
			if rest == cut || strings.HasPrefix(rest, cut+".") {
				places[name] = []int32{1, 2}
			}
		}
	}
	return places
}

// insync waits until a broker is the leader, and the only one in sync, of all that is cut.
func (c *cluster) insync(t *testing.T, all []*election, broker int32) {
	t.Helper()
	lacks, topics := "", 0
	for _, e := range all {
		topics += len(e.cut)
	}
	rig.Eventually(t, 2*time.Minute, func() bool {
		n := 0
		now, err := c.adm.ListTopics(t.Context())
		if err != nil {
			lacks = err.Error()
			return false
		}
		for name, d := range now {
			p := d.Partitions[0]
			if len(p.Replicas) != 2 || !slices.ContainsFunc(all, func(e *election) bool { return strings.HasPrefix(name, e.prefix+".") }) {
				continue
			}
			n++
			if p.Leader != broker || !slices.Equal(p.ISR, []int32{broker}) {
				lacks = fmt.Sprintf("%s has leader %d, and %v in sync", name, p.Leader, p.ISR)
				return false
			}
		}
		lacks = fmt.Sprintf("%d of %d topics are known", n, topics)
		return n == topics
	}, "what is cut is led by broker", broker, &lacks)
}

// write has the source commit transactions, and waits until Kafka has confirmed them.
func (e *election) write(t *testing.T, n int) {
	t.Helper()
	for range n {
		e.started++
		e.db.SQL(t, fmt.Sprintf("INSERT INTO t VALUES (%d, 'x')", e.started))
	}
	if w := e.in.Run(t, "wait", "--now", "--timeout", "170s"); w.Code != blackbox.Done {
		t.Fatalf("%s: %s%s\n%s", e.name, w.Stdout, w.Stderr, e.in.Log(20))
	}
}

// applied waits until the target has what the source has.
func (e *election) applied(t *testing.T) {
	t.Helper()
	if err := e.out.Wait(2 * time.Minute); err != nil {
		t.Fatalf("%s: %v\n%s", e.name, err, e.out.Log(20))
	}
}

func (e *election) judge(t *testing.T) {
	if e.again {
		e.in.Start(t)
	}
	e.db.SQL(t, "INSERT INTO t VALUES (100, 'behind')")
	if e.knows && e.in.Run(t, "wait", "--now", "--timeout", "170s").Code == blackbox.Done {
		e.in.Stop(t)
		e.in.Start(t)
		e.write(t, 1)
		e.applied(t)
		if got, want := e.far.Query(t, "TABLE t ORDER BY id"), e.db.Query(t, "TABLE t ORDER BY id"); got != want {
			t.Errorf("the target has %s, want %s", got, want)
		}
		return
	}
	stops(t, "the job that writes", e.in)
	if log := e.in.Log(20); !strings.Contains(log, "restart-snapshot") {
		t.Errorf("it says no cure:\n%s", log)
	}
	// A record that was cut can still show the instance before, which the next one leaves the state to.
	if status := e.in.Run(t, "status"); !e.again && !strings.Contains(status.Stdout, "resync_required") {
		t.Errorf("its status is %s%s", status.Stdout, status.Stderr)
	}
	if e.away {
		e.out.Start(t)
	}
	if e.says == "" {
		rig.Linger(t, 3*time.Second, "the job that reads would stop")
		if !e.out.Running() {
			t.Errorf("the job that reads has lost nothing, and ended:\n%s", e.out.Log(20))
		}
	} else {
		stops(t, "the job that reads", e.out)
		if reason, err := e.out.Refusal(t); err != nil || !strings.HasPrefix(reason, "resync_required") || !strings.Contains(reason, e.says) || !strings.Contains(reason, e.prefix+".") {
			t.Errorf("the job that reads says %q, %v", reason, err)
		}
	}
	// Nothing was lost before the election, and nothing that came behind it is there.
	want := 6
	if e.away {
		want = 3
	}
	if got := e.far.Query(t, "SELECT count(*) = max(id) + 1 AND max(id) BETWEEN "+fmt.Sprint(want)+" AND 6 FROM t"); got != "t" {
		t.Errorf("the target has %s, want all up to %d, and nothing behind a gap", e.far.Query(t, "SELECT string_agg(id::text, ',' ORDER BY id) FROM t"), want)
	}
}

// stops waits until a job has ended by itself, for good.
func stops(t *testing.T, what string, j *blackbox.Job) {
	t.Helper()
	last := ""
	rig.Eventually(t, 2*time.Minute, func() bool { last = j.Log(30); return !j.Running() }, what, "does not stop:", &last)
	if code := j.ExitCode(); code != blackbox.Stuck {
		t.Errorf("%s ended with code %d:\n%s", what, code, j.Log(30))
	}
}
