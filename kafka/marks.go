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
	begin := w.mark(o, Begin{Status: statusBegin, ID: o.id, TS: at.UnixMilli(), Position: pos})
	end := w.mark(o, w.ending(o, at, pos))
	if err := w.fits(end, fmt.Sprintf("the END of a transaction in %d partitions", len(o.order))); err != nil {
		return err
	}
	if err := w.put(begin); err != nil {
		return err
	}
	return w.put(end)
}

// idKey is the key of records that belong to a transaction and to no row.
func idKey(id string) []byte { return mustJSON(map[string]string{"id": id}) }

// mark makes a record of the transaction topic.
func (w *writer) mark(o *open, value any) *kgo.Record {
	return &kgo.Record{Topic: transactionTopic(w.opt.Endpoint.Prefix), Key: o.key,
		Value: mustJSON(value), Headers: o.common}
}

// ending is the END of what was counted.
func (w *writer) ending(o *open, at time.Time, pos Position) End {
	e := End{Status: statusEnd, ID: o.id, EventCount: o.events, TS: at.UnixMilli(), Position: pos,
		Collections: []Collection{}, Partitions: []Partition{}}
	for _, name := range o.names {
		e.Collections = append(e.Collections, Collection{name.Schema + "." + name.Name, o.tables[name]})
	}
	for _, s := range o.order {
		e.Partitions = append(e.Partitions, Partition{s.topic, s.partition, o.counts[s]})
	}
	return e
}
