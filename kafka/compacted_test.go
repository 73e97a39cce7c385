package kafka_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
	krecord "github.com/millrace/millrace/kafka/record"
)

// alterTopic changes settings of a topic.
func alterTopic(t *testing.T, k *rig.Kafka, topic string, settings ...string) {
	t.Helper()
	var changes []kadm.AlterConfig
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		changes = append(changes, kadm.AlterConfig{Name: name, Value: &value})
	}
	res, err := admin(t, k).AlterTopicConfigs(deadline(t), changes, topic)
	if err == nil {
		for _, r := range res {
			err = r.Err
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// compactTopic has the cleaner take away what it may of a topic: all but the last record
// of each key, and the segment that is written to.
func compactTopic(t *testing.T, k *rig.Kafka, topic string, left int) {
	t.Helper()
	alterTopic(t, k, topic, "min.cleanable.dirty.ratio=0", "max.compaction.lag.ms=1")
	rig.Eventually(t, patience, func() bool { return len(readCommitted(t, k, topic)) <= left }, "the topic is compacted")
}

// rowsOf is what the changes of a compacted topic make of a table of two columns.
type rowsOf map[string]string

func (rows rowsOf) apply(t *testing.T, changes []millrace.Change) {
	t.Helper()
	for i := range changes {
		switch c := &changes[i]; c.Op {
		case millrace.Put:
			rows[string(c.New[0].Raw)] = string(c.New[1].Raw)
		case millrace.Remove:
			delete(rows, string(c.Old[0].Raw))
		case millrace.Truncate:
			clear(rows)
		default:
			t.Errorf("a compacted topic gives %s", describeChange(c))
		}
	}
}

// compactedJob writes to compacted topics whose segments end at each batch.
func compactedJob(t *testing.T, e *kafka.Endpoint, format krecord.Format, a *millrace.Relation) *kafka.Sink {
	t.Helper()
	o := readable(t, e, 1)
	o.Topics.Compact = true
	if format != krecord.JSON {
		ro := krecord.Options{Format: format, Prefix: e.Prefix, Toast: krecord.Placeholder, Topic: func(n millrace.TableName) string { return kafka.TopicOf(e.Prefix, n) }}
		var err error
		if o.Encoder, err = krecord.NewEncoder(ro); err != nil {
			t.Fatal(err)
		}
		o.Describe = func(_ context.Context, rel *millrace.Relation, key []int) (*krecord.TableVersion, error) {
			return krecord.NewTableVersion(ro, rel, key, nil, nil), nil
		}
	}
	loaded(t, o, a)
	s, _ := claimed(t, o)
	return s
}

// one gives a transaction of changes of one table.
func one(n int, changes ...millrace.Change) *millrace.Txn {
	x := txn(n, "")
	for i := range changes {
		changes[i].Seq = uint64(i + 1)
	}
	x.Changes = changes
	return x
}

func set(rel *millrace.Relation, op millrace.Op, id int, v string) millrace.Change {
	c := millrace.Change{Op: op, Rel: rel}
	switch op {
	case millrace.Delete:
		c.Old = text(fmt.Sprint(id), "")
		c.Old[1] = millrace.Value{Kind: millrace.Null}
	case millrace.Truncate:
		c.Rel, c.Truncated = nil, &millrace.Truncation{Rels: []*millrace.Relation{rel}}
	default:
		c.New = text(fmt.Sprint(id), v)
	}
	return c
}

// moved is an update of the key.
func moved(rel *millrace.Relation, from, to int, v string) millrace.Change {
	c := set(rel, millrace.Update, to, v)
	c.Old = set(rel, millrace.Delete, from, "").Old
	return c
}

// A compacted log leads to the rows of the source, is torn until the changes that have
// made others void have come, and gives whole transactions from there on.
func TestReaderOfACompactedLog(t *testing.T) {
	t.Parallel()
	for _, format := range []krecord.Format{krecord.JSON, krecord.JSONInline} {
		t.Run(fmt.Sprint(format), func(t *testing.T) {
			t.Parallel()
			k := rig.SharedKafka(t)
			e := endpoint(k, newPrefix())
			a := relation(1, "a")
			w := compactedJob(t, e, format, a)
			put := func(x *millrace.Txn) {
				t.Helper()
				write(t, w, x)
				awaitDurable(t, w, x.End)
			}
			put(one(1, set(a, millrace.Insert, 1, "a"), set(a, millrace.Insert, 2, "b"), set(a, millrace.Insert, 3, "c"), set(a, millrace.Insert, 9, "old")))
			topic := kafka.TopicOf(e.Prefix, a.Name)
			alterTopic(t, k, topic, "segment.ms=1")
			put(one(2, set(a, millrace.Truncate, 0, "")))
			put(one(3, set(a, millrace.Insert, 1, "a1"), set(a, millrace.Insert, 2, "b1"), set(a, millrace.Insert, 3, "c1")))
			early := openReader(t, kafka.ReaderOptions{Endpoint: e, History: history})
			former := rowsOf{}
			var stay []byte
			for range 3 {
				x, changes := whole(t, early)
				former.apply(t, changes)
				stay = x.Cursor
			}
			put(one(4, set(a, millrace.Update, 1, "a2"), moved(a, 2, 4, "b2")))
			put(one(5, set(a, millrace.Delete, 3, ""), set(a, millrace.Insert, 2, "new")))
			put(one(6, set(a, millrace.Update, 1, "a3")))
			put(one(7, set(a, millrace.Insert, 7, "last")))
			// 9, the TRUNCATE, 4, 2, the tombstone of 3, 1; and 7 in the segment that is written to.
			compactTopic(t, k, topic, 7)
			r := openReader(t, kafka.ReaderOptions{Endpoint: e, History: history})
			rows := rowsOf{}
			var cursor []byte
			for n := 1; n <= 7; n++ {
				x, changes := whole(t, r)
				if x.Commit != millrace.LSN(n*100) {
					t.Fatalf("transaction %d: %+v", n, x)
				}
				rows.apply(t, changes)
				if !r.Torn() {
					t.Errorf("transaction %d is taken for whole", n)
				}
				if n == 4 { // and again from a cursor within
					cursor = x.Cursor
					r = openReader(t, kafka.ReaderOptions{Endpoint: e, History: history, Cursor: cursor})
					if !r.Torn() {
						t.Error("it is forgotten that the log is torn")
					}
					otherReplica(t, e, topic, cursor)
				}
			}
			// Who has read a part of it before sees the rest of it.
			early = openReader(t, kafka.ReaderOptions{Endpoint: e, History: history, Cursor: stay})
			for range 4 {
				_, changes := whole(t, early)
				former.apply(t, changes)
			}
			for who, got := range map[string]rowsOf{"all": rows, "the rest": former} {
				if got := fmt.Sprint(got); got != "map[1:a3 2:new 4:b2 7:last]" {
					t.Errorf("who has read %s has the rows %s", who, got)
				}
			}
			// The end is asked for once more behind the last hole.
			put(one(8, moved(a, 7, 3, "moved"), set(a, millrace.Delete, 4, "")))
			_, changes := whole(t, r)
			rows.apply(t, changes)
			put(one(9, set(a, millrace.Insert, 9, "whole")))
			x, changes := whole(t, r)
			rows.apply(t, changes)
			if got := fmt.Sprint(rows); r.Torn() || x.Commit != 900 || got != "map[1:a3 2:new 3:moved 9:whole]" {
				t.Errorf("torn: %v, %+v, the rows are %s", r.Torn(), x, got)
			}
		})
	}
}

// otherReplica has a cursor say that what was read came from another broker, which may have
// been cleaned at other times: no hole is accepted behind it.
func otherReplica(t *testing.T, e *kafka.Endpoint, topic string, cursor []byte) {
	t.Helper()
	cursor = bytes.Clone(cursor)
	at := bytes.Index(cursor, []byte(topic)) + len(topic) + 16 + 1 // behind its id and the number of partitions
	if leader := cursor[at:][3]; leader != 2 {
		t.Fatalf("no broker 1 in %x", cursor[at:])
	}
	cursor[at+3] = 4
	_, err := openReader(t, kafka.ReaderOptions{Endpoint: e, History: history, Cursor: cursor}).Next(deadline(t))
	if millrace.KindOf(err) != millrace.KindResync || !strings.Contains(err.Error(), "another leader") || millrace.HintOf(err) == "" {
		t.Errorf("from another replica: %v", err)
	}
}

// What can't be made up for is noticed: a value that an update has not sent and that is
// gone, deletes that may be gone, and records that go by their age.
func TestReaderOfACompactedLogStops(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	for name, c := range map[string]struct {
		keeps  string
		unsent bool // by the second transaction
		early  bool // the first is read before anything is compacted
		long   bool // and that long ago
		policy string
		want   string
		kind   millrace.Kind
	}{
		"unsent":                    {keeps: "86400000", unsent: true, policy: "compact", want: "TOAST", kind: millrace.KindResync},
		"unsent in one with a hole": {keeps: "86400000", unsent: true, early: true, policy: "compact", want: "TOAST", kind: millrace.KindResync},
		"deletes since long ago":    {keeps: "86400000", early: true, long: true, policy: "compact", want: "deletes may be among them", kind: millrace.KindResync},
		"deletes":                   {keeps: "0", policy: "compact", want: "deletes may be among them", kind: millrace.KindResync},
		"age":                       {keeps: "86400000", policy: "compact,delete", want: "by their age as well", kind: millrace.KindPreflight},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := endpoint(k, newPrefix())
			a := relation(1, "a")
			w := compactedJob(t, e, krecord.JSON, a)
			topic := kafka.TopicOf(e.Prefix, a.Name)
			x := one(1, set(a, millrace.Insert, 1, "a"), set(a, millrace.Insert, 2, "b"))
			write(t, w, x)
			awaitDurable(t, w, x.End)
			alterTopic(t, k, topic, "segment.ms=1", "cleanup.policy="+c.policy, "delete.retention.ms="+c.keeps)
			var cursor []byte
			if c.early {
				x, _ := whole(t, openReader(t, kafka.ReaderOptions{Endpoint: e, History: history}))
				cursor = x.Cursor
				if c.long { // the time stands behind the version, in seconds
					_, k := binary.Uvarint(cursor[1:])
					cursor = slices.Concat(cursor[:1], binary.AppendUvarint(nil, uint64(time.Now().Add(-23*time.Hour).Unix())), cursor[1+k:])
				}
			}
			update := set(a, millrace.Update, 1, "")
			if c.unsent {
				update.New[1] = millrace.Value{Kind: millrace.Unchanged}
			}
			for n, changes := range [][]millrace.Change{{set(a, millrace.Update, 1, "gone"), update}, {set(a, millrace.Insert, 3, "c")}, {set(a, millrace.Insert, 4, "d")}} {
				x := one(n+2, changes...)
				write(t, w, x)
				awaitDurable(t, w, x.End)
			}
			compactTopic(t, k, topic, 4)
			r := openReader(t, kafka.ReaderOptions{Endpoint: e, History: history, Cursor: cursor})
			var err error
			for n := 0; n < 4 && err == nil && !(c.early && n == 3); n++ {
				_, err = r.Next(deadline(t))
			}
			if millrace.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) || millrace.HintOf(err) == "" {
				t.Errorf("%v", err)
			}
		})
	}
}

