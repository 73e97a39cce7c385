package kafka_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
)

// lostRecords tells whether err says that a partition has lost what was read of it.
func lostRecords(err error, topic string) bool {
	return millrace.KindOf(err) == millrace.KindResync && strings.Contains(err.Error(), topic+" [0] was read up to offset") &&
		strings.Contains(err.Error(), "leader epoch") && strings.Contains(millrace.HintOf(err), "unclean.leader.election.enable")
}

// A cursor is held against what the partition's leader says of the epoch in it.
func TestReaderNoticesACursorThatTheClusterContradicts(t *testing.T) {
	t.Parallel()
	e, x := firstOfTwo(t, 1)
	for _, topic := range []string{e.Prefix + ".transaction", kafka.TopicOf(e.Prefix, millrace.TableName{Schema: "public", Name: "a"})} {
		cursor := bytes.Clone(x.Cursor)
		name := append([]byte{byte(len(topic))}, topic...)
		at := bytes.Index(cursor, name) + len(name) + 16 + 1 // behind its id and the number of partitions
		if n, k := binary.Uvarint(cursor[at:]); k != 1 || n == 0 || n > 10 {
			t.Fatalf("offset %d in %x", n, cursor)
		}
		cursor[at] = 100
		r, err := kafka.OpenReader(deadline(t), kafka.ReaderOptions{Endpoint: e, Cursor: cursor})
		if err == nil {
			r.Close()
		}
		if !lostRecords(err, topic) {
			t.Errorf("%s: %v", topic, err)
		}
	}
}

// A broker that has lost the end of a log, and has other records there now, does not go
// unnoticed: neither by who reads on nor by who comes back.
func TestReaderNoticesLostRecords(t *testing.T) {
	t.Parallel()
	k := rig.StartKafka(t, rig.KafkaOptions{Settings: []string{"broker.session.timeout.ms=1500", "broker.heartbeat.interval.ms=500"}})
	e := endpoint(k, newPrefix())
	o := readable(t, e, 1)
	a := relation(1, "a")
	loaded(t, o, a)
	s, _ := claimed(t, o)
	write(t, s, txn(1, "v", a), txn(2, "v", a))
	awaitDurable(t, s, 250)
	write(t, s, txn(3, "v", a))
	awaitDurable(t, s, 350)
	r := openReader(t, kafka.ReaderOptions{Endpoint: e})
	var cursor []byte
	for range 3 {
		x, _ := whole(t, r)
		cursor = x.Cursor
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	order := e.Prefix + ".transaction"
	k.Kill(t, 1)
	k.CutLog(t, 1, order, 0, 2) // BEGIN and END of the third, and its marker
	k.Restart(t, 1)
	// No job writes to it any more (TestLostTransactions), but something may.
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for range 9 {
		if err := cl.ProduceSync(deadline(t), &kgo.Record{Topic: order, Value: []byte("another")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	unnoticed(t, e, r, cursor, order)
}

// unnoticed says who does not notice that a topic has lost records: the one who reads on, or
// one who comes back.
func unnoticed(t *testing.T, e *kafka.Endpoint, r *kafka.Reader, cursor []byte, order string) {
	t.Helper()
	for what, next := range map[string]func() error{
		"who reads on": func() error { x, err := r.Next(deadline(t)); return given(x, err) },
		"who comes back": func() error {
			again, err := kafka.OpenReader(deadline(t), kafka.ReaderOptions{Endpoint: e, Cursor: cursor})
			if err != nil {
				return err
			}
			defer again.Close()
			x, err := again.Next(deadline(t))
			return given(x, err)
		},
	} {
		err := next()
		for millrace.KindOf(err) == millrace.KindRetry {
			r = openReader(t, kafka.ReaderOptions{Endpoint: e, Cursor: cursor})
			err = next()
		}
		if !lostRecords(err, order) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func given(x *millrace.Txn, err error) error {
	if err == nil {
		return fmt.Errorf("transaction at %v is given", x.Commit)
	}
	return err
}
