package kafka_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
	krecord "github.com/millrace/millrace/kafka/record"
)

// startSource starts a source at a checkpoint of the test's history.
func startSource(t *testing.T, e *kafka.Endpoint, cp millrace.Checkpoint, loads bool) (*kafka.Source, error) {
	t.Helper()
	from := *e
	from.Peer = millrace.PeerSource
	if cp.History == (millrace.History{}) {
		cp.History = *history
	}
	s := kafka.NewSource(kafka.SourceOptions{Endpoint: &from, Loads: func() bool { return loads }})
	t.Cleanup(func() { _ = s.Close() })
	return s, s.Start(deadline(t), cp)
}

// oneWritten makes a prefix that a job has written one transaction to, up to 150.
func oneWritten(t *testing.T) (*kafka.Endpoint, *kafka.Sink, *millrace.Relation) {
	t.Helper()
	e := endpoint(rig.SharedKafka(t), newPrefix())
	o := readable(t, e, 1)
	a := relation(1, "a")
	loaded(t, o, a)
	w, _ := claimed(t, o)
	write(t, w, txn(1, "v", a))
	awaitDurable(t, w, 150)
	return e, w, a
}

// used does with what a source gives what a sink does that commits it at once.
func used(s *kafka.Source, x *millrace.Txn) *millrace.Txn {
	committed(x)
	s.Ack(x.End)
	return x
}

func committed(x *millrace.Txn) {
	if stored := x.Stored(); stored != nil {
		stored(true)
	}
}

