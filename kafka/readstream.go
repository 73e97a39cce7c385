package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
)

// streamReader is what the Reader keeps of a prefix in layout stream, where the
// transactions come whole and in order out of one partition.
type streamReader struct {
	versions map[version]*kgo.Record // the descriptions of tables that were read
	part     int                     // of the last record; 0 between transactions
	place    place                   // of the transaction whose parts come
	given    int                     // parts of it that were given out
	pieces   []byte                  // of a value that is cut
	element  krecord.Element
}

// version names a description in PREFIX.schema.
type version struct {
	topic  string
	number int
}

// main is the topic that tells of transactions.
func (r *Reader) main() string {
	if r.stream != nil {
		return streamTopic(r.opt.Endpoint.Prefix)
	}
	return transactionTopic(r.opt.Endpoint.Prefix)
}

// partMarks are the headers of a record of layout stream.
type partMarks struct {
	part        int
	end         bool
	piece, of   int // of a value that is cut; 1 of 1 otherwise
	transaction place
}

func (r *Reader) partMarks(rec *kgo.Record) (m partMarks, err error) {
	if m.transaction, err = r.positionOf(rec); err != nil {
		return m, err
	}
	m.transaction.seq = 0 // that of the part's first change
	m.piece, m.of = 1, 1
	m.part, err = strconv.Atoi(string(krecord.Header(rec, headerPart)))
	if err == nil {
		m.end, err = strconv.ParseBool(string(krecord.Header(rec, headerEnd)))
	}
	if f := krecord.Header(rec, headerFragment); err == nil && f != nil {
		a, b, _ := strings.Cut(string(f), "/")
		m.piece, err = strconv.Atoi(a)
		if err == nil {
			m.of, err = strconv.Atoi(b)
		}
	}
	if err != nil {
		return m, r.malformed(rec, err)
	}
	return m, nil
}

// nextPart gives the next part of a transaction of layout stream; nil once nothing is
// left of what was fetched.
func (r *Reader) nextPart(ctx context.Context) (*millrace.Txn, error) {
	s := r.stream
	p := r.parts[slot{r.main(), 0}]
	for len(p.queue) > 0 {
		rec := p.queue[0]
		m, err := r.partMarks(rec)
		if err != nil {
			return nil, err
		}
		switch {
		case s.part == 0 && m.part != 1:
			return nil, r.cutOff(rec)
		case m.part != s.part+1, s.part > 0 && m.transaction != s.place:
			return nil, r.malformed(rec, fmt.Errorf("part %d of transaction %d comes behind part %d of transaction %d",
				m.part, m.transaction.xid, s.part, s.place.xid))
		}
		p.pop(r)
		s.part, s.place = m.part, m.transaction
		value := rec.Value
		if m.of > 1 {
			if s.pieces = append(s.pieces, value...); m.piece < m.of {
				continue
			}
			value, s.pieces = s.pieces, nil
		}
		if err := r.follow(rec); err != nil {
			return nil, err
		}
		old, err := r.judge(s.place.commit)
		switch {
		case err != nil:
			return nil, err
		case !old:
			if m.end {
				err = r.counted(rec)
			}
			if err != nil {
				return nil, err
			}
			return r.takePart(ctx, rec, value, m.end)
		case m.end:
			s.part = 0
		}
	}
	return nil, nil
}

// cutOff: the first record that is there is not the beginning of a transaction.
func (r *Reader) cutOff(rec *kgo.Record) error {
	return &millrace.Error{Kind: millrace.KindResync, Op: "read Kafka", Peer: r.opt.Endpoint.Peer,
		Err:  fmt.Errorf("history expired: the record at offset %d of %s is in the middle of a transaction, whose beginning is gone", rec.Offset, rec.Topic),
		Hint: "start over from a new first load at both ends; raise destination.kafka.retention of the job that writes, or read more often"}
}

