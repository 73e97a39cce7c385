package millrace

import (
	"context"
	"errors"
)

// Source gives committed transactions in commit order.
type Source interface {
	// Start acquires the stream at the checkpoint. When it returns nil, no
	// other instance can read the same stream.
	Start(ctx context.Context, from Checkpoint) error
	// Next blocks until there is a Txn. The caller releases it.
	Next(ctx context.Context) (*Txn, error)
	// Ack says that everything up to the position is durable at the
	// destination. It never blocks; a lower value than before is ignored.
	Ack(durable LSN)
	// Close gives the stream back, after telling the server the last Ack.
	Close() error
}

// Sink takes transactions in commit order and makes them durable.
type Sink interface {
	// Open connects and reads what is already durable. It changes nothing.
	Open(ctx context.Context) (Checkpoint, error)
	// Write takes over t and blocks while the sink is at its limit. It returns
	// before t is applied, let alone durable; an error of the asynchronous work
	// comes out of a later Write or Durable.
	Write(ctx context.Context, t *Txn) error
	// Flush says that nothing more is waiting behind the last Write, so that
	// what is held can be applied at once. It does not block.
	Flush()
	// Durable blocks until more than after is durable and returns how much.
	Durable(ctx context.Context, after LSN) (LSN, error)
	// Close rolls back what is open and disconnects.
	Close() error
}

// Claimer is a Sink that can be taken over from another instance. Claim is
// called after Source.Start has acquired the stream, raises the fence, waits
// until the former writer is gone and returns the checkpoint as it is then.
// If that differs from the one that Open returned, the source is started anew.
type Claimer interface {
	Claim(ctx context.Context) (Checkpoint, error)
}

// Drainer is a Sink that can finish what it holds: Drain applies all complete
// transactions that were written, rolls back an incomplete one, makes the
// rest durable and returns the position reached.
type Drainer interface {
	Drain(ctx context.Context) (LSN, error)
}

// Ahead applies one transaction while it is open at the source, beside the stream of
// those that are committed. Nothing of it is visible before its commit has come in
// that stream, as a Txn of Phase AppliedAhead. It is for one goroutine.
//
// Any error gives it up and is none of the job's: the transaction is then applied
// once it is committed, like any other.
type Ahead interface {
	// Write takes over a part, to be applied behind everything that the stream had up
	// to after: at once, or together with what follows it. Flush applies what was not.
	Write(ctx context.Context, t *Txn, after LSN) error
	Flush(ctx context.Context) error
	// Savepoint marks where a subtransaction begins, and RollBack returns there:
	// nothing of it counts any more, nor of what came behind its beginning.
	Savepoint(ctx context.Context, sub uint32) error
	RollBack(ctx context.Context, sub uint32) error
	// Ready returns nil when all that can fail was tried, and the stream is applied
	// up to after. From there on it belongs to the Sink that it came from.
	Ready(ctx context.Context, after LSN) error
	// Drop gives it up, unless that was done. It waits for no server.
	Drop()
}

// ErrStartAnew is wrapped by the error of a Source that has to be started anew, at
// once: what it reads is another set of tables now.
var ErrStartAnew = errors.New("the source starts anew")

// ErrNeedText is wrapped by the error of a Sink that cannot take a relation's
// values in binary form. The source is then started anew in text form.
var ErrNeedText = errors.New("the destination needs values in text form")
