package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// topic is what a cluster says of one topic.
type topic struct {
	name    string
	id      [16]byte
	leaders []int32 // by partition; -1: none at present
	epochs  []int32 // of the leaders
}

// fetcher reads partitions page by page. Unlike a consumer it knows, after each
// page, how far a partition was read: records of aborted transactions, markers
// and gaps that compaction left count as read.
type fetcher struct {
	cl         *kgo.Client
	committed  bool // isolation level read_committed
	decompress kgo.Decompressor
	// moved is told by readAll of other leaders of a topic that was read up to an
	// offset, and takes them over, unless they have changed again; nil: they are taken
	// as they are.
	moved func(ctx context.Context, t, fresh *topic, at int64) error
}

func newFetcher(cl *kgo.Client, committed bool) *fetcher {
	return &fetcher{cl: cl, committed: committed, decompress: kgo.DefaultDecompressor()}
}

// want is one partition of a fetch.
type want struct {
	topic     *topic
	partition int32
	offset    int64
	maxBytes  int32
	// What the topic says when it is asked: a request may be under way while that changes.
	name  string
	id    [16]byte
	epoch int32 // of the leader that is asked
}

// page is what came of one partition.
type page struct {
	want
	records []*kgo.Record
	next    int64 // the offset to go on from
	high    int64 // high watermark
	stable  int64 // last stable offset
	first   int64 // log start offset
	at      time.Time
	err     error // of this partition
}

// fetch asks one broker, which leads all the partitions, and waits at most wait
// for something new.
func (f *fetcher) fetch(ctx context.Context, leader int32, wants []want, maxBytes int32, wait time.Duration) ([]page, error) {
	return f.ask(ctx, leader, f.request(wants, maxBytes, wait), wants)
}

// request makes the request of fetch.
func (f *fetcher) request(wants []want, maxBytes int32, wait time.Duration) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = int32(wait.Milliseconds()), 1, maxBytes
	req.SessionEpoch = -1 // no session: each request stands for itself
	if f.committed {
		req.IsolationLevel = 1
	}
	byTopic := map[*topic]int{}
	for n := range wants {
		w := &wants[n]
		w.name, w.id, w.epoch = w.topic.name, w.topic.id, w.topic.epochs[w.partition]
		i, ok := byTopic[w.topic]
		if !ok {
			t := kmsg.NewFetchRequestTopic()
			t.Topic, t.TopicID = w.name, w.id
			i = len(req.Topics)
			req.Topics = append(req.Topics, t)
			byTopic[w.topic] = i
		}
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.FetchOffset, p.PartitionMaxBytes = w.partition, w.offset, w.maxBytes
		p.CurrentLeaderEpoch = w.epoch
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
	}
	return req
}

// ask sends a request, and looks at nothing that the Reader may change meanwhile.
func (f *fetcher) ask(ctx context.Context, leader int32, req *kmsg.FetchRequest, wants []want) ([]page, error) {
	res, err := f.cl.Broker(int(leader)).RetriableRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	answer, ok := res.(*kmsg.FetchResponse)
	if !ok {
		return nil, fmt.Errorf("a fetch was answered with %T", res)
	}
	if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
		return nil, err
	}
	return f.pages(answer, wants), nil
}

func (f *fetcher) pages(answer *kmsg.FetchResponse, wants []want) []page {
	pages := make([]page, 0, len(wants))
	for i := range answer.Topics {
		at := &answer.Topics[i]
		for j := range at.Partitions {
			ap := &at.Partitions[j]
			for _, w := range wants {
				if w.partition == ap.Partition && (w.name == at.Topic || w.id == at.TopicID && at.Topic == "") {
					pages = append(pages, f.page(w, ap))
				}
			}
		}
	}
	return pages
}

func (f *fetcher) page(w want, ap *kmsg.FetchResponseTopicPartition) page {
	level := kgo.ReadUncommitted()
	if f.committed {
		level = kgo.ReadCommitted()
	}
	fp, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{Offset: w.offset, IsolationLevel: level,
		Topic: w.name, Partition: w.partition}, ap, f.decompress, nil)
	return page{want: w, records: fp.Records, next: max(next, w.offset), high: fp.HighWatermark, stable: fp.LastStableOffset,
		first: fp.LogStartOffset, at: time.Now(), err: fp.Err}
}

