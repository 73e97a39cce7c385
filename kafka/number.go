package kafka

import (
	"context"
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

// numberOf gives the number of a transaction's last record; of 0 where it has none: it is no
// last one, or an earlier version has written it.
func numberOf(rec *kgo.Record) (n number, err error) {
	h := krecord.Header(rec, headerNumber)
	if h == nil {
		return n, nil
	}
	if n.of, err = strconv.ParseInt(string(h), 10, 64); err == nil {
		n.generation, err = strconv.ParseInt(string(krecord.Header(rec, headerGeneration)), 10, 64)
	}
	return n, err
}

// numbered gives the headers of a transaction's last record, of those that it has otherwise.
func (w *writer) numbered(others []kgo.RecordHeader) []kgo.RecordHeader {
	w.scratch = strconv.AppendInt(w.scratch[:0], w.ended+1, 10)
	all := w.batch.headers.take(len(others) + 1)
	return append(append(all, others...), kgo.RecordHeader{Key: headerNumber, Value: w.batch.memory.copy(w.scratch)})
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

// lastNumber finds the newest transaction in the topic that has their order. whole tells
// that the topic still has its beginning. It is called by who has fenced all others.
func lastNumber(ctx context.Context, cl *kgo.Client, order string) (last number, whole bool, err error) {
	found, err := topics(ctx, cl, order)
	if err != nil || found[order] == nil {
		return last, false, err
	}
	t, _, err := onlyPartition(ctx, cl, found[order])
	if err != nil {
		return last, false, err
	}
	begin, err := offsets(ctx, cl, -2, t)
	if err != nil {
		return last, false, err
	}
	end, err := offsets(ctx, cl, -1, t)
	if err != nil {
		return last, false, err
	}
	first, high := begin[t][0], end[t][0]
	const few = 8 // records, and the markers behind them
	for back := int64(few); last.of == 0 && high > first; back *= few {
		from := max(first, high-back)
		_, err := newFetcher(cl, true).readAll(ctx, t, from, func(page) int64 { return high }, func(rec *kgo.Record) error {
			n, err := numberOf(rec)
			if n.of != 0 {
				last = n
			}
			return err
		})
		if err != nil || from == first {
			return last, first == 0, err
		}
	}
	return last, first == 0, nil
}

// takeUp holds the newest transaction in the topics against the job's record, and gives the
// number that goes on from there.
func (e *Endpoint) takeUp(ctx context.Context, cl *kgo.Client, order string, s *State) (int64, error) {
	last, whole, err := lastNumber(ctx, cl, order)
	switch {
	case err != nil:
		return 0, err
	case s.Number < 0: // an earlier version has written the record
		if last.generation == s.Generation {
			return last.of, nil
		}
		return 0, nil
	case last.generation > s.Generation, last.generation == s.Generation && last.of > s.Number:
		return 0, &millrace.Error{Kind: millrace.KindResync, Op: "claim the job", Peer: e.Peer,
			Err: fmt.Errorf("%s ends with transaction %d of generation %d, and the job's record says %d of generation %d: the cluster has lost the end of %s, "+
				"and transactions would be written again", order, last.of, last.generation, s.Number, s.Generation, controlTopic(e.Prefix, e.Job)),
			Hint: lostHint}
	case last.generation == s.Generation && last.of < s.Number, last.generation < s.Generation && s.Number > 0 && whole:
		if last.generation < s.Generation {
			last.of = 0
		}
		return 0, &millrace.Error{Kind: millrace.KindResync, Op: "claim the job", Peer: e.Peer,
			Err: fmt.Errorf("the job's record says that transaction %d of generation %d was written, and %s ends with %d: the cluster has lost the end of it",
				s.Number, s.Generation, order, last.of),
			Hint: lostHint}
	}
	return s.Number, nil
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
