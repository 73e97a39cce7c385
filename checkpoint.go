package millrace

// Checkpoint is what the destination durably holds: the prefix of the source's
// history that ends with the transaction whose commit record is at Commit.
type Checkpoint struct {
	History
	// Epoch is the fence: every claim of the job by an instance raises it.
	Epoch int64
	// Seq is the number of the newest progress row; the next one must be Seq+1.
	Seq int64
	// Commit is the commit record of the last applied transaction: what comes
	// again with a Commit at or below it was applied already.
	Commit LSN
	// End is the end of that commit record.
	End LSN
	// Acked is the highest position that may be reported to the source as
	// flushed. It is at least End and moves on an idle source as well.
	Acked LSN
	// LastXID and LastTime describe the transaction at Commit.
	LastXID  uint32
	LastTime int64 // microseconds since 1970-01-01 UTC, 0 when unknown
	// Cursor is the source's own bookmark, opaque to sinks.
	Cursor []byte
	// Tables are the marks of the tables that are being loaded beside the
	// stream. A table that is complete has none.
	Tables map[TableName]Mark
}

// Mark says how far the load of one table has come. A destination stores it in
// the step that makes the rows it speaks of durable. Its size does not depend
// on that of the table.
type Mark struct {
	OID uint32 // of the table at the source
	// State is the source's own, opaque to sinks.
	State []byte
	// Done says that the load of the table is over: the mark goes.
	Done        bool
	Rows, Bytes int64 // loaded so far
}
