package kafka_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
	"github.com/millrace/millrace/record"
)

func inStream(t *testing.T, e *kafka.Endpoint) kafka.Options {
	t.Helper()
	o := readable(t, e, 1)
	o.Layout = kafka.LayoutStream
	return o
}

// What the reader gives is what was written, in layout stream as well: whole
// transactions in order, key changes and truncations in one piece, from a cursor
// on, across a restart of the writer, and a row of several records.
func TestStreamIsReadBack(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := inStream(t, e)
	a, b := relation(1, "a"), full(relation(2, "b"))
	loaded(t, o, a, b)
	s, _ := claimed(t, o)
	var want []string
	rng := rand.New(rand.NewPCG(1, 2))
	const n = 25
	for i := 1; i <= n; i++ {
		size := 5
		if i%5 == 0 {
			size = 400_000 // several of them need several records
		}
		x := txn(i, strings.Repeat(string(rune('a'+i)), 1+rng.IntN(size)), a, b, a)
		x.Changes = append(x.Changes,
			millrace.Change{Op: millrace.Update, Seq: 4, Rel: a, Old: text(fmt.Sprint(i), ""), New: text(fmt.Sprint(i+1000), strings.Repeat("m", 1+rng.IntN(size)))},
			millrace.Change{Op: millrace.Update, Seq: 5, Rel: b, Old: text(fmt.Sprint(i), "old"), OldFull: true, New: text(fmt.Sprint(i), "new")},
			millrace.Change{Op: millrace.Delete, Seq: 6, Rel: b, Old: text(fmt.Sprint(i), "new"), OldFull: true})
		x.Changes[3].Old[1] = millrace.Value{Kind: millrace.Null}
		if i == 7 { // three times what a record takes
			x.Changes[2].New = text("7", strings.Repeat("large ", 500_000))
		}
		for j := range x.Changes {
			want = append(want, describeChange(&x.Changes[j]))
		}
		write(t, s, x)
		if i == n/2 {
			awaitDurable(t, s, x.End)
			_ = s.Close()
			s, _ = claimed(t, o)
		}
	}
	awaitDurable(t, s, millrace.LSN(n*100+50))
	r := openReader(t, kafka.ReaderOptions{Endpoint: e})
	var got []string
	var cursor []byte
	for i := 1; i <= n; i++ {
		x, changes := whole(t, r)
		if x.Commit != millrace.LSN(i*100) || x.End != millrace.LSN(i*100+50) || x.XID != uint32(1000+i) || *x.From != *history ||
			!x.Time.Equal(time.UnixMilli(1700000000000)) {
			t.Fatalf("transaction %d: %+v", i, x)
		}
		for j := range changes {
			got = append(got, describeChange(&changes[j]))
		}
		if i == 20 {
			cursor = x.Cursor
		}
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("change %d: %.100s, want %.100s", i, got[i], want[i])
		}
	}
	if !r.Waiting() {
		t.Error("something is left to be read")
	}
	r = openReader(t, kafka.ReaderOptions{Endpoint: e, Cursor: cursor})
	if x, _ := whole(t, r); x.Commit != 2100 {
		t.Errorf("behind the cursor of transaction 20 comes %v", x.Commit)
	}
	for _, topic := range topicsOf(t, k, e.Prefix) {
		if strings.Contains(topic, ".public.") || strings.HasSuffix(topic, ".transaction") {
			t.Errorf("there is a topic %s", topic)
		}
	}
}

