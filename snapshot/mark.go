package snapshot

import (
	"encoding/json"

	"github.com/millrace/millrace"
)

// Mark says how far the load of a table is, as the destination stores it beside
// the rows: JSON, so that people can read it.
type Mark struct {
	File    uint32 `json:"file,omitempty"` // what the ranges were read from
	Replace bool   `json:"replace,omitempty"`
	Empty   bool   `json:"empty,omitempty"` // what the destination has is to be taken back first
	// Since: see JoinMark.
	Since  millrace.LSN `json:"since,omitempty"`
	Key    []string     `json:"key,omitempty"` // columns
	Ranges []MarkRange  `json:"ranges"`        // ascending; the last one has no end
	Holes  []MarkRange  `json:"holes,omitempty"`
}

// ReplaceMark is the mark of a table that is at the destination and to be read
// again in place.
const ReplaceMark = `{"replace":true,"ranges":[{"state":"unread"}]}`

// JoinMark is the mark of a table that joins the set of a job from a position on: what was
// committed before it is for the chunks, since the stream need not have all of it. empty: the destination may hold rows from
// before, which are to be taken back first.
func JoinMark(since millrace.LSN, empty bool) string {
	text, err := json.Marshal(Mark{Empty: empty, Since: since, Ranges: []MarkRange{{State: Unread}}})
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(text)
}

// AgainMark is the mark of a table that is to be read from its beginning, once more if it is loaded at the
// moment, with the given mark.
func AgainMark(now []byte) string {
	var m Mark
	if len(now) > 0 && json.Unmarshal(now, &m) != nil {
		return "" // which was refused anyway
	}
	return JoinMark(m.Since, m.Empty)
}

// MarkRange is a range of keys: behind the one before, up to and with Upto.
type MarkRange struct {
	Upto     string     `json:"upto,omitempty"` // or the key of a hole; hex
	State    RangeState `json:"state"`
	Snapshot string     `json:"snapshot,omitempty"`
	LSN      string     `json:"lsn,omitempty"`
}

// RangeState is what is known of a range or hole.
type RangeState string

// The states.
const (
	Unread RangeState = "unread" // the destination holds nothing of it
	Read   RangeState = "read"   // it was read in Snapshot, and the stream has not passed LSN
	Done   RangeState = "done"   // the stream alone changes it
)
