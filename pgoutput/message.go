package pgoutput

import (
	"encoding/binary"
	"time"

	"github.com/millrace/millrace"
)

// Tag is the first byte of a message and tells which it is.
type Tag byte

// The messages of protocol version 1.
const (
	TagBegin    Tag = 'B'
	TagCommit   Tag = 'C'
	TagOrigin   Tag = 'O'
	TagRelation Tag = 'R'
	TagType     Tag = 'Y'
	TagInsert   Tag = 'I'
	TagUpdate   Tag = 'U'
	TagDelete   Tag = 'D'
	TagTruncate Tag = 'T'
	TagMessage  Tag = 'M'
)

// TagOf gives the tag of a message, or 0 if it is empty.
func TagOf(msg []byte) Tag {
	if len(msg) == 0 {
		return 0
	}
	return Tag(msg[0])
}

// Begin starts a transaction.
type Begin struct {
	Commit millrace.LSN // of the commit record ("final LSN")
	Time   time.Time    // of the commit, or what the origin gave as such
	XID    uint32       // of the top-level transaction
}

// ParseBegin reads a Begin message.
func ParseBegin(msg []byte) (Begin, error) {
	r := open(msg, TagBegin, "Begin")
	m := Begin{Commit: r.lsn(), Time: r.time(), XID: r.uint32()}
	return m, r.close()
}

// Commit ends a transaction.
type Commit struct {
	Commit millrace.LSN // of the commit record, as in Begin
	End    millrace.LSN // end of the commit record
	Time   time.Time
}

// ParseCommit reads a Commit message.
func ParseCommit(msg []byte) (Commit, error) {
	r := open(msg, TagCommit, "Commit")
	r.flags(0)
	m := Commit{Commit: r.lsn(), End: r.lsn(), Time: r.time()}
	return m, r.close()
}

// Origin says where a transaction came from. It follows Begin.
type Origin struct {
	Commit millrace.LSN // of the commit at the origin
	Name   []byte
}

// ParseOrigin reads an Origin message.
func ParseOrigin(msg []byte) (Origin, error) {
	r := open(msg, TagOrigin, "Origin")
	m := Origin{Commit: r.lsn(), Name: r.cstring()}
	return m, r.close()
}

// relationColumn is the least that a column takes in a Relation message.
const relationColumn = 1 + 1 + 4 + 4

// ParseRelation reads a Relation message. The names of user types are not in
// it.
func ParseRelation(msg []byte) (*millrace.Relation, error) {
	r := open(msg, TagRelation, "Relation")
	m := &millrace.Relation{
		OID:      r.uint32(),
		Name:     millrace.TableName{Schema: r.namespace(), Name: string(r.cstring())},
		Identity: millrace.Identity(r.uint8()),
	}
	switch m.Identity {
	case millrace.IdentityDefault, millrace.IdentityNothing, millrace.IdentityFull, millrace.IdentityIndex:
	default:
		r.fail("unknown replica identity %q", byte(m.Identity))
	}
	m.Columns = make([]millrace.Column, r.count(int(int16(r.uint16())), relationColumn))
	for i := range m.Columns {
		if r.flags(1) == 1 {
			m.Key = append(m.Key, i)
		}
		m.Columns[i] = millrace.Column{Name: string(r.cstring()), Type: r.uint32(), Mod: int32(r.uint32())}
	}
	if err := r.close(); err != nil {
		return nil, err
	}
	return m, nil
}

// Type names a data type that is not built in. For a domain the OID is the
// domain's, the name that of the type beneath it. It precedes the Relation
// message that uses it.
type Type struct {
	OID    uint32
	Schema string
	Name   string
}

// ParseType reads a Type message.
func ParseType(msg []byte) (Type, error) {
	r := open(msg, TagType, "Type")
	m := Type{OID: r.uint32(), Schema: r.namespace(), Name: string(r.cstring())}
	return m, r.close()
}

// ChangedOID gives the relation of an Insert, Update or Delete without reading
// the rest, or 0 if the message is too short to be one.
func ChangedOID(msg []byte) uint32 {
	if len(msg) < 5 {
		return 0
	}
	return binary.BigEndian.Uint32(msg[1:])
}

// Insert is a new row.
type Insert struct {
	OID uint32
	New millrace.Row
}

// ParseInsert reads an Insert message.
func ParseInsert(msg []byte, s *Slab) (Insert, error) {
	r := open(msg, TagInsert, "Insert")
	m := Insert{OID: r.uint32()}
	r.kind('N')
	m.New = r.tuple(s)
	return m, r.close()
}

// Update is a changed row. Old is nil if the server sent none.
type Update struct {
	OID     uint32
	Old     millrace.Row
	OldFull bool // Old is the whole row and not only its key
	New     millrace.Row
}

// ParseUpdate reads an Update message.
func ParseUpdate(msg []byte, s *Slab) (Update, error) {
	r := open(msg, TagUpdate, "Update")
	m := Update{OID: r.uint32()}
	if r.peek() != 'N' {
		m.Old, m.OldFull = r.old(s)
	}
	r.kind('N')
	m.New = r.tuple(s)
	return m, r.close()
}

// Delete is a row that is gone.
type Delete struct {
	OID     uint32
	Old     millrace.Row
	OldFull bool // Old is the whole row and not only its key
}

// ParseDelete reads a Delete message.
func ParseDelete(msg []byte, s *Slab) (Delete, error) {
	r := open(msg, TagDelete, "Delete")
	m := Delete{OID: r.uint32()}
	m.Old, m.OldFull = r.old(s)
	return m, r.close()
}

// peek looks at the next byte, 0 at the end.
func (r *reader) peek() byte {
	if len(r.b) == 0 {
		return 0
	}
	return r.b[0]
}

// kind reads the byte that precedes a tuple and must be k.
func (r *reader) kind(k byte) {
	if got := r.uint8(); got != k && r.err == nil {
		r.fail("tuple of kind %q, not %q", got, k)
	}
}

// old reads an old tuple with the byte that precedes it.
func (r *reader) old(s *Slab) (row millrace.Row, full bool) {
	switch k := r.uint8(); k {
	case 'K':
		return r.tuple(s), false
	case 'O':
		return r.tuple(s), true
	default:
		r.fail("old tuple of kind %q", k)
		return nil, false
	}
}

// Truncate empties tables, all at once.
type Truncate struct {
	OIDs            []uint32
	Cascade         bool
	RestartIdentity bool
}

// ParseTruncate reads a Truncate message.
func ParseTruncate(msg []byte) (Truncate, error) {
	r := open(msg, TagTruncate, "Truncate")
	n := int(int32(r.uint32()))
	flags := r.flags(1 | 2)
	m := Truncate{Cascade: flags&1 != 0, RestartIdentity: flags&2 != 0}
	m.OIDs = make([]uint32, r.count(n, 4))
	for i := range m.OIDs {
		m.OIDs[i] = r.uint32()
	}
	return m, r.close()
}

// Message is what pg_logical_emit_message() wrote.
type Message struct {
	Transactional bool // it belongs to the transaction it stands in; else it stands anywhere
	LSN           millrace.LSN
	Prefix        []byte
	Content       []byte
}

// ParseMessage reads a Message message.
func ParseMessage(msg []byte) (Message, error) {
	r := open(msg, TagMessage, "Message")
	m := Message{Transactional: r.flags(1) == 1, LSN: r.lsn(), Prefix: r.cstring()}
	m.Content = r.take(int(int32(r.uint32())))
	return m, r.close()
}