func topicsOf(t *testing.T, k *rig.Kafka, prefix string) []string {
	t.Helper()
	all, err := kadm.NewClient(rawClient(t, k)).ListTopics(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, n := range all.Names() {
		if strings.HasPrefix(n, prefix+".") {
			names = append(names, n)
		}
	}
	return names
}

// The headers say where a transaction begins and ends, and a TRUNCATE of several
// tables comes as one change.
func TestStreamMarks(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := inStream(t, e)
	a, b := relation(1, "a"), relation(2, "b")
	loaded(t, o, a, b)
	s, _ := claimed(t, o)
	x := txn(1, "v", a, b)
	x.Changes = append(x.Changes, millrace.Change{Op: millrace.Truncate, Seq: 3, Truncated: &millrace.Truncation{Rels: []*millrace.Relation{a, b}, RestartIdentity: true}})
	large := txn(2, strings.Repeat("x", 2_500_000), a)
	write(t, s, x, large, txn(3, "v", a))
	awaitDurable(t, s, 350)
	var marks []string
	for _, r := range readTopics(t, k, 5, e.Prefix+".stream") {
		marks = append(marks, fmt.Sprintf("%s %s %s %s %s", r.headers["commit_lsn"], r.headers["xid"], r.headers["part"], r.headers["end"], r.headers["fragment"]))
		if len(r.value) > 1<<20 || r.key == "" || r.headers["generation"] != "1" || r.headers["seq"] != "1" {
			t.Errorf("a record of %d bytes with key %q and headers %v", len(r.value), r.key, r.headers)
		}
	}
	want := []string{"0/64 1001 1 true ", "0/C8 1002 1 false 1/3", "0/C8 1002 2 false 2/3", "0/C8 1002 3 true 3/3", "0/12C 1003 1 true "}
	if strings.Join(marks, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s", strings.Join(marks, "\n"))
	}
	r := openReader(t, kafka.ReaderOptions{Endpoint: e})
	_, changes := whole(t, r)
	if c := changes[2]; c.Op != millrace.Truncate || len(c.Truncated.Rels) != 2 || !c.Truncated.RestartIdentity {
		t.Errorf("%+v", c)
	}
}

// A large transaction goes through the spool, and one that is dropped leaves
// nothing; chunks of a load are transactions too.
func TestStreamTakesLargeTransactionsAndLoads(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := inStream(t, e)
	a := relation(1, "a")
	sink := kafka.New(o)
	job := &record.Job{Name: "job", State: record.Bootstrapping, SystemID: "7", Timeline: 1, Slot: "s", Mode: "consistent",
		Tables: []record.Table{{OID: 1, Name: a.Name}}}
	l, err := sink.Load(deadline(t), job)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Start(deadline(t), 10, true, false, false, job.Tables); err != nil {
		t.Fatal(err)
	}
	const loadedRows, rows = 3000, 20_000
	for _, final := range []bool{false, true} {
		chunk := &millrace.Txn{Time: time.Now(), From: history, Last: true, Chunk: &millrace.Chunk{Table: a.Name, Upto: 10}}
		for i := range loadedRows {
			chunk.Changes = append(chunk.Changes, millrace.Change{Op: millrace.Read, Seq: uint64(i + 1), Rel: a, New: text(fmt.Sprint(i), "loaded")})
		}
		if err := l.Chunk(deadline(t), a, chunk, &record.Table{OID: 1, Name: a.Name, Copied: final}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Finish(deadline(t)); err != nil {
		t.Fatal(err)
	}
	l.Close()
	_ = sink.Close()
	s, _ := claimed(t, o)
	all := parts(2, rows, a)
	write(t, s, txn(1, "small", a))
	write(t, s, all[:len(all)-1]...) // stopped inside
	if at, err := s.Drain(deadline(t)); err != nil || at != 150 {
		t.Fatalf("drained to %v, %v", at, err)
	}
	write(t, s, parts(2, rows, a)...)
	write(t, s, txn(3, "small", a))
	awaitDurable(t, s, 350)
	r := openReader(t, kafka.ReaderOptions{Endpoint: e})
	for range 2 {
		x, changes := whole(t, r)
		if x.Chunk == nil || x.Chunk.Table != a.Name || len(changes) != loadedRows || changes[7].Op != millrace.Read {
			t.Fatalf("%+v with %d changes", x, len(changes))
		}
	}
	for _, want := range []int{1, rows, 1} {
		x, changes := whole(t, r)
		if len(changes) != want || x.End == 0 || want == rows && (x.Part < 3 || string(changes[rows-1].New[0].Raw) != fmt.Sprint(rows-1)) {
			t.Fatalf("part %d, %d changes, end %v", x.Part, len(changes), x.End)
		}
	}
	if n := o.Spool.Bytes(); n != 0 {
		t.Errorf("%d bytes are left in the spool", n)
	}
}

// A prefix keeps its layout, and so does a job.
func TestLayoutsDoNotMix(t *testing.T) {
	t.Parallel()
	e := endpoint(rig.SharedKafka(t), newPrefix())
	o := inStream(t, e)
	loaded(t, o, relation(1, "a"))
	tables := readable(t, e, 1)
	s := kafka.New(tables)
	defer func() { _ = s.Close() }()
	if _, err := s.Open(deadline(t)); millrace.KindOf(err) != millrace.KindConfig || !strings.Contains(millrace.HintOf(err), "layout: stream") {
		t.Errorf("run in the other layout: %v", err)
	}
	_, err := kafka.New(tables).Load(deadline(t), &record.Job{Name: "job", Generation: 1})
	var m *millrace.Error
	if !errors.As(err, &m) || m.Kind != millrace.KindPreflight || !strings.Contains(err.Error(), ".stream") {
		t.Errorf("load in the other layout: %v", err)
	}
}

// History that has expired in the middle of a transaction is noticed.
func TestStreamNoticesWhatIsGone(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := inStream(t, e)
	a := relation(1, "a")
	loaded(t, o, a)
	s, _ := claimed(t, o)
	write(t, s, txn(1, strings.Repeat("x", 2_500_000), a), txn(2, "v", a))
	awaitDurable(t, s, 250)
	topic := e.Prefix + ".stream"
	if _, err := kadm.NewClient(rawClient(t, k)).DeleteRecords(deadline(t), kadm.Offsets{topic: {0: {Topic: topic, Partition: 0, At: 1}}}); err != nil {
		t.Fatal(err)
	}
	_, err := openReader(t, kafka.ReaderOptions{Endpoint: e}).Next(deadline(t))
	if millrace.KindOf(err) != millrace.KindResync || !strings.Contains(err.Error(), "expired") {
		t.Errorf("%v", err)
	}
}
