package kafka_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
)

// reading is a source whose transactions are used as they come, and what was seen of it.
type reading struct {
	s *kafka.Source

	mu   sync.Mutex
	seen []string // commits, tables of chunks, and what is said of their being torn
}

func (r *reading) add(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, what)
}

func (r *reading) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

// read starts a source at the beginning.
func read(t *testing.T, e *kafka.Endpoint) *reading {
	t.Helper()
	from := *e
	from.Peer = millrace.PeerSource
	r := &reading{}
	r.s = kafka.NewSource(kafka.SourceOptions{Endpoint: &from, OnTorn: func(torn bool) { r.add(map[bool]string{true: "torn", false: "whole"}[torn]) }})
	t.Cleanup(func() { _ = r.s.Close() })
	if err := r.s.Start(deadline(t), millrace.Checkpoint{History: *history}); err != nil {
		t.Fatal(err)
	}
	return r
}

// note takes note of what has come.
func (r *reading) note(x *millrace.Txn) {
	switch {
	case x.Chunk == nil:
		r.add(fmt.Sprint(uint64(x.Commit)))
	case len(x.Changes) > 0:
		r.add("rows of " + x.Chunk.Table.Name)
	}
}

// goOn uses what comes until the test ends.
func (r *reading) goOn(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for {
			x, err := r.s.Next(ctx)
			if err != nil {
				done <- err
				return
			}
			r.note(x)
			used(r.s, x)
		}
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; ctx.Err() == nil {
			t.Error(err)
		}
	})
}

// beside makes a transaction of a chunk of a table that is loaded beside the stream: its
// mark, and behind the last one none, with a row or without.
func beside(rel *millrace.Relation, at int, last bool, rows ...string) *millrace.Txn {
	m := millrace.Mark{OID: rel.OID, State: []byte("some"), Done: last}
	x := &millrace.Txn{Chunk: &millrace.Chunk{Table: rel.Name}, From: history, Last: true, End: millrace.LSN(at), Marks: map[millrace.TableName]millrace.Mark{rel.Name: m}}
	for i, id := range rows {
		x.Changes = append(x.Changes, millrace.Change{Op: millrace.Read, Seq: uint64(i + 1), Rel: rel, New: text(id, "x"), Early: true})
	}
	return x
}

// earlyTxn is txn of a table that is loaded beside the stream.
func earlyTxn(n int, rel *millrace.Relation) *millrace.Txn {
	x := txn(n, "v", rel)
	x.Changes[0].Early = true
	return x
}

// undecided holds back, for who reads committed, what comes behind a place of a topic until
// it is called.
func undecided(t *testing.T, k *rig.Kafka, topic string) (end func()) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...), kgo.TransactionalID(topic+".other"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	if err = cl.BeginTransaction(); err == nil {
		err = cl.ProduceSync(deadline(t), &kgo.Record{Topic: topic, Key: []byte("runtime:other")}).FirstErr()
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := cl.EndTransaction(deadline(t), kgo.TryAbort); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLoadBetweenTwoLooks: a load that the reader does not see begin, because what the job says of
// it is not in sight yet, is not over; and it is over once its rows were given, with nothing
// behind them.
func TestLoadBetweenTwoLooks(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := readable(t, e, 1)
	a, b := relation(1, "a"), relation(2, "b")
	loaded(t, o, a, b)
	w, _ := claimed(t, o)
	write(t, w, beside(a, 50, false), earlyTxn(1, a))
	awaitDurable(t, w, 150)
	r := read(t, e)
	r.note(used(r.s, next(t, r.s, false)))
	write(t, w, beside(a, 250, true))
	awaitDurable(t, w, 250)
	rig.Eventually(t, patience, func() bool { return r.s.Position() >= 250 }, "the load of a is over for who looks at the job")

	end := undecided(t, k, e.Prefix+".millrace."+e.Job)
	write(t, w, beside(b, 260, false))
	awaitDurable(t, w, 260)
	write(t, w, earlyTxn(3, b))
	awaitDurable(t, w, 350)
	r.goOn(t)
	rig.Eventually(t, patience, func() bool { return slices.Contains(r.all(), "300") }, "the change of b comes")
	rig.Linger(t, 2500*time.Millisecond, "some looks, and signs of life")
	if got := r.all(); !slices.Equal(got, []string{"torn", "100", "300"}) {
		t.Errorf("in the load of b there is %v", got)
	}
	end()
	write(t, w, beside(b, 360, true, "1"))
	awaitDurable(t, w, 360)
	rig.Eventually(t, patience, func() bool { return len(r.all()) == 5 }, "the end of the load of b is told")
	if got := r.all(); !slices.Equal(got, []string{"torn", "100", "300", "rows of b", "whole"}) {
		t.Errorf("behind it there is %v", got)
	}
}

// TestWholeBehindTheCommit: rows are whole again once the sink has committed the last chunk, with
// the cursor that says so, and not before.
func TestWholeBehindTheCommit(t *testing.T) {
	t.Parallel()
	e := endpoint(rig.SharedKafka(t), newPrefix())
	o := readable(t, e, 1)
	a := relation(1, "a")
	loaded(t, o, a)
	w, _ := claimed(t, o)
	write(t, w, beside(a, 50, false), earlyTxn(1, a), beside(a, 160, true, "1"), txn(2, "v", a)) // and the sign of life that the end is
	awaitDurable(t, w, 250)
	for _, end := range []struct {
		name      string
		committed bool
		want      []string
	}{{"committed", true, []string{"torn", "whole"}}, {"let go", false, []string{"torn"}}} {
		t.Run(end.name, func(t *testing.T) {
			t.Parallel()
			r := read(t, e)
			given := uptoSign(t, r)
			r.s.Ack(1000) // what positions say
			for i, x := range given {
				if got := r.all(); !slices.Equal(got, []string{"torn"}) {
					t.Fatalf("with %d of %d committed there is %v", i, len(given), got)
				}
				if stored := x.Stored(); stored != nil {
					stored(end.committed)
				}
			}
			if got := r.all(); !slices.Equal(got, end.want) {
				t.Errorf("with all %s there is %v", end.name, got)
			}
		})
	}
}

// uptoSign gives all that comes until the end of the load was read, and the source has seen
// that it was.
func uptoSign(t *testing.T, r *reading) (given []*millrace.Txn) {
	t.Helper()
	for last := false; !last; {
		x, err := r.s.Next(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		given = append(given, x)
		last = x.Chunk != nil && len(x.Changes) == 0 && given[0].Commit == 100 && len(given) > 3
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if x, err := r.s.Next(ctx); err == nil {
		t.Fatalf("behind the sign of life there is %+v", x)
	}
	return given
}
