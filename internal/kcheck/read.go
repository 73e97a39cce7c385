package kcheck

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Read reads all that the topics of a prefix hold now, at the level of isolation
// that is asked for. Nobody may be writing.
func Read(ctx context.Context, brokers []string, prefix string, level kgo.IsolationLevel) (*History, error) {
	return Follow(ctx, brokers, prefix, level, ended())
}

// Follow reads the topics of a prefix while they are written. Once over is
// closed it reads to the ends of all partitions, where nobody may be writing any
// more.
func Follow(ctx context.Context, brokers []string, prefix string, level kgo.IsolationLevel, over <-chan struct{}) (*History, error) {
	h := newHistory(prefix)
	return h, follow(ctx, brokers, prefix, level, over, h.see)
}

// Records gives the records that Read reads, those of each partition in their order.
func Records(ctx context.Context, brokers []string, prefix string, level kgo.IsolationLevel, use func(*kgo.Record)) error {
	return follow(ctx, brokers, prefix, level, ended(), func(r *kgo.Record) error {
		if !r.Attrs.IsControl() {
			use(r)
		}
		return nil
	})
}

func ended() <-chan struct{} {
	over := make(chan struct{})
	close(over)
	return over
}

func follow(ctx context.Context, brokers []string, prefix string, level kgo.IsolationLevel, over <-chan struct{}, see func(*kgo.Record) error) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.FetchIsolationLevel(level), kgo.ConsumeRegex(),
		kgo.ConsumeTopics(topicsOf(prefix)), kgo.ConsumeExcludeTopics(recordOf(prefix)),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MetadataMaxAge(time.Second), kgo.MetadataMinAge(200*time.Millisecond),
		// The marks of Kafka's transactions tell how far a partition was read: its
		// last offset is one of them.
		kgo.KeepControlRecords())
	if err != nil {
		return err
	}
	defer cl.Close()
	next := map[part]int64{}
	for {
		select {
		case <-over:
			if done, err := atEnd(ctx, cl, prefix, next); done || err != nil {
				return err
			}
		default:
		}
		if err := poll(ctx, cl, next, see); err != nil {
			return fmt.Errorf("read the topics of %s: %w", prefix, err)
		}
	}
}

// poll takes what comes within a moment.
func poll(ctx context.Context, cl *kgo.Client, next map[part]int64, see func(*kgo.Record) error) error {
	moment, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	fetches := cl.PollFetches(moment)
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, e := range fetches.Errors() {
		var lost *kgo.ErrDataLoss
		if errors.As(e.Err, &lost) {
			return fmt.Errorf("%s/%d: %w", e.Topic, e.Partition, e.Err)
		}
	}
	var err error
	fetches.EachRecord(func(r *kgo.Record) {
		at := part{r.Topic, r.Partition}
		if from, ok := next[at]; ok && r.Offset < from {
			err = errors.Join(err, fmt.Errorf("%s/%d offset %d was read twice", r.Topic, r.Partition, r.Offset))
		}
		next[at] = r.Offset + 1
		err = errors.Join(err, see(r))
	})
	return err
}

// atEnd tells whether all partitions were read to the end that they have now.
func atEnd(ctx context.Context, cl *kgo.Client, prefix string, next map[part]int64) (bool, error) {
	adm := kadm.NewClient(cl)
	all, err := adm.ListTopics(ctx)
	if err != nil {
		return false, err
	}
	var names []string
	ours, not := regexp.MustCompile(topicsOf(prefix)), regexp.MustCompile(recordOf(prefix))
	for name := range all {
		if ours.MatchString(name) && !not.MatchString(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return false, fmt.Errorf("there are no topics of prefix %s", prefix)
	}
	ends, err := adm.ListEndOffsets(ctx, names...) // high watermarks
	if err != nil {
		return false, err
	}
	done := true
	ends.Each(func(o kadm.ListedOffset) {
		// Where a leader is just being found there is no answer yet.
		if o.Err != nil || o.Offset > next[part{o.Topic, o.Partition}] {
			done = false
		}
	})
	return done, nil
}

// topicsOf and recordOf are regular expressions: of the transaction topic and
// those of tables, and of the job's record, which looks like one of them.
func topicsOf(prefix string) string {
	return `^` + regexp.QuoteMeta(prefix) + `\.(transaction|[^.]+\.[^.]+)$`
}

func recordOf(prefix string) string { return `^` + regexp.QuoteMeta(prefix) + `\.millrace\.[^.]+$` }
