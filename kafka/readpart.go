package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
)

// pollWait is how long a broker waits for something new before it answers.
const pollWait = 500 * time.Millisecond

// fetchBytes is how much of one partition comes at a time.
const fetchBytes = 256 << 10

func recordMemory(rec *kgo.Record) int64 { return int64(len(rec.Key)+len(rec.Value)) + recordSize }

// pop gives the first record of the queue out.
func (p *partition) pop(r *Reader) *kgo.Record {
	rec := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	p.used = rec.Offset + 1
	n := recordMemory(rec)
	p.bytes -= n
	r.held -= n
	if p.ahead == nil && p.bytes < p.page/2 {
		r.fetchAhead(p)
	}
	return rec
}

// place is what the headers say of a record.
type place struct {
	commit     millrace.LSN
	seq        uint64
	xid        uint32
	generation int64
}

func (r *Reader) positionOf(rec *kgo.Record) (place, error) {
	p := &r.at
	if err := p.Read(rec); err != nil {
		return place{}, r.malformed(rec, err)
	}
	return place{p.Commit, p.Seq, p.XID, p.History.Generation}, nil
}

// partition gives a partition, and begins to read it where the cursor or its
// beginning is.
func (r *Reader) partition(ctx context.Context, name string, n int32) (*partition, error) {
	if p := r.parts[slot{name, n}]; p != nil {
		return p, nil
	}
	t := r.topics[name]
	if t == nil {
		var err error
		if t, err = r.describe(ctx, name); err != nil {
			return nil, err
		}
		if slices.Contains(t.leaders, -1) {
			if t, err = awaitLeader(ctx, r.cl, t); err != nil {
				return nil, err
			}
		}
		r.topics[name] = t
	}
	if int(n) >= len(t.leaders) {
		return nil, r.gone(name, fmt.Errorf("it has %d partitions, and partition %d was written to", len(t.leaders), n))
	}
	first, err := offsets(ctx, r.cl, -2, t)
	if err != nil {
		return nil, err
	}
	kept, err := r.cleanupOf(ctx, name)
	if err == nil {
		err = r.acceptCompacted(name, kept)
	}
	if err != nil {
		return nil, err
	}
	for i := range t.leaders {
		s := slot{name, int32(i)}
		if r.parts[s] == nil {
			at := first[t][i]
			r.parts[s] = &partition{topic: t, n: int32(i), next: at, first: at, compact: kept.compact, cut: at > 0, others: !r.wants(name, int32(i))}
		}
	}
	return r.parts[slot{name, n}], nil
}

func (r *Reader) gone(topic string, why error) error {
	return &millrace.Error{Kind: millrace.KindResync, Op: "topic " + topic, Peer: r.opt.Endpoint.Peer, Err: why,
		Hint: "start over from a new first load at both ends: `millrace bootstrap --restart-snapshot --yes`"}
}

