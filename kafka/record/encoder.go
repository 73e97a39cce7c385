package record

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
)

// form is what differs between formats.
type form interface {
	// compile prepares a table.
	compile(t *table) error
	// value appends the value of a record: op is Debezium's letter, a nil row
	// stands for null.
	value(dst []byte, t *table, op byte, before, after millrace.Row) ([]byte, error)
	// key appends the key with the values of row.
	key(dst []byte, t *table, row millrace.Row) ([]byte, error)
}

type encoder struct {
	opt    Options
	style  datum.Style
	form   form
	tables map[*millrace.Relation]*table

	txn    txnState
	rec    Record
	keyB   []byte
	valB   []byte
	canB   []byte
	hdrB   []byte
	filled millrace.Row // a new row with what the old one knows
}

// txnState is the transaction that is being encoded.
type txnState struct {
	number   uint64 // of the transaction, in this encoder
	id       string
	t        *millrace.Txn // copy
	copy     millrace.Txn
	order    int64  // of the last event
	seq      uint64 // of the change that is being encoded
	head     []byte // of the source block, up to the ordinal
	middle   []byte // between the ordinal and the table
	tail     []byte // behind the table
	quotedID []byte
	lsn      string // the position, as PostgreSQL writes it
	now      time.Time
}

// table is a relation with all that is prepared for it.
type table struct {
	rel    *millrace.Relation
	key    []int
	codecs []*datum.Codec
	keys   []*datum.Key // canonical forms of the key's columns
	names  [][]byte     // of columns, as JSON with a colon
	stand  [][]byte     // of columns, what stands for a value that was not sent; nil: null
	source []byte       // the source block's members about the table
	full   bool

	// What the format has prepared.
	keyHead, keyTail     []byte
	valueHead, valueTail []byte
	keyID, valueID       []byte // magic byte and schema number

	txn   uint64 // the transaction that order belongs to
	order int64
}

func (e *encoder) Begin(id string, t *millrace.Txn) {
	x := &e.txn
	x.number++
	// A part of a large transaction is released, and its memory used again, before
	// the next one comes.
	x.copy = *t
	x.copy.Changes = nil
	x.id, x.t, x.order, x.seq, x.now = id, &x.copy, 0, 0, time.Now()
	// A change that could not be encoded may have left headers.
	clear(e.rec.Headers)
	e.rec.Headers, e.hdrB = e.rec.Headers[:0], e.hdrB[:0]
	beginSource(x, &e.opt)
}

func (e *encoder) tableOf(rel *millrace.Relation, key []int) (*table, error) {
	if t := e.tables[rel]; t != nil && slices.Equal(t.key, key) {
		return t, nil
	}
	t := &table{rel: rel, key: slices.Clone(key), full: rel.Identity == millrace.IdentityFull}
	for i := range rel.Columns {
		col := &rel.Columns[i]
		name, err := datum.AppendQuoted(nil, []byte(col.Name))
		if err != nil {
			return nil, e.fail(rel, i, err)
		}
		t.names = append(t.names, append(name, ':'))
		t.codecs = append(t.codecs, datum.NewCodec(TypeOf(col), col.Mod, e.style))
	}
	for _, k := range key {
		t.keys = append(t.keys, datum.NewKey(TypeOf(&rel.Columns[k]), rel.Columns[k].Mod, datum.CollationOther))
	}
	if err := e.form.compile(t); err != nil {
		return nil, e.fail(rel, -1, err)
	}
	e.tables[rel] = t
	return t, nil
}

// TypeOf gives what is known of a column's type. Of an enum whose labels nobody
// knows, and of any other type, the values are text.
func TypeOf(c *millrace.Column) *datum.Type {
	if t, ok := c.Def.(*datum.Type); ok && t != nil {
		return t
	}
	if t := datum.Builtin(c.Type); t != nil {
		return t
	}
	t := datum.Unknown(c.Type, c.TypeName)
	if c.TypeKind == 'e' {
		t.Kind = 'e'
	}
	return t
}

