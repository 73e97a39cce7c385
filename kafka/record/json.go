package record

import (
	"encoding/base64"
	"errors"
	"strconv"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
)

// jsonForm is Debezium's envelope as JSON: alone, inside of Connect's
// {schema, payload}, or behind the number of its schema.
type jsonForm struct{ e *encoder }

var errNullKey = errors.New("is null, which the schema of a key has no room for: choose other columns as the key")

func quoted(s string) []byte {
	b, err := datum.AppendQuoted(nil, []byte(s))
	if err != nil {
		b = strconv.AppendQuoteToASCII(nil, s)
	}
	return b
}

// beginSource prepares what the source blocks of a transaction have in common.
// Members and their order are Debezium's. lsn is the position of the commit:
// that of a change means nothing. sequence is [commit, ordinal of the change],
// which always ascends.
func beginSource(x *txnState, o *Options) {
	t := x.t
	stamp, snapshot, lsn := t.Time, "false", t.Commit
	if t.Chunk != nil {
		snapshot, lsn = "incremental", t.Chunk.Upto
	}
	if stamp.IsZero() {
		stamp = x.now
	}
	x.lsn, x.quotedID = lsn.String(), quoted(x.id) // a chunk's has the name of its table
	micros := stamp.UnixMicro()
	b := append(x.head[:0], `{"version":`...)
	b = append(b, quoted(o.Version)...)
	b = append(b, `,"connector":"postgresql","name":`...)
	b = append(b, quoted(o.Prefix)...)
	b = strconv.AppendInt(append(b, `,"ts_ms":`...), micros/1000, 10)
	b = append(append(b, `,"snapshot":"`...), snapshot...)
	b = append(append(b, `","db":`...), quoted(o.Database)...)
	b = strconv.AppendUint(append(b, `,"sequence":"[\"`...), uint64(lsn), 10)
	x.head = append(b, `\",\"`...)

	b = strconv.AppendInt(append(x.middle[:0], `\"]","ts_us":`...), micros, 10)
	b = strconv.AppendInt(append(b, `,"ts_ns":`...), micros*1000, 10)
	x.middle = append(b, ',')

	b = append(x.tail[:0], `,"txId":`...)
	if t.Chunk != nil {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendUint(b, uint64(t.XID), 10)
	}
	b = strconv.AppendUint(append(b, `,"lsn":`...), uint64(lsn), 10)
	b = append(b, `,"xmin":null,"origin":`...)
	if t.Origin == "" {
		b = append(b, "null"...)
	} else {
		b = append(b, quoted(t.Origin)...)
	}
	x.tail = append(b, `,"origin_lsn":null}`...)
}

func (f jsonForm) compile(t *table) error {
	t.source = append(append([]byte(`"schema":`), quoted(t.rel.Name.Schema)...), `,"table":`...)
	t.source = append(t.source, quoted(t.rel.Name.Name)...)
	t.stand = standIns(t.codecs)
	o := &f.e.opt
	switch o.Format {
	case JSONInline:
		topic := o.Topic(t.rel.Name)
		t.valueHead = append(appendEnvelopeSchema([]byte(`{"schema":`), topic, t), `,"payload":`...)
		t.keyHead = append(appendKeySchema([]byte(`{"schema":`), topic, t), `,"payload":`...)
		t.valueTail, t.keyTail = []byte("}"), []byte("}")
	case JSONSchema:
		topic := o.Topic(t.rel.Name)
		return registerAll(o, t, jsonSchemaOf(keySchema(topic, t)), jsonSchemaOf(envelopeSchema(topic, t)))
	}
	return nil
}

// standIns gives, by column, what stands for a value that was not sent, as
// Debezium has it: the placeholder as text or bytes, or in an array; of numbers
// the bytes of the placeholder. Other types have no word for it; they are null
// and in the header.
func standIns(codecs []*datum.Codec) [][]byte {
	all := make([][]byte, len(codecs))
	for i, c := range codecs {
		switch s := c.Schema; s.Kind {
		case datum.String, datum.Bytes:
			all[i] = standIn(s.Kind)
		case datum.Array:
			all[i] = arrayStandIn(s.Items.Kind)
		}
	}
	return all
}

func standIn(k datum.Kind) []byte {
	if k == datum.Bytes {
		return strconv.AppendQuote(nil, base64.StdEncoding.EncodeToString([]byte(placeholder)))
	}
	return strconv.AppendQuote(nil, placeholder)
}

func arrayStandIn(k datum.Kind) []byte {
	switch k {
	case datum.String, datum.Bytes:
		return append(append([]byte{'['}, standIn(k)...), ']')
	case datum.Int16, datum.Int32, datum.Int64:
		b := []byte{'['}
		for i := range len(placeholder) {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(placeholder[i]), 10)
		}
		return append(b, ']')
	}
	return nil
}

func (f jsonForm) key(dst []byte, t *table, row millrace.Row) (_ []byte, err error) {
	dst = append(append(dst, t.keyID...), t.keyHead...)
	for i, k := range t.key {
		dst = append(dst, "{,"[min(i, 1)])
		dst = append(dst, t.names[k]...)
		if row[k].Kind == millrace.Null && t.keyHead != nil {
			return dst, f.e.fail(t.rel, k, errNullKey)
		}
		if dst, err = t.codecs[k].AppendJSON(dst, row[k]); err != nil {
			return dst, f.e.fail(t.rel, k, err)
		}
	}
	return append(append(dst, '}'), t.keyTail...), nil
}

func (f jsonForm) value(dst []byte, t *table, op byte, before, after millrace.Row) (_ []byte, err error) {
	x := &f.e.txn
	dst = append(append(dst, t.valueID...), t.valueHead...)
	if dst, err = f.e.jsonRow(append(dst, `{"before":`...), t, before); err != nil {
		return dst, err
	}
	if dst, err = f.e.jsonRow(append(dst, `,"after":`...), t, after); err != nil {
		return dst, err
	}
	dst = append(append(dst, `,"source":`...), x.head...)
	dst = strconv.AppendUint(dst, x.seq, 10)
	dst = append(append(append(dst, x.middle...), t.source...), x.tail...)
	dst = append(append(dst, `,"transaction":{"id":`...), x.quotedID...)
	dst = strconv.AppendInt(append(dst, `,"total_order":`...), x.order, 10)
	dst = strconv.AppendInt(append(dst, `,"data_collection_order":`...), t.order, 10)
	dst = append(append(dst, `},"op":"`...), op)
	dst = appendStamps(append(dst, '"'), x.now)
	return append(append(dst, '}'), t.valueTail...), nil
}

// appendStamps appends the time of processing, in three units.
func appendStamps(dst []byte, now time.Time) []byte {
	ns := now.UnixNano()
	dst = strconv.AppendInt(append(dst, `,"ts_ms":`...), ns/1e6, 10)
	dst = strconv.AppendInt(append(dst, `,"ts_us":`...), ns/1e3, 10)
	return strconv.AppendInt(append(dst, `,"ts_ns":`...), ns, 10)
}
