package kafka_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
	"github.com/millrace/millrace/record"
)

func control(t *testing.T, e *kafka.Endpoint) *kafka.Control {
	t.Helper()
	ctl, err := e.OpenControl()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ctl.Close)
	return ctl
}

func stateOf(t *testing.T, ctl *kafka.Control) *kafka.State {
	t.Helper()
	s, err := ctl.Read(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// awaitState reads until what is to be there is: a commit is confirmed before its
// marker is in the topic.
func awaitState(t *testing.T, ctl *kafka.Control, there func(*kafka.State) bool) *kafka.State {
	t.Helper()
	var s *kafka.State
	rig.Eventually(t, patience, func() bool {
		s = stateOf(t, ctl)
		return there(s)
	}, "the record is as it must become")
	return s
}

func rawClient(t *testing.T, k *rig.Kafka, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(k.Brokers()...))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// A former instance can't write the job's state: what it writes after another one
// has claimed the job is refused, and what it had on its way by then is not read.
func TestFormerInstanceWritesNoState(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := options(t, e)
	loaded(t, o, relation(1, "a"))
	_, first := claimed(t, o)
	ctl := control(t, e)
	fence := record.Fence{Job: "job", Generation: first.Generation, Epoch: first.Epoch}
	if err := ctl.SetStateAs(deadline(t), fence, record.Streaming, "the first", ""); err != nil {
		t.Fatal(err)
	}
	_, second := claimed(t, options(t, e))
	if s := awaitState(t, ctl, func(s *kafka.State) bool { return s.Checkpoint.Epoch == second.Epoch }); s.Job.State != record.Streaming || s.Job.Reason != "the first" {
		t.Errorf("the claim has lost the state: %v %q", s.Job.State, s.Job.Reason)
	}
	if err := ctl.SetStateAs(deadline(t), fence, record.Failed, "late", ""); !errors.Is(err, record.ErrFenced) {
		t.Errorf("the former instance writes its state: %v", err)
	}
	fence.Epoch = second.Epoch
	if err := ctl.SetStateAs(deadline(t), fence, record.CatchingUp, "the second", ""); err != nil {
		t.Fatal(err)
	}
	// One that had verified its epoch, and was stopped before it wrote.
	late := &kgo.Record{Topic: e.Prefix + ".millrace.job", Key: fmt.Appendf(nil, "state:%d.%d", first.Generation, first.Epoch), Value: []byte(`{"state":"error"}`)}
	if err := rawClient(t, k).ProduceSync(deadline(t), late).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if s := stateOf(t, ctl); s.Job.State != record.CatchingUp || s.Job.Reason != "the second" {
		t.Errorf("%v %q", s.Job.State, s.Job.Reason)
	}
}

// What is newly known of a table is written by the owner, with its transactions.
func TestTableIsUpdatedByTheOwner(t *testing.T) {
	t.Parallel()
	e := endpoint(rig.SharedKafka(t), newPrefix())
	o := options(t, e)
	a := relation(1, "a")
	loaded(t, o, a)
	former, _ := claimed(t, o)
	s, _ := claimed(t, options(t, e))
	former.UpdateTable(record.Table{OID: 1, Name: a.Name, Filenode: 6, Shape: "former"})
	_ = former.Write(deadline(t), txn(1, "v", a)) // its transaction is refused
	former.Flush()
	if _, err := former.Durable(deadline(t), 100); err == nil {
		t.Error("the former instance has written")
	}
	s.UpdateTable(record.Table{OID: 1, Name: millrace.TableName{Schema: "public", Name: "b"}, Filenode: 7, Shape: "s"})
	write(t, s, txn(1, "v", a))
	awaitDurable(t, s, 150)
	st := awaitState(t, control(t, e), func(s *kafka.State) bool { return s.Checkpoint.Commit == 100 })
	if x := st.Job.Tables[0]; x.Filenode != 7 || x.Shape != "s" || x.Name.Name != "b" {
		t.Errorf("%+v", x)
	}
}

// Cleanup takes the job over first: what an instance that still lives writes
// afterwards is refused.
func TestCleanupFences(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := options(t, e)
	a := relation(1, "a")
	loaded(t, o, a)
	s, _ := claimed(t, o)
	write(t, s, txn(1, "v", a))
	awaitDurable(t, s, 150)
	ctl := control(t, e)
	if err := ctl.Delete(deadline(t)); err != nil {
		t.Fatal(err)
	}
	write(t, s, txn(2, "late", a))
	if at, err := s.Durable(deadline(t), 150); err == nil {
		t.Errorf("written up to %v after the job was removed", at)
	}
	if st := awaitState(t, ctl, func(s *kafka.State) bool { return s.Job == nil }); st.Generation != 1 {
		t.Errorf("%+v", st)
	}
}

// The topics of transactions and descriptions are held to what they were as those
// of tables are.
func TestTopicsOfMarksArePinned(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	cl := rawClient(t, k)
	adm := kadm.NewClient(cl)
	for _, topic := range []string{"transaction", "schema"} {
		e := endpoint(k, newPrefix())
		o := options(t, e)
		loaded(t, o, relation(1, "a"))
		name := e.Prefix + "." + topic
		was := shown(t, cl, name).TopicID
		if _, err := adm.DeleteTopics(deadline(t), name); err != nil {
			t.Fatal(err)
		}
		rig.Eventually(t, patience, func() bool {
			res, err := adm.CreateTopic(deadline(t), 1, 1, nil, name)
			return err == nil && res.Err == nil
		})
		rig.Eventually(t, patience, func() bool {
			now := shown(t, cl, name)
			return now.ErrorCode == 0 && now.TopicID != was
		})
		s := kafka.New(o)
		if _, err := s.Open(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Claim(deadline(t)); millrace.KindOf(err) != millrace.KindResync || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		_ = s.Close()
	}
}

// A load is known to be complete, or not, or another's, whatever its owner was
// told of its last step.
func TestWhatBecameOfALoad(t *testing.T) {
	t.Parallel()
	e := endpoint(rig.SharedKafka(t), newPrefix())
	o := options(t, e)
	load := func(generation int64) *kafka.Loader {
		s := kafka.New(o)
		t.Cleanup(func() { _ = s.Close() })
		job := &record.Job{Name: "job", State: record.Bootstrapping, SystemID: "7", Timeline: 1, Slot: "s", Mode: "none", Generation: generation,
			Tables: []record.Table{{OID: 1, Name: relation(1, "a").Name}}}
		l, err := s.Load(deadline(t), job)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Start(deadline(t), 10, true, false, false, job.Tables); err != nil {
			t.Fatal(err)
		}
		return l
	}
	settle := func(l *kafka.Loader, wantComplete, wantOurs bool) {
		t.Helper()
		job, ours, err := l.Settle(deadline(t))
		complete := ours && job != nil && job.ConsistentFrom != 0
		if complete != wantComplete || ours != wantOurs || err != nil {
			t.Errorf("complete %t, ours %t, %v", complete, ours, err)
		}
	}
	first := load(0)
	settle(first, false, true)
	if err := first.Finish(deadline(t)); err == nil {
		t.Error("a load goes on that was settled")
	}
	second := load(1)
	if err := second.Finish(deadline(t)); err != nil {
		t.Fatal(err)
	}
	settle(second, true, true)
	third := load(2)
	settle(second, false, false)
	if err := third.Finish(deadline(t)); err != nil {
		t.Errorf("a former load has disturbed the next one: %v", err)
	}
}

// One that reads again reads what is new only, and notices a topic that was made
// anew.
func TestControlReadsWhatIsNew(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := options(t, e)
	a := relation(1, "a")
	loaded(t, o, a)
	s, _ := claimed(t, o)
	ctl := control(t, e)
	read := &countedBytes{}
	e.Hooks = []kgo.Hook{read}
	counted := control(t, e)
	for n := 1; n <= 200; n++ {
		write(t, s, txn(n, "v", a))
		awaitDurable(t, s, millrace.LSN(n*100+50))
	}
	awaitState(t, ctl, func(s *kafka.State) bool { return s.Checkpoint.Commit == 20_000 })
	stateOf(t, counted)
	all := read.n.Swap(0)
	write(t, s, txn(201, "v", a))
	awaitDurable(t, s, 20_150)
	awaitState(t, ctl, func(s *kafka.State) bool { return s.Checkpoint.Commit == 20_100 })
	if st := stateOf(t, counted); st.Checkpoint.Commit != 20_100 || st.Job == nil || len(st.Job.Tables) != 1 {
		t.Errorf("%+v", st)
	}
	if again := read.n.Load(); again*4 > all {
		t.Errorf("%d bytes at first, %d again", all, again)
	}
	adm := kadm.NewClient(rawClient(t, k))
	if _, err := adm.DeleteTopics(deadline(t), e.Prefix+".millrace.job"); err != nil {
		t.Fatal(err)
	}
	awaitState(t, counted, func(s *kafka.State) bool { return s.Job == nil })
}

// countedBytes counts what fetches bring.
type countedBytes struct{ n atomic.Int64 }

func (c *countedBytes) OnBrokerRead(_ kgo.BrokerMetadata, key int16, n int, _, _ time.Duration, _ error) {
	if key == int16(kmsg.Fetch) {
		c.n.Add(int64(n))
	}
}
