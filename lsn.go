package millrace

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// LSN is a position in the source's write-ahead log: a byte offset, written as
// two hexadecimal halves (PostgreSQL documentation, section "pg_lsn Type").
// The zero LSN means "unknown" and is never a valid position.
type LSN uint64

// ParseLSN reads the form that PostgreSQL writes, such as 16/B374D848. Unlike
// the server it takes no white space and no signs.
func ParseLSN(s string) (LSN, error) {
	high, low, ok := strings.Cut(s, "/")
	if !ok || !isHalf(high) || !isHalf(low) {
		// A copy, so that a string of bytes which is parsed needs no memory.
		return 0, fmt.Errorf("malformed LSN %q: want two hexadecimal numbers such as 16/B374D848", strings.Clone(s))
	}
	h, err := strconv.ParseUint(high, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("malformed LSN %q: %w", strings.Clone(s), err)
	}
	l, err := strconv.ParseUint(low, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("malformed LSN %q: %w", strings.Clone(s), err)
	}
	return LSN(h<<32 | l), nil
}

func isHalf(s string) bool {
	if s == "" || len(s) > 8 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}

// String gives the form that PostgreSQL prints.
func (l LSN) String() string {
	var room [17]byte
	return string(l.append(room[:0]))
}

// AppendText implements encoding.TextAppender.
func (l LSN) AppendText(b []byte) ([]byte, error) { return l.append(b), nil }

// MarshalText implements encoding.TextMarshaler.
func (l LSN) MarshalText() ([]byte, error) { return l.append(nil), nil }

func (l LSN) append(b []byte) []byte {
	return appendHex(append(appendHex(b, uint32(l>>32)), '/'), uint32(l))
}

func appendHex(b []byte, v uint32) []byte {
	shift := max(0, bits.Len32(v)-1) &^ 3
	for ; shift >= 0; shift -= 4 {
		b = append(b, "0123456789ABCDEF"[v>>shift&15])
	}
	return b
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *LSN) UnmarshalText(b []byte) error {
	v, err := ParseLSN(string(b))
	if err != nil {
		return err
	}
	*l = v
	return nil
}

// Sizes of the WAL page headers that pg_current_wal_insert_lsn() skips and the
// walsender's positions do not (SizeOfXLogShortPHD and SizeOfXLogLongPHD in
// access/xlog_internal.h).
const (
	shortPageHeader = 24
	longPageHeader  = 40
)

// Normalize takes an insert position that points just behind a page header
// which is not written yet back to the start of that page, so that it can be
// compared with flush and commit positions. page and segment are the server's
// wal_block_size and wal_segment_size in bytes.
func (l LSN) Normalize(page, segment uint64) LSN {
	switch {
	case segment > 0 && uint64(l)%segment == longPageHeader:
		return l - longPageHeader
	case page > 0 && uint64(l)%page == shortPageHeader:
		return l - shortPageHeader
	}
	return l
}

// Position names one change in the order of the stream. A change's own LSN
// cannot: it is neither unique nor increasing.
type Position struct {
	Commit LSN    // the LSN of the transaction's commit record
	Seq    uint64 // the change's ordinal in its transaction, from 1
}