// leaderMoved tells whether fresh metadata can help.
func leaderMoved(err error) bool {
	for _, e := range []error{kerr.NotLeaderForPartition, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch, kerr.LeaderNotAvailable,
		kerr.ReplicaNotAvailable, kerr.KafkaStorageError, kerr.OffsetNotAvailable} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// topics describes topics by name; those that do not exist are not in the map.
// No names: all topics of the cluster.
func topics(ctx context.Context, cl *kgo.Client, names ...string) (map[string]*topic, error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, n := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(n)
		req.Topics = append(req.Topics, t)
	}
	res, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	found := make(map[string]*topic, len(res.Topics))
	for i := range res.Topics {
		t := &res.Topics[i]
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			continue
		case err != nil && !leaderMoved(err):
			return nil, err
		case t.Topic == nil:
			continue
		}
		d := &topic{name: *t.Topic, id: t.TopicID, leaders: make([]int32, len(t.Partitions)), epochs: make([]int32, len(t.Partitions))}
		for _, p := range t.Partitions {
			if int(p.Partition) >= len(d.leaders) {
				return nil, fmt.Errorf("topic %s: partition %d of %d", d.name, p.Partition, len(d.leaders))
			}
			d.leaders[p.Partition], d.epochs[p.Partition] = p.Leader, p.LeaderEpoch
			if p.ErrorCode != 0 && p.Leader < 0 {
				d.leaders[p.Partition] = -1
			}
		}
		found[d.name] = d
	}
	return found, nil
}

// offsets lists one offset per partition: what timestamp asks for (-1 latest,
// -2 earliest), for the isolation level read_uncommitted.
func offsets(ctx context.Context, cl *kgo.Client, timestamp int64, list ...*topic) (map[*topic][]int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	for _, t := range list {
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = t.name
		for p := range t.leaders {
			rp := kmsg.NewListOffsetsRequestTopicPartition()
			rp.Partition, rp.Timestamp = int32(p), timestamp
			rt.Partitions = append(rt.Partitions, rp)
		}
		req.Topics = append(req.Topics, rt)
	}
	found := make(map[*topic][]int64, len(list))
	for _, shard := range cl.RequestSharded(ctx, req) {
		if shard.Err != nil {
			return nil, shard.Err
		}
		res := shard.Resp.(*kmsg.ListOffsetsResponse) //nolint:forcetypeassert // answers go by their request
		for _, rt := range res.Topics {
			for _, t := range list {
				if t.name != rt.Topic {
					continue
				}
				if found[t] == nil {
					found[t] = make([]int64, len(t.leaders))
				}
				for _, p := range rt.Partitions {
					if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
						return nil, err
					}
					found[t][p.Partition] = p.Offset
				}
			}
		}
	}
	return found, nil
}

// readAll reads a topic's only partition from an offset to what end tells after
// the first page, and gives each record to use. It gives the offset behind.
func (f *fetcher) readAll(ctx context.Context, t *topic, from int64, end func(page) int64, use func(*kgo.Record) error) (int64, error) {
	at, to, wait := from, int64(-1), time.Duration(0)
	for to < 0 || at < to {
		pages, err := f.fetch(ctx, t.leaders[0], []want{{topic: t, offset: at, maxBytes: pageBytes}}, pageBytes, wait)
		wait = 100 * time.Millisecond // nothing but a marker is waited for
		if err == nil && len(pages) == 1 {
			err = pages[0].err
		}
		if err != nil {
			if !leaderMoved(err) {
				return at, err
			}
			fresh, err := awaitLeader(ctx, f.cl, t)
			if err != nil {
				return at, err
			}
			if f.moved == nil {
				t = fresh
			} else if err := f.moved(ctx, t, fresh, at); err != nil && !leaderMoved(err) {
				return at, err
			}
			continue
		}
		p := pages[0]
		if to < 0 {
			to = end(p)
		}
		for _, r := range p.records {
			if err := use(r); err != nil {
				return at, err
			}
		}
		at = p.next
	}
	return at, nil
}

// pageBytes is how much a page of one partition holds at most, but for a larger
// batch.
const pageBytes = 1 << 20

// awaitLeader asks again for the topic's metadata, after a pause.
func awaitLeader(ctx context.Context, cl *kgo.Client, t *topic) (*topic, error) {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	found, err := topics(ctx, cl, t.name)
	if err != nil {
		return nil, err
	}
	fresh := found[t.name]
	if fresh == nil || fresh.id != t.id {
		return nil, fmt.Errorf("topic %s: %w", t.name, kerr.UnknownTopicOrPartition)
	}
	for _, l := range fresh.leaders {
		if l < 0 {
			return nil, fmt.Errorf("topic %s: %w", t.name, kerr.LeaderNotAvailable)
		}
	}
	return fresh, nil
}
