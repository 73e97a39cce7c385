package kafka

import (
	"encoding/binary"
	"errors"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A record in the spool is topic, partition, key, value and headers, each but the
// partition behind its length, -1 for null. The headers that all records of a
// transaction have are not written: commonHere stands in the place of the first.
const commonHere = -2

// pack makes a spool record of a Kafka record that has common headers in common with
// all of its transaction: none, or those from headerCommit on.
func pack(dst []byte, r *kgo.Record, common int) []byte {
	dst = append(appendSize(dst, len(r.Topic)), r.Topic...)
	dst = appendSize(dst, int(r.Partition))
	dst = appendBytes(dst, r.Key)
	dst = appendBytes(dst, r.Value)
	dst = appendSize(dst, len(r.Headers))
	for i := 0; i < len(r.Headers); i++ {
		h := &r.Headers[i]
		if h.Key == headerCommit {
			dst = appendSize(dst, commonHere)
			i += common - 1
			continue
		}
		dst = append(appendSize(dst, len(h.Key)), h.Key...)
		dst = appendBytes(dst, h.Value)
	}
	return dst
}

func appendSize(dst []byte, n int) []byte {
	return binary.LittleEndian.AppendUint32(dst, uint32(int32(n)))
}

func appendBytes(dst, b []byte) []byte {
	if b == nil {
		return appendSize(dst, -1)
	}
	return append(appendSize(dst, len(b)), b...)
}

var errPacked = errors.New("a spooled record is damaged")

// unpacker makes Kafka records of spooled ones again. Many share a piece of memory,
// which is the collector's once the client is done with all of them.
type unpacker struct {
	common  []kgo.RecordHeader
	topic   string // of the record before
	records []kgo.Record
	headers []kgo.RecordHeader
	bytes   []byte
}

// How much memory is asked for at once: records, headers, and bytes.
const (
	unpackRecords = stampRecords
	unpackBytes   = 16 << 10
)

// own gives a copy of what is about to change.
func (u *unpacker) own(b []byte) []byte {
	if len(b) > unpackBytes/4 {
		return append([]byte{}, b...)
	}
	if cap(u.bytes)-len(u.bytes) < len(b) {
		u.bytes = make([]byte, 0, unpackBytes)
	}
	n := len(u.bytes)
	u.bytes = append(u.bytes, b...)
	return u.bytes[n:len(u.bytes):len(u.bytes)]
}

// record unpacks b, which it takes over.
func (u *unpacker) record(b []byte) (*kgo.Record, error) {
	p := packed{rest: b, ok: true}
	topic := p.bytes()
	if u.topic != string(topic) {
		u.topic = string(topic)
	}
	if len(u.records) == 0 {
		u.records = make([]kgo.Record, unpackRecords)
	}
	r := &u.records[0]
	u.records = u.records[1:]
	*r = kgo.Record{Topic: u.topic, Partition: int32(p.size()), Key: p.bytes(), Value: p.bytes()}
	n := p.size()
	if !p.ok || n < 0 || n > len(b)+len(u.common) {
		return nil, errPacked
	}
	r.Headers = u.room(n)
	for len(r.Headers) < n && p.ok {
		size := p.size()
		if size == commonHere && len(r.Headers)+len(u.common) <= n {
			r.Headers = append(r.Headers, u.common...)
			continue
		}
		key := p.take(size)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: headerName(key), Value: p.bytes()})
	}
	if !p.ok || len(p.rest) != 0 {
		return nil, errPacked
	}
	return r, nil
}

// room gives an empty slice for n headers.
func (u *unpacker) room(n int) []kgo.RecordHeader {
	if len(u.headers) < n {
		u.headers = make([]kgo.RecordHeader, max(n, unpackRecords*8))
	}
	room := u.headers[:0:n]
	u.headers = u.headers[n:]
	return room
}

// headerName gives the name of a header without memory of its own, where every
// record has it.
func headerName(b []byte) string {
	if string(b) == headerSeq {
		return headerSeq
	}
	return string(b)
}

// packed is what is left of a spooled record; ok is false once something of it was
// missing.
type packed struct {
	rest []byte
	ok   bool
}

func (p *packed) size() int {
	if len(p.rest) < 4 {
		p.ok = false
		return 0
	}
	n := int(int32(binary.LittleEndian.Uint32(p.rest)))
	p.rest = p.rest[4:]
	return n
}

// bytes gives nil for null.
func (p *packed) bytes() []byte {
	n := p.size()
	if n == -1 {
		return nil
	}
	return p.take(n)
}

func (p *packed) take(n int) []byte {
	if n < 0 || n > len(p.rest) {
		p.ok = false
		return nil
	}
	b := p.rest[:n:n]
	p.rest = p.rest[n:]
	return b
}
