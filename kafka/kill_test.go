package kafka_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
	krecord "github.com/millrace/millrace/kafka/record"
	"github.com/millrace/millrace/spool"
)

// step is where a process is killed: behind the nth request of a kind, once it is
// sent or once it is answered.
type step struct {
	Key      int16
	Nth      int64
	Answered bool
}

func (s step) String() string {
	when := "sent"
	if s.Answered {
		when = "answered"
	}
	return fmt.Sprintf("%s %d %s", kmsg.NameForKey(s.Key), s.Nth, when)
}

// killer ends this process at a step, with a signal that nobody can catch.
type killer struct {
	step
	seen atomic.Int64
}

func (k *killer) at(key int16, answered bool, err error) {
	if key == k.Key && answered == k.Answered && err == nil && k.seen.Add(1) == k.Nth {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func (k *killer) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	k.at(key, false, err)
}

func (k *killer) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	k.at(key, true, err)
}

// errand is what a process of its own does: it writes the transactions up to Until,
// from where the job is, and is killed at Kill.
type errand struct {
	Brokers        []string
	Prefix, Layout string
	Until          int
	Spool          string
	Kill           step // Nth 0: nowhere
}

const errandVariable = "MILLRACE_TEST_ERRAND"

// runErrand is the main function of such a process.
func runErrand(text string) error {
	var e errand
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	sp, err := spool.Open(spool.Options{Dir: e.Spool, Job: "job"})
	if err != nil {
		return err
	}
	end := &kafka.Endpoint{Peer: millrace.PeerDestination, Brokers: e.Brokers, Prefix: e.Prefix, Job: "job", Hooks: []kgo.Hook{&killer{step: e.Kill}}}
	o, err := readableOptions(end, 3)
	if err != nil {
		return err
	}
	if o.Spool, o.Layout = sp, e.Layout; e.Layout == kafka.LayoutStream {
		o.Topics.Partitions = 1
	}
	s := kafka.New(o)
	if _, err := s.Open(ctx); err != nil {
		return err
	}
	cp, err := s.Claim(ctx)
	if err != nil {
		return err
	}
	a, b := relation(1, "a"), relation(2, "b")
	at := cp.End
	for n := int(cp.Commit)/100 + 1; n <= e.Until; n++ {
		list := []*millrace.Txn{txn(n, "v", a, b, a, b)}
		for i := range list[0].Changes {
			list[0].Changes[i].New[0].Raw = fmt.Append(nil, n*10+i)
		}
		if n%3 == 0 {
			list = parts(n, largeRows, a)
		}
		for _, x := range list {
			if err := s.Write(ctx, x); err != nil {
				return err
			}
		}
		s.Flush()
		for at < millrace.LSN(n*100+50) {
			if at, err = s.Durable(ctx, at); err != nil {
				return err
			}
		}
	}
	return s.Close()
}

const largeRows = 2500

// Killed at any step of a Kafka transaction, and started again, the job has written
// each transaction wholly and once for who reads what is committed.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	steps := []step{
		{Key: int16(kmsg.InitProducerID), Nth: 1, Answered: false}, {Key: int16(kmsg.InitProducerID), Nth: 1, Answered: true},
		{Key: int16(kmsg.Produce), Nth: 2, Answered: false}, {Key: int16(kmsg.Produce), Nth: 4, Answered: true},
		// The first EndTxn is that of the claim.
		{Key: int16(kmsg.EndTxn), Nth: 1, Answered: false}, {Key: int16(kmsg.EndTxn), Nth: 1, Answered: true},
		{Key: int16(kmsg.EndTxn), Nth: 2, Answered: false}, {Key: int16(kmsg.EndTxn), Nth: 2, Answered: true},
		{Key: int16(kmsg.EndTxn), Nth: 3, Answered: true}, {Key: int16(kmsg.EndTxn), Nth: 4, Answered: false},
	}
	for _, layout := range []string{kafka.LayoutTables, kafka.LayoutStream} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			k := rig.SharedKafka(t)
			e := endpoint(k, newPrefix())
			o := readable(t, e, 3)
			if o.Layout = layout; layout == kafka.LayoutStream {
				o.Topics.Partitions = 1
			}
			loaded(t, o, relation(1, "a"), relation(2, "b"))
			job := errand{Brokers: k.Brokers(), Prefix: e.Prefix, Layout: layout, Spool: t.TempDir()}
			for _, at := range steps {
				job.Kill, job.Until = at, job.Until+4
				if err := send(t, job); err == nil || !strings.Contains(err.Error(), "killed") {
					t.Errorf("%v: it was not killed: %v", at, err)
				}
			}
			job.Kill = step{}
			if err := send(t, job); err != nil {
				t.Fatal(err)
			}
			verifyWhole(t, k, e, layout, job.Until)
		})
	}
}

