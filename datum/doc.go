// Package datum says what one value means: it turns a value as PostgreSQL sent
// it, as text or in binary form, into text, JSON, Avro and key bytes, and back
// into the text that PostgreSQL reads. It knows types from plain structs and
// asks no server.
//
// The one invariant: the result depends on the value and its type only, not on
// the form in which the value came. So a snapshot and a stream agree, whichever
// of them was read as text. What comes back from a Codec's own output is the
// same text that PostgreSQL had printed.
//
// Text is what the server prints under the settings that every session of ours
// pins: ISO dates, intervals as postgres, UTC, hexadecimal bytea, floats with
// every digit, lc_monetary C.
package datum
