package kafka

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/millrace/millrace"
)

// parseEnd reads a record of the transaction topic. What the writer writes, a member
// behind the other and without white space, is read without encoding/json, which took a
// third of the time of small transactions, and then without event_count and
// data_collections, that a Reader has no use for; anything else takes the long way.
func parseEnd(value []byte, e *End) error {
	*e = End{Partitions: e.Partitions[:0]}
	s := markScan{rest: value, ok: true}
	if s.end(e) {
		return nil
	}
	*e = End{}
	return json.Unmarshal(value, e)
}

// markScan is what is left of a value; ok is false from the first thing on that is not
// as expected.
type markScan struct {
	rest []byte
	ok   bool
}

func (s *markScan) end(e *End) bool {
	s.literal(`{"status":"END","id":"`)
	e.Status, e.ID = statusEnd, s.text()
	s.literal(`,"event_count":`)
	s.number()
	s.literal(`,"data_collections":[`)
	// A quote that stands in a name is escaped, so that this is no part of one.
	s.skipTo(`],"ts_ms":`)
	e.TS = s.number()
	s.literal(`,"xid":`)
	e.XID = uint32(s.number())
	s.literal(`,"commit_lsn":"`)
	e.Commit = s.position()
	s.literal(`,"end_lsn":"`)
	e.Position.End = s.position()
	s.literal(`,"partitions":[`)
	for s.ok && !bytes.HasPrefix(s.rest, []byte{']'}) {
		if len(e.Partitions) > 0 {
			s.literal(`,`)
		}
		var p Partition
		s.literal(`{"topic":"`)
		p.Topic = s.text()
		s.literal(`,"partition":`)
		p.Partition = int32(s.number())
		s.literal(`,"count":`)
		p.Count = int(s.number())
		s.literal(`}`)
		e.Partitions = append(e.Partitions, p)
	}
	s.literal(`]}`)
	return s.ok && len(s.rest) == 0
}

func (s *markScan) literal(t string) {
	if !s.ok || len(s.rest) < len(t) || string(s.rest[:len(t)]) != t {
		s.ok = false
		return
	}
	s.rest = s.rest[len(t):]
}

func (s *markScan) skipTo(t string) {
	i := bytes.Index(s.rest, []byte(t))
	if !s.ok || i < 0 {
		s.ok = false
		return
	}
	s.rest = s.rest[i+len(t):]
}

// until gives what is before the next byte c, and steps over both.
func (s *markScan) until(c byte) []byte {
	i := bytes.IndexByte(s.rest, c)
	if !s.ok || i < 0 {
		s.ok = false
		return nil
	}
	v := s.rest[:i]
	s.rest = s.rest[i+1:]
	return v
}

// text is the rest of a string in which nothing is escaped.
func (s *markScan) text() string {
	v := s.until('"')
	s.ok = s.ok && bytes.IndexByte(v, '\\') < 0
	return string(v)
}

func (s *markScan) position() millrace.LSN {
	v, err := millrace.ParseLSN(string(s.until('"')))
	s.ok = s.ok && err == nil
	return v
}

func (s *markScan) number() int64 {
	n := 0
	for n < len(s.rest) && (s.rest[n] >= '0' && s.rest[n] <= '9' || s.rest[n] == '-') {
		n++
	}
	v, err := strconv.ParseInt(string(s.rest[:n]), 10, 64)
	s.ok = s.ok && err == nil
	s.rest = s.rest[n:]
	return v
}
