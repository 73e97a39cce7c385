package kafka_test

import (
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
)

// TestChunkIsStored: the maker of a chunk is told of it once, behind the commit of the
// Kafka transaction that it is in, although its memory is given back at once.
func TestChunkIsStored(t *testing.T) {
	t.Parallel()
	o := options(t, endpoint(rig.SharedKafka(t), newPrefix()))
	a := relation(1, "a")
	loaded(t, o, a)
	s, _ := claimed(t, o)
	before := s.Stats().Commits
	chunk := &millrace.Txn{From: history, Last: true, End: 10, Chunk: &millrace.Chunk{Table: a.Name, Upto: 10},
		Changes: []millrace.Change{{Op: millrace.Read, Seq: 1, Rel: a, New: text("1", "x")}}}
	released, told := make(chan struct{}), make(chan kafka.Stats, 2)
	chunk.OnRelease(func(*millrace.Txn) { close(released) })
	chunk.OnStored(func(bool) { told <- s.Stats() })
	write(t, s, chunk)
	<-released
	rig.Eventually(t, patience, func() bool { return len(told) > 0 }, "the maker is told")
	if at := <-told; at.Commits != before+1 {
		t.Errorf("the maker was told behind %d commits, want 1", at.Commits-before)
	}
	if _, err := s.Drain(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if len(told) > 0 {
		t.Error("the maker was told twice")
	}
}
