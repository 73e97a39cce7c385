package snapshot

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Visibility says which transactions a snapshot sees, as pg_current_snapshot()
// shows it on a primary: xmin:xmax:xip,… of 64-bit numbers, top-level
// transactions only, which is what the stream's numbers are as well. On a
// standby the list is empty and so proves nothing.
type Visibility struct {
	Xmin, Xmax uint64
	Running    []uint64 // ascending, Xmin <= each < Xmax
}

// ParseVisibility reads the text of a pg_snapshot.
func ParseVisibility(s string) (Visibility, error) {
	var v Visibility
	malformed := fmt.Errorf("malformed snapshot %q: want xmin:xmax:xip,…", s)
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return v, malformed
	}
	var err error
	if v.Xmin, err = strconv.ParseUint(parts[0], 10, 64); err != nil {
		return v, malformed
	}
	if v.Xmax, err = strconv.ParseUint(parts[1], 10, 64); err != nil || v.Xmax < v.Xmin {
		return v, malformed
	}
	if parts[2] == "" {
		return v, nil
	}
	for _, p := range strings.Split(parts[2], ",") {
		x, err := strconv.ParseUint(p, 10, 64)
		if err != nil {
			return v, malformed
		}
		v.Running = append(v.Running, x)
	}
	slices.Sort(v.Running)
	return v, nil
}

func (v Visibility) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d:%d:", v.Xmin, v.Xmax)
	for i, x := range v.Running {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatUint(x, 10))
	}
	return b.String()
}

// Sees tells whether the snapshot sees a committed transaction, by its number in
// the stream. That has 32 bits; the rest is that of Xmax, or one less or more:
// the slot keeps what it sends within 2^31 of the newest transaction.
func (v Visibility) Sees(xid uint32) bool {
	x := v.wide(xid)
	if x < v.Xmin {
		return true
	}
	if x >= v.Xmax {
		return false
	}
	_, running := slices.BinarySearch(v.Running, x)
	return !running
}

func (v Visibility) wide(xid uint32) uint64 { return v.Xmax + uint64(int64(int32(xid-uint32(v.Xmax)))) }
