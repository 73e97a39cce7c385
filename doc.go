// Package millrace holds the nouns of Millrace, the system that carries a
// PostgreSQL database's history, whole and in order, to where it is needed.
//
// The source's history is a totally ordered list of committed transactions.
// Every output is a prefix of that list, and the answer to "which prefix do you
// hold?" is an [LSN]. One thing flows from a [Source] to a [Sink]: the [Txn].
// The destination keeps the [Checkpoint], in the same atomic step as the data.
//
// This package imports nothing but the standard library; every other package
// of the module may import it. The walk of one INSERT through all of them is in
// DESIGN.md.
package millrace
