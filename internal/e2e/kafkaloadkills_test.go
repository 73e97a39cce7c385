package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
)

// TestKillsOfALoadThroughKafka kills the jobs of a round at random moments of the first load,
// while clients write: where the load is beside the stream both of them in turns; under one snapshot the
// one that reads until a table is complete (the other would begin a new generation), then the one that writes, whose load
// goes on beside the stream. Of that no more than two chunks for each reader are read again after a kill,
// and at last the far end is equal to the source, with its foreign keys.
func TestKillsOfALoadThroughKafka(t *testing.T) {
	t.Parallel()
	majors, kills, size := []int{rig.Newest}, 4, sizes{1000, 100}
	if full() {
		majors, kills, size = []int{18, 17, 16}, 20, sizes{10_000, 40_000}
	}
	for _, mode := range []string{"incremental", "consistent"} {
		for _, major := range majors {
			t.Run(fmt.Sprintf("%s/%d", mode, major), func(t *testing.T) {
				if !full() {
					t.Parallel()
				}
				killRound(t, mode, major, kills, size)
			})
		}
	}
}

func killRound(t *testing.T, mode string, major, kills int, size sizes) {
	rate := size.bytes() / kills
	if full() { // as in manyKills
		rate = 6_000_000
	}
	const readers = 2
	r := roundUnder(t, rig.Start(t, major), size.schema(), fmt.Sprintf("{mode: %s, rate: %d, parallel: %d}", mode, rate, readers))
	counted := countRepeats(t, r.source, readers)
	stop := churnAnd(t, r.pair, size.rows, wideChanges(size.wide))
	rng := rand.New(rand.NewPCG(2, uint64(major)))
	r.in.Start(t, "--bootstrap")
	r.Start(t, "--bootstrap")
	arrived := func() int {
		text, err := r.target.Server.TryQuery(r.target.Name, "SELECT (SELECT count(*) FROM a) + (SELECT count(*) FROM b) + (SELECT count(*) FROM wide)")
		n, bad := strconv.Atoi(text)
		if err != nil || bad != nil { // they are made one after the other
			n = -1
		}
		return n
	}
	inLoad, later, writers := 0, 0, 0
	for before := map[bool]int{false: -1}; inLoad+later < kills; {
		streaming := false
		rig.Eventually(t, 2*patience, func() bool {
			s := statusOf(t, r.in)
			streaming = s.State == "streaming"
			// Beside the stream rows arrive that are new, and say nothing of the load.
			beside := mode == "incremental" || r.beside()
			n := s.rows()
			if !beside {
				n = arrived()
			}
			more := n > before[beside]
			before[beside] = max(before[beside], n)
			return streaming || more || !r.in.Running() || !r.Running()
		}, "the load goes on")
		rig.Linger(t, time.Duration(rng.IntN(600))*time.Millisecond, "a random moment of the load")
		for _, j := range []*blackbox.Job{r.in, r.Job} {
			if !j.Running() {
				t.Fatalf("job %s ended with code %d\n%s", j.Name, j.ExitCode(), j.Log(20))
			}
		}
		victim := r.Job
		if !streaming {
			if inLoad++; mode == "incremental" && inLoad%2 == 1 || mode == "consistent" && inLoad%2 == 0 && r.resumes() {
				victim = r.in
				writers++
			}
		} else if later++; later%2 == 0 {
			victim = r.in
		}
		victim.Kill(t)
		if victim == r.in && !streaming {
			r.writerKilled(t, counted)
		}
		r.goesOn(t, victim)
	}
	counted.report(t)
	text := fmt.Sprintf("%d kills in the load, of which %d of the job that writes, %d behind it", inLoad, writers, later)
	t.Logf("kills: %s", text)
	t.Attr("victims", text)
	if full() && inLoad < kills/2 {
		t.Errorf("the load was over too soon: %s", text)
	}
	rig.Eventually(t, 3*patience, func() bool { return jobState(t, r.in) == "streaming" || !r.in.Running() }, "the job that writes the topics streams")
	stop()
	r.sync(t)
	rig.Eventually(t, patience, func() bool { return r.record(t, "state") == "streaming" }, "the job that reads them streams")
	r.awaitForeignKey(t)
	r.finish(t)
	if found := verdicts(t, r.kafka, r.prefix, kgo.ReadCommitted()); len(found) > 0 {
		t.Errorf("%d faults: %v", len(found), found[:min(len(found), 5)])
	}
}

// writerKilled counts what a kill of the job that writes costs. The first one of a load under
// one snapshot costs the tables that are not complete, and no chunk.
func (r *round) writerKilled(t *testing.T, counted *repeats) {
	t.Helper()
	gone(t, r.in, r.source)
	rig.Linger(t, 100*time.Millisecond, "a commit that is under way ends")
	counted.killed(t, kafkaMarks(t, r.kafka, r.in.Name, r.prefix))
}

