package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
)

// taking is what one partition has of the transaction that is collected.
type taking struct {
	p     *partition
	left  int         // records that are still to come
	head  *kgo.Record // the next of them, if it was looked at
	seq   uint64      // of head
	until int64
	sure  bool // until is what ListOffsets said
	pages int  // of the partition, when END was read
	// unsent: a change takes values from the row that was there before.
	unsent bool
}

// beginHead is what a BEGIN begins with; one that does not is found out all the same.
var beginHead = []byte(`{"status":"` + statusBegin + `"`)

// nextEnd takes one record of the transaction topic, which may be an END.
func (r *Reader) nextEnd(ctx context.Context) error {
	rec := r.order().pop(r)
	if bytes.HasPrefix(rec.Value, beginHead) {
		return nil
	}
	e := &r.ending
	if err := parseEnd(rec.Value, e); err != nil {
		return r.malformed(rec, err)
	}
	if e.Status != statusEnd {
		return nil
	}
	if err := r.follow(rec); err != nil {
		return err
	}
	if old, err := r.judge(e.Position.Commit); old || err != nil {
		return err
	}
	if err := r.counted(rec); err != nil {
		return err
	}
	r.end, r.endTime, r.part, r.seq, r.sources = e, time.UnixMilli(e.TS), 0, 0, r.sources[:0]
	for _, x := range e.Partitions {
		if !r.wants(x.Topic, x.Partition) {
			continue
		}
		p, err := r.partition(ctx, x.Topic, x.Partition)
		if err != nil {
			return err
		}
		// The page that p has may be older than END: only one that is fetched from
		// here on has the high watermark that counts.
		p.cut = p.cut && p.used < p.first
		r.sources = append(r.sources, &taking{p: p, left: x.Count, until: -1, pages: p.pages})
	}
	return nil
}

// collect gives the rest of the transaction, or a part of it.
func (r *Reader) collect(ctx context.Context) (*millrace.Txn, error) {
	e := r.end
	t := &millrace.Txn{XID: e.XID, Commit: e.Commit, Time: r.endTime, From: r.history, Part: r.part}
	if name, ok := strings.CutPrefix(e.ID, "chunk:"); ok {
		t.XID, t.Commit, t.Chunk = 0, 0, &millrace.Chunk{Table: r.chunkTable(name)}
	}
	mem := r.slabs.take(t)
	var pending *millrace.Change // the last change, to which records with the same seq may belong
	for {
		rec, seq, err := r.first(ctx)
		if err != nil {
			return nil, err
		}
		if rec == nil {
			break
		}
		if t.Size >= r.opt.PartBytes && seq != r.seq {
			r.part++
			r.putBack(rec)
			r.loosen(t)
			return t, nil
		}
		r.seq = seq
		if pending, err = r.add(ctx, t, pending, rec, seq, mem); err != nil {
			return nil, err
		}
	}
	r.end = nil
	t.Last = true
	r.loosen(t)
	if t.Chunk == nil {
		t.End = e.Position.End
	}
	t.Cursor = r.cursor()
	return t, nil
}

// add decodes a record and adds it to the transaction: as a change of its own,
// or to the one before, of which it is the other half.
func (r *Reader) add(ctx context.Context, t *millrace.Txn, last *millrace.Change, rec *kgo.Record, seq uint64, mem *krecord.Memory) (*millrace.Change, error) {
	t.Size += int64(len(rec.Key)+len(rec.Value)) + recordSize
	if rec.Topic == r.schemas {
		return last, r.take(ctx, rec)
	}
	tr := r.tables[rec.Topic]
	switch {
	case tr == nil:
		return last, r.malformed(rec, errors.New("the table has no description in the schema topic"))
	case tr.skip:
		return last, nil
	}
	keyed := r.from != nil && (r.from.p.compact || r.opt.Share != nil)
	if keyed && tr.keyed == nil {
		if err := tr.byKey(r.opt.Endpoint); err != nil {
			return last, err
		}
		if !r.from.p.compact && !tr.uniqueKey() { // the other ones were looked at by who writes
			return last, severalRows(r.opt.Endpoint, tr.version)
		}
	}
	c, kind, err := tr.decoder.Decode(rec, mem)
	if err != nil {
		return last, err
	}
	c.Seq = seq
	r.early.note(rec, &c)
	if keyed && c.Truncated == nil {
		return r.addKeyed(t, last, rec, &c, kind, mem)
	}
	if keyed {
		if err := r.truncatedByKey(r.from.p.topic); err != nil {
			return last, err
		}
	}
	same := last != nil && last.Seq == seq
	switch {
	case kind == krecord.Tombstone:
		return last, nil
	case kind == krecord.NewHalf && same && last.Op == millrace.Delete:
		krecord.Join(last, &c)
		*last = c
		return last, nil
	case kind == krecord.OldHalf && same && last.Op == millrace.Update:
		krecord.Join(&c, last)
		return last, nil
	case c.Op == millrace.Truncate && same && last.Op == millrace.Truncate:
		krecord.JoinTruncate(last, &c)
		return last, nil
	}
	t.Changes = append(t.Changes, c)
	return &t.Changes[len(t.Changes)-1], nil
}

