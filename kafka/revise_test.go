package kafka_test

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
	"github.com/millrace/millrace/record"
)

func recorded(t *testing.T, e *kafka.Endpoint) *kafka.State {
	t.Helper()
	ctl, err := e.OpenControl()
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	s, err := ctl.Read(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// adds takes a table into a job, as millrace table add does.
func adds(t *testing.T, o kafka.Options, rel *millrace.Relation) kafka.Joining {
	t.Helper()
	joining, err := kafka.Join(deadline(t), &o, []*millrace.Relation{rel})
	if err != nil {
		t.Fatal(err)
	}
	number := recorded(t, o.Endpoint).Number
	if err := kafka.Revise(deadline(t), &o, 1, func(r *kafka.Revision) error {
		r.Load(record.Table{OID: rel.OID, Name: rel.Name}, "some")
		r.Join(&joining[0])
		r.RaiseSet()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got := recorded(t, o.Endpoint).Number; got < number || got < 0 {
		t.Errorf("the number of the last transaction is %d, and was %d", got, number)
	}
	return joining[0]
}

// TestReviseBesideAWriter: the record is changed under the hands of a writer. What that has in hand is committed
// before, or comes again; it starts anew with the record as it is, under the epoch that it has.
func TestReviseBesideAWriter(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := readable(t, e, 1)
	a, b := relation(1, "a"), relation(2, "b")
	loaded(t, o, a)
	s, cp := claimed(t, o)
	raise := func(r *kafka.Revision) error { r.RaiseSet(); return nil }
	const revisions = 5
	at, anew := 0, 0
	for n := range revisions {
		var written atomic.Int64
		ended := make(chan error)
		go func() { ended <- writeOn(t, s, a, at+1, &written) }()
		rig.Eventually(t, patience, func() bool { return written.Load() > 20 }, "the writer is at work")
		if err := kafka.Revise(deadline(t), &o, 1, raise); err != nil {
			t.Error(err)
		}
		// On a slow machine the record may not be there within the time that is looked for it.
		switch err := <-ended; {
		case errors.Is(err, millrace.ErrStartAnew):
			anew++
		case millrace.KindOf(err) != millrace.KindRetry:
			t.Fatalf("revision %d: the writer ends with %v", n, err)
		}
		if _, err := s.Open(deadline(t)); err != nil {
			t.Fatal(err)
		}
		now, err := s.Claim(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		if at = int(now.Commit / 100); now.Epoch != cp.Epoch+int64(n)+1 {
			t.Errorf("the epoch is %d after %d claims", now.Epoch, n+2)
		}
	}
	if anew == 0 {
		t.Error("the writer never starts anew at once")
	}
	write(t, s, txn(at+1, "v", a))
	awaitDurable(t, s, millrace.LSN((at+1)*100+50))
	if got := recorded(t, e).Job.Set; got != revisions {
		t.Errorf("the set has number %d, want %d", got, revisions)
	}
	adds(t, o, b)
	rig.Eventually(t, patience, func() bool { return string(recorded(t, e).Checkpoint.Tables[b.Name].State) == "some" }, "the added table has a mark")
	x := endpoint(k, e.Prefix)
	x.Peer = millrace.PeerSource
	rd, err := kafka.OpenReader(deadline(t), kafka.ReaderOptions{Endpoint: x})
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	for want := 1; want <= at+1; want++ {
		got, err := rd.Next(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		if got.Commit != millrace.LSN(want*100) || len(got.Changes) != 1 {
			t.Fatalf("transaction %v with %d changes comes in place of %d", got.Commit, len(got.Changes), want*100)
		}
		got.Release()
	}
}

// writeOn writes transactions until that fails.
func writeOn(t *testing.T, s *kafka.Sink, rel *millrace.Relation, from int, written *atomic.Int64) error {
	ctx := deadline(t)
	at := millrace.LSN(0)
	for n := from; ; n++ {
		if err := s.Write(ctx, txn(n, "v", rel)); err != nil {
			return err
		}
		s.Flush()
		for at < millrace.LSN(n*100+50) {
			var err error
			if at, err = s.Durable(ctx, at); err != nil {
				return err
			}
		}
		written.Add(1)
	}
}

// TestJoinAgain: a table that was dropped keeps its topic and the numbers of its descriptions,
// and nothing is pinned of it.
func TestJoinAgain(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{kafka.LayoutTables, kafka.LayoutStream} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			k := rig.SharedKafka(t)
			e := endpoint(k, newPrefix())
			o := readable(t, e, 1)
			o.Layout = layout
			a, b := relation(1, "a"), relation(2, "b")
			loaded(t, o, a)
			if adds(t, o, b).Used {
				t.Error("a table that is new has records already")
			}
			s, _ := claimed(t, o)
			write(t, s, txn(1, "v", a, b))
			awaitDurable(t, s, 150)
			topic := kafka.TopicOf(e.Prefix, b.Name)
			pinned := func(number int) { // a commit is confirmed before its marker is in the topic
				t.Helper()
				rig.Eventually(t, patience, func() bool {
					pin := recorded(t, e).Topics[topic]
					return pin.Schema == number && slices.Equal(pin.Key, []string{"id"})
				}, fmt.Sprint("description ", number, " is the newest one"))
			}
			pinned(1)
			drop := func(rel *millrace.Relation) func(*kafka.Revision) error {
				return func(r *kafka.Revision) error { r.Drop(*r.Table(rel.OID)); return nil }
			}
			if err := kafka.Revise(deadline(t), &o, 1, drop(b)); err != nil {
				t.Fatal(err)
			}
			rig.Eventually(t, patience, func() bool {
				state := recorded(t, e)
				_, ok := state.Topics[topic]
				return !ok && len(state.Job.Tables) == 1 && len(state.Checkpoint.Tables) == 0
			}, "nothing is recorded of the dropped table")
			b = relation(3, "b")
			if !adds(t, o, b).Used {
				t.Error("the records of before are forgotten")
			}
			if _, err := s.Open(deadline(t)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Claim(deadline(t)); err != nil {
				t.Fatal(err)
			}
			write(t, s, txn(2, "v", b))
			awaitDurable(t, s, 250)
			pinned(2)
			if err := kafka.Revise(deadline(t), &o, 1, drop(b)); err != nil {
				t.Fatal(err)
			}
			if !adds(t, o, relation(b.OID, "renamed")).Used {
				t.Error("the records that it has under another name are forgotten")
			}
		})
	}
}

// TestReviseAnotherGeneration: what was decided about a job is not done to another one.
func TestReviseAnotherGeneration(t *testing.T) {
	t.Parallel()
	e := endpoint(rig.SharedKafka(t), newPrefix())
	o := readable(t, e, 1)
	a := relation(1, "a")
	loaded(t, o, a)
	reload(t, o, a)
	err := kafka.Revise(deadline(t), &o, 1, func(*kafka.Revision) error { return fmt.Errorf("asked") })
	if millrace.KindOf(err) != millrace.KindPreflight || millrace.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
}

// TestTopicOfADroppedTableIsDeleted: whoever reads goes on without it, also from a cursor that has it, and with the topic that
// the table gets when it is added again. While the table is the job's, it is an error.
func TestTopicOfADroppedTableIsDeleted(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := readable(t, e, 2)
	a, b := relation(1, "a"), relation(2, "b")
	loaded(t, o, a, b)
	w, _ := claimed(t, o)
	s, err := startSource(t, e, millrace.Checkpoint{}, false)
	if err != nil {
		t.Fatal(err)
	}
	var cursor []byte
	comes := func(n int, rels ...*millrace.Relation) {
		t.Helper()
		write(t, w, txn(n, "v", rels...))
		awaitDurable(t, w, millrace.LSN(n*100+50))
		got := next(t, s, false)
		if got.Commit != millrace.LSN(n*100) || len(got.Changes) != len(rels) {
			t.Fatalf("transaction %v with %d changes comes in place of %d", got.Commit, len(got.Changes), n)
		}
		cursor = used(s, got).Cursor
	}
	again := func() {
		t.Helper()
		if _, err := w.Open(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Claim(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	restart := func() error {
		var err error
		s, err = startSource(t, e, millrace.Checkpoint{Cursor: cursor}, false)
		return err
	}
	deletes := func() {
		t.Helper()
		topic := kafka.TopicOf(e.Prefix, b.Name)
		if res, err := admin(t, k).DeleteTopics(deadline(t), topic); err != nil || res.Error() != nil {
			t.Fatal(err, res.Error())
		}
	}
	comes(1, a, b)
	if err := kafka.Revise(deadline(t), &o, 1, func(r *kafka.Revision) error { r.Drop(*r.Table(b.OID)); return nil }); err != nil {
		t.Fatal(err)
	}
	again()
	comes(2, a)
	deletes()
	comes(3, a)
	rig.Linger(t, time.Second, "the source asks for what is not there any more")
	comes(4, a)
	if err := restart(); err != nil {
		t.Fatal(err)
	}
	comes(5, a)
	adds(t, o, b)
	again()
	comes(6, a, b)
	if err := restart(); err != nil {
		t.Fatal(err)
	}
	comes(7, b)
	deletes()
	if err := restart(); millrace.KindOf(err) != millrace.KindResync {
		t.Errorf("the topic of a table of the job was deleted: %v", err)
	}
}
