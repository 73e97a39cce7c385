package kafka_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
)

// readable makes the options of a sink that writes what a Reader can read.
func readable(t *testing.T, e *kafka.Endpoint, partitions int) kafka.Options {
	t.Helper()
	o, err := readableOptions(e, partitions)
	if err != nil {
		t.Fatal(err)
	}
	plain := options(t, e)
	o.Spool, o.Log = plain.Spool, plain.Log
	return o
}

func openReader(t *testing.T, o kafka.ReaderOptions) *kafka.Reader {
	t.Helper()
	r, err := kafka.OpenReader(deadline(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// whole reads one transaction, with all its parts.
func whole(t *testing.T, r *kafka.Reader) (*millrace.Txn, []millrace.Change) {
	t.Helper()
	var changes []millrace.Change
	for part := 0; ; part++ {
		x, err := r.Next(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		if x.Part != part {
			t.Fatalf("part %d, want %d", x.Part, part)
		}
		changes = append(changes, x.Changes...)
		if x.Last {
			return x, changes
		}
	}
}

func describeChange(c *millrace.Change) string {
	row := func(r millrace.Row) string {
		var s []string
		for _, v := range r {
			switch v.Kind {
			case millrace.Text:
				s = append(s, string(v.Raw))
			default:
				s = append(s, string(v.Kind))
			}
		}
		return strings.Join(s, ",")
	}
	return fmt.Sprintf("%d %v %s old(%s) new(%s)", c.Seq, c.Op, c.Rel.Name.Name, row(c.Old), row(c.New))
}

// What the reader gives is what the sink was given: every transaction whole, in
// commit order, its changes in their order, across topics and partitions.
func TestReaderRebuildsTransactions(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := readable(t, e, 3)
	a, b := relation(1, "a"), relation(2, "b")
	loaded(t, o, a, b)
	s, _ := claimed(t, o)
	var want []string
	for n := 1; n <= 30; n++ {
		x := txn(n, "v", a, b, a, b, a)
		for i := range x.Changes {
			x.Changes[i].New = text(fmt.Sprint(n*100+i), "v")
		}
		if n%3 == 0 { // a key moves, most likely to another partition
			x.Changes = append(x.Changes, millrace.Change{Op: millrace.Update, Seq: 6, Rel: a, Old: text(fmt.Sprint(n*100), ""), New: text(fmt.Sprint(n*100+50), "moved")},
				millrace.Change{Op: millrace.Delete, Seq: 7, Rel: b, Old: text(fmt.Sprint(n*100+1), "")})
			x.Changes[5].Old[1] = millrace.Value{Kind: millrace.Null}
			x.Changes[6].Old[1] = millrace.Value{Kind: millrace.Null}
		}
		for i := range x.Changes {
			want = append(want, describeChange(&x.Changes[i]))
		}
		write(t, s, x)
	}
	awaitDurable(t, s, 3050)
	r := openReader(t, kafka.ReaderOptions{Endpoint: e})
	var got []string
	var cursor []byte
	for n := 1; n <= 30; n++ {
		x, changes := whole(t, r)
		if x.Commit != millrace.LSN(n*100) || x.End != millrace.LSN(n*100+50) || x.XID != uint32(1000+n) || *x.From != *history {
			t.Fatalf("transaction %d: %+v", n, x)
		}
		for i := range changes {
			got = append(got, describeChange(&changes[i]))
		}
		if n == 20 {
			cursor = x.Cursor
		}
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("change %d: %s, want %s", i, got[i], want[i])
		}
	}
	// From a cursor it goes on with the next one.
	r = openReader(t, kafka.ReaderOptions{Endpoint: e, Cursor: cursor})
	if x, _ := whole(t, r); x.Commit != 2100 {
		t.Errorf("behind the cursor of transaction 20 comes %v", x.Commit)
	}
}

// A large transaction comes in parts, with little of it in memory.
func TestReaderGivesLargeTransactionsInParts(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := readable(t, e, 4)
	a := relation(1, "a")
	loaded(t, o, a)
	s, _ := claimed(t, o)
	const rows = 12_000
	write(t, s, parts(1, rows, a)...)
	write(t, s, txn(2, "small", a))
	awaitDurable(t, s, 250)
	r := openReader(t, kafka.ReaderOptions{Endpoint: e, PartBytes: 512 << 10, MaxHeld: 2 << 20})
	x, changes := whole(t, r)
	if x.Part < 3 || len(changes) != rows || x.End != 150 {
		t.Fatalf("%d parts, %d changes, end %v", x.Part+1, len(changes), x.End)
	}
	for i := range changes {
		if changes[i].Seq != uint64(i+1) || string(changes[i].New[0].Raw) != fmt.Sprint(i) {
			t.Fatalf("change %d: %s", i, describeChange(&changes[i]))
		}
	}
	if x, changes := whole(t, r); x.Commit != 200 || len(changes) != 1 {
		t.Errorf("%+v", x)
	}
}

// A topic that is not the one of the cursor any more ends reading, and so does
// history that is gone.
func TestReaderNoticesWhatIsGone(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	for name, spoil := range map[string]func(context.Context, string) error{
		"more partitions": func(ctx context.Context, topic string) error {
			_, err := adm.CreatePartitions(ctx, 1, topic)
			// The answer comes before the broker says so to others.
			rig.Eventually(t, time.Minute, func() bool {
				all, err := adm.ListTopics(ctx, topic)
				return err == nil && len(all[topic].Partitions) == 2
			}, "the partition is not there")
			return err
		},
		"expired": func(ctx context.Context, topic string) error {
			_, err := adm.DeleteRecords(ctx, kadm.Offsets{topic: {0: {Topic: topic, Partition: 0, At: 3}}})
			return err
		},
	} {
		e := endpoint(k, newPrefix())
		o := readable(t, e, 1)
		a := relation(1, "a")
		loaded(t, o, a)
		s, _ := claimed(t, o)
		write(t, s, txn(1, "v", a), txn(2, "v", a), txn(3, "v", a))
		awaitDurable(t, s, 350)
		x, _ := whole(t, openReader(t, kafka.ReaderOptions{Endpoint: e}))
		if err := spoil(deadline(t), kafka.TopicOf(e.Prefix, a.Name)); err != nil {
			t.Fatal(err)
		}
		r, err := kafka.OpenReader(deadline(t), kafka.ReaderOptions{Endpoint: e, Cursor: x.Cursor})
		if err == nil {
			_, err = r.Next(deadline(t))
			r.Close()
		}
		if millrace.KindOf(err) != millrace.KindResync || millrace.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
