package record

import (
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
)

// A record of layout stream is a part of a transaction: an object with the
// transaction's id and position, and changes, each of which is the record that it
// would be in a topic of its own:
//
//	{"id":"746:23817544","xid":746,"commit_lsn":"0/16B6D48","ts_us":1700000000000000,"changes":[
//	 {"topic":"shop.public.orders","version":1,"seq":1,"key":{"id":1},"headers":{…},"value":{…}}],
//	 "end_lsn":"0/16B6D78","event_count":1}
//
// topic and version name the table's description in PREFIX.schema. Tombstones are
// left out: nothing is compacted here. The members behind the changes stand in the
// last part only.

// PartHead is what stands before the changes.
type PartHead struct {
	ID     string
	XID    uint32
	Commit millrace.LSN
	Time   time.Time
}

// AppendPartHead begins a part.
func AppendPartHead(dst []byte, h *PartHead) []byte {
	dst = append(append(dst, `{"id":`...), quoted(h.ID)...)
	dst = strconv.AppendUint(append(dst, `,"xid":`...), uint64(h.XID), 10)
	dst = append(append(append(dst, `,"commit_lsn":"`...), h.Commit.String()...), '"')
	dst = strconv.AppendInt(append(dst, `,"ts_us":`...), h.Time.UnixMicro(), 10)
	return append(dst, `,"changes":[`...)
}

// AppendElement appends a change's record, of the description with the given
// topic and version. Its key and value must be JSON.
func AppendElement(dst []byte, topic string, version int, seq uint64, r *Record) ([]byte, error) {
	dst = strconv.AppendQuote(append(dst, `{"topic":`...), topic) // of plain characters
	dst = strconv.AppendInt(append(dst, `,"version":`...), int64(version), 10)
	dst = strconv.AppendUint(append(dst, `,"seq":`...), seq, 10)
	dst = appendOrNull(append(dst, `,"key":`...), r.Key)
	if len(r.Headers) > 0 {
		dst = append(dst, `,"headers":`...)
		for i := range r.Headers {
			dst = append(dst, "{,"[min(i, 1)])
			dst = append(strconv.AppendQuote(dst, r.Headers[i].Key), ':')
			var err error
			if dst, err = datum.AppendQuoted(dst, r.Headers[i].Value); err != nil {
				return dst, err
			}
		}
		dst = append(dst, '}')
	}
	return append(appendOrNull(append(dst, `,"value":`...), r.Value), '}'), nil
}

func appendOrNull(dst, raw []byte) []byte {
	if raw == nil {
		return append(dst, "null"...)
	}
	return append(dst, raw...)
}

// AppendPartTail ends a part that is not the last one.
func AppendPartTail(dst []byte) []byte { return append(dst, "]}"...) }

// AppendLastTail ends the last part of a transaction that ends at end and has so
// many changes, as the END of the other layout counts them.
func AppendLastTail(dst []byte, end millrace.LSN, events int) []byte {
	dst = append(append(append(dst, `],"end_lsn":"`...), end.String()...), `","event_count":`...)
	return append(strconv.AppendInt(dst, int64(events), 10), '}')
}

// StreamPart is a part of a transaction that is read back.
type StreamPart struct {
	PartHead
	End    millrace.LSN // of the last part
	Events int

	changes datum.JSONArray
	headers []kgo.RecordHeader
}

// ParsePart reads a part but for its changes, which Next gives.
func ParsePart(value []byte) (*StreamPart, error) {
	p := &StreamPart{}
	o := datum.NewJSONObject(value)
	var err error
	var n int64
	seen := 0
	for o.Next() && err == nil {
		seen++
		switch string(o.Key) {
		case `"id"`:
			p.ID, err = textOf(o.Value)
		case `"xid"`:
			n, err = strconv.ParseInt(string(o.Value), 10, 64)
			p.XID = uint32(n)
		case `"commit_lsn"`:
			p.Commit, err = lsnOf(o.Value)
		case `"ts_us"`:
			n, err = strconv.ParseInt(string(o.Value), 10, 64)
			p.Time = time.UnixMicro(n)
		case `"changes"`:
			p.changes = datum.NewJSONArray(o.Value)
		case `"end_lsn"`:
			p.End, err = lsnOf(o.Value)
		case `"event_count"`:
			p.Events, err = strconv.Atoi(string(o.Value))
		default:
			seen--
		}
	}
	if err == nil {
		err = o.Err
	}
	if err == nil && seen < 5 {
		err = errRecord
	}
	return p, err
}

func textOf(raw []byte) (string, error) {
	text, err := datum.AppendUnquoted(nil, raw)
	return string(text), err
}

func lsnOf(raw []byte) (millrace.LSN, error) {
	text, err := textOf(raw)
	if err != nil {
		return 0, err
	}
	return millrace.ParseLSN(text)
}

// Element is a change in a part: the record that it would be in a topic of its
// own, without the headers that all have.
type Element struct {
	Topic   string
	Version int
	Seq     uint64
	Record  kgo.Record
}

// Next reads the next change into e; false after the last. What e points to is
// the part's value; the headers are valid until the next call.
func (p *StreamPart) Next(e *Element) (bool, error) {
	if !p.changes.Next() {
		return false, p.changes.Err
	}
	topic := e.Topic // that of the last one, most likely
	*e = Element{}
	p.headers = p.headers[:0]
	o := datum.NewJSONObject(p.changes.Value)
	var err error
	for o.Next() && err == nil {
		switch string(o.Key) {
		case `"topic"`:
			if n := len(o.Value); n > 2 && string(o.Value[1:n-1]) == topic {
				e.Topic = topic
				break
			}
			e.Topic, err = textOf(o.Value)
		case `"version"`:
			e.Version, err = strconv.Atoi(string(o.Value))
		case `"seq"`:
			e.Seq, err = strconv.ParseUint(string(o.Value), 10, 64)
		case `"key"`:
			e.Record.Key = notNull(o.Value)
		case `"headers"`:
			err = p.readHeaders(o.Value)
		case `"value"`:
			e.Record.Value = notNull(o.Value)
		}
	}
	if err == nil {
		err = o.Err
	}
	if err == nil && (e.Topic == "" || e.Seq == 0) {
		err = fmt.Errorf("%w: a change without topic or seq", errRecord)
	}
	e.Record.Topic, e.Record.Headers = e.Topic, p.headers
	return err == nil, err
}

func notNull(raw []byte) []byte {
	if datum.IsJSONNull(raw) {
		return nil
	}
	return raw
}

func (p *StreamPart) readHeaders(raw []byte) error {
	o := datum.NewJSONObject(raw)
	for o.Next() {
		name, err := textOf(o.Key)
		if err != nil {
			return err
		}
		value, err := datum.AppendUnquoted(nil, o.Value)
		if err != nil {
			return err
		}
		p.headers = append(p.headers, kgo.RecordHeader{Key: name, Value: value})
	}
	return o.Err
}