// fail wraps what went wrong with a value; col is -1 if it was none in
// particular.
func (e *encoder) fail(rel *millrace.Relation, col int, err error) error {
	var known *millrace.Error
	if errors.As(err, &known) {
		return err
	}
	w := &millrace.Error{Kind: millrace.KindData, Op: "encode for Kafka", Table: rel.Name, Err: err}
	if t := e.txn.t; t != nil {
		w.LSN = t.Commit
	}
	if col >= 0 {
		w.Column = rel.Columns[col].Name
	}
	switch {
	case errors.Is(err, datum.ErrBinaryUnknown):
		w.Err = fmt.Errorf("%w: %w", millrace.ErrNeedText, err)
	case errors.Is(err, datum.ErrNotUTF8):
		w.Hint = "convert the source database from SQL_ASCII to UTF8, or exclude the table"
	default:
		w.Hint = "change the value at the source, exclude the table, or choose another format or decimal setting for the topic"
	}
	return w
}

func (e *encoder) Encode(c *millrace.Change, rel *millrace.Relation, key []int, emit func(*Record) error) error {
	t, err := e.tableOf(rel, key)
	if err != nil {
		return err
	}
	e.txn.seq = c.Seq
	switch c.Op {
	case millrace.Insert:
		return e.one(t, 'c', nil, c.New, c.New, emit)
	case millrace.Read:
		return e.one(t, 'r', nil, c.New, c.New, emit)
	case millrace.Update:
		return e.update(t, c, emit)
	case millrace.Delete:
		if c.OldFull {
			e.header(HeaderOldFull, yes)
		}
		if err := e.one(t, 'd', c.Old, nil, c.Old, emit); err != nil {
			return err
		}
		return e.tombstone(t, c.Old, emit)
	case millrace.Truncate:
		kind := "continue_identity"
		if c.Truncated.RestartIdentity {
			kind = "restart_identity"
		}
		e.header(HeaderTruncate, []byte(kind))
		return e.one(t, 't', nil, nil, nil, emit)
	}
	return e.fail(rel, -1, fmt.Errorf("a change of kind %v has no form", c.Op))
}

var yes = []byte("true")

// update is one record, or with another key three: the delete of the old key,
// its tombstone, and the insert of the new one.
func (e *encoder) update(t *table, c *millrace.Change, emit func(*Record) error) error {
	after := e.fill(t, c)
	if !keyChanged(t, c.Old, after) {
		if c.OldFull {
			e.header(HeaderOldFull, yes)
		}
		return e.one(t, 'u', c.Old, after, after, emit)
	}
	if c.OldFull {
		e.header(HeaderOldFull, yes)
	}
	if err := e.keyHeader(HeaderNewKey, t, after); err != nil {
		return err
	}
	if err := e.one(t, 'd', c.Old, nil, c.Old, emit); err != nil {
		return err
	}
	if err := e.tombstone(t, c.Old, emit); err != nil {
		return err
	}
	if err := e.keyHeader(HeaderOldKey, t, c.Old); err != nil {
		return err
	}
	return e.one(t, 'c', nil, after, after, emit)
}

// fill gives the new row with the values that were not sent taken from the old
// one: all of them under REPLICA IDENTITY FULL, else those of the key.
func (e *encoder) fill(t *table, c *millrace.Change) millrace.Row {
	if c.Old == nil || !slices.ContainsFunc(c.New, func(v millrace.Value) bool { return v.Kind == millrace.Unchanged }) {
		return c.New
	}
	e.filled = append(e.filled[:0], c.New...)
	for i := range e.filled {
		if e.filled[i].Kind == millrace.Unchanged && (c.OldFull || slices.Contains(t.key, i)) {
			e.filled[i] = c.Old[i]
		}
	}
	return e.filled
}

// keyChanged compares bytes: 1.0 and 1.00 are two keys to whoever reads the
// topic, though in one partition. A key column that was not sent has not changed.
func keyChanged(t *table, before, after millrace.Row) bool {
	if before == nil {
		return false
	}
	for _, k := range t.key {
		b, a := before[k], after[k]
		if a.Kind != millrace.Unchanged && (a.Kind != b.Kind || !bytes.Equal(a.Raw, b.Raw)) {
			return true
		}
	}
	return false
}

// header adds a header to the next record.
func (e *encoder) header(name string, value []byte) {
	e.rec.Headers = append(e.rec.Headers, kgo.RecordHeader{Key: name, Value: value})
}

