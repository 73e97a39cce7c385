package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
)

// compacted is what the Reader knows of the transactions of compacted topics.
//
// Such a topic has the last record of each key, and of the others those that the cleaner
// has not come to. The transaction topic is not compacted, so that END still counts all
// of them: what is short of its count is a hole. Its record was removed since one of the
// same key is behind it in the log, and the cleaner does not look at what is not
// committed: the END of that one lies before the end that the transaction topic has from
// then on. Once everything before that end was given out, and no other hole was found
// since it was asked for, each row is again what it was at the source, and so are all of them together.
// Until then the log is torn: what is given are whole transactions, but for changes of
// rows that are changed again before its end.
//
// So changes of these topics come as Put and Remove, by the key that the log has, whether it is
// torn or not: that a transaction has a hole is known only behind its records.
//
// What can't be made up for ends the Reader. A value that an update did not send
// (unchanged TOAST) is that of the row before it, which is not known while the
// partition has a hole. And a delete leaves nothing behind once its tombstone is gone: that is
// kept for delete.retention.ms from when the cleaner has come to it, and what it
// deletes is gone at that time. So a delete can be missed only by who has read the row
// before, and that long ago: a hole is accepted only while the end of the log, or its beginning
// with nothing at the destination, was there less than that before.
//
// Each replica is cleaned by itself, and a tombstone can be gone from one while another still has
// the row: what was read from one before the end was ever reached is not gone on with from another.
type compacted struct {
	keeps time.Duration // the shortest delete.retention.ms
	torn  bool
	holes bool  // there were some since until was asked for
	until int64 // offset of the transaction topic behind which it is whole again; -1: to be asked for
	// since is when everything up to the end of the transaction topic was given out, or
	// reading was begun with nothing; zero: nobody knows.
	since time.Time
	fresh bool      // the end was not reached yet since reading was begun
	noted time.Time // since, in the newest cursor
	// head is when the transaction topic was fetched up to its end, headAt.
	head   time.Time
	headAt int64
}

// cleanup is how a topic is kept from growing.
type cleanup struct {
	compact bool
	expires bool          // records go by their age, or beyond a size, as well
	keeps   time.Duration // tombstones
}

func (r *Reader) cleanupOf(ctx context.Context, name string) (c cleanup, err error) {
	configs, err := kadm.NewClient(r.cl).DescribeTopicConfigs(ctx, name)
	if err != nil {
		return c, err
	}
	for _, config := range configs {
		for _, kv := range config.Configs {
			switch kv.Key {
			case "cleanup.policy":
				c.compact, c.expires = strings.Contains(kv.MaybeValue(), "compact"), strings.Contains(kv.MaybeValue(), "delete")
			case "delete.retention.ms":
				ms, err := strconv.ParseInt(kv.MaybeValue(), 10, 64)
				if err != nil {
					return c, fmt.Errorf("topic %s: delete.retention.ms: %w", name, err)
				}
				c.keeps = time.Duration(min(ms, int64(1000*24*time.Hour/time.Millisecond))) * time.Millisecond
			}
		}
	}
	return c, nil
}

// acceptCompacted refuses compacted topics that nothing can be made of.
func (r *Reader) acceptCompacted(name string, c cleanup) error {
	prefix := r.opt.Endpoint.Prefix
	if !c.compact || name == schemaTopic(prefix) {
		return nil
	}
	e := &millrace.Error{Kind: millrace.KindPreflight, Op: "read Kafka", Peer: r.opt.Endpoint.Peer,
		Hint: "set cleanup.policy of the topic to compact or to delete, and start over from a new first load at both ends"}
	switch {
	case name == r.main():
		e.Err = fmt.Errorf("topic %s is compacted, which leaves nothing of the order of transactions", name)
		e.Hint = "set cleanup.policy of the topic to delete, and start over from a new first load at both ends"
		return e
	case c.expires:
		e.Err = fmt.Errorf("topic %s is compacted, and its records go by their age as well: neither all changes nor all rows are there", name)
		return e
	}
	if k := &r.compacted; k.keeps == 0 || c.keeps < k.keeps {
		k.keeps = max(c.keeps, 1)
	}
	return nil
}

// hole takes note of records of a compacted topic that are gone.
func (r *Reader) hole(s *taking) error {
	gone := s.left
	s.left = 0
	if name := s.p.topic.name; name == schemaTopic(r.opt.Endpoint.Prefix) || r.tables[name] != nil && r.tables[name].skip {
		return nil // a description was written again; or nobody wants the table
	}
	c := &r.compacted
	if !c.torn {
		c.torn, c.until = true, -1
	}
	c.holes, s.p.torn = true, true
	switch {
	case s.p.cut:
		return r.expired(s.p, s.p.used)
	case s.unsent:
		return r.unknown(s.p.topic.name)
	case time.Since(c.since) > c.keeps-c.keeps/10: // clocks differ
		why := "the end of the topics was not reached since a partition has got another leader, whose log was compacted at other times"
		if !c.since.IsZero() {
			why = fmt.Sprintf("the end of the topics was reached last at %s, and delete.retention.ms is %v", c.since.UTC().Format(time.RFC3339), c.keeps)
		}
		return &millrace.Error{Kind: millrace.KindResync, Op: "read Kafka", Peer: r.opt.Endpoint.Peer, LSN: r.end.Commit,
			Err:  fmt.Errorf("%d records of the transaction are gone from %s [%d] by compaction, and deletes may be among them: %s", gone, s.p.topic.name, s.p.n, why),
			Hint: "start over with `millrace bootstrap --restart-snapshot --yes` of the job that reads, which empties its tables; read more often, or raise delete.retention.ms of the topics"}
	}
	return nil
}