// takePart decodes the changes of a part.
func (r *Reader) takePart(ctx context.Context, rec *kgo.Record, value []byte, last bool) (*millrace.Txn, error) {
	s := r.stream
	part, err := krecord.ParsePart(value)
	if err != nil {
		return nil, r.malformed(rec, err)
	}
	t := &millrace.Txn{XID: part.XID, Commit: part.Commit, Time: part.Time, From: r.history, Part: s.given, Last: last}
	mem := r.slabs.take(t)
	var pending *millrace.Change
	for {
		more, err := part.Next(&s.element)
		if err != nil {
			return nil, r.malformed(rec, err)
		}
		if !more {
			break
		}
		e := &s.element
		if err := r.described(ctx, rec, e); err != nil {
			return nil, err
		}
		e.Record.Offset, e.Record.Partition = rec.Offset, rec.Partition
		if pending, err = r.add(ctx, t, pending, &e.Record, e.Seq, mem); err != nil {
			return nil, err
		}
	}
	if name, ok := strings.CutPrefix(part.ID, "chunk:"); ok {
		if last && part.Events == 0 {
			if err := r.describedEmpty(ctx, name, part.Commit); err != nil {
				return nil, err
			}
		}
		t.XID, t.Commit, t.Chunk = 0, 0, &millrace.Chunk{Table: r.chunkTable(name)}
	}
	s.given++
	r.loosen(t)
	if !last {
		return t, nil
	}
	if t.Chunk == nil {
		t.End = part.End
	}
	s.part, s.given = 0, 0
	t.Cursor = r.cursor()
	return t, nil
}

// described makes the description of an element's table the one that is used.
func (r *Reader) described(ctx context.Context, rec *kgo.Record, e *krecord.Element) error {
	if t := r.tables[e.Topic]; t != nil && t.version.Version == e.Version {
		return nil
	}
	key := version{e.Topic, e.Version}
	if r.stream.versions[key] == nil {
		// It was committed with the part; only its marker may come a moment later.
		if err := r.moreVersions(ctx); err != nil {
			return err
		}
	}
	v := r.stream.versions[key]
	if v == nil {
		return r.malformed(rec, fmt.Errorf("version %d of %s has no description in the schema topic", e.Version, e.Topic))
	}
	return r.take(ctx, v)
}

// describedEmpty takes up the description of a table that was loaded without rows, which
// no change names: the one that was written with its chunk.
func (r *Reader) describedEmpty(ctx context.Context, chunk string, at millrace.LSN) error {
	if err := r.moreVersions(ctx); err != nil {
		return err
	}
	for key, rec := range r.stream.versions {
		v, err := krecord.ParseTableVersion(rec.Value)
		if err != nil {
			return err
		}
		if v.Commit == at && r.tables[key.topic] == nil && strings.HasPrefix(chunk, v.Schema+"."+v.Table+":") {
			return r.take(ctx, rec)
		}
	}
	return nil
}

// moreVersions reads the descriptions up to the end that the schema topic has
// now.
func (r *Reader) moreVersions(ctx context.Context) error {
	p := r.parts[slot{schemaTopic(r.opt.Endpoint.Prefix), 0}]
	for {
		all, err := offsets(ctx, r.cl, -1, p.topic)
		if err == nil {
			to := all[p.topic][0]
			if p.used >= to {
				return nil
			}
			p.used, err = r.f.readAll(ctx, p.topic, p.used, func(page) int64 { return to }, r.keepVersion)
			p.next = p.used
		}
		if err == nil {
			return nil
		}
		if !leaderMoved(err) {
			return err
		}
		if err := r.refresh(ctx, p); err != nil {
			return err
		}
	}
}

func (r *Reader) keepVersion(rec *kgo.Record) error {
	if rec.Value == nil {
		return nil
	}
	v, err := krecord.ParseTableVersion(rec.Value)
	if err != nil {
		return &millrace.Error{Kind: millrace.KindData, Op: "read Kafka", Peer: r.opt.Endpoint.Peer, Err: err,
			Hint: "use a version of Millrace that is at least as new as the one that writes"}
	}
	r.stream.versions[version{v.Topic, v.Version}] = rec
	return nil
}

var errBothLayouts = errors.New("the prefix has topics of both layouts")

// layout finds out which layout the prefix has, and names the topics that a reader
// begins with.
func (r *Reader) layout(found map[string]*topic) ([]string, error) {
	prefix := r.opt.Endpoint.Prefix
	stream, tables := found[streamTopic(prefix)] != nil, found[transactionTopic(prefix)] != nil
	if stream && tables {
		return nil, &millrace.Error{Kind: millrace.KindPreflight, Op: "read Kafka", Peer: r.opt.Endpoint.Peer, Err: errBothLayouts,
			Hint: "delete the topics of the layout that is not written any more"}
	}
	if stream {
		r.stream = &streamReader{versions: map[version]*kgo.Record{}}
	}
	return []string{r.main(), schemaTopic(prefix)}, nil
}