// keyHeader adds a key in the form of JSON.
func (e *encoder) keyHeader(name string, t *table, row millrace.Row) (err error) {
	start := len(e.hdrB)
	e.hdrB = append(e.hdrB, '{')
	for i, k := range t.key {
		if i > 0 {
			e.hdrB = append(e.hdrB, ',')
		}
		e.hdrB = append(e.hdrB, t.names[k]...)
		if e.hdrB, err = t.codecs[k].AppendJSON(e.hdrB, row[k]); err != nil {
			return e.fail(t.rel, k, err)
		}
	}
	e.hdrB = append(e.hdrB, '}')
	e.header(name, e.hdrB[start:len(e.hdrB):len(e.hdrB)])
	return nil
}

// one makes a record. row has the key's values; nil makes a record without key.
func (e *encoder) one(t *table, op byte, before, after, row millrace.Row, emit func(*Record) error) (err error) {
	if len(t.rel.Columns) == 0 { // such a row is there all the same
		switch op {
		case 'd':
			before = millrace.Row{}
		case 'c', 'r', 'u':
			after = millrace.Row{}
		}
	}
	if err := e.unchanged(t, after); err != nil {
		return err
	}
	x := &e.txn
	x.order++
	if t.txn != x.number {
		t.txn, t.order = x.number, 0
	}
	t.order++
	if err := e.setKey(t, row); err != nil {
		return err
	}
	e.valB, err = e.form.value(e.valB[:0], t, op, before, after)
	if err != nil {
		return err
	}
	e.rec.Value, e.rec.Event = e.valB, true
	if len(e.valB) == 0 {
		e.rec.Value = nil
	}
	return e.emit(emit)
}

// tombstone follows a delete, if there is a key that it can end.
func (e *encoder) tombstone(t *table, row millrace.Row, emit func(*Record) error) error {
	if len(t.key) == 0 || e.opt.Format == Flat || e.opt.Format == Keys {
		return nil
	}
	if err := e.setKey(t, row); err != nil {
		return err
	}
	e.rec.Value, e.rec.Event = nil, false
	return e.emit(emit)
}

func (e *encoder) emit(emit func(*Record) error) error {
	err := emit(&e.rec)
	clear(e.rec.Headers)
	e.rec.Headers, e.hdrB = e.rec.Headers[:0], e.hdrB[:0]
	return err
}

func (e *encoder) setKey(t *table, row millrace.Row) (err error) {
	e.rec.Key, e.rec.Canonical, e.rec.Row = nil, nil, row
	if row == nil || len(t.key) == 0 {
		return nil
	}
	if e.keyB, err = e.form.key(e.keyB[:0], t, row); err != nil {
		return err
	}
	e.canB = e.canB[:0]
	for i, k := range t.key {
		if e.canB, err = t.keys[i].Append(e.canB, row[k]); err != nil {
			return e.fail(t.rel, k, err)
		}
	}
	e.rec.Key, e.rec.Canonical = e.keyB, e.canB
	return nil
}

// unchanged names the columns that were not sent in a header.
func (e *encoder) unchanged(t *table, row millrace.Row) error {
	start := len(e.hdrB)
	for i := range row {
		if row[i].Kind != millrace.Unchanged {
			continue
		}
		sep := byte(',')
		if len(e.hdrB) == start {
			sep = '['
		}
		e.hdrB = append(append(e.hdrB, sep), t.names[i][:len(t.names[i])-1]...)
	}
	if len(e.hdrB) > start {
		e.hdrB = append(e.hdrB, ']')
		e.header(HeaderUnchanged, e.hdrB[start:len(e.hdrB):len(e.hdrB)])
	}
	return nil
}

// jsonRow appends a row as an object.
func (e *encoder) jsonRow(dst []byte, t *table, row millrace.Row) (_ []byte, err error) {
	if row == nil {
		return append(dst, "null"...), nil
	}
	dst = append(dst, '{')
	first := len(dst)
	for i := range row {
		start := len(dst)
		if start > first {
			dst = append(dst, ',')
		}
		dst = append(dst, t.names[i]...)
		switch v := row[i]; {
		case v.Kind != millrace.Unchanged:
			if dst, err = t.codecs[i].AppendJSON(dst, v); err != nil {
				return dst, e.fail(t.rel, i, err)
			}
		case e.opt.Toast == Placeholder && t.stand[i] != nil:
			dst = append(dst, t.stand[i]...)
		case e.opt.Toast == Omit && e.opt.Format != JSONInline:
			dst = dst[:start]
		default:
			dst = append(dst, "null"...)
		}
	}
	return append(dst, '}'), nil
}
