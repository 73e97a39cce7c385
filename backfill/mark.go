package backfill

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/snapshot"
)

// state of a range or hole.
type state = snapshot.RangeState

const (
	unread = snapshot.Unread
	read   = snapshot.Read
	done   = snapshot.Done
)

// segment is a range of keys: behind the one before, up to and with upto.
type segment struct {
	upto    []byte // nil: to the end
	state   state
	view    snapshot.View // of what is read
	pending *pending      // the chunk that is being read from its beginning, or nil
	// cuts are keys within an unread range at which it can be cut in two, ascending.
	// A chunk ends at the first of them, if it does not end before.
	cuts [][]byte
}

// hole is a single key that is not in the state of the range around it.
type hole struct {
	state   state // unread or read
	view    snapshot.View
	pending *pending
}

// load is a table that is being loaded.
type load struct {
	oid   uint32
	name  millrace.TableName
	table *snapshot.ChunkTable // nil until it is described
	file  uint32               // what the ranges were read from; 0: nothing was

	segments []segment // ascending; the last one has no end
	holes    map[string]*hole
	key      []string // the columns whose values bound the segments

	rows, bytes int64
	size        int  // of the next chunk, in rows
	replace     bool // its rows are there: the new ones are staged
	emptying    bool // to be emptied at the destination and read anew
	sampled     bool // it was looked for cuts
	changed     bool // to be described anew before the next chunk
	since       millrace.LSN
	late        int // chunks in a row that were, see waited

	// Where the columns of the key are in the relation of the stream's last change, and
	// whether it sends them of every old row.
	rel     *millrace.Relation
	relKey  *snapshot.Key
	keyAt   []int
	keySent bool

	staged map[*millrace.Relation]*millrace.Relation // see redirect
}

func newLoad(name millrace.TableName, m millrace.Mark) (*load, error) {
	l := &load{oid: m.OID, name: name, rows: m.Rows, bytes: m.Bytes, size: firstRows, holes: map[string]*hole{}}
	if len(m.State) == 0 {
		l.segments = []segment{{state: unread}}
		return l, nil
	}
	if err := l.decode(m.State); err != nil {
		return nil, markError(name, err)
	}
	return l, nil
}

func markError(name millrace.TableName, err error) error {
	return &millrace.Error{Kind: millrace.KindData, Op: "read the mark of a load", Peer: millrace.PeerDestination, Table: name,
		Err: err, Hint: "read the table again with millrace table resnapshot"}
}

// reform deals with a mark whose keys are of other columns than the table's key is
// now, or were read in another form than that in which the stream sends values now.
// With other columns the table is read again. Of another form, ranges can still be
// compared by the server; holes are known by the bytes of their keys, and the table is
// read again.
func (l *load) reform() error {
	var names []string
	if k := l.table.Key; k != nil {
		for i := range k.Columns {
			names = append(names, k.Columns[i].Name)
		}
	}
	cut := len(l.segments) > 1 || len(l.holes) > 0
	l.emptying = l.emptying || cut && (names == nil || l.key != nil && !slices.Equal(l.key, names))
	l.key = names
	if !cut || l.emptying {
		return nil
	}
	for _, b := range l.bounds() {
		same, err := l.table.SameForm(b)
		if err != nil {
			return err
		}
		if !same {
			l.asks()
			break
		}
	}
	for key := range l.holes {
		same, err := l.table.SameForm([]byte(key))
		if err != nil {
			return err
		}
		l.emptying = l.emptying || !same
	}
	return nil
}

// asks has keys compared by the server.
func (l *load) asks() {
	table, key := *l.table, *l.table.Key
	key.Native = false
	table.Key = &key
	l.table = &table
}

func encodeRange(key []byte, s state, v snapshot.View) snapshot.MarkRange {
	r := snapshot.MarkRange{Upto: hex.EncodeToString(key), State: s}
	if s == read {
		r.Snapshot, r.LSN = v.String(), v.Upto.String()
	}
	return r
}

func decodeRange(r *snapshot.MarkRange) (key []byte, v snapshot.View, err error) {
	if key, err = hex.DecodeString(r.Upto); err != nil {
		return nil, v, err
	}
	switch r.State {
	case unread, done:
		return key, v, nil
	case read:
	default:
		return nil, v, fmt.Errorf("unknown state %q", r.State)
	}
	if v.Visibility, err = snapshot.ParseVisibility(r.Snapshot); err != nil {
		return nil, v, err
	}
	v.Upto, err = millrace.ParseLSN(r.LSN)
	return key, v, err
}

// mark gives the state to be stored.
func (l *load) mark() millrace.Mark {
	m := snapshot.Mark{File: l.file, Replace: l.replace, Empty: l.emptying, Since: l.since, Key: l.key}
	for i := range l.segments {
		s := &l.segments[i]
		m.Ranges = append(m.Ranges, encodeRange(s.upto, s.state, s.view))
	}
	for key, h := range l.holes {
		m.Holes = append(m.Holes, encodeRange([]byte(key), h.state, h.view))
	}
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings and numbers
	}
	return millrace.Mark{OID: l.oid, State: text, Rows: l.rows, Bytes: l.bytes}
}

