package pgoutput

import "github.com/millrace/millrace"

// Slab is the memory that rows are cut from, front to back. The zero Slab
// allocates as it needs.
type Slab struct {
	free []millrace.Value
	more func(n int) []millrace.Value
}

// NewSlab makes a Slab that calls more when it has run out: for at least n
// values. What is left of the previous memory is not used any more.
func NewSlab(more func(n int) []millrace.Value) *Slab { return &Slab{more: more} }

// slabSize is how many values a Slab without a source of its own allocates.
const slabSize = 1024

// Row cuts a row of n values, whose content is undefined.
func (s *Slab) Row(n int) millrace.Row {
	if n > len(s.free) {
		s.grow(n)
	}
	row := s.free[:n:n]
	s.free = s.free[n:]
	return row
}

// Reset makes the next row come from new memory.
func (s *Slab) Reset() { s.free = nil }

func (s *Slab) grow(n int) {
	if s.more != nil {
		s.free = s.more(n)
		return
	}
	s.free = make([]millrace.Value, max(n, slabSize))
}
