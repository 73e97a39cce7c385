package web

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace/millrace"
)

// Token names a position that somebody waits for: an LSN of the job's own
// history, an LSN with the history that it belongs to, or the number of a
// transaction.
type Token struct {
	LSN millrace.LSN
	// History is set when the token names one.
	History *millrace.History
	// XID is set instead of LSN. Only a running instance can tell where a
	// transaction ended.
	XID   uint32
	IsXID bool
}

const xidPrefix = "xid="

// ParseToken reads an LSN such as 16/B374D848, SYSTEM:TIMELINE:GENERATION:LSN
// or xid=N.
func ParseToken(s string) (Token, error) {
	if n, ok := strings.CutPrefix(s, xidPrefix); ok {
		// pg_current_xact_id() counts beyond 32 bits; the stream does not.
		xid, err := strconv.ParseUint(n, 10, 64)
		if err != nil || uint32(xid) < 3 || n[0] == '+' {
			return Token{}, fmt.Errorf("malformed token %q: xid= wants the number that pg_current_xact_id() gives", s)
		}
		return Token{XID: uint32(xid), IsXID: true}, nil
	}
	parts := strings.Split(s, ":")
	switch len(parts) {
	case 1:
		lsn, err := millrace.ParseLSN(s)
		if err != nil {
			return Token{}, fmt.Errorf("malformed token %q: want an LSN such as 16/B374D848, "+
				"or SYSTEM:TIMELINE:GENERATION:LSN", s)
		}
		return Token{LSN: lsn}, nil
	case 4:
		return parseFullToken(s, parts)
	}
	return Token{}, fmt.Errorf("malformed token %q: want an LSN or SYSTEM:TIMELINE:GENERATION:LSN", s)
}

func parseFullToken(s string, parts []string) (Token, error) {
	system, err := strconv.ParseUint(parts[0], 10, 64)
	if err != nil {
		return Token{}, fmt.Errorf("malformed token %q: %q is no system identifier", s, parts[0])
	}
	timeline, err := strconv.ParseUint(parts[1], 10, 31)
	if err != nil || timeline == 0 {
		return Token{}, fmt.Errorf("malformed token %q: %q is no timeline", s, parts[1])
	}
	generation, err := strconv.ParseUint(parts[2], 10, 63)
	if err != nil || generation == 0 {
		return Token{}, fmt.Errorf("malformed token %q: %q is no generation", s, parts[2])
	}
	lsn, err := millrace.ParseLSN(parts[3])
	if err != nil {
		return Token{}, fmt.Errorf("malformed token %q: %w", s, err)
	}
	return Token{LSN: lsn, History: &millrace.History{
		System:     strconv.FormatUint(system, 10),
		Timeline:   int32(timeline),
		Generation: int64(generation),
	}}, nil
}

// Foreign tells why a token of another history can never be held by the job
// that follows h, or "".
func (t Token) Foreign(h millrace.History) string {
	switch {
	case t.History == nil:
		return ""
	case t.History.System != h.System:
		return fmt.Sprintf("the token is of system %s, the job follows system %s", t.History.System, h.System)
	case t.History.Generation != h.Generation:
		return fmt.Sprintf("the token is of generation %d, the job is at generation %d", t.History.Generation, h.Generation)
	}
	return ""
}
