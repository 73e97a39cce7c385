package snapshot

// Mark says how far the load of a table is, as the destination stores it beside
// the rows: JSON, so that people can read it.
type Mark struct {
	File    uint32      `json:"file,omitempty"` // what the ranges were read from
	Replace bool        `json:"replace,omitempty"`
	Key     []string    `json:"key,omitempty"` // columns
	Ranges  []MarkRange `json:"ranges"`        // ascending; the last one has no end
	Holes   []MarkRange `json:"holes,omitempty"`
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