// Torn and whole again are told, the latter once it is durable.
func TestSourceTellsOfATornLog(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	a := relation(1, "a")
	w := compactedJob(t, e, krecord.JSON, a)
	topic := kafka.TopicOf(e.Prefix, a.Name)
	put := func(n int, v string) {
		t.Helper()
		op := millrace.Update
		if n == 1 {
			op = millrace.Insert
		}
		x := one(n, set(a, op, 1, v))
		write(t, w, x)
		awaitDurable(t, w, x.End)
	}
	put(1, "a")
	alterTopic(t, k, topic, "segment.ms=1")
	for n := 2; n <= 4; n++ {
		put(n, fmt.Sprint(n))
	}
	compactTopic(t, k, topic, 2)
	var told []bool
	from := *e
	from.Peer = millrace.PeerSource
	source := func(cursor []byte) *kafka.Source {
		t.Helper()
		s := kafka.NewSource(kafka.SourceOptions{Endpoint: &from, OnTorn: func(torn bool) { told = append(told, torn) }})
		t.Cleanup(func() { _ = s.Close() })
		if err := s.Start(deadline(t), millrace.Checkpoint{History: *history, Cursor: cursor}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	source(next(t, source(nil), false).Cursor)
	if fmt.Sprint(told) != "[true true]" {
		t.Errorf("who goes on there is told %v", told)
	}
	told = nil
	s := source(nil)
	for range 4 {
		next(t, s, false)
	}
	for n := 5; n <= 6; n++ { // the end is asked for once more behind the last hole
		put(n, "whole")
		next(t, s, false)
	}
	s.Ack(500)
	if fmt.Sprint(told) != "[true]" {
		t.Errorf("before all of it is durable it is told %v", told)
	}
	s.Ack(550)
	if fmt.Sprint(told) != "[true false]" {
		t.Errorf("behind it it is told %v", told)
	}
}

// Records that went otherwise than by compaction are no hole: neither for who begins nor for who
// goes on without having read any of the partition.
func TestReaderOfACompactedLogWithoutItsBeginning(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	a, b := relation(1, "a"), relation(2, "b")
	w := compactedJob(t, e, krecord.JSON, a)
	for n, c := range []millrace.Change{set(b, millrace.Insert, 1, "b"), set(a, millrace.Insert, 1, "lost"), set(a, millrace.Insert, 2, "a")} {
		x := one(n+1, c)
		write(t, w, x)
		awaitDurable(t, w, x.End)
	}
	topic := kafka.TopicOf(e.Prefix, a.Name)
	alterTopic(t, k, topic, "cleanup.policy=delete")
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: topic, At: 1})
	if res, err := admin(t, k).DeleteRecords(deadline(t), offsets); err != nil || res.Error() != nil {
		t.Fatal(err, res.Error())
	}
	alterTopic(t, k, topic, "cleanup.policy=compact")
	var cursor []byte
	for _, what := range []string{"begins", "goes on"} {
		r := openReader(t, kafka.ReaderOptions{Endpoint: e, History: history, Cursor: cursor})
		if cursor == nil {
			x, _ := whole(t, r)
			cursor = x.Cursor
		}
		if x, err := r.Next(deadline(t)); millrace.KindOf(err) != millrace.KindResync || !strings.Contains(err.Error(), "history expired") {
			t.Errorf("who %s is given %+v, %v", what, x, err)
		}
	}
}

