package kafka

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
)

// Share is the part of a prefix's partitions that one of several workers reads: the Nth
// of Of, counted from 1.
//
// Each worker reads the END of every transaction and of its records those in its
// partitions, in the same order. All records of a key are in one partition, whatever
// bytes a key has that is equal to it, so that one worker has all changes of a row, as Put and
// Remove. Nothing is shared but the tables: each worker is a job, with a cursor,
// a fence and a lock of its own.
type Share struct{ N, Of int }

func (s Share) String() string { return fmt.Sprintf("%d/%d", s.N, s.Of) }

// has tells whether a partition of a table's topic belongs to the share. Those of one topic
// go around, and each topic begins elsewhere.
func (s *Share) has(topic string, partition int32) bool {
	if s == nil {
		return true
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(topic))
	return int((h.Sum32()%uint32(s.Of)+uint32(partition)))%s.Of == s.N-1
}

// wants tells whether anything is read of a partition: those that all need are.
func (r *Reader) wants(topic string, partition int32) bool {
	return topic == r.main() || topic == schemaTopic(r.opt.Endpoint.Prefix) || r.opt.Share.has(topic, partition)
}

// sameShare holds the share against that of the cursor.
func (r *Reader) sameShare(was Share) error {
	now := Share{}
	if r.opt.Share != nil {
		now = *r.opt.Share
	}
	if now == was {
		return nil
	}
	say := func(s Share) string {
		if s.Of == 0 {
			return "consistency: transaction"
		}
		return "consistency: key, share: " + s.String()
	}
	return &millrace.Error{Kind: millrace.KindPreflight, Op: "read Kafka", Peer: r.opt.Endpoint.Peer,
		Err:  fmt.Errorf("the job was begun with %s, and is to go on with %s: it would miss what others have read, or they would", say(was), say(now)),
		Hint: "set source.kafka back; for another number of workers clean all of them up, empty the tables and begin anew"}
}

// byKeyProblem refuses what has no order between partitions.
func (r *Reader) byKeyProblem() error {
	if r.opt.Share == nil || r.stream == nil {
		return nil
	}
	return &millrace.Error{Kind: millrace.KindPreflight, Op: "read Kafka", Peer: r.opt.Endpoint.Peer,
		Err:  errors.New("the prefix has layout stream, one partition with all tables in it, of which there are no shares"),
		Hint: "read it with source.kafka.consistency: transaction"}
}

// uniqueKey tells whether a table's description says that rows have different keys: it is that
// of the replica identity, or a constraint of the source is about some of its columns.
func (t *tableReader) uniqueKey() bool {
	v := t.version
	if v.Identity != millrace.IdentityFull.String() {
		return true // any other one is unique, and no key goes beyond it
	}
	for _, c := range v.Constraints {
		_, list, ok := strings.Cut(c.Definition, "(")
		list, _, end := strings.Cut(list, ")")
		if c.Kind == "foreign_key" || !ok || !end {
			continue
		}
		among := func(column string) bool {
			if s, ok := strings.CutPrefix(column, `"`); ok {
				column = strings.ReplaceAll(strings.TrimSuffix(s, `"`), `""`, `"`)
			}
			return slices.Contains(v.Key, column)
		}
		if !slices.ContainsFunc(strings.Split(list, ", "), func(column string) bool { return !among(column) }) {
			return true
		}
	}
	return false
}

// severalRows is the error of a table that may have several rows with one record key.
func severalRows(e *Endpoint, v *krecord.TableVersion) error {
	return &millrace.Error{Kind: millrace.KindPreflight, Op: "read Kafka", Peer: e.Peer, Table: v.Name(),
		Err:  fmt.Errorf("several of its rows may have one key (%s): no primary key or unique constraint of the source is about it (consistency: key)", strings.Join(v.Key, ", ")),
		Hint: "exclude it here (source.kafka.tables) or use consistency: transaction; or add the constraint at the source, and start over from a new first load at both ends"}
}

// truncatedByKey is the error of a TRUNCATE of a table with several partitions.
func (r *Reader) truncatedByKey(topic *topic) error {
	if r.opt.Share == nil || len(topic.leaders) == 1 {
		return nil
	}
	e := &millrace.Error{Kind: millrace.KindResync, Op: "read Kafka", Peer: r.opt.Endpoint.Peer, LSN: r.end.Commit,
		Err: errors.New("the source truncated it, which has no place among the changes of its partitions, and they are read each by itself (consistency: key)"),
		Hint: "clean the workers up, empty the tables and begin anew, with consistency: transaction, or behind the next first load at the source; " +
			"there use DELETE, or topics with one partition"}
	if t := r.tables[topic.name]; t != nil {
		e.Table = t.version.Name()
	}
	return e
}

// movedByKey is the error of a row that has moved to another key without all its values.
func (r *Reader) movedByKey(topic string) error {
	e := &millrace.Error{Kind: millrace.KindResync, Op: "read Kafka", Peer: r.opt.Endpoint.Peer, LSN: r.end.Commit,
		Err: errors.New("the key of a row was changed and a value that stayed as it was not sent (TOAST): the row with it may be another worker's (consistency: key)")}
	table := "…"
	if t := r.tables[topic]; t != nil {
		e.Table, table = t.version.Name(), t.version.Name().SQL()
	}
	e.Hint = "ALTER TABLE " + table + " REPLICA IDENTITY FULL on the source, with which updates bring all values, and begin anew at both ends; or use consistency: transaction"
	return e
}