// send does an errand in a process of its own.
func send(t *testing.T, e errand) error {
	t.Helper()
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(deadline(t), exe)
	cmd.Env = append(os.Environ(), errandVariable+"="+string(text))
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) > 0 {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

// verifyWhole reads all that is committed, and once more through the Reader.
func verifyWhole(t *testing.T, k *rig.Kafka, e *kafka.Endpoint, layout string, until int) {
	t.Helper()
	r := openReader(t, kafka.ReaderOptions{Endpoint: e})
	for n := 1; n <= until; n++ {
		want := 4
		if n%3 == 0 {
			want = largeRows
		}
		x, changes := whole(t, r)
		if x.Commit != millrace.LSN(n*100) || len(changes) != want {
			t.Fatalf("transaction %d is %v with %d changes, want %d", n, x.Commit, len(changes), want)
		}
	}
	if !r.Waiting() {
		t.Error("something comes behind the last transaction")
	}
	rows, marks, topics := map[string]int{}, map[string]int{}, []string{e.Prefix + ".public.a", e.Prefix + ".public.b", e.Prefix + ".transaction"}
	if layout == kafka.LayoutStream {
		topics = []string{e.Prefix + ".stream"}
	}
	for _, rec := range readCommitted(t, k, topics...) {
		switch h := rec.headers; {
		case layout == kafka.LayoutStream && h["end"] == "true", strings.Contains(rec.value, `"END"`):
			marks[h["commit_lsn"]]++
		case strings.HasSuffix(rec.topic, ".transaction"):
		default:
			rows[h["commit_lsn"]]++
		}
	}
	for n := 1; n <= until; n++ {
		at := millrace.LSN(n * 100).String()
		if marks[at] != 1 {
			t.Errorf("transaction %d ends %d times", n, marks[at])
		}
		if want := 4; n%3 != 0 && layout == kafka.LayoutTables && rows[at] != want {
			t.Errorf("transaction %d has %d rows, want %d", n, rows[at], want)
		}
		if n%3 == 0 && layout == kafka.LayoutTables && rows[at] != largeRows {
			t.Errorf("transaction %d has %d rows, want %d", n, rows[at], largeRows)
		}
	}
	if len(marks) != until {
		t.Errorf("%d transactions, want %d", len(marks), until)
	}
}

// readCommitted reads the topics up to the end that they have now.
func readCommitted(t *testing.T, k *rig.Kafka, topics ...string) []rec {
	t.Helper()
	var n int
	ends, err := kadm.NewClient(rawClient(t, k)).ListCommittedOffsets(deadline(t), topics...)
	if err != nil {
		t.Fatal(err)
	}
	cl := rawClient(t, k, kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords())
	left := map[string]int64{}
	for _, o := range ends.Offsets().Sorted() {
		left[fmt.Sprint(o.Topic, o.Partition)] = o.At
		if o.At > 0 {
			n++
		}
	}
	var all []rec
	for ctx := deadline(t); n > 0; {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			t.Fatalf("%d records: %v", len(all), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			// The last one is the marker of a transaction.
			if r.Offset == left[fmt.Sprint(r.Topic, r.Partition)]-1 {
				n--
			}
			if r.Attrs.IsControl() {
				return
			}
			all = append(all, recOf(r))
		})
	}
	return all
}

// readableOptions makes options whose records a Reader can read, but for the spool.
func readableOptions(e *kafka.Endpoint, partitions int) (kafka.Options, error) {
	ro := krecord.Options{Format: krecord.JSON, Prefix: e.Prefix, Toast: krecord.Placeholder,
		Topic: func(n millrace.TableName) string { return kafka.TopicOf(e.Prefix, n) }}
	o := kafka.Options{Endpoint: e, Topics: kafka.TopicOptions{Partitions: partitions}}
	var err error
	o.Encoder, err = krecord.NewEncoder(ro)
	o.Describe = func(_ context.Context, rel *millrace.Relation, key []int) (*krecord.TableVersion, error) {
		return krecord.NewTableVersion(ro, rel, key, nil, nil), nil
	}
	return o, err
}
