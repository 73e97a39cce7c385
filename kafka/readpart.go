package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
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
	p, err := krecord.PositionOf(rec)
	if err != nil {
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
		return nil, r.gone(name, fmt.Sprintf("it has %d partitions, and partition %d was written to", len(t.leaders), n))
	}
	first, err := offsets(ctx, r.cl, -2, t)
	if err != nil {
		return nil, err
	}
	compact, err := r.isCompact(ctx, name)
	if err != nil {
		return nil, err
	}
	if compact && r.opt.History != nil && name != schemaTopic(r.opt.Endpoint.Prefix) {
		return nil, &millrace.Error{Kind: millrace.KindPreflight, Op: "read Kafka", Peer: r.opt.Endpoint.Peer,
			Err:  fmt.Errorf("topic %s is compacted, and whole transactions can't be rebuilt from it: not available in this version", name),
			Hint: "write to a prefix with destination.kafka.compact: false"}
	}
	for i := range t.leaders {
		s := slot{name, int32(i)}
		if r.parts[s] == nil {
			at := first[t][i]
			r.parts[s] = &partition{topic: t, n: int32(i), next: at, used: at, first: at, compact: compact}
		}
	}
	return r.parts[slot{name, n}], nil
}

func (r *Reader) isCompact(ctx context.Context, name string) (bool, error) {
	configs, err := kadm.NewClient(r.cl).DescribeTopicConfigs(ctx, name)
	if err != nil {
		return false, err
	}
	for _, c := range configs {
		for _, kv := range c.Configs {
			if kv.Key == "cleanup.policy" {
				return kv.MaybeValue() != "delete", nil
			}
		}
	}
	return false, nil
}

func (r *Reader) gone(topic, why string) error {
	return &millrace.Error{Kind: millrace.KindResync, Op: "topic " + topic, Peer: r.opt.Endpoint.Peer, Err: errors.New(why),
		Hint: "start over from a new first load at both ends: `millrace bootstrap --restart-snapshot --yes`"}
}

