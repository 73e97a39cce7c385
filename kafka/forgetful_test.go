package kafka_test

import (
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
)

// TestForgetful: settings under which the cluster can lose what it has confirmed are found, of
// the topics that are there, and of the brokers where there are none.
func TestForgetful(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	found := func(e *kafka.Endpoint, replication int) []error {
		t.Helper()
		all, err := control(t, e).Forgetful(deadline(t), &kafka.TopicOptions{Replication: replication})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	fresh := endpoint(k, newPrefix())
	if got := found(fresh, 1); len(got) != 0 {
		t.Errorf("topics with one replica: %v", got)
	}
	if got := found(fresh, 3); len(got) != 1 || !strings.Contains(got[0].Error(), "min.insync.replicas=1") || millrace.HintOf(got[0]) == "" {
		t.Errorf("topics with three: %v", got)
	}
	e, _, _ := oneWritten(t)
	if got := found(e, 3); len(got) != 0 {
		t.Errorf("the topics are there, with one replica: %v", got)
	}
	order := e.Prefix + ".transaction"
	alterTopic(t, k, order, "unclean.leader.election.enable=true")
	rig.Eventually(t, patience, func() bool { return len(found(e, 1)) == 1 }, "the broker knows the setting, and it is found")
	if got := found(e, 1)[0]; !strings.Contains(got.Error(), order) || !strings.Contains(millrace.HintOf(got), "unclean.leader.election.enable=false") {
		t.Errorf("one with unclean elections: %v", got)
	}
}

// TestGenerationsOfALostRecord: a first load whose job has lost its record does not begin a generation
// that the topics have.
func TestGenerationsOfALostRecord(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e, w, a := oneWritten(t)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	name := e.Prefix + ".millrace." + e.Job
	if res, err := admin(t, k).DeleteTopics(deadline(t), name); err != nil || res.Error() != nil {
		t.Fatal(err, res.Error())
	}
	rig.Eventually(t, patience, func() bool { there, err := control(t, e).Exists(t.Context()); return err == nil && !there }, "the job's record is gone")
	loaded(t, readable(t, e, 1), a)
	if s := stateOf(t, control(t, e)); s.Generation != 2 {
		t.Errorf("the new load is generation %d", s.Generation)
	}
}
