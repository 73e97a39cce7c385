package kafka_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
)

// TestSourceRefusesLoadsOfEarlierVersions: what an earlier version has loaded beside the stream does
// not say which changes come before their rows. Behind the load that does not matter.
func TestSourceRefusesLoadsOfEarlierVersions(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e, w, _ := oneWritten(t)
	s, err := startSource(t, e, millrace.Checkpoint{}, true)
	if err != nil {
		t.Fatal(err)
	}
	cp := millrace.Checkpoint{Cursor: next(t, s, false).Cursor, Commit: 100, End: 150, Acked: 150}
	w.Beside("incremental")
	if _, err := w.Drain(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := startSource(t, e, cp, true); err != nil {
		t.Errorf("a load of this version: %v", err)
	}
	earlierVersion(t, k, e)
	if _, err := startSource(t, e, cp, true); millrace.KindOf(err) != millrace.KindPreflight || millrace.HintOf(err) == "" {
		t.Errorf("in the first load: %v", err)
	}
	if _, err := startSource(t, e, cp, false); err != nil {
		t.Errorf("behind it: %v", err)
	}
}

// earlierVersion writes the job's record as an earlier version does.
func earlierVersion(t *testing.T, k *rig.Kafka, e *kafka.Endpoint) {
	t.Helper()
	topic, job := e.Prefix+".millrace."+e.Job, ""
	for n := 1; !strings.Contains(job, `"incremental"`); n++ {
		for _, r := range readTopics(t, k, n, topic) {
			if r.key == "job" {
				job = r.value
			}
		}
	}
	old := strings.Replace(job, `"early":true,`, "", 1)
	if old == job {
		t.Fatalf("the job's record is %s", job)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.ProduceSync(deadline(t), &kgo.Record{Topic: topic, Key: []byte("job"), Value: []byte(old)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// TestEarlyChanges: what comes of a table that is loaded beside the stream says what holds behind
// it, and the source says that rows may be missing until the load is over and that was read; also
// if reading goes on in between.
func TestEarlyChanges(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{kafka.LayoutTables, kafka.LayoutStream} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			testEarlyChanges(t, layout)
		})
	}
}

func testEarlyChanges(t *testing.T, layout string) {
	e := endpoint(rig.SharedKafka(t), newPrefix())
	o := readable(t, e, 1)
	o.Layout = layout
	a, b := relation(1, "a"), relation(2, "b")
	loaded(t, o, a, b)
	w, _ := claimed(t, o)
	unsent := func(id string) millrace.Row {
		return millrace.Row{{Kind: millrace.Text, Raw: []byte(id)}, {Kind: millrace.Unchanged}}
	}
	early := &millrace.Txn{XID: 1, Commit: 100, End: 150, From: history, Last: true}
	for _, c := range []millrace.Change{
		{Op: millrace.Insert, New: text("1", "x")}, {Op: millrace.Update, New: text("2", "x")}, {Op: millrace.Update, New: unsent("3")},
		{Op: millrace.Update, Old: text("4", ""), New: text("5", "x")}, {Op: millrace.Update, Old: text("6", ""), New: unsent("7")},
		{Op: millrace.Delete, Old: text("8", "")},
	} {
		c.Rel, c.Seq, c.Early = a, uint64(len(early.Changes)+1), true
		early.Changes = append(early.Changes, c)
	}
	early.Changes = append(early.Changes, millrace.Change{Op: millrace.Insert, Seq: 7, Rel: b, New: text("1", "x")})
	chunk := &millrace.Txn{Chunk: &millrace.Chunk{Table: a.Name}, From: history, Last: true, End: 150,
		Changes: []millrace.Change{{Op: millrace.Read, Seq: 1, Rel: a, New: text("2", "x"), Early: true}},
		Marks:   map[millrace.TableName]millrace.Mark{a.Name: {OID: 1, State: []byte("some")}}}
	write(t, w, early, chunk, txn(2, "later", b))
	awaitDurable(t, w, 250)

	var told []bool
	start := func(cursor []byte) *kafka.Source {
		t.Helper()
		from := *e
		from.Peer = millrace.PeerSource
		s := kafka.NewSource(kafka.SourceOptions{Endpoint: &from, OnTorn: func(torn bool) { told = append(told, torn) }})
		t.Cleanup(func() { _ = s.Close() })
		if err := s.Start(deadline(t), millrace.Checkpoint{History: *history, Cursor: cursor}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := start(nil)
	x := next(t, s, false)
	var got []string
	for i := range x.Changes {
		c := &x.Changes[i]
		got = append(got, fmt.Sprint(c.Op, len(c.Old) > 0))
	}
	want := []string{"put false", "put false", "amend false", "put true", "amend true", "remove true", "insert false"}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	used(s, x)
	if x = next(t, s, true); x.Chunk == nil || len(x.Changes) != 1 || x.Changes[0].Op != millrace.Put {
		t.Errorf("the chunk is %+v", x)
	}
	s = start(x.Cursor)
	if x = next(t, s, false); x.Changes[0].Op != millrace.Insert {
		t.Errorf("of the table that is not loaded there comes %v", x.Changes[0].Op)
	}
	more := func(n int) {
		t.Helper()
		write(t, w, txn(n, "later", b))
		awaitDurable(t, w, millrace.LSN(n*100+50))
		s.Ack(used(s, next(t, s, false)).End)
		rig.Linger(t, 100*time.Millisecond, "whoever follows the writing job looks again")
	}
	for n := 3; n < 7; n++ {
		more(n)
	}
	if fmt.Sprint(told) != "[true true]" {
		t.Errorf("while the table is loaded it is told %v", told)
	}
	write(t, w, &millrace.Txn{Chunk: &millrace.Chunk{Table: a.Name}, From: history, Last: true, End: 650,
		Marks: map[millrace.TableName]millrace.Mark{a.Name: {OID: 1, Done: true}}})
	for n := 7; n < 30 && len(told) < 3; n++ { // it is said behind what comes when the end was seen
		more(n)
	}
	if fmt.Sprint(told) != "[true true false]" {
		t.Errorf("behind the load it is told %v", told)
	}
}

// TestCleanedUpInItsLoad: a job that is cleaned up while it loads will never have written
// all, and what was read of it is not whole.
func TestCleanedUpInItsLoad(t *testing.T) {
	t.Parallel()
	e, w, a := oneWritten(t)
	early := txn(2, "v", a)
	early.Changes[0].Early = true
	write(t, w, early, &millrace.Txn{Chunk: &millrace.Chunk{Table: a.Name}, From: history, Last: true, End: 250,
		Marks: map[millrace.TableName]millrace.Mark{a.Name: {OID: 1, State: []byte("some")}}})
	awaitDurable(t, w, 250)
	var told []bool
	from := *e
	from.Peer = millrace.PeerSource
	s := kafka.NewSource(kafka.SourceOptions{Endpoint: &from, OnTorn: func(torn bool) { told = append(told, torn) }})
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Start(deadline(t), millrace.Checkpoint{History: *history}); err != nil {
		t.Fatal(err)
	}
	for x := next(t, s, false); x.Commit != 200; x = next(t, s, false) {
		used(s, x)
	}
	s.Ack(250)
	if err := control(t, e).Delete(deadline(t)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // some looks at the job, and their signs
	defer cancel()
	for {
		x, err := s.Next(ctx)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		used(s, x)
	}
	if fmt.Sprint(told) != "[true]" {
		t.Errorf("it is told %v", told)
	}
}
