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

// mark makes a record of the transaction topic.
func (w *writer) mark(o *open, id string, value any) *kgo.Record {
	return &kgo.Record{Topic: transactionTopic(w.opt.Endpoint.Prefix), Key: fmt.Appendf(nil, `{"id":%q}`, id),
		Value: mustJSON(value), Headers: o.common}
}

func (w *writer) beginMark(o *open, t *millrace.Txn) *kgo.Record {
	id := TransactionID(t.XID, t.Commit)
	return w.mark(o, id, Begin{Status: statusBegin, ID: id, TS: t.Time.UnixMilli(), Position: Position{t.XID, t.Commit, t.End}})
}

func (w *writer) endMark(o *open, t *millrace.Txn) *kgo.Record {
	id := TransactionID(t.XID, t.Commit)
	return w.mark(o, id, w.ending(o, id, t.Time, Position{t.XID, t.Commit, t.End}))
}

// ending is the END of what was counted.
func (w *writer) ending(o *open, id string, at time.Time, pos Position) End {
	e := End{Status: statusEnd, ID: id, EventCount: o.events, TS: at.UnixMilli(), Position: pos,
		Collections: []Collection{}, Partitions: []Partition{}}
	for _, name := range o.names {
		e.Collections = append(e.Collections, Collection{name.Schema + "." + name.Name, o.tables[name]})
	}
	for _, s := range o.order {
		e.Partitions = append(e.Partitions, Partition{s.topic, s.partition, o.counts[s]})
	}
	return e
}