// next gives what comes next of a kind: a transaction, or a sign of life. The others are committed.
func next(t *testing.T, s *kafka.Source, sign bool) *millrace.Txn {
	t.Helper()
	for {
		x, err := s.Next(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		if (x.Commit == 0) == sign {
			return x
		}
		committed(x)
	}
}

func admin(t *testing.T, k *rig.Kafka) *kadm.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

// forget removes the records of a topic before an offset, -1 all, as retention does.
func forget(t *testing.T, k *rig.Kafka, topic string, at int64) {
	t.Helper()
	adm := admin(t, k)
	if at < 0 {
		ends, err := adm.ListEndOffsets(deadline(t), topic)
		if err != nil {
			t.Fatal(err)
		}
		o, _ := ends.Lookup(topic, 0)
		at = o.Offset
	}
	if _, err := adm.DeleteRecords(deadline(t), kadm.Offsets{topic: {0: {Topic: topic, Partition: 0, At: at}}}); err != nil {
		t.Fatal(err)
	}
}

// A position up to which nothing of ours follows comes behind everything before it,
// with a cursor that goes on there; the first one ends the load.
func TestSourceGivesSignsOfLife(t *testing.T) {
	t.Parallel()
	t.Run("tables", func(t *testing.T) {
		t.Parallel()
		e := endpoint(rig.SharedKafka(t), newPrefix())
		signsOfLife(t, e, readable(t, e, 1), e.Prefix+".transaction")
	})
	t.Run("stream", func(t *testing.T) {
		t.Parallel()
		e := endpoint(rig.SharedKafka(t), newPrefix())
		signsOfLife(t, e, inStream(t, e), e.Prefix+".stream")
	})
}

func signsOfLife(t *testing.T, e *kafka.Endpoint, o kafka.Options, order string) {
	t.Helper()
	k := rig.SharedKafka(t)
	a := relation(1, "a")
	loaded(t, o, a)
	w, _ := claimed(t, o)
	write(t, w, txn(1, "v", a), txn(2, "v", a))
	awaitDurable(t, w, 250)
	s, err := startSource(t, e, millrace.Checkpoint{}, true)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 2; n++ {
		if x := next(t, s, false); x.Commit != millrace.LSN(n*100) {
			t.Fatalf("transaction %d: %+v", n, x)
		}
	}
	x := next(t, s, true)
	if x.End != 250 || len(x.Marks) != 1 || !x.Marks[a.Name].Done || x.Marks[a.Name].OID != a.OID || len(x.Cursor) == 0 || *x.From != *history {
		t.Fatalf("the end of the load: %+v", x)
	}
	write(t, w, &millrace.Txn{End: 400, From: history, Last: true, Urgent: true})
	awaitDurable(t, w, 400)
	x = next(t, s, true)
	if x.End != 400 || len(x.Marks) != 0 || s.Position() != 400 {
		t.Fatalf("sign of life: %+v, position %v", x, s.Position())
	}
	// A checkpoint that is known before the transactions which it covers were read
	// comes behind them.
	write(t, w, txn(5, "v", a), txn(6, "v", a), &millrace.Txn{End: 700, From: history, Last: true, Urgent: true})
	awaitDurable(t, w, 700)
	s, err = startSource(t, e, millrace.Checkpoint{Cursor: x.Cursor, Commit: 200, End: 250, Acked: 400}, false)
	if err != nil {
		t.Fatal(err)
	}
	var idle *millrace.Txn
	for _, want := range []millrace.LSN{550, 650, 700} {
		if idle, err = s.Next(deadline(t)); err != nil || idle.End != want {
			t.Fatalf("%+v, %v, want %v", idle, err, want)
		}
	}
	// What an idle topic has lost to its retention was read.
	forget(t, k, order, -1)
	write(t, w, txn(8, "v", a))
	awaitDurable(t, w, 850)
	if s, err = startSource(t, e, millrace.Checkpoint{Cursor: idle.Cursor, Commit: 600, End: 650, Acked: 700}, false); err != nil {
		t.Fatal(err)
	}
	if x := next(t, s, false); x.Commit != 800 {
		t.Errorf("behind what has expired comes %+v", x)
	}
	if _, err = startSource(t, e, millrace.Checkpoint{Cursor: x.Cursor, Commit: 200, End: 250, Acked: 400}, false); millrace.KindOf(err) != millrace.KindResync {
		t.Errorf("from a cursor before what has expired: %v", err)
	}
}

// History that is gone is noticed where nothing else could tell: at the beginning of
// the transaction topic.
func TestSourceNoticesExpiredHistory(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e, w, a := oneWritten(t)
	s, err := startSource(t, e, millrace.Checkpoint{}, false)
	if err != nil {
		t.Fatal(err)
	}
	next(t, s, false)
	idle := next(t, s, true)
	write(t, w, txn(2, "v", a), txn(3, "v", a))
	awaitDurable(t, w, 350)
	forget(t, k, e.Prefix+".transaction", 3) // BEGIN, END and the marker of the first one
	if _, err := startSource(t, e, millrace.Checkpoint{}, true); millrace.KindOf(err) != millrace.KindResync || !strings.Contains(err.Error(), "history expired") {
		t.Errorf("from the beginning: %v", err)
	}
	s, err = startSource(t, e, millrace.Checkpoint{Cursor: idle.Cursor, Commit: 100, End: 150, Acked: 150}, false)
	if err != nil {
		t.Fatalf("from behind what has expired: %v", err)
	}
	if x := next(t, s, false); x.Commit != 200 {
		t.Errorf("%+v", x)
	}
	forget(t, k, e.Prefix+".transaction", -1)
	if _, err := startSource(t, e, millrace.Checkpoint{Cursor: idle.Cursor, Commit: 100, End: 150, Acked: 150}, false); millrace.KindOf(err) != millrace.KindResync {
		t.Errorf("from before what has expired: %v", err)
	}
}

// Records of an earlier generation are passed over, those of a later one end the
// source, and so do those of another system.
func TestSourceFollowsOneGeneration(t *testing.T) {
	t.Parallel()
	t.Run("tables", func(t *testing.T) {
		t.Parallel()
		e := endpoint(rig.SharedKafka(t), newPrefix())
		oneGeneration(t, e, readable(t, e, 1))
	})
	t.Run("stream", func(t *testing.T) {
		t.Parallel()
		e := endpoint(rig.SharedKafka(t), newPrefix())
		oneGeneration(t, e, inStream(t, e))
	})
}

func oneGeneration(t *testing.T, e *kafka.Endpoint, o kafka.Options) {
	t.Helper()
	a := relation(1, "a")
	loaded(t, o, a)
	w, _ := claimed(t, o)
	write(t, w, txn(1, "old", a), txn(2, "old", a))
	awaitDurable(t, w, 250)
	old, err := startSource(t, e, millrace.Checkpoint{}, false)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		next(t, old, false)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	reload(t, o, a)
	second := &millrace.History{System: history.System, Timeline: 1, Generation: 2}
	w, _ = claimed(t, o)
	x := txn(1, "new", a)
	x.From = second
	write(t, w, x)
	awaitDurable(t, w, 150)
	s, err := startSource(t, e, millrace.Checkpoint{History: *second}, true)
	if err != nil {
		t.Fatal(err)
	}
	if x := next(t, s, false); x.Commit != 100 || *x.From != *second || string(x.Changes[0].New[1].Raw) != "new" {
		t.Errorf("the first of the second generation: %+v", x)
	}
	refused := func(s *kafka.Source, word string) {
		t.Helper()
		for {
			_, err := s.Next(deadline(t))
			if err == nil {
				continue
			}
			if millrace.KindOf(err) != millrace.KindResync || !strings.Contains(err.Error(), word) || millrace.HintOf(err) == "" {
				t.Errorf("%v, want %s", err, word)
			}
			return
		}
	}
	refused(old, "generation 2")
	if _, again := old.Next(deadline(t)); millrace.KindOf(again) != millrace.KindResync {
		t.Errorf("after an error comes %v", again)
	}
	if s, err = startSource(t, e, millrace.Checkpoint{History: millrace.History{System: "8", Timeline: 1, Generation: 2}}, true); err != nil {
		t.Fatal(err)
	}
	refused(s, "another database")
}

// A prefix that nobody writes to is waited for.
func TestSourceWaitsForTopics(t *testing.T) {
	t.Parallel()
	_, err := startSource(t, endpoint(rig.SharedKafka(t), newPrefix()), millrace.Checkpoint{}, true)
	if millrace.KindOf(err) != millrace.KindRetry || millrace.HintOf(err) == "" {
		t.Error(err)
	}
}

// A transaction that alters a table between two of its changes is read with both
// shapes, each where it belongs.
func TestReaderFollowsShapes(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := readable(t, e, 2)
	a, b := relation(1, "a"), relation(2, "b")
	wide := relation(1, "a")
	wide.Columns = append(wide.Columns, millrace.Column{Name: "w", Type: 25})
	loaded(t, o, a, b)
	w, _ := claimed(t, o)
	x := txn(1, "v", a, b, a)
	x.Changes[2].Rel, x.Changes[2].New = wide, text("9", "v", "wide")
	x.Changes[0].New = text("8", "v")
	write(t, w, x)
	awaitDurable(t, w, 150)
	var told []string
	r := openReader(t, kafka.ReaderOptions{Endpoint: e, Described: func(_ context.Context, v *krecord.TableVersion) error {
		told = append(told, fmt.Sprint(v.Table, v.Version, len(v.Columns)))
		return nil
	}})
	_, changes := whole(t, r)
	var got []string
	for i := range changes {
		got = append(got, describeChange(&changes[i]))
	}
	if s := strings.Join(got, "; "); s != "1 insert a old() new(8,v); 2 insert b old() new(1,v); 3 insert a old() new(9,v,wide)" {
		t.Error(s)
	}
	if s := strings.Join(told, " "); s != "a1 2 b1 2 a2 3" && s != "a12 b12 a23" {
		t.Error(s)
	}
}
