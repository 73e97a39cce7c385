package kafka_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
)

// A cursor of the version before is taken up, and one that is cut off is refused, wherever.
func TestCursors(t *testing.T) {
	t.Parallel()
	e := endpoint(rig.SharedKafka(t), newPrefix())
	o := readable(t, e, 2)
	a := relation(1, "a")
	loaded(t, o, a)
	s, _ := claimed(t, o)
	write(t, s, txn(1, "v", a), txn(2, "v", a))
	awaitDurable(t, s, 250)
	x, _ := whole(t, openReader(t, kafka.ReaderOptions{Endpoint: e}))
	_, k := binary.Uvarint(x.Cursor[1:])
	topics := x.Cursor[1+k+1:] // behind the time and the flags
	r := openReader(t, kafka.ReaderOptions{Endpoint: e, Cursor: slices.Concat([]byte{1}, topics)})
	if next, _ := whole(t, r); next.Commit != 200 {
		t.Errorf("from a cursor of version 1 comes %v", next.Commit)
	}
	refused := 0
	for n := 1; n < len(x.Cursor); n++ {
		r, err := kafka.OpenReader(deadline(t), kafka.ReaderOptions{Endpoint: e, Cursor: x.Cursor[:n]})
		if err != nil {
			refused++
			continue
		}
		r.Close()
	}
	// At the end of a topic nothing is missing that could be seen: there are three, and the beginning.
	if want := len(x.Cursor) - 1 - 3; refused != want {
		t.Errorf("%d of %d cursors that are cut off are refused, want %d", refused, len(x.Cursor)-1, want)
	}
}