// While nothing comes, the cursor says now and then that the end was there.
func TestCursorsOfAnIdleCompactedLog(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	a := relation(1, "a")
	w := compactedJob(t, e, krecord.JSON, a)
	x := one(1, set(a, millrace.Insert, 1, "a"))
	write(t, w, x)
	awaitDurable(t, w, x.End)
	alterTopic(t, k, kafka.TopicOf(e.Prefix, a.Name), "delete.retention.ms=10000")
	from := *e
	from.Peer = millrace.PeerSource
	s := kafka.NewSource(kafka.SourceOptions{Endpoint: &from})
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Start(deadline(t), millrace.Checkpoint{History: *history}); err != nil {
		t.Fatal(err)
	}
	next(t, s, false)
	for range 3 {
		if x, err := s.Next(deadline(t)); err != nil || x.Chunk == nil || x.End != 150 || len(x.Cursor) == 0 {
			t.Fatalf("%+v, %v", x, err)
		}
	}
	_, err := kafka.OpenReader(deadline(t), kafka.ReaderOptions{Endpoint: e, History: history, Cursor: []byte{99}})
	if millrace.KindOf(err) != millrace.KindPreflight || millrace.HintOf(err) == "" {
		t.Errorf("a cursor of a newer version: %v", err)
	}
}
