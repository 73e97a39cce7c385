package kafka

import (
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
)

// Begin and End are the values of the records in PREFIX.transaction: Debezium's
// members, and ours behind them.
type (
	// Begin says that the records of a transaction follow.
	Begin struct {
		Status      string `json:"status"` // BEGIN
		ID          string `json:"id"`
		EventCount  *int   `json:"event_count"`
		Collections []int  `json:"data_collections"`
		TS          int64  `json:"ts_ms"`
		Position
	}
	// End says that they are complete, and where they are.
	End struct {
		Status      string       `json:"status"` // END
		ID          string       `json:"id"`
		EventCount  int          `json:"event_count"`
		Collections []Collection `json:"data_collections"`
		TS          int64        `json:"ts_ms"`
		Position
		Partitions []Partition `json:"partitions"`
	}
	// Position are the members that both have.
	Position struct {
		XID    uint32       `json:"xid"`
		Commit millrace.LSN `json:"commit_lsn"`
		End    millrace.LSN `json:"end_lsn"`
	}
	// Collection counts the changes of a table.
	Collection struct {
		Name  string `json:"data_collection"`
		Count int    `json:"event_count"`
	}
	// Partition counts the records in a partition, tombstones among them.
	Partition struct {
		Topic     string `json:"topic"`
		Partition int32  `json:"partition"`
		Count     int    `json:"count"`
	}
)

// The values of Status.
const (
	statusBegin = "BEGIN"
	statusEnd   = "END"
)

// TransactionID is the id of a source transaction in its BEGIN and END and in
// the envelopes of its changes.
func TransactionID(xid uint32, commit millrace.LSN) string {
	return strconv.FormatUint(uint64(xid), 10) + ":" + strconv.FormatUint(uint64(commit), 10)
}

// marks writes BEGIN and END of a transaction. BEGIN has its end as well, which is
// known by now only, where the transaction came in parts; no order between it and
// the records is lost, since they are in other topics.
func (w *writer) marks(o *open, at time.Time, pos Position) error {
	begin := w.mark(o, appendBegin(w.markBuf[:0], o.id, at, pos))
	if err := w.put(&begin); err != nil {
		return err
	}
	end := w.mark(o, appendEnd(w.markBuf[:0], o, at, pos))
	end.Headers = w.numbered(o.common)
	if recordBytes(&end) > w.limit {
		return w.fits(&end, fmt.Sprintf("the END of a transaction in %d partitions", len(o.counts.entries)))
	}
	return w.put(&end)
}

// appendIDKey appends the key of records that belong to a transaction and to no row.
func appendIDKey(b []byte, id string) []byte {
	return append(appendName(append(b, `{"id":`...), id), '}')
}

// mark makes a record of the transaction topic. value is in markBuf.
func (w *writer) mark(o *open, value []byte) kgo.Record {
	w.markBuf = value
	if o.large == nil {
		value = w.batch.memory.copy(value)
	}
	if w.marksTo == "" {
		w.marksTo = transactionTopic(w.opt.Endpoint.Prefix)
	}
	return kgo.Record{Topic: w.marksTo, Key: o.key, Value: value, Headers: o.common}
}

// appendBegin and appendEnd append what encoding/json makes of a Begin and an End of
// what was counted, which took a sixth of the time of small transactions.
func appendBegin(b []byte, id string, at time.Time, pos Position) []byte {
	b = appendName(append(b, `{"status":"BEGIN","id":`...), id)
	b = append(b, `,"event_count":null,"data_collections":null`...)
	return append(appendPosition(b, at, pos), '}')
}

func appendEnd(b []byte, o *open, at time.Time, pos Position) []byte {
	b = appendName(append(b, `{"status":"END","id":`...), o.id)
	b = strconv.AppendInt(append(b, `,"event_count":`...), int64(o.events), 10)
	b = append(b, `,"data_collections":[`...)
	for i, t := range o.tables.entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendName(append(b, `{"data_collection":`...), t.of.Schema+"."+t.of.Name)
		b = append(strconv.AppendInt(append(b, `,"event_count":`...), int64(t.n), 10), '}')
	}
	b = appendPosition(append(b, ']'), at, pos)
	b = append(b, `,"partitions":[`...)
	for i, s := range o.counts.entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendName(append(b, `{"topic":`...), s.of.topic)
		b = strconv.AppendInt(append(b, `,"partition":`...), int64(s.of.partition), 10)
		b = append(strconv.AppendInt(append(b, `,"count":`...), int64(s.n), 10), '}')
	}
	return append(b, "]}"...)
}

// appendPosition appends the members that both have from ts_ms on.
func appendPosition(b []byte, at time.Time, pos Position) []byte {
	b = strconv.AppendInt(append(b, `,"ts_ms":`...), at.UnixMilli(), 10)
	b = strconv.AppendUint(append(b, `,"xid":`...), uint64(pos.XID), 10)
	b, _ = pos.Commit.AppendText(append(b, `,"commit_lsn":"`...)) // never an error
	b, _ = pos.End.AppendText(append(b, `","end_lsn":"`...))      // likewise
	return append(b, '"')
}

// appendName appends a string as encoding/json does; almost none has anything to be escaped.
func appendName(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return append(b, mustJSON(s)...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}
