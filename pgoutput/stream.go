package pgoutput

import (
	"time"

	"github.com/millrace/millrace"
)

// The messages of protocol version 2, which sends large transactions while they
// are open, in blocks.
const (
	TagStreamStart  Tag = 'S'
	TagStreamStop   Tag = 'E'
	TagStreamCommit Tag = 'c'
	TagStreamAbort  Tag = 'A'
)

// StreamStart begins a block of a transaction that is open. What is in the
// block carries the number of a subtransaction: see Unstream.
type StreamStart struct {
	XID   uint32 // of the top-level transaction
	First bool   // it is the transaction's first block
}

// ParseStreamStart reads a Stream Start message.
func ParseStreamStart(msg []byte) (StreamStart, error) {
	r := open(msg, TagStreamStart, "Stream Start")
	m := StreamStart{XID: r.uint32(), First: r.flags(1) == 1}
	return m, r.close()
}

// ParseStreamStop reads a Stream Stop message, which ends a block.
func ParseStreamStop(msg []byte) error {
	r := open(msg, TagStreamStop, "Stream Stop")
	return r.close()
}

// StreamCommit ends a transaction that came in blocks.
type StreamCommit struct {
	XID uint32
	Commit
}

// ParseStreamCommit reads a Stream Commit message.
func ParseStreamCommit(msg []byte) (StreamCommit, error) {
	r := open(msg, TagStreamCommit, "Stream Commit")
	m := StreamCommit{XID: r.uint32()}
	r.flags(0)
	m.Commit = Commit{Commit: r.lsn(), End: r.lsn(), Time: r.time()}
	return m, r.close()
}

// StreamAbort ends a subtransaction of a transaction that came in blocks, or
// the transaction itself: then both numbers are the same. Everything else in
// the blocks stays, also what was nested in the subtransaction: it has an abort
// of its own.
type StreamAbort struct {
	XID, SubXID uint32
	// LSN and Time of the abort come with streaming = parallel only.
	LSN  millrace.LSN
	Time time.Time
}

// streamAbortLength is that of a Stream Abort without position and time.
const streamAbortLength = 1 + 4 + 4

// ParseStreamAbort reads a Stream Abort message, in either form.
func ParseStreamAbort(msg []byte) (StreamAbort, error) {
	r := open(msg, TagStreamAbort, "Stream Abort")
	m := StreamAbort{XID: r.uint32(), SubXID: r.uint32()}
	if len(msg) != streamAbortLength {
		m.LSN, m.Time = r.lsn(), r.time()
	}
	return m, r.close()
}

// StreamedExtra is how many bytes a message of a change has inside of a block
// beyond those that it has outside.
const StreamedExtra = 4

// Unstream turns a message from inside of a block into the one that it is
// outside: there the number of the subtransaction, or of the transaction itself,
// follows the tag. Only Origin is in a block what it is outside. The bytes of
// msg before the result are overwritten, so that
// nothing is copied.
func Unstream(msg []byte) (xid uint32, plain []byte, err error) {
	const head = 1 + 4
	if len(msg) < head {
		r := reader{name: "message of a block", size: len(msg)}
		r.fail("cut short")
		return 0, nil, r.err
	}
	r := reader{b: msg[1:]}
	xid = r.uint32()
	plain = msg[head-1:]
	plain[0] = msg[0]
	return xid, plain, nil
}
