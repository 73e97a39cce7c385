package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
	"github.com/millrace/millrace/record"
)

func TestTransactionsAreWholeWithTheirMarks(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := options(t, e)
	a, b := relation(1, "a"), relation(2, "b")
	loaded(t, o, a, b)
	s, cp := claimed(t, o)
	if cp.Acked != 10 || cp.Generation != 1 {
		t.Fatalf("the load left %+v", cp)
	}
	for i := 1; i <= 20; i++ {
		write(t, s, txn(i, "v", a, b, a))
	}
	awaitDurable(t, s, 2050)
	got := readTopics(t, k, 100, e.Prefix+".public.a", e.Prefix+".public.b", e.Prefix+".transaction")
	if len(got) != 100 { // 3 rows, BEGIN and END each
		t.Fatalf("%d records", len(got))
	}
	list := ends(t, got)
	if len(list) != 20 {
		t.Fatalf("%d ENDs", len(list))
	}
	for i, x := range list {
		n := i + 1
		want := kafka.TransactionID(uint32(1000+n), millrace.LSN(n*100))
		if x.ID != want || x.EventCount != 3 || len(x.Partitions) != 2 || x.Partitions[0].Count != 2 || x.Partitions[1].Count != 1 {
			t.Errorf("END %d: %+v", n, x)
		}
	}
	for _, r := range got {
		if strings.HasSuffix(r.topic, ".a") && (r.headers["commit_lsn"] == "" || r.headers["seq"] == "" || r.headers["generation"] != "1") {
			t.Errorf("headers %v", r.headers)
		}
	}
}

func TestRestartGoesOnWhereTheCheckpointIs(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := options(t, e)
	a := relation(1, "a")
	loaded(t, o, a)
	s, _ := claimed(t, o)
	write(t, s, txn(1, "v", a), txn(2, "v", a))
	awaitDurable(t, s, 250)
	_ = s.Close()
	s, cp := claimed(t, o)
	if cp.Commit != 200 || cp.End != 250 || cp.LastXID != 1002 || cp.Epoch < 3 {
		t.Fatalf("%+v", cp)
	}
	write(t, s, txn(1, "again", a), txn(2, "again", a), txn(3, "v", a))
	awaitDurable(t, s, 350)
	for _, r := range readTopics(t, k, 3, e.Prefix+".public.a") {
		if strings.Contains(r.value, "again") {
			t.Errorf("a transaction came twice: %s", r.value)
		}
	}
}

// A zombie that holds a transaction open is fenced by the newcomer's claim: what
// it wrote is aborted, what it commits later is refused, and the newcomer reads
// the checkpoint behind all that the zombie had committed.
func TestZombieIsFenced(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := options(t, e)
	a := relation(1, "a")
	loaded(t, o, a)
	zombie, _ := claimed(t, o)
	write(t, zombie, txn(1, "v", a))
	awaitDurable(t, zombie, 150)
	s, cp := claimed(t, options(t, e))
	if cp.Commit != 100 {
		t.Fatalf("the newcomer starts at %v", cp.Commit)
	}
	write(t, zombie, txn(2, "zombie", a))
	if at, err := zombie.Durable(deadline(t), 150); err == nil || millrace.KindOf(err) != millrace.KindRetry {
		t.Fatalf("the zombie's transaction: durable at %v, %v", at, err)
	}
	write(t, s, txn(2, "v", a))
	awaitDurable(t, s, 250)
	for _, r := range readTopics(t, k, 2, e.Prefix+".public.a") {
		if strings.Contains(r.value, "zombie") {
			t.Errorf("the zombie's record is visible: %s", r.value)
		}
	}
}

func TestTooLargeRowStopsBehindWhatCameBefore(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := options(t, e)
	a := relation(1, "a")
	loaded(t, o, a)
	s, _ := claimed(t, o)
	if err := s.Write(deadline(t), txn(1, "v", a)); err != nil {
		t.Fatal(err)
	}
	err := s.Write(deadline(t), txn(2, strings.Repeat("x", 2<<20), a))
	var m *millrace.Error
	if !errors.As(err, &m) || m.Kind != millrace.KindData || m.Table != a.Name || m.Key != "(id)=(2)" || m.LSN != 200 ||
		!strings.Contains(m.Hint, "max.message.bytes") {
		t.Fatalf("%v", err)
	}
	if strings.Contains(err.Error(), "xxx") {
		t.Error("the row's value stands in the error")
	}
	awaitDurable(t, s, 150)
	_ = s.Close()
	// Raised, it goes on with that transaction.
	cl, cerr := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	if cerr != nil {
		t.Fatal(cerr)
	}
	defer cl.Close()
	_, cerr = kadm.NewClient(cl).AlterTopicConfigs(deadline(t), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes",
		Value: kadm.StringPtr("4194304")}}, e.Prefix+".public.a")
	if cerr != nil {
		t.Fatal(cerr)
	}
	s, cp := claimed(t, o)
	if cp.Commit != 100 {
		t.Fatalf("%+v", cp)
	}
	write(t, s, txn(2, strings.Repeat("x", 2<<20), a))
	awaitDurable(t, s, 250)
}