func (l *load) decode(text []byte) error {
	var m snapshot.Mark
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	l.file, l.replace, l.emptying, l.since, l.key = m.File, m.Replace, m.Empty, m.Since, m.Key
	for i := range m.Ranges {
		key, v, err := decodeRange(&m.Ranges[i])
		if err != nil {
			return err
		}
		last := i == len(m.Ranges)-1
		if last != (len(key) == 0) {
			return fmt.Errorf("range %d of %d has a wrong end", i+1, len(m.Ranges))
		}
		if last {
			key = nil
		}
		l.segments = append(l.segments, segment{upto: key, state: m.Ranges[i].State, view: v})
	}
	for i := range m.Holes {
		key, v, err := decodeRange(&m.Holes[i])
		if err != nil {
			return err
		}
		l.holes[string(key)] = &hole{state: m.Holes[i].State, view: v}
	}
	if len(l.segments) == 0 {
		return fmt.Errorf("no ranges")
	}
	return nil
}

// reset makes all of the table unread. What is being read is void.
func (l *load) reset() {
	for i := range l.segments {
		if p := l.segments[i].pending; p != nil {
			p.void = true
		}
	}
	for _, h := range l.holes {
		if h.pending != nil {
			h.pending.void = true
		}
	}
	l.segments = []segment{{state: unread}}
	l.holes = map[string]*hole{}
	l.file, l.rows, l.bytes = 0, 0, 0
	l.emptying, l.sampled = false, false
}

// forget makes those ranges done whose L the stream has passed, and joins those
// that are.
func (l *load) forget(passed millrace.LSN) {
	for i := range l.segments {
		if s := &l.segments[i]; s.state == read && s.view.Upto <= passed {
			s.state, s.view = done, snapshot.View{}
		}
	}
	for i := len(l.segments) - 2; i >= 0; i-- {
		if l.segments[i].state == done && l.segments[i+1].state == done {
			l.segments = slices.Delete(l.segments, i, i+1)
		}
	}
	for key, h := range l.holes {
		if h.state == read && h.view.Upto <= passed {
			delete(l.holes, key)
		}
	}
}

// isDone tells whether the table is loaded and nothing has to be remembered of
// that.
func (l *load) isDone() bool {
	return len(l.segments) == 1 && l.segments[0].state == done && len(l.holes) == 0
}

// untouched tells whether the destination has nothing of what the load has read.
func (l *load) untouched() bool {
	return len(l.segments) == 1 && l.segments[0].state == unread && len(l.holes) == 0
}

// allRead tells whether the stream alone is waited for.
func (l *load) allRead() bool {
	for i := range l.segments {
		if l.segments[i].state == unread {
			return false
		}
	}
	for _, h := range l.holes {
		if h.state == unread {
			return false
		}
	}
	return true
}

// bounds gives the ends of the segments but the last.
func (l *load) bounds() [][]byte {
	bounds := make([][]byte, len(l.segments)-1)
	for i := range bounds {
		bounds[i] = l.segments[i].upto
	}
	return bounds
}

// find gives the segment whose beginning p reads.
func (l *load) find(p *pending) int {
	return slices.IndexFunc(l.segments, func(s segment) bool { return s.pending == p })
}

// split marks the beginning of segment i as read in v, up to key; nil: all of it.
func (l *load) split(i int, key []byte, v snapshot.View) {
	s := &l.segments[i]
	s.pending = nil
	if key == nil {
		s.state, s.view, s.cuts = read, v, nil
		return
	}
	if i > 0 && l.segments[i-1].state == read && sameView(l.segments[i-1].view, v) {
		l.segments[i-1].upto = key
		return
	}
	l.segments = slices.Insert(l.segments, i, segment{upto: key, state: read, view: v})
}

// sameView tells whether two chunks were read in snapshots that see the same.
func sameView(a, b snapshot.View) bool {
	return a.Xmin == b.Xmin && a.Xmax == b.Xmax && a.Upto == b.Upto && slices.Equal(a.Running, b.Running)
}

// shows gives the position up to which the remembered snapshots may show changes.
func (l *load) shows() (at millrace.LSN) {
	for i := range l.segments {
		at = max(at, l.segments[i].view.Upto)
	}
	for _, h := range l.holes {
		at = max(at, h.view.Upto)
	}
	return at
}

// active counts the ranges and holes that the mark remembers a snapshot of.
func (l *load) active() int { return len(l.holes) + l.activeRanges() }

// activeRanges counts the ranges alone. Holes have bounds of their own: those that wait hold up the stream.
func (l *load) activeRanges() (n int) {
	for i := range l.segments {
		if l.segments[i].state == read {
			n++
		}
	}
	return n
}
