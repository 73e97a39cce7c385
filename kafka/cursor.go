package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace"
)

// The cursor holds, for each topic, its id, and for each partition the offset
// behind the last record that was used and the epoch of the leader that it was read
// from: what must not have changed, or be lost, when reading goes on. Before them stands
// when everything up to the end was read, in seconds since 1970; whether the
// log is torn: then each partition says whether it has to do with that; whether
// the end was never reached: then each has the leader as well; and the
// share, if there is one; and whether rows of a load beside the stream may still come behind
// their changes. Then the generation and number of the last transaction. (Version 1 had none of that, version 2
// no number.)
const (
	cursorVersion = 3
	cursorTorn    = 1
	cursorShare   = 2
	cursorFresh   = 4
	cursorEarly   = 8
)

func (r *Reader) cursor() []byte {
	r.atHead()
	if len(r.places) != len(r.topics) {
		r.arrange()
	}
	size := 2 + 5*binary.MaxVarintLen64
	for i := range r.places {
		p := &r.places[i]
		size += len(p.head) + len(p.parts)*(binary.MaxVarintLen64+2*binary.MaxVarintLen32+1)
	}
	c := &r.compacted
	b := binary.AppendUvarint(append(make([]byte, 0, size), cursorVersion), uint64(max(c.since.Unix(), 0)))
	b = append(b, flag(c.torn)*cursorTorn|flag(r.opt.Share != nil)*cursorShare|flag(c.fresh)*cursorFresh|flag(r.early.seen)*cursorEarly)
	c.noted = c.since
	if s := r.opt.Share; s != nil {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(s.N)), uint64(s.Of))
	}
	b = binary.AppendVarint(binary.AppendUvarint(b, uint64(r.last.generation)), r.last.of)
	for i := range r.places {
		p := &r.places[i]
		b = append(b, p.head...)
		for n, part := range p.parts {
			b = binary.AppendUvarint(b, uint64(part.used))
			b = binary.AppendVarint(b, int64(p.topic.epochs[n]))
			if c.torn {
				b = append(b, flag(part.torn))
			}
			if c.fresh {
				b = binary.AppendVarint(b, int64(p.topic.leaders[n]))
			}
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

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// drained is the cursor when nothing is left of the transaction topic.
func (r *Reader) drained() []byte {
	p := r.order()
	p.used = p.next
	return r.cursor()
}

// malformedCursor is the error of a cursor that this version can't read.
func (r *Reader) malformedCursor() error {
	return &millrace.Error{Kind: millrace.KindPreflight, Op: "read Kafka", Peer: r.opt.Endpoint.Peer,
		Err:  errors.New("the cursor in the checkpoint can't be read: it is malformed, or a newer version has written it"),
		Hint: "use the newest version of Millrace that the job has run with; or start over, `millrace bootstrap --restart-snapshot --yes`"}
}

// restore takes up the cursor.
func (r *Reader) restore(ctx context.Context) error {
	c := &r.compacted
	if len(r.opt.Cursor) == 0 {
		c.since, c.fresh = time.Now(), true
		return nil
	}
	x, was := cursorBytes{rest: r.opt.Cursor[1:]}, Share{}
	switch r.opt.Cursor[0] {
	case 1:
	case 2, cursorVersion:
		if at := x.uvarint(); at > 0 {
			c.since = time.Unix(int64(at), 0)
		}
		flags := x.take(1)[0]
		c.torn, c.until, c.fresh, c.noted = flags&cursorTorn != 0, -1, flags&cursorFresh != 0, c.since
		r.early.seen = flags&cursorEarly != 0
		if flags&cursorShare != 0 {
			was = Share{int(x.uvarint()), int(x.uvarint())}
		}
		if r.opt.Cursor[0] == cursorVersion {
			r.last = number{int64(x.uvarint()), x.varint()}
		}
	default:
		return r.malformedCursor()
	}
	if err := r.sameShare(was); err != nil {
		return err
	}
	for len(x.rest) > 0 && !x.bad {
		name := string(x.take(x.uvarint()))
		id := [16]byte(x.take(16))
		count := x.uvarint()
		if count > 1<<20 {
			return r.malformedCursor()
		}
		read := make([]position, count)
		for i := range read {
			read[i] = position{partition: int32(i), at: int64(x.uvarint()), epoch: int32(x.varint())}
			if c.torn {
				read[i].torn = x.take(1)[0] == 1
			}
			if c.fresh {
				read[i].leader = int32(x.varint())
			}
		}
		if x.bad {
			break
		}
		if err := r.resume(ctx, name, id, read); err != nil {
			return err
		}
	}
	if x.bad {
		return r.malformedCursor()
	}
	return nil
}

// cursorBytes is what is left of a cursor; bad once something of it was missing.
type cursorBytes struct {
	rest []byte
	bad  bool
}

// take gives n bytes: zeros if they are not there.
func (x *cursorBytes) take(n uint64) []byte {
	if n > uint64(len(x.rest)) {
		x.bad, x.rest = true, nil
		return make([]byte, min(n, 1<<10))
	}
	b := x.rest[:n]
	x.rest = x.rest[n:]
	return b
}

func (x *cursorBytes) uvarint() uint64 {
	n, k := binary.Uvarint(x.rest)
	x.skip(k)
	return n
}

func (x *cursorBytes) varint() int64 {
	n, k := binary.Varint(x.rest)
	x.skip(k)
	return n
}

// skip steps over a number of k bytes; 0 and less is none.
func (x *cursorBytes) skip(k int) {
	if k <= 0 {
		x.bad, x.rest = true, nil
		return
	}
	x.rest = x.rest[k:]
}

// resume goes on in a topic, if it is still the one of the cursor.
func (r *Reader) resume(ctx context.Context, name string, id [16]byte, read []position) error {
	if len(read) == 0 {
		return nil
	}
	if _, err := r.partition(ctx, name, 0); errors.Is(err, errDeleted) && r.left(name, nil) {
		return nil
	} else if err != nil {
		return err
	}
	t := r.topics[name]
	switch {
	case t.id != id && r.left(name, t):
		return nil
	case t.id != id:
		return r.gone(name, errRemade)
	case len(t.leaders) != len(read):
		return r.gone(name, fmt.Errorf("it has %d partitions and had %d: keys have moved to other partitions", len(t.leaders), len(read)))
	}
	if err := r.verifyCursor(ctx, t, read); err != nil {
		return err
	}
	for i := range read {
		if read[i].leader != t.leaders[i] && read[i].at > 0 {
			r.otherReplica(r.parts[slot{name, int32(i)}])
		}
		p, offset := r.parts[slot{name, int32(i)}], read[i].at
		if offset < p.first && name == r.main() {
			return r.expired(p, offset)
		}
		if offset < p.first && !p.compact {
			// Fine as long as nothing was there that is needed: the END that names
			// the partition tells.
			r.log.Debug("the beginning of a partition has expired", "topic", name, "partition", i, "offset", offset, "first", p.first)
		}
		p.next, p.used = max(offset, p.first), offset
		p.torn, p.cut = read[i].torn, offset < p.first
	}
	return nil
}