// unknown is the error of an update without all its values.
func (r *Reader) unknown(topic string) error {
	e := &millrace.Error{Kind: millrace.KindResync, Op: "read Kafka", Peer: r.opt.Endpoint.Peer, LSN: r.end.Commit,
		Err: errors.New("an update came without values that it has left as they were (TOAST), and the record that has them may be gone by compaction")}
	table := "…"
	if t := r.tables[topic]; t != nil {
		e.Table, table = t.version.Name(), t.version.Name().SQL()
	}
	e.Hint = "ALTER TABLE " + table + " REPLICA IDENTITY FULL on the source, with which updates bring all values, and start over at both ends with " +
		"`millrace bootstrap --restart-snapshot --yes`; or write to a prefix without destination.kafka.compact"
	return e
}

// mend ends what is torn once everything before the offset of the transaction topic
// that makes it whole was given out.
func (r *Reader) mend(ctx context.Context) (err error) {
	c, p := &r.compacted, r.order()
	at := p.next // what comes next
	if len(p.queue) > 0 {
		at = p.queue[0].Offset
	}
	switch {
	case c.until >= 0 && at < c.until:
	case c.until >= 0 && !c.holes:
		c.torn = false
		for _, p := range r.parts {
			p.torn = false
		}
	default:
		c.holes = false
		c.until, err = r.reached(ctx)
	}
	return err
}

// atHead moves since if all that comes before the end that was fetched was given out. It is
// called between transactions.
func (r *Reader) atHead() {
	c, p := &r.compacted, r.order()
	if c.headAt > 0 && (len(p.queue) == 0 || p.queue[0].Offset >= c.headAt) {
		c.since, c.fresh = c.head, false
	}
}

// otherReplica takes note that a partition's leader is another broker than the one that
// what was read of it came from.
func (r *Reader) otherReplica(p *partition) {
	if c := &r.compacted; c.fresh && p.compact && !p.others && p.topic.name != schemaTopic(r.opt.Endpoint.Prefix) {
		c.since = time.Time{}
	}
}

// Aged tells whether the newest cursor says too little of when the end was reached: behind a long
// idle time, a hole would have it that deletes may be gone.
func (r *Reader) Aged() bool {
	c := &r.compacted
	return c.keeps > 0 && !c.since.IsZero() && c.since.Sub(c.noted) > c.keeps/10
}

// byKey has the records of a table read as changes by their key, whatever the replica
// identity is.
func (t *tableReader) byKey(e *Endpoint) error {
	rel, key, o, err := t.version.Relation()
	if err == nil && len(key) == 0 {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: "read Kafka", Peer: e.Peer, Table: t.version.Name(),
			Err:  errors.New("its records have no key, by which its rows could be told apart"),
			Hint: "exclude it here (source.kafka.tables); or give it a primary key at the source, and start over from a new first load at both ends"}
	}
	if err == nil {
		rel.Identity, rel.Key = millrace.IdentityIndex, key
		t.decoder, err = krecord.NewDecoder(o, rel, key)
	}
	if err != nil {
		return unreadable(e, t.version, err)
	}
	t.keyed = rel
	return nil
}

// addKeyed is add for what is read by the key of rows, but for a TRUNCATE. last is the change before, which may
// have been made of the same one of the source.
func (r *Reader) addKeyed(t *millrace.Txn, last *millrace.Change, rec *kgo.Record, c *millrace.Change, kind krecord.Part, mem *krecord.Memory) (*millrace.Change, error) {
	s, tr := r.from, r.tables[rec.Topic]
	same := last != nil && last.Seq == c.Seq
	switch {
	case kind == krecord.Tombstone:
		if same && last.Op == millrace.Remove {
			return last, nil // it says the same
		}
		old, err := tr.decoder.Key(rec, mem)
		if err != nil {
			return last, err
		}
		c.Op, c.Rel, c.Old = millrace.Remove, tr.keyed, old
	case c.Op == millrace.Delete:
		c.Op = millrace.Remove
	case slices.ContainsFunc(c.New, func(v millrace.Value) bool { return v.Kind == millrace.Unchanged }):
		if kind == krecord.NewHalf && r.opt.Share != nil {
			return last, r.movedByKey(rec.Topic)
		}
		if r.stale(s, kind) {
			return last, r.unknown(rec.Topic)
		}
		if c.Op = millrace.Update; c.Early {
			c.Op = millrace.Amend
		}
		if kind != krecord.NewHalf {
			c.Old = nil
		} else if same && last.Op == millrace.Remove {
			c.OldFull = false
			*last = *c
			return last, nil
		}
	default:
		c.Op, c.Old = millrace.Put, nil
	}
	c.OldFull = false
	t.Changes = append(t.Changes, *c)
	return &t.Changes[len(t.Changes)-1], nil
}

// stale tells whether the row that an update takes values from may not be what it was, and
// takes note that it does. If the key has changed, the row may be in any partition.
func (r *Reader) stale(s *taking, kind krecord.Part) bool {
	s.unsent = true
	if kind != krecord.NewHalf {
		return s.p.torn
	}
	for _, other := range r.sources {
		other.unsent = other.unsent || other.p.topic == s.p.topic
	}
	for _, p := range r.parts {
		if p.torn && p.topic == s.p.topic {
			return true
		}
	}
	return false
}
