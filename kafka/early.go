package kafka

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
)

// early is what the Reader knows of tables that are loaded beside the stream.
//
// The writing job gives their changes away as they come, whether or not the rows were read:
// each of their records says so. A chunk brings rows as they are at its place in the log, or as
// they were a little later there, and what the stream still brings repeats how they came to be that. So
// who takes the records in order, each as what holds of its key behind it, has each row as it
// is at the source once the load is over and the log was read to the place where that was known.
// What no record has is a value that an update did not send, of a row that was not read: that row comes
// with a chunk behind it (package backfill). Until then the update is about nothing.
type early struct {
	seen bool  // and the end of it was not
	at   int64 // offset in the topic that has the order, behind what was seen last
	here bool  // in what is given out next
}

// note looks whether a record is of such a table.
func (e *early) note(rec *kgo.Record, c *millrace.Change) {
	if c.Early = krecord.Header(rec, krecord.HeaderEarly) != nil; c.Early {
		e.here = true
	}
}

// Early tells whether changes of tables that are loaded beside the stream were given, so that
// rows can be missing, or be those of a later time.
func (r *Reader) Early() bool { return r.early.seen }

// settled ends that, unless such changes lie behind an offset of the topic that has the order.
// All that lies before it was given, and no table was loaded any more when that was its end.
func (r *Reader) settled(offset int64) { r.early.seen = r.early.seen && r.early.at > offset }

// loosen makes of changes that may come before their row what holds behind them.
func (r *Reader) loosen(t *millrace.Txn) {
	if !r.early.here {
		return
	}
	r.early.here, r.early.seen, r.early.at = false, true, r.order().used
	for i := range t.Changes {
		c := &t.Changes[i]
		if !c.Early {
			continue
		}
		if c.Loosen(); c.Truncated != nil {
			c.Truncated.AsDelete = true // no TRUNCATE of the source: other tables may refer to it
		}
	}
}
