// Package apply is the PostgreSQL sink: it takes source transactions in commit
// order and makes them transactions of the target, each exactly once, in sets
// where that is provably the same and row by row where it is not.
//
// A Txn passes through these hands. [Sink.Write] adds it to the batch in
// preparation, where changes of the same row fold into their net effect
// (fold.go). An executor owns the connection and runs one batch at a time
// (executor.go): per table deletes, then updates, then inserts, each set one
// statement whose only parameter is an array of the table's row type
// (statement.go, encode.go). A set that fails, or finds another number of rows
// than it should, is rolled back and the row path (rowpath.go) takes over, which
// applies change by change in the source's order. The progress row that makes
// the transaction count commits with it (package record).
//
// The invariant it owns: whatever a reader of the target sees in one snapshot
// is the source as it was after some committed transaction, and no transaction
// is ever in it twice. Where a change can't be applied as it was made, the job
// stops right before its transaction.
package apply
