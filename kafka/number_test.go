package kafka_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
)

// threeWritten is a job that has written three transactions, each in a Kafka transaction of its own.
type threeWritten struct {
	e *kafka.Endpoint
	o kafka.Options
	a *millrace.Relation
	w *kafka.Sink
}

func writeThree(t *testing.T, k *rig.Kafka, layout string) *threeWritten {
	t.Helper()
	j := &threeWritten{e: endpoint(k, newPrefix()), a: relation(1, "a")}
	j.o = readable(t, j.e, 1)
	j.o.Layout = layout
	loaded(t, j.o, j.a)
	j.w, _ = claimed(t, j.o)
	for n := 1; n <= 3; n++ {
		write(t, j.w, txn(n, "v", j.a))
		awaitDurable(t, j.w, millrace.LSN(n*100+50))
	}
	// What is confirmed may still lack its markers.
	if given, err := j.fresh(t); err != nil || len(given) != 3 {
		t.Fatalf("%v, %v", given, err)
	}
	return j
}

// claimAgain is what another instance is told.
func (j *threeWritten) claimAgain(t *testing.T) error {
	t.Helper()
	s := kafka.New(j.o)
	t.Cleanup(func() { _ = s.Close() })
	_, err := s.Open(deadline(t))
	if err == nil {
		_, err = s.Claim(deadline(t))
	}
	return err
}

// goOn is what the instance that runs is told at its next transaction.
func (j *threeWritten) goOn(t *testing.T) error {
	t.Helper()
	if err := j.w.Write(deadline(t), txn(4, "v", j.a)); err != nil {
		return err
	}
	j.w.Flush()
	_, err := j.w.Drain(deadline(t))
	return err
}

// fresh is what one is told who reads from the beginning, until there is nothing more for it.
func (j *threeWritten) fresh(t *testing.T) (given []millrace.LSN, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second) // less than a transaction that nobody ends
	defer cancel()
	s, err := startSource(t, j.e, millrace.Checkpoint{}, false)
	for err == nil {
		var x *millrace.Txn
		if x, err = s.Next(ctx); err == nil {
			switch {
			case x.Chunk == nil:
				given = append(given, x.Commit)
			case x.End >= 350:
				return given, nil
			}
		}
	}
	return given, err
}

// TestLostTransactions: a broker loses the end of one partition and not of others. Whoever writes
// and whoever reads stops, also if it had not read what is lost.
func TestLostTransactions(t *testing.T) {
	t.Parallel()
	k := rig.StartKafka(t, rig.KafkaOptions{Settings: []string{"broker.session.timeout.ms=1500", "broker.heartbeat.interval.ms=500"}})
	order, stream, control, table, all, running := writeThree(t, k, ""), writeThree(t, k, kafka.LayoutStream), writeThree(t, k, ""),
		writeThree(t, k, ""), writeThree(t, k, ""), writeThree(t, k, "")
	for _, j := range []*threeWritten{order, stream, control, all} {
		if err := j.w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	of := func(j *threeWritten) (order, control, table string) {
		return j.e.Prefix + ".transaction", j.e.Prefix + ".millrace." + j.e.Job, kafka.TopicOf(j.e.Prefix, j.a.Name)
	}
	k.Kill(t, 1)
	const batches = 2 // records, and their marker
	cut := func(topic string) { t.Helper(); k.CutLog(t, 1, topic, 0, batches) }
	topic, _, _ := of(order)
	cut(topic)
	cut(stream.e.Prefix + ".stream")
	_, topic, _ = of(control)
	cut(topic)
	_, _, topic = of(table)
	cut(topic)
	topic, _, _ = of(running)
	cut(topic)
	a, b, c := of(all)
	for _, topic := range []string{a, b, c} {
		cut(topic)
	}
	k.Restart(t, 1)

	for _, c := range []struct {
		what string
		err  error
		says string
	}{
		{"who claims a job whose order is cut", order.claimAgain(t), "transaction 3 of generation 1 was written, and "},
		{"who claims one in layout stream", stream.claimAgain(t), "transaction 3 of generation 1 was written, and "},
		{"who claims one whose record is cut", control.claimAgain(t), "would be written again"},
		{"who writes to a table that is cut", table.goOn(t), "the cluster has lost what was between"},
		{"who writes while the order is cut", running.goOn(t), "the cluster has lost what was between"},
	} {
		if millrace.KindOf(c.err) != millrace.KindResync || !strings.Contains(c.err.Error(), c.says) || !strings.Contains(millrace.HintOf(c.err), "unclean.leader.election.enable") {
			t.Errorf("%s is told: %v", c.what, c.err)
		}
	}
	// Those who have stopped have ended their transactions, for which readers would wait.
	for what, j := range map[string]*threeWritten{"order": order, "stream": stream, "running": running} {
		if given, err := j.fresh(t); millrace.KindOf(err) != millrace.KindResync || len(given) != 2 || !strings.Contains(err.Error(), "transactions 3 to 3 of generation 1 are not in") {
			t.Errorf("%s: who reads it is given %v, %v", what, given, err)
		}
	}
	if given, err := table.fresh(t); millrace.KindOf(err) != millrace.KindResync || len(given) != 2 {
		t.Errorf("who reads a table that is cut is given %v, %v", given, err)
	}
	// Whoever comes next does not find what a table's topic has lost: that is for its readers, whom END
	// tells how many records there are.
	if err := running.claimAgain(t); millrace.KindOf(err) != millrace.KindResync {
		t.Errorf("who claims the job that has stopped is told: %v", err)
	}
	if err := table.claimAgain(t); err != nil {
		t.Errorf("a table is cut: %v", err)
	}
	// What all partitions have lost was never there.
	if err := all.claimAgain(t); err != nil {
		t.Errorf("all is cut alike: %v", err)
	}
}
