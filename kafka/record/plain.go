package record

import (
	"bytes"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
)

// What the encoder writes in JSON is read here: members in its order and without white
// space, each looked at once, and of source and transaction, which nobody asks for, only
// that nothing else is between them. Anything else, and whatever is wrong, is left to
// members, which takes any JSON and says what is wrong with it.

// Members of an envelope, as they stand between values.
var (
	plainBefore = []byte(`{"before":`)
	plainAfter  = []byte(`,"after":`)
	plainSource = []byte(`,"source":{`)
	plainOp     = []byte(`},"op":"`)
	plainStamps = [][]byte{[]byte(`","ts_ms":`), []byte(`,"ts_us":`), []byte(`,"ts_ns":`)}
	// plainTwice must not be members a second time: the last would count.
	plainTwice = [][]byte{[]byte(`"before"`), []byte(`"after"`), []byte(`"op"`)}
)

// plain takes a value apart; ok is false if it has to be read the other way.
func (d *Decoder) plain(raw []byte, m *Memory) (op byte, before, after millrace.Row, ok bool) {
	if !bytes.HasPrefix(raw, plainBefore) {
		return 0, nil, nil, false
	}
	end, op := plainEnd(raw)
	if end < 0 {
		return 0, nil, nil, false
	}
	before, rest, ok := d.plainRow(raw[len(plainBefore):], m)
	if !ok || !bytes.HasPrefix(rest, plainAfter) {
		return 0, nil, nil, false
	}
	after, rest, ok = d.plainRow(rest[len(plainAfter):], m)
	between := len(rest) - (len(raw) - end)
	if !ok || between < len(plainSource) || !bytes.HasPrefix(rest, plainSource) {
		return 0, nil, nil, false
	}
	for _, name := range plainTwice {
		if bytes.Contains(rest[:between], name) {
			return 0, nil, nil, false
		}
	}
	return op, before, after, true
}

// plainEnd finds op from the end, where nothing but the three stamps is behind it, so
// that source and transaction need not be taken apart. It is a member of the envelope
// itself: in a string its quotes would be escaped, and a nested one has more braces behind.
func plainEnd(raw []byte) (at int, op byte) {
	const most = 120 // bytes of op and stamps
	from := max(0, len(raw)-most)
	i := bytes.LastIndex(raw[from:], plainOp)
	if i < 0 {
		return -1, 0
	}
	at = from + i + 1
	tail := raw[from+i+len(plainOp):]
	if len(tail) == 0 || tail[0] < 'a' || tail[0] > 'z' {
		return -1, 0
	}
	op, tail = tail[0], tail[1:]
	for _, name := range plainStamps {
		if !bytes.HasPrefix(tail, name) {
			return -1, 0
		}
		n := len(name)
		for n < len(tail) && tail[n] >= '0' && tail[n] <= '9' {
			n++
		}
		if n == len(name) {
			return -1, 0
		}
		tail = tail[n:]
	}
	if len(tail) != 1 || tail[0] != '}' {
		return -1, 0
	}
	return at, op
}

// plainRow reads a row with all columns in their order, or null, and gives what is behind.
func (d *Decoder) plainRow(raw []byte, m *Memory) (row millrace.Row, rest []byte, ok bool) {
	if bytes.HasPrefix(raw, []byte("null")) {
		return nil, raw[4:], true
	}
	if len(raw) == 0 || raw[0] != '{' {
		return nil, nil, false
	}
	row = m.row(len(d.rel.Columns))
	for i := range row {
		head := d.heads[i] // behind the brace, or the comma
		if len(raw) <= len(head) || i > 0 && raw[0] != ',' || !bytes.HasPrefix(raw[1:], head) {
			return nil, nil, false
		}
		value, behind, err := datum.NextJSON(raw[1+len(head):])
		if err != nil {
			return nil, nil, false
		}
		raw = behind
		if datum.IsJSONNull(value) {
			row[i].Kind = millrace.Null
			continue
		}
		room := m.room()
		text, _, err := d.codecs[i].AppendTextOfJSON(room, value)
		if err != nil {
			return nil, nil, false
		}
		row[i] = millrace.Value{Kind: millrace.Text, Raw: m.keep(room, text)}
	}
	if len(row) == 0 {
		raw = raw[1:]
	}
	if len(raw) == 0 || raw[0] != '}' {
		return nil, nil, false
	}
	return row, raw[1:], true
}

// special are the headers that only some records have.
type special struct {
	oldFull                             bool
	oldKey, newKey, unchanged, truncate []byte
}

func specialOf(r *kgo.Record) (s special) {
	for i := range r.Headers {
		h := &r.Headers[i]
		switch h.Key {
		case HeaderOldFull:
			s.oldFull = string(h.Value) == "true"
		case HeaderOldKey:
			s.oldKey = h.Value
		case HeaderNewKey:
			s.newKey = h.Value
		case HeaderUnchanged:
			s.unchanged = h.Value
		case HeaderTruncate:
			s.truncate = h.Value
		}
	}
	return s
}
