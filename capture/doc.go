// Package capture is the PostgreSQL Source: it makes transactions of what the
// walsender sends. One goroutine reads, decodes and assembles, and puts whole
// transactions, or parts of large ones, into a bounded queue; Next takes them
// out. When the queue is full the goroutine stops reading, and TCP holds the
// walsender back; what is reported to the server does not depend on it.
//
// The invariants it owns: transactions come in commit order, whole, each once
// from the checkpoint on; a position between two transactions is given only
// once everything before it was; and whatever the stream cannot tell the truth
// about stops it right before the transaction in question.
package capture