// first takes the record with the lowest seq of those that are left of the
// transaction; nil when none is. What is needed next of each partition has to be
// there for that.
func (r *Reader) first(ctx context.Context) (*kgo.Record, uint64, error) {
	var best *taking
	var bestSeq uint64
	for _, s := range r.sources {
		rec, err := r.head(ctx, s)
		if err != nil {
			return nil, 0, err
		}
		if rec == nil {
			continue
		}
		seq := s.seq
		// A description has the seq of the change that it comes before.
		if best == nil || seq < bestSeq || seq == bestSeq && s.p.topic.name == r.schemas {
			best, bestSeq = s, seq
		}
	}
	if best == nil {
		return nil, 0, nil
	}
	best.left--
	best.head = nil
	r.from = best
	return best.p.pop(r), bestSeq, nil
}

// head gives the next record of the transaction in a partition, or nil if there
// is none.
func (r *Reader) head(ctx context.Context, s *taking) (*kgo.Record, error) {
	if s.left == 0 {
		return nil, nil
	}
	for {
		if len(s.p.queue) > 0 {
			rec := s.p.queue[0]
			if rec == s.head {
				return rec, nil
			}
			at, err := r.positionOf(rec)
			switch {
			case err != nil:
				return nil, err
			case at.commit == r.end.Commit && at.generation == r.history.Generation && at.xid == r.end.XID:
				s.head, s.seq = rec, at.seq
				return rec, nil
			case at.generation < r.history.Generation:
				s.p.pop(r) // its END was passed over
				continue
			case at.generation == r.history.Generation && at.commit < r.end.Commit:
				return nil, r.malformed(rec, fmt.Errorf("it belongs to transaction %d:%d, whose END did not name the partition", at.xid, uint64(at.commit)))
			}
			return nil, r.missing(s) // it belongs to a later one
		}
		if s.until >= 0 && s.p.next >= s.until {
			if s.sure {
				return nil, r.missing(s)
			}
			if err := r.confirm(ctx, s); err != nil {
				return nil, err
			}
			continue
		}
		if err := r.poll(ctx, s.p); err != nil {
			return nil, err
		}
		if s.until < 0 && s.p.pages > s.pages {
			s.until = s.p.high // of a page that was fetched behind END
		}
	}
}

// confirm asks how far the partition has to be read, with the request that a new
// leader does not answer before it knows (KIP-207): the high watermark of a page
// may be behind what the leader before has confirmed.
func (r *Reader) confirm(ctx context.Context, s *taking) error {
	all, err := offsets(ctx, r.cl, -1, s.p.topic)
	if leaderMoved(err) {
		return r.refresh(ctx, s.p)
	}
	if err != nil {
		return err
	}
	for n, at := range all[s.p.topic] {
		if int32(n) == s.p.n {
			s.until, s.sure = max(s.until, at), true
		}
	}
	return nil
}

// missing judges records that did not come although their partition was read
// far enough.
func (r *Reader) missing(s *taking) error {
	if s.p.compact {
		return r.hole(s)
	}
	e := &millrace.Error{Kind: millrace.KindResync, Op: "read Kafka", Peer: r.opt.Endpoint.Peer, LSN: r.end.Commit,
		Err:  fmt.Errorf("%d records of the transaction are missing in %s [%d]", s.left, s.p.topic.name, s.p.n),
		Hint: "the topic was changed by somebody else: start over from a new first load, `millrace bootstrap --restart-snapshot --yes`, at both ends"}
	if s.p.first > s.p.used {
		e.Err = fmt.Errorf("history expired: %s [%d] begins at offset %d, and the transaction's records were before", s.p.topic.name, s.p.n, s.p.first)
		e.Hint = expiredHint
	}
	return e
}

// putBack undoes what first has taken last.
func (r *Reader) putBack(rec *kgo.Record) {
	for _, s := range r.sources {
		if s.p.topic.name == rec.Topic && s.p.n == rec.Partition {
			s.p.queue = slices.Insert(s.p.queue, 0, rec)
			n := recordMemory(rec)
			s.p.bytes += n
			r.held += n
			s.left++
			return
		}
	}
}
