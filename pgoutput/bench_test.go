package pgoutput_test

import (
	"testing"

	"github.com/millrace/millrace"
	. "github.com/millrace/millrace/pgoutput"
)

// BenchmarkParse decodes one message again and again, as capture does: into a
// slab that is used anew.
func BenchmarkParse(b *testing.B) {
	first := map[Tag][]byte{}
	for _, msg := range readHex(b, "pg18-binary") {
		if first[TagOf(msg)] == nil {
			first[TagOf(msg)] = msg
		}
	}
	memory := make([]millrace.Value, 1024)
	slab := NewSlab(func(int) []millrace.Value { return memory })
	run := func(name string, tag Tag, parse func(msg []byte) error) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(first[tag])))
			b.ReportAllocs()
			for b.Loop() {
				if err := parse(first[tag]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("Begin", TagBegin, func(m []byte) error { _, err := ParseBegin(m); return err })
	run("Insert8", TagInsert, func(m []byte) error { _, err := ParseInsert(m, slab); return err })
	run("Update8", TagUpdate, func(m []byte) error { _, err := ParseUpdate(m, slab); return err })
	run("Delete8", TagDelete, func(m []byte) error { _, err := ParseDelete(m, slab); return err })
	run("Commit", TagCommit, func(m []byte) error { _, err := ParseCommit(m); return err })
}

// TestNoAllocationPerRow holds what the package promises.
func TestNoAllocationPerRow(t *testing.T) {
	memory := make([]millrace.Value, 1024)
	slab := NewSlab(func(int) []millrace.Value { return memory })
	for _, msg := range readHex(t, "pg18-binary") {
		var parse func()
		switch TagOf(msg) {
		case TagBegin:
			parse = func() { _, _ = ParseBegin(msg) }
		case TagCommit:
			parse = func() { _, _ = ParseCommit(msg) }
		case TagInsert:
			parse = func() { _, _ = ParseInsert(msg, slab) }
		case TagUpdate:
			parse = func() { _, _ = ParseUpdate(msg, slab) }
		case TagDelete:
			parse = func() { _, _ = ParseDelete(msg, slab) }
		case TagMessage:
			parse = func() { _, _ = ParseMessage(msg) }
		default:
			continue
		}
		if n := testing.AllocsPerRun(10, parse); n != 0 {
			t.Errorf("%c: %v allocations", TagOf(msg), n)
		}
	}
}