// poll fetches more of the partition that is needed, and of others by the way,
// as far as there is room for them.
func (r *Reader) poll(ctx context.Context, needed *partition) error {
	if needed.ahead != nil {
		return r.landed(ctx, needed)
	}
	leader := needed.topic.leaders[needed.n]
	wants := []want{{topic: needed.topic, partition: needed.n, offset: needed.next, maxBytes: fetchBytes}}
	room := r.opt.MaxHeld - r.held - r.flying
	for _, p := range r.parts {
		if p == needed || p.others || p.topic.leaders[p.n] != leader || len(p.queue) > 0 || p.ahead != nil || room < 2*fetchBytes {
			continue
		}
		wants = append(wants, want{topic: p.topic, partition: p.n, offset: p.next, maxBytes: fetchBytes})
		room -= fetchBytes
	}
	// Only the records of the partition that is needed end the wait: those of
	// others may come all the time.
	pages, err := r.f.fetch(ctx, leader, wants, int32(max(min(room, 4<<20), fetchBytes)), pollWait)
	if err != nil {
		if leaderMoved(err) {
			return r.refresh(ctx, needed)
		}
		return err
	}
	for i := range pages {
		if err := r.takePage(ctx, &pages[i]); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (r *Reader) takePage(ctx context.Context, pg *page) error {
	p := r.parts[slot{pg.topic.name, pg.partition}]
	switch {
	case p == nil: // forgotten, by another page of its topic
		return nil
	case pg.err == nil:
	case leaderMoved(pg.err):
		return r.refresh(ctx, p)
	case errors.Is(pg.err, kerr.OffsetOutOfRange):
		return r.outOfRange(ctx, p)
	case errors.Is(pg.err, kerr.UnknownTopicOrPartition), errors.Is(pg.err, kerr.UnknownTopicID), errors.Is(pg.err, kerr.InconsistentTopicID):
		return r.refresh(ctx, p)
	default:
		return pg.err
	}
	if p.next != pg.offset || p.topic.epochs[p.n] != pg.epoch {
		return nil // asked for twice, or of a leader that has another one behind it now
	}
	p.next, p.high, p.stable, p.first, p.page = pg.next, pg.high, pg.stable, pg.first, 0
	p.pages++
	if p == r.order() && pg.next >= pg.high {
		r.compacted.head, r.compacted.headAt = pg.at, pg.next
	}
	for _, rec := range pg.records {
		p.queue = append(p.queue, rec)
		n := recordMemory(rec)
		p.bytes += n
		p.page += n
		r.held += n
	}
	return nil
}

// outOfRange: what the partition had there has expired, or the topic is another
// one.
func (r *Reader) outOfRange(ctx context.Context, p *partition) error {
	first, err := offsets(ctx, r.cl, -2, p.topic)
	if err != nil {
		return err
	}
	p.first = first[p.topic][p.n]
	if err := r.verify(ctx, p.topic, position{partition: p.n, epoch: p.topic.epochs[p.n], at: p.next}); err != nil {
		if leaderMoved(err) {
			return r.refresh(ctx, p)
		}
		return err
	}
	if p.first > p.next && (p.compact || p != r.order()) {
		// It may have been a marker, or what was given up. If it was more, the END that
		// names the partition tells, as behind a cursor.
		p.next, p.cut = p.first, true
		return nil
	}
	return r.expired(p, p.next)
}

// expired is the error of a partition that has lost what comes next.
func (r *Reader) expired(p *partition, at int64) error {
	return &millrace.Error{Kind: millrace.KindResync, Op: "read Kafka", Peer: r.opt.Endpoint.Peer,
		Err:  fmt.Errorf("history expired: offset %d of %s [%d] is not there any more, it begins at %d", at, p.topic.name, p.n, p.first),
		Hint: expiredHint}
}

const expiredHint = "start over from a new first load at both ends, `millrace bootstrap --restart-snapshot --yes`; " +
	"raise destination.kafka.retention of the job that writes, or read more often"

// refresh asks for the topic's leaders again, and makes sure that it is still
// the same topic.
func (r *Reader) refresh(ctx context.Context, p *partition) error {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	t, err := r.describe(ctx, p.topic.name)
	switch {
	case errors.Is(err, errDeleted) && r.forget(p.topic, nil):
		return nil
	case err != nil:
		return err
	case t.id != p.topic.id && r.forget(p.topic, t):
		return nil
	case t.id != p.topic.id:
		return r.gone(p.topic.name, errRemade)
	case len(t.leaders) != len(p.topic.leaders):
		return r.gone(p.topic.name, fmt.Errorf("it has %d partitions and had %d: keys have moved to other partitions", len(t.leaders), len(p.topic.leaders)))
	case slices.Contains(t.leaders, -1):
		if t, err = awaitLeader(ctx, r.cl, t); err != nil {
			return err
		}
	}
	if err := r.adopt(ctx, p.topic, t, 0); !leaderMoved(err) {
		return err
	}
	return nil // and the next fetch leads here again
}

// unknownFor is how long a topic may be unknown that was there before.
const unknownFor = 5 * time.Second

// describe asks for a topic that somebody has written to. Brokers hear of a new one
// one after the other: it was deleted only if none of those that are asked knows it for
// a while.
func (r *Reader) describe(ctx context.Context, name string) (*topic, error) {
	for until := time.Now().Add(unknownFor); ; {
		found, err := topics(ctx, r.cl, name)
		if err != nil {
			return nil, err
		}
		if t := found[name]; t != nil {
			return t, nil
		}
		if time.Now().After(until) {
			return nil, r.gone(name, errDeleted)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// whole makes sure that the beginning of the wanted generation is still there. The
// transaction topic has the generations one behind the other: nothing of one is
// missing if the topic begins at its first offset, or with an earlier one.
func (r *Reader) whole(ctx context.Context, want *millrace.History) error {
	p := r.order()
	if p.first == 0 {
		r.last = number{generation: want.Generation}
		return nil
	}
	end, err := r.reached(ctx)
	for err == nil && (end < 0 || len(p.queue) == 0 && p.next < end) {
		if end < 0 {
			end, err = r.reached(ctx)
			continue
		}
		err = r.await(ctx)
	}
	if err != nil {
		return err
	}
	if len(p.queue) > 0 {
		rec := p.queue[0]
		generation, err := strconv.ParseInt(string(krecord.Header(rec, headerGeneration)), 10, 64)
		if err != nil {
			return r.malformed(rec, errors.New("header generation is malformed"))
		}
		if generation < want.Generation {
			r.last = number{generation: want.Generation}
			return nil
		}
	}
	return &millrace.Error{Kind: millrace.KindResync, Op: "read Kafka", Peer: r.opt.Endpoint.Peer,
		Err:  fmt.Errorf("history expired: %s begins at offset %d, behind the beginning of the first load", p.topic.name, p.first),
		Hint: expiredHint}
}