// parts cuts a transaction of n rows.
func parts(number, n int, rel *millrace.Relation) []*millrace.Txn {
	const each = 1000
	var list []*millrace.Txn
	for at := 0; at < n; at += each {
		p := txn(number, "")
		p.Part, p.Last = at/each, at+each >= n
		if !p.Last {
			p.End = 0
		}
		for i := at; i < min(at+each, n); i++ {
			p.Changes = append(p.Changes, millrace.Change{Op: millrace.Insert, Seq: uint64(i + 1), Rel: rel, New: text(fmt.Sprint(i), "large")})
		}
		list = append(list, p)
	}
	return list
}

func TestLargeTransactionComesWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := options(t, e)
	a := relation(1, "a")
	loaded(t, o, a)
	s, _ := claimed(t, o)
	const rows = 20_000
	all := parts(2, rows, a)
	write(t, s, txn(1, "small", a))
	write(t, s, all[:len(all)-1]...) // stopped inside
	if at, err := s.Drain(deadline(t)); err != nil || at != 150 {
		t.Fatalf("drained to %v, %v", at, err)
	}
	if n := o.Spool.Bytes(); n != 0 {
		t.Errorf("%d bytes are left in the spool", n)
	}
	_ = s.Close()
	s, _ = claimed(t, o)
	write(t, s, parts(2, rows, a)...)
	write(t, s, txn(3, "small", a))
	awaitDurable(t, s, 350)
	got := readTopics(t, k, rows+2+6, e.Prefix+".public.a", e.Prefix+".transaction")
	if len(got) != rows+2+6 {
		t.Errorf("%d records", len(got))
	}
	begins := 0
	for _, r := range got {
		if strings.Contains(r.value, `"BEGIN"`) && strings.Contains(r.value, `"end_lsn":"0/FA"`) {
			begins++ // of the one that came in parts
		}
	}
	if begins != 1 {
		t.Error("the large transaction's BEGIN does not know its end")
	}
	list := ends(t, got)
	if len(list) != 3 || list[1].EventCount != rows || list[1].Partitions[0].Count != rows {
		t.Errorf("%+v", list)
	}
	if n := o.Spool.Bytes(); n != 0 {
		t.Errorf("%d bytes are left in the spool", n)
	}
}

func TestSignsOfLifeAreWrittenWhenSomebodyWaits(t *testing.T) {
	t.Parallel()
	o := options(t, endpoint(rig.SharedKafka(t), newPrefix()))
	loaded(t, o, relation(1, "a"))
	s, _ := claimed(t, o)
	before := s.Stats().Commits
	for i := range 100 {
		write(t, s, &millrace.Txn{End: millrace.LSN(1000 + i), From: history, Last: true})
	}
	if n := s.Stats().Commits - before; n > 1 {
		t.Errorf("%d Kafka transactions for signs of life that nobody waits for", n)
	}
	write(t, s, &millrace.Txn{End: 2000, From: history, Last: true, Urgent: true})
	awaitDurable(t, s, 2000)
	ctl, err := o.Endpoint.OpenControl()
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	st := awaitState(t, ctl, func(s *kafka.State) bool { return s.Checkpoint.Acked == 2000 })
	if st.Checkpoint.End != 10 {
		t.Errorf("%+v", st.Checkpoint)
	}
}

