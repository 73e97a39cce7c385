// Package snapshot says which rows a first load reads, in which parts, and
// copies them from the source to the target under one exported snapshot.
//
// The invariant it owns: all rows of all tables come from the same snapshot and
// each exactly once. A holder transaction keeps the snapshot and locks all
// tables before the first is read, since a table that is rewritten meanwhile
// would look empty; whoever reads imports the snapshot from it. Rows and the
// mark that says they are there are committed in one transaction of the target.
//
// Rows pass through unparsed, in PostgreSQL's binary form where that means the
// same on both sides, and as text otherwise.
package snapshot
