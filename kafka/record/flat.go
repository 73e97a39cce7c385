package record

import (
	"strconv"

	"github.com/millrace/millrace"
)

// flatForm is the row only, for simple consumers: null is a row that is gone.
// What happened is in the header op.
type flatForm struct{ e *encoder }

func (f flatForm) compile(t *table) error {
	t.stand = make([][]byte, len(t.codecs))
	for i := range t.stand {
		t.stand[i] = standIn(0)
	}
	return nil
}

func (f flatForm) key(dst []byte, t *table, row millrace.Row) ([]byte, error) {
	return jsonForm(f).key(dst, t, row)
}

func (f flatForm) value(dst []byte, t *table, op byte, _, after millrace.Row) ([]byte, error) {
	f.e.header(HeaderOp, opNames[op])
	if after == nil {
		return dst, nil
	}
	return f.e.jsonRow(dst, t, after)
}

// opNames are the letters as values of headers.
var opNames = map[byte][]byte{'c': []byte("c"), 'u': []byte("u"), 'd': []byte("d"), 'r': []byte("r"), 't': []byte("t")}

// keysForm says which row changed and where, for those that fetch it themselves.
type keysForm struct{ e *encoder }

func (f keysForm) compile(t *table) error {
	t.source = append(append([]byte(`{"schema":`), quoted(t.rel.Name.Schema)...), `,"table":`...)
	t.source = append(t.source, quoted(t.rel.Name.Name)...)
	return nil
}

func (f keysForm) key(dst []byte, t *table, row millrace.Row) ([]byte, error) {
	return jsonForm(f).key(dst, t, row)
}

func (f keysForm) value(dst []byte, t *table, op byte, before, after millrace.Row) (_ []byte, err error) {
	x := &f.e.txn
	f.e.header(HeaderOp, opNames[op])
	row := after
	if row == nil {
		row = before
	}
	dst = append(append(dst, t.source...), `,"op":"`...)
	dst = append(append(dst, op), `","key":`...)
	if row == nil || len(t.key) == 0 {
		dst = append(dst, "null"...)
	} else if dst, err = f.key(dst, t, row); err != nil {
		return dst, err
	}
	dst = append(append(append(dst, `,"commit_lsn":"`...), x.lsn...), `","seq":`...)
	dst = strconv.AppendUint(dst, x.seq, 10)
	dst = strconv.AppendUint(append(dst, `,"xid":`...), uint64(x.t.XID), 10)
	dst = strconv.AppendInt(append(dst, `,"ts_us":`...), x.t.Time.UnixMicro(), 10)
	return append(dst, '}'), nil
}
