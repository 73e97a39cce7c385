// Package airbyte speaks the protocols of data platforms on stdin and stdout:
// Airbyte's source protocol and Estuary's capture protocol. It knows their
// messages, makes catalogs of tables, keeps a job's position in the platform's
// state, and has the Sink that turns transactions into records.
//
// The invariant it owns: a state speaks only of what was written before it, and
// stands only at the end of a transaction or of a chunk. Nothing is acknowledged
// to the source but what the platform has proved to hold: the state that it gives
// back at the next start, or the acknowledgements that it sends while running.
package airbyte
