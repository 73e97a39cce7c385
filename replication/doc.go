// Package replication is the client's end of a walsender connection
// (PostgreSQL documentation, section "Streaming Replication Protocol"): the
// commands for slots, and the stream that START_REPLICATION turns the
// connection into. It knows nothing of what the stream's messages mean.
//
// The one invariant it owns: what is reported to the server as flushed is what
// [Stream.Ack] was given, never more, never less than before, and it is
// reported in time whatever the reader of the stream is waiting for. So there
// is one goroutine that reads and one that writes, and they share no lock.
package replication