// poll fetches more of the partition that is needed, and of others by the way,
// as far as there is room for them.
func (r *Reader) poll(ctx context.Context, needed *partition) error {
	leader := needed.topic.leaders[needed.n]
	wants := []want{{needed.topic, needed.n, needed.next, fetchBytes}}
	room := r.opt.MaxHeld - r.held
	for _, p := range r.parts {
		if p == needed || p.topic.leaders[p.n] != leader || len(p.queue) > 0 || room < 2*fetchBytes {
			continue
		}
		wants = append(wants, want{p.topic, p.n, p.next, fetchBytes})
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
	if p.next != pg.offset {
		return nil // asked for twice
	}
	p.next, p.high, p.first = pg.next, pg.high, pg.first
	p.pages++
	for _, rec := range pg.records {
		p.queue = append(p.queue, rec)
		n := recordMemory(rec)
		p.bytes += n
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
	if p.first > p.next && (p.compact || p != r.order()) {
		// It may have been a marker, or what was given up. If it was more, the END that
		// names the partition tells, as behind a cursor.
		p.next = p.first
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
	if err != nil {
		return err
	}
	switch {
	case t.id != p.topic.id:
		return r.gone(p.topic.name, "it was deleted and created again")
	case len(t.leaders) != len(p.topic.leaders):
		return r.gone(p.topic.name, fmt.Sprintf("it has %d partitions and had %d: keys have moved to other partitions", len(t.leaders), len(p.topic.leaders)))
	case slices.Contains(t.leaders, -1):
		if t, err = awaitLeader(ctx, r.cl, t); err != nil {
			return err
		}
	}
	*p.topic = *t
	return nil
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
			return nil, r.gone(name, "it was deleted")
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// The cursor holds, for each topic, its id, and for each partition the offset
// behind the last record that was used and the leader epoch: what must not have
// changed when reading goes on.
const cursorVersion = 1

func (r *Reader) cursor() []byte {
	if len(r.places) != len(r.topics) {
		r.arrange()
	}
	size := 1
	for i := range r.places {
		p := &r.places[i]
		size += len(p.head) + len(p.parts)*(binary.MaxVarintLen64+binary.MaxVarintLen32)
	}
	b := append(make([]byte, 0, size), cursorVersion)
	for i := range r.places {
		p := &r.places[i]
		b = append(b, p.head...)
		for n, part := range p.parts {
			b = binary.AppendUvarint(b, uint64(part.used))
			b = binary.AppendVarint(b, int64(p.topic.epochs[n]))
		}
	}
	return b
}

// cursorTopic is what of a cursor stays the same: name, id and number of partitions
// of a topic.
type cursorTopic struct {
	topic *topic
	parts []*partition
	head  []byte
}

// arrange is called when topics have joined; none ever leaves.
func (r *Reader) arrange() {
	r.places = r.places[:0]
	for _, n := range slices.Sorted(maps.Keys(r.topics)) {
		p := cursorTopic{topic: r.topics[n]}
		p.head = binary.AppendUvarint(nil, uint64(len(n)))
		p.head = append(p.head, n...)
		p.head = append(p.head, p.topic.id[:]...)
		p.head = binary.AppendUvarint(p.head, uint64(len(p.topic.leaders)))
		for i := range p.topic.leaders {
			p.parts = append(p.parts, r.parts[slot{n, int32(i)}])
		}
		r.places = append(r.places, p)
	}
}

// drained is the cursor when nothing is left of the transaction topic.
func (r *Reader) drained() []byte {
	p := r.order()
	p.used = p.next
	return r.cursor()
}

var errCursor = errors.New("the cursor in the checkpoint is malformed")

// restore takes up the cursor.
func (r *Reader) restore(ctx context.Context) error {
	b := r.opt.Cursor
	if len(b) == 0 {
		return nil
	}
	if b[0] != cursorVersion {
		return errCursor
	}
	b = b[1:]
	for len(b) > 0 {
		n, k := binary.Uvarint(b)
		if k <= 0 || uint64(len(b)-k) < n+16 {
			return errCursor
		}
		name := string(b[k : k+int(n)])
		id := [16]byte(b[k+int(n) : k+int(n)+16])
		b = b[k+int(n)+16:]
		count, k := binary.Uvarint(b)
		if k <= 0 || count > 1<<20 {
			return errCursor
		}
		b = b[k:]
		offsets := make([]int64, count)
		for i := range offsets {
			at, k := binary.Uvarint(b)
			if k <= 0 {
				return errCursor
			}
			_, k2 := binary.Varint(b[k:])
			if k2 <= 0 {
				return errCursor
			}
			offsets[i], b = int64(at), b[k+k2:]
		}
		if err := r.resume(ctx, name, id, offsets); err != nil {
			return err
		}
	}
	return nil
}

// resume goes on in a topic, if it is still the one of the cursor.
func (r *Reader) resume(ctx context.Context, name string, id [16]byte, at []int64) error {
	if len(at) == 0 {
		return nil
	}
	if _, err := r.partition(ctx, name, 0); err != nil {
		return err
	}
	t := r.topics[name]
	switch {
	case t.id != id:
		return r.gone(name, "it was deleted and created again")
	case len(t.leaders) != len(at):
		return r.gone(name, fmt.Sprintf("it has %d partitions and had %d: keys have moved to other partitions", len(t.leaders), len(at)))
	}
	for i, offset := range at {
		p := r.parts[slot{name, int32(i)}]
		if offset < p.first && name == r.main() {
			return r.expired(p, offset)
		}
		if offset < p.first && !p.compact {
			// Fine as long as nothing was there that is needed: the END that names
			// the partition tells.
			r.log.Debug("the beginning of a partition has expired", "topic", name, "partition", i, "offset", offset, "first", p.first)
		}
		p.next, p.used = max(offset, p.first), offset
	}
	return nil
}
