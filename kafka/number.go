package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
)

// headerNumber is the number of a transaction in its generation, 1, 2, …, chunks included, in
// the record that ends it. The checkpoint has the last one, in the same Kafka transaction. A cluster can
// lose what it has confirmed, by an election of a leader that lacks it or with a disk, and each partition
// by itself; whatever it keeps then, numbers are missing, or come again, or are not those of the
// checkpoint: who reads and who writes see it, and stop.
const headerNumber = "number"

// number is that of a transaction.
type number struct{ generation, of int64 }

// numberOf gives the number of a transaction's last record; of 0 where an earlier version has
// written it.
func numberOf(rec *kgo.Record) (n number, err error) {
	n.generation, err = strconv.ParseInt(string(krecord.Header(rec, headerGeneration)), 10, 64)
	if h := krecord.Header(rec, headerNumber); h != nil && err == nil {
		n.of, err = strconv.ParseInt(string(h), 10, 64)
	}
	return n, err
}

// endHead is what an END begins with.
var endHead = []byte(`{"status":"` + statusEnd + `"`)

// endsOne tells whether a record of the topic that has the order is the last one of a transaction.
func endsOne(rec *kgo.Record) bool {
	return string(krecord.Header(rec, headerEnd)) == "true" || bytes.HasPrefix(rec.Value, endHead)
}

// numbered gives the headers of a transaction's last record, of those that it has otherwise, whose
// bytes may be in scratch.
func (w *writer) numbered(others []kgo.RecordHeader) []kgo.RecordHeader {
	var digits [20]byte
	all := w.batch.headers.take(len(others) + 1)
	return append(append(all, others...), kgo.RecordHeader{Key: headerNumber, Value: w.batch.memory.copy(strconv.AppendInt(digits[:0], w.ended+1, 10))})
}

// complete counts the transaction that was finished.
func (w *writer) complete(b *batch) {
	w.ended++
	b.ended = w.ended
}

// checkpoint is the record of a checkpoint, with the number of the last transaction before it; -1: it
// is not known.
func (e *Endpoint) checkpoint(cp *millrace.Checkpoint, ended int64) *kgo.Record {
	c := checkpointRecord(cp)
	if ended >= 0 {
		c.Number = &ended
	}
	return e.control(keyCheckpoint, c)
}

// lastNumber finds the newest transaction in the topic that has their order: of 0 where it has none,
// or an earlier version has written that one. whole tells that the topic still has its beginning. It is called by who has
// fenced all others.
func lastNumber(ctx context.Context, cl *kgo.Client, order string) (last number, whole bool, err error) {
	err = settled(ctx, func() error {
		last = number{}
		found, err := topics(ctx, cl, order)
		if err != nil || found[order] == nil {
			return err
		}
		t, first, err := onlyPartition(ctx, cl, found[order])
		if err != nil {
			return err
		}
		end, err := offsets(ctx, cl, -1, t)
		if err != nil {
			return err
		}
		whole = first == 0
		last, err = newestEnd(ctx, cl, t, first, end[t][0])
		return err
	})
	return last, whole, err
}

// newestEnd reads backwards, in steps, to the last record of the newest transaction. Nothing but what
// was aborted can lie between that and the end.
func newestEnd(ctx context.Context, cl *kgo.Client, t *topic, first, end int64) (last number, err error) {
	const few = 8 // records, and the markers behind them
	found := false
	for back := int64(few); !found && err == nil && end > first; back *= few {
		from := max(first, end-back)
		_, err = newFetcher(cl, true).readAll(ctx, t, from, func(page) int64 { return end }, func(rec *kgo.Record) (err error) {
			if endsOne(rec) {
				found = true
				last, err = numberOf(rec)
			}
			return err
		})
		if from == first {
			break
		}
	}
	return last, err
}

// takeUp holds the newest transaction in the topics against the job's record, and gives the
// number that goes on from there.
func (c *Control) takeUp(ctx context.Context, cl *kgo.Client, order string, s *State) (int64, error) {
	last, whole, err := lastNumber(ctx, cl, order)
	if err != nil {
		return 0, err
	}
	if err = c.e.lossOf(order, last, whole, s); err == nil {
		return s.goesOn(last), nil
	}
	// Another instance may have taken the job since the record was read, and written on.
	now, readErr := c.Read(ctx)
	if readErr != nil {
		return 0, readErr
	}
	if x := &now.Checkpoint; now.Generation != s.Generation || x.Epoch != s.Checkpoint.Epoch || x.Seq != s.Checkpoint.Seq {
		return 0, &millrace.Error{Kind: millrace.KindRetry, Op: "claim the job", Peer: c.e.Peer, Err: errors.New("another instance has just taken the job over")}
	}
	return 0, err
}

// goesOn is the number of the last transaction of the generation, if the newest of all is last.
func (s *State) goesOn(last number) int64 {
	switch {
	case s.Number >= 0:
		return s.Number
	case last.generation == s.Generation: // an earlier version has written the record
		return last.of
	}
	return 0
}

// lossOf is the error of a newest transaction that is not the one of the job's record.
func (e *Endpoint) lossOf(order string, last number, whole bool, s *State) error {
	switch {
	case last.generation > s.Generation && last.of > 0, s.Number >= 0 && last.generation == s.Generation && last.of > s.Number:
		return &millrace.Error{Kind: millrace.KindResync, Op: "claim the job", Peer: e.Peer,
			Err: fmt.Errorf("%s ends with transaction %d of generation %d, and the job's record says %d of generation %d: the cluster has lost the end of %s, "+
				"and transactions would be written again", order, last.of, last.generation, max(s.Number, 0), s.Generation, controlTopic(e.Prefix, e.Job)),
			Hint: lostHint}
	case last.generation == s.Generation && last.of < s.Number, last.generation < s.Generation && s.Number > 0 && whole:
		if last.generation < s.Generation {
			last.of = 0
		}
		return &millrace.Error{Kind: millrace.KindResync, Op: "claim the job", Peer: e.Peer,
			Err: fmt.Errorf("the job's record says that transaction %d of generation %d was written, and %s ends with %d: the cluster has lost the end of it",
				s.Number, s.Generation, order, last.of),
			Hint: lostHint}
	}
	return nil
}

const lostHint = "start over from a new first load at both ends, `millrace bootstrap --restart-snapshot --yes`; a cluster keeps what it has confirmed with " +
	"replication: 3, min.insync.replicas=2 and unclean.leader.election.enable=false"

// heights are the offsets of what was written last, by partition.
type heights struct {
	at  map[slot]*int64
	of  slot // that was asked for last
	now *int64
}

// take holds the offset of a record that was confirmed against those before it: a
// partition that goes back has lost some of them. Records come in the order of their partition.
func (h *heights) take(r *kgo.Record) error {
	if h.now == nil || r.Topic != h.of.topic || r.Partition != h.of.partition {
		if h.at == nil {
			h.at = map[slot]*int64{}
		}
		h.of = slot{r.Topic, r.Partition}
		if h.now = h.at[h.of]; h.now == nil {
			h.now = new(int64)
			*h.now = -1
			h.at[h.of] = h.now
		}
	}
	was := *h.now
	if r.Offset < 0 { // of one that was sent twice it may not be known
		return nil
	}
	if *h.now = r.Offset; r.Offset > was {
		return nil
	}
	return &millrace.Error{Kind: millrace.KindResync, Op: "write to Kafka", Peer: millrace.PeerDestination,
		Err:  fmt.Errorf("%s [%d] was written up to offset %d, and goes on at offset %d: the cluster has lost what was between", r.Topic, r.Partition, was, r.Offset),
		Hint: lostHint}
}