func TestControlKeepsStateBesideTheWriter(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	o := options(t, endpoint(k, newPrefix()))
	ctl, err := o.Endpoint.OpenControl()
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	if st, err := ctl.Read(deadline(t)); err != nil || st.Job != nil {
		t.Fatalf("nothing is there: %+v, %v", st, err)
	}
	a := relation(1, "a")
	loaded(t, o, a)
	s, _ := claimed(t, o)
	rt := &record.Runtime{Instance: "i1", Host: "h", PID: 1, HTTP: "127.0.0.1:1"}
	if err := ctl.Beat(deadline(t), rt); err != nil {
		t.Fatal(err)
	}
	if err := ctl.SetState(deadline(t), record.Streaming, "why", "hint"); err != nil {
		t.Fatal(err)
	}
	write(t, s, txn(1, "v", a))
	awaitDurable(t, s, 150)
	st := awaitState(t, ctl, func(s *kafka.State) bool { return s.Checkpoint.Commit == 100 })
	if j := st.Job; j.State != record.Streaming || j.Reason != "why" || j.Slot != "s" || !j.OwnsSlot || len(j.Tables) != 1 || j.ConsistentFrom != 10 {
		t.Errorf("%+v", j)
	}
	if r := st.Newest(""); r == nil || r.Instance != "i1" || st.Newest("i1") != nil || st.Checkpoint.Commit != 100 {
		t.Errorf("runtime %+v, checkpoint %+v", r, st.Checkpoint)
	}
	if err := ctl.Leave(deadline(t), "i1"); err != nil {
		t.Fatal(err)
	}
	if st, err = ctl.Read(deadline(t)); err != nil || st.Newest("") != nil {
		t.Errorf("it left: %v, %v", st.Newest(""), err)
	}
}

// shown is what the broker says of a topic now: it answers a change before its own
// metadata shows it. A topic that is not there has no partitions.
func shown(t *testing.T, cl *kgo.Client, topic string) kmsg.MetadataResponseTopic {
	t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{{Topic: kmsg.StringPtr(topic)}}
	res, err := req.RequestWith(deadline(t), cl)
	if err != nil || len(res.Topics) != 1 {
		t.Fatal(res, err)
	}
	return res.Topics[0]
}

func TestChangedTopicsStopTheJob(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	cl := rawClient(t, k)
	adm := kadm.NewClient(cl)
	for name, change := range map[string]func(context.Context, string) error{
		"partitions": func(ctx context.Context, topic string) error {
			_, err := adm.CreatePartitions(ctx, 1, topic)
			return err
		},
		"deleted": func(ctx context.Context, topic string) error {
			_, err := adm.DeleteTopics(ctx, topic)
			return err
		},
	} {
		o := options(t, endpoint(k, newPrefix()))
		a := relation(1, "a")
		loaded(t, o, a)
		topic := o.Endpoint.Prefix + ".public.a"
		was := len(shown(t, cl, topic).Partitions)
		if err := change(deadline(t), topic); err != nil {
			t.Fatal(err)
		}
		rig.Eventually(t, patience, func() bool { return len(shown(t, cl, topic).Partitions) != was })
		s := kafka.New(o)
		if _, err := s.Open(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Claim(deadline(t)); millrace.KindOf(err) != millrace.KindResync || !strings.Contains(millrace.HintOf(err), "restart-snapshot") {
			t.Errorf("%s: %v", name, err)
		}
		_ = s.Close()
	}
}

// An END that names more partitions than a record has room for is an error that says
// so, behind what came before.
func TestTooLargeEnd(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := options(t, e)
	var rels []*millrace.Relation
	for i := range 20 {
		rels = append(rels, relation(uint32(i+1), fmt.Sprintf("a_table_with_a_long_name_%d", i)))
	}
	loaded(t, o, rels...)
	adm, small := kadm.NewClient(rawClient(t, k)), kafka.TopicOf(e.Prefix, rels[0].Name)
	_, err := adm.AlterTopicConfigs(deadline(t), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: kadm.StringPtr("1500")}}, small)
	if err != nil {
		t.Fatal(err)
	}
	// The answer comes before the broker says so to others.
	rig.Eventually(t, patience, func() bool {
		all, err := adm.DescribeTopicConfigs(deadline(t), small)
		return err == nil && len(all) == 1 && slices.ContainsFunc(all[0].Configs, func(c kadm.Config) bool { return c.Key == "max.message.bytes" && c.MaybeValue() == "1500" })
	}, "the setting is there")
	s, _ := claimed(t, o)
	if err := s.Write(deadline(t), txn(1, "v", rels[:2]...)); err != nil {
		t.Fatal(err)
	}
	err = s.Write(deadline(t), txn(2, "v", rels...))
	var m *millrace.Error
	if !errors.As(err, &m) || m.Kind != millrace.KindData || m.LSN != 200 || !strings.Contains(err.Error(), "END of a transaction in 20 partitions") ||
		!strings.Contains(m.Hint, "max.message.bytes") {
		t.Fatalf("%v", err)
	}
	awaitDurable(t, s, 150)
}
