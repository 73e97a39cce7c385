package millrace

import (
	"errors"
	"strings"
)

// Kind tells what an error asks of the engine and of the operator.
type Kind int

// The kinds of errors.
const (
	KindUnknown   Kind = iota // treated as KindData: stop rather than guess
	KindRetry                 // a lost or refused connection, a lock or deadlock: try again without end
	KindData                  // curable in a database: the job's state becomes error
	KindResync                // no rerun can help: the state becomes resync_required
	KindPreflight             // a prerequisite is missing, found before anything was changed
	KindConfig                // usage or configuration
)

// Peer is the other end that an error came from.
type Peer string

// The peers, as they stand in conditions and metrics.
const (
	PeerSource      Peer = "source"
	PeerDestination Peer = "destination"
)

// Error is the one error type that crosses package borders. Its text is one
// line; the hint, printed on a line of its own, cures it.
type Error struct {
	Kind   Kind
	Op     string // what was tried: "create slot", "apply"
	Peer   Peer   // where, when it came from a peer
	Table  TableName
	Column string
	// Key names the row: the key's columns and values, such as (id)=(7). It is
	// the only place where values of rows may stand in an error or a log.
	Key  string
	LSN  LSN // commit LSN of the transaction it concerns
	Err  error
	Hint string
	// Condition is what status shows while a KindRetry error is retried:
	// source_unreachable, destination_unreachable, waiting_for_slot or changing_tables.
	Condition string
}

func (e *Error) Error() string {
	var b strings.Builder
	sep := func() {
		if b.Len() > 0 {
			b.WriteString(": ")
		}
	}
	b.WriteString(e.Op)
	if e.Table != (TableName{}) {
		sep()
		b.WriteString("table " + e.Table.String())
		if e.Column != "" {
			b.WriteString(" column " + DisplayIdent(e.Column))
		}
	}
	if e.Key != "" {
		sep()
		b.WriteString("key " + e.Key)
	}
	if e.LSN != 0 {
		sep()
		b.WriteString("transaction at " + e.LSN.String())
	}
	if e.Err != nil {
		sep()
		b.WriteString(e.Err.Error())
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf gives the kind of the outermost Error in err's chain.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return KindUnknown
}

// HintOf gives the first hint in err's chain, or "".
func HintOf(err error) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.Err
	}
	return ""
}
