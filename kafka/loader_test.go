package kafka_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
	"github.com/millrace/millrace/record"
)

// loading begins a first load of one table.
func loading(t *testing.T, o kafka.Options, a *millrace.Relation) *kafka.Loader {
	t.Helper()
	s := kafka.New(o)
	job := &record.Job{Name: "job", State: record.Bootstrapping, SystemID: history.System, Timeline: 1, Slot: "s", Mode: "consistent",
		Tables: []record.Table{{OID: a.OID, Name: a.Name}}}
	l, err := s.Load(deadline(t), job)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Start(deadline(t), 10, true, false, false, job.Tables); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		_ = s.Close()
	})
	return l
}

// chunkOf makes a chunk whose rows say which it is.
func chunkOf(a *millrace.Relation, n, rows int) *millrace.Txn {
	x := &millrace.Txn{Time: time.Now(), From: history, Last: true, Chunk: &millrace.Chunk{Table: a.Name, Upto: 10}}
	for i := range rows {
		x.Changes = append(x.Changes, millrace.Change{Op: millrace.Read, Seq: uint64(i + 1), Rel: a, New: text(fmt.Sprint(n*100_000+i), fmt.Sprintf("chunk %d", n))})
	}
	return x
}

// A chunk is made in the memory of the one before the last, while the last is being
// sent: each arrives as it was given.
func TestLoaderEncodesWhileItSends(t *testing.T) {
	t.Parallel()
	e := endpoint(rig.SharedKafka(t), newPrefix())
	a := relation(1, "a")
	l := loading(t, readable(t, e, 1), a)
	sizes := []int{4000, 6000, 1, 5000, 0, 3000}
	for n, rows := range sizes {
		if err := l.Chunk(deadline(t), a, chunkOf(a, n, rows), &record.Table{OID: a.OID, Name: a.Name, Copied: n == len(sizes)-1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Finish(deadline(t)); err != nil {
		t.Fatal(err)
	}
	ctl, err := e.OpenControl()
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	// Whoever reads the record at once, as bootstrap does, must not see a load that goes on.
	if s, err := ctl.Read(deadline(t)); err != nil || s.Job == nil || s.Job.ConsistentFrom == 0 {
		t.Errorf("the load is complete, and the record says %+v (%v)", s, err)
	}
	r := openReader(t, kafka.ReaderOptions{Endpoint: e})
	for n, rows := range sizes {
		x, changes := whole(t, r)
		if x.Chunk == nil || len(changes) != rows {
			t.Fatalf("chunk %d: %+v with %d changes, want %d", n, x, len(changes), rows)
		}
		for i, c := range changes {
			if string(c.New[0].Raw) != fmt.Sprint(n*100_000+i) || string(c.New[1].Raw) != fmt.Sprintf("chunk %d", n) {
				t.Fatalf("row %d of chunk %d is %s, %s", i, n, c.New[0].Raw, c.New[1].Raw)
			}
		}
	}
}

// What has become of a chunk is told by the next call, and nothing is recorded behind
// one that has failed.
func TestLoaderTellsOfTheChunkBefore(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	a := relation(1, "a")
	o := readable(t, e, 1)
	l := loading(t, o, a)
	table := &record.Table{OID: a.OID, Name: a.Name}
	if err := l.Chunk(deadline(t), a, chunkOf(a, 0, 10), table); err != nil {
		t.Fatal(err)
	}
	if err := l.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	other := kafka.New(readable(t, e, 1))
	job := &record.Job{Name: "job", State: record.Bootstrapping, SystemID: history.System, Timeline: 1, Slot: "s", Mode: "consistent", Generation: 1,
		Tables: []record.Table{{OID: a.OID, Name: a.Name}}}
	taken, err := other.Load(deadline(t), job)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		taken.Close()
		_ = other.Close()
	})
	if err := l.Chunk(deadline(t), a, chunkOf(a, 1, 10), table); err != nil {
		t.Fatal(err)
	}
	if err := l.Finish(deadline(t)); err == nil {
		t.Fatal("a load that was taken over is complete")
	}
}
