// Package pgoutput turns the bytes of one message of PostgreSQL's pgoutput
// plugin into a message (PostgreSQL documentation, section "Logical
// Replication Message Formats"). It does no I/O and remembers nothing: which
// relation an OID stands for, and to which transaction a change belongs, is
// known to package capture.
//
// There is one function per message. It takes the whole message with its tag
// and is strict: a message that is too short, too long or has an unknown flag
// is an error, never a guess, a panic or an allocation larger than the message
// justifies. Strings are copied only where they live on; values and everything
// else of type []byte point into the message.
//
// It speaks protocol versions 1 to 4. Version 2 adds blocks of transactions that
// are still open, version 3 prepared transactions, and version 4 two fields of
// one message. Inside of a block the messages of version 1 carry one more
// number, which Unstream takes out.
package pgoutput
