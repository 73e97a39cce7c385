package kafka_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
	krecord "github.com/millrace/millrace/kafka/record"
	"github.com/millrace/millrace/record"
)

// givenUp writes a record to a topic in a transaction that is rolled back.
func givenUp(t *testing.T, k *rig.Kafka, topic string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...), kgo.TransactionalID(topic+".other"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx := deadline(t)
	err = cl.BeginTransaction()
	if err == nil {
		err = cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("nothing")}).FirstErr()
	}
	if err = errors.Join(err, cl.EndTransaction(ctx, kgo.TryAbort)); err != nil {
		t.Fatal(err)
	}
}

// A partition that rests for longer than its retention loses what holds no record of
// ours, before it was read: that is no history that has expired.
func TestReaderPassesMarkersThatHaveExpired(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := readable(t, e, 1)
	a := relation(1, "a")
	topic := kafka.TopicOf(e.Prefix, a.Name)
	loaded(t, o, a)
	s, _ := claimed(t, o)
	write(t, s, txn(1, "v", a))
	awaitDurable(t, s, 150)
	r := openReader(t, kafka.ReaderOptions{Endpoint: e, MaxHeld: 1}) // nothing is fetched ahead
	if x, _ := whole(t, r); x.Commit != 100 {
		t.Fatalf("%+v", x)
	}
	givenUp(t, k, topic)
	forget(t, k, topic, -1)
	write(t, s, txn(2, "v", a))
	awaitDurable(t, s, 250)
	if x, changes := whole(t, r); x.Commit != 200 || len(changes) != 1 {
		t.Errorf("%+v, %d changes", x, len(changes))
	}
	// What was lost with a record of ours is.
	givenUp(t, k, topic)
	write(t, s, txn(3, "v", a))
	awaitDurable(t, s, 350)
	forget(t, k, topic, -1)
	if _, err := r.Next(deadline(t)); millrace.KindOf(err) != millrace.KindResync {
		t.Errorf("a transaction whose record has expired: %v", err)
	}
}

// A table that was loaded without rows is described as well, in both layouts.
func TestReaderDescribesEmptyTables(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{kafka.LayoutTables, kafka.LayoutStream} {
		e := endpoint(rig.SharedKafka(t), newPrefix())
		o := readable(t, e, 1)
		o.Layout = layout
		a := relation(1, "a")
		ctx := deadline(t)
		table := record.Table{OID: a.OID, Name: a.Name, Copied: true}
		job := &record.Job{Name: "job", State: record.Bootstrapping, SystemID: history.System, Timeline: 1, Slot: "s", Mode: "consistent",
			Tables: []record.Table{{OID: a.OID, Name: a.Name}}}
		s := kafka.New(o)
		l, err := s.Load(ctx, job)
		if err != nil {
			t.Fatal(err)
		}
		err = l.Start(ctx, 10, true, false, false, job.Tables)
		if err == nil {
			x := &millrace.Txn{Time: time.Now(), From: history, Chunk: &millrace.Chunk{Table: a.Name, Upto: 10}, Last: true}
			err = errors.Join(l.Chunk(ctx, a, x, &table), l.Flush(ctx))
		}
		l.Close()
		if err = errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		told := 0
		r := openReader(t, kafka.ReaderOptions{Endpoint: e, Described: func(_ context.Context, v *krecord.TableVersion) error {
			if v.Name() == a.Name {
				told++
			}
			return nil
		}})
		if x, changes := whole(t, r); x.Chunk == nil || len(changes) != 0 || told != 1 {
			t.Errorf("%s: %+v, told of the table %d times", layout, x, told)
		}
	}
}
