package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
)

// position is how far a partition was read, from whoever led it in an epoch.
type position struct {
	partition int32
	epoch     int32
	at        int64 // behind the last record or marker
	torn      bool  // see compacted
	leader    int32 // as well
}

// endOfEpoch asks a partition's leader where the epoch of a position ends, or the last
// one before it that it knows (KIP-320). A leader that has everything which was read ends
// it at the position or behind. One that was elected though it lacked some of that, or
// whose disk has lost it, has begun its own epoch before. It is -1 if the leader knows of no
// such epoch.
func endOfEpoch(ctx context.Context, f *fetcher, t *topic, x position) (int64, error) {
	p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	p.Partition, p.LeaderEpoch = x.partition, x.epoch
	// So that one who does not know that it was deposed does not answer.
	p.CurrentLeaderEpoch = t.epochs[x.partition]
	rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
	rt.Topic, rt.Partitions = t.name, append(rt.Partitions, p)
	req := kmsg.NewPtrOffsetForLeaderEpochRequest()
	req.ReplicaID, req.Topics = -1, append(req.Topics, rt)
	res, err := f.cl.Broker(int(t.leaders[x.partition])).RetriableRequest(ctx, req)
	if err != nil {
		return 0, err
	}
	answer, ok := res.(*kmsg.OffsetForLeaderEpochResponse)
	if !ok || len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1 {
		return 0, fmt.Errorf("the end of a leader's epoch was answered with %T", res)
	}
	got := &answer.Topics[0].Partitions[0]
	return got.EndOffset, kerr.ErrorForCode(got.ErrorCode)
}

// verify makes sure that a topic, with the leaders that it has now, still holds what was
// read of it. Where they change meanwhile it is an error that leaderMoved knows.
func (r *Reader) verify(ctx context.Context, t *topic, read ...position) error {
	for _, x := range read {
		if x.epoch < 0 || x.at == 0 {
			continue
		}
		end, err := endOfEpoch(ctx, r.f, t, x)
		if err != nil {
			return err
		}
		if end < x.at {
			return r.cutBack(t, x, end)
		}
	}
	return nil
}

// cutBack is the error of a partition that has lost what was read of it.
func (r *Reader) cutBack(t *topic, x position, end int64) error {
	return &millrace.Error{Kind: millrace.KindResync, Op: "read Kafka", Peer: r.opt.Endpoint.Peer,
		Err: fmt.Errorf("%s [%d] was read up to offset %d in leader epoch %d, and of that the cluster has kept what is before offset %d: "+
			"the rest was lost, and what is there now is something else", t.name, x.partition, x.at, x.epoch, max(end, 0)),
		Hint: lostHint}
}

// adopt goes on with other leaders of a topic, if they have what was read. upto is how
// far its first partition was read, where that is further than its queue says.
func (r *Reader) adopt(ctx context.Context, t, fresh *topic, upto int64) error {
	var read []position
	for i := range t.leaders {
		if p := r.parts[slot{t.name, int32(i)}]; p != nil && i < len(fresh.epochs) && fresh.epochs[i] != t.epochs[i] {
			read = append(read, position{partition: int32(i), epoch: t.epochs[i], at: p.next})
		}
	}
	if len(read) > 0 && read[0].partition == 0 {
		read[0].at = max(read[0].at, upto)
	}
	if err := r.verify(ctx, fresh, read...); err != nil {
		return err
	}
	for i := range t.leaders {
		if p := r.parts[slot{t.name, int32(i)}]; p != nil && i < len(fresh.leaders) && fresh.leaders[i] != t.leaders[i] && p.next > p.first {
			r.otherReplica(p)
		}
	}
	*t = *fresh
	return nil
}

// verifyCursor is verify for what a cursor says, of a topic that nothing was read of
// since.
func (r *Reader) verifyCursor(ctx context.Context, t *topic, read []position) error {
	for {
		err := r.verify(ctx, t, read...)
		if !leaderMoved(err) {
			return err
		}
		fresh, err := awaitLeader(ctx, r.cl, t)
		if err != nil {
			return err
		}
		*t = *fresh
	}
}
