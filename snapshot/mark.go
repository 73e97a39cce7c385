package snapshot

// Mark says how far the load of a table is, as the destination stores it beside
// the rows: JSON, so that people can read it.
type Mark struct {
	File    uint32      `json:"file,omitempty"` // what the ranges were read from
	Replace bool        `json:"replace,omitempty"`
	Empty   bool        `json:"empty,omitempty"` // what the destination has is to be taken back first
	Key     []string    `json:"key,omitempty"`   // columns
	Ranges  []MarkRange `json:"ranges"`          // ascending; the last one has no end
	Holes   []MarkRange `json:"holes,omitempty"`
}

// ReplaceMark is the mark of a table that is at the destination and to be read
// again in place.
const ReplaceMark = `{"replace":true,"ranges":[{"state":"unread"}]}`

// EmptyMark is that of one of which the destination may hold rows that count no more.
const EmptyMark = `{"empty":true,"ranges":[{"state":"unread"}]}`

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