// resumes tells whether the job that writes goes on where it was, if it is killed in its load
// under one snapshot.
func (r *round) resumes() bool {
	return strings.Contains(r.in.Log(5000), `"read the table"`)
}

// beside tells whether a load that was begun under one snapshot goes on beside the stream.
func (r *round) beside() bool { return strings.Contains(r.in.Log(5000), "goes on beside the stream") }

// goesOn starts a job that was killed. In a load under one snapshot the heartbeat of the one that was
// killed counts for a while.
func (r *round) goesOn(t *testing.T, j *blackbox.Job) {
	t.Helper()
	j.Start(t, "--bootstrap")
	if j != r.in {
		return
	}
	rig.Eventually(t, patience, func() bool {
		if !j.Running() {
			j.Start(t, "--bootstrap")
		}
		state := jobState(t, j) // "stopped" is that of the one that was killed
		return j.Running() && (state == "catching_up" || state == "streaming")
	}, "the load goes on")
}

// awaitForeignKey waits until the only one there is has been looked through, which
// goes on beside the stream.
func (r *round) awaitForeignKey(t *testing.T) {
	t.Helper()
	rig.Eventually(t, patience, func() bool {
		return r.target.Query(t, "SELECT count(*), bool_and(convalidated) FROM pg_constraint WHERE contype = 'f'") == "1|t"
	}, "the foreign key is there and valid")
}

// roundUnder is newRound with a given source, and the way it is loaded.
func roundUnder(t *testing.T, source *rig.Postgres, schema, load string) *round {
	t.Helper()
	return roundInto(t, source, schema, load, ", partitions: 2")
}

// roundInto is roundUnder with more of the topics' configuration.
func roundInto(t *testing.T, source *rig.Postgres, schema, load, extra string) *round {
	t.Helper()
	return roundWith(t, source, schema, extra, func(in *blackbox.Options, _ *pair) { in.Extra += "snapshot: " + load + "\n" })
}

// roundWith is a round whose job that writes has more options.
func roundWith(t *testing.T, source *rig.Postgres, schema, extra string, options func(in *blackbox.Options, p *pair)) *round {
	t.Helper()
	r := &round{kafka: rig.SharedKafka(t)}
	var target *rig.Postgres
	if source.ICU() { // so that both sides know the collations
		target = source
	}
	r.pair = newPair(t, plan{source: source, target: target, schema: schema, options: func(o *blackbox.Options, p *pair) {
		r.prefix = "r" + strings.ReplaceAll(p.target.Name, "_", "-")
		in := blackbox.Options{Name: o.Name, Source: p.source, Tables: o.Tables, Extra: fast,
			Kafka: fmt.Sprintf("{brokers: [%q], prefix: %s%s}", r.kafka.Brokers()[0], r.prefix, extra)}
		options(&in, p)
		r.in = blackbox.NewJob(t, in)
		o.Name, o.Tables = "back_"+o.Name, nil
		o.From = fmt.Sprintf("{brokers: [%q], prefix: %s}", r.kafka.Brokers()[0], r.prefix)
	}})
	return r
}

// jobStatus is what the status says of a job.
type jobStatus struct {
	State       string `json:"state"`
	Destination struct {
		ConsistentFrom string `json:"consistent_from"`
		CommittedLSN   string `json:"committed_lsn"`
	} `json:"destination"`
	Tables []struct {
		Table string `json:"table"`
		State string `json:"state"`
		Rows  int    `json:"rows_copied"`
	} `json:"tables"`
}

// rows are those that were loaded of all tables.
func (s *jobStatus) rows() (n int) {
	for _, x := range s.Tables {
		n += x.Rows
	}
	return n
}

func statusOf(t *testing.T, j *blackbox.Job) (s jobStatus) {
	t.Helper()
	_ = json.Unmarshal([]byte(j.Run(t, "status", "--json").Stdout), &s) // there may be none yet
	return s
}

func jobState(t *testing.T, j *blackbox.Job) string { t.Helper(); return statusOf(t, j).State }

func consistentFrom(t *testing.T, j *blackbox.Job) string {
	t.Helper()
	return statusOf(t, j).Destination.ConsistentFrom
}

// kafkaMarks gives the marks of the tables of a job that are not complete.
func kafkaMarks(t *testing.T, k *rig.Kafka, job, prefix string) map[string]string {
	t.Helper()
	e := &kafka.Endpoint{Peer: millrace.PeerDestination, Brokers: k.Brokers(), Prefix: prefix, Job: job}
	ctl, err := e.OpenControl()
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	state, err := ctl.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for name, m := range state.Checkpoint.Tables {
		found[name.Name] = string(m.State)
	}
	return found
}
