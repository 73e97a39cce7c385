package kafka_test

import (
	"encoding/binary"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
)

// asVersion2 leaves out what a cursor did not have: the number of the last transaction.
func asVersion2(cursor []byte) []byte {
	_, k := binary.Uvarint(cursor[1:])
	at := 1 + k + 1
	_, n := binary.Uvarint(cursor[at:])
	_, m := binary.Varint(cursor[at+n:])
	return append(append([]byte{2}, cursor[1:at]...), cursor[at+n+m:]...)
}

// asVersion1 leaves out of one of version 2 the time, the flags, and the leaders that stand behind
// the epochs as long as the end was not reached.
func asVersion1(cursor []byte) []byte {
	cursor = asVersion2(cursor)
	rest := cursor[1:]
	number := func() []byte {
		_, k := binary.Uvarint(rest)
		n := rest[:k]
		rest = rest[k:]
		return n
	}
	number()
	rest = rest[1:]
	old := []byte{1}
	for len(rest) > 0 {
		name := number()
		n, _ := binary.Uvarint(name)
		old = append(append(old, name...), rest[:n+16]...)
		rest = rest[n+16:]
		count := number()
		old = append(old, count...)
		parts, _ := binary.Uvarint(count)
		for range parts {
			old = append(append(old, number()...), number()...)
			number()
		}
	}
	return old
}

// firstOfTwo gives the first of two transactions of a table, as a reader does.
func firstOfTwo(t *testing.T, partitions int) (*kafka.Endpoint, *millrace.Txn) {
	t.Helper()
	e := endpoint(rig.SharedKafka(t), newPrefix())
	o := readable(t, e, partitions)
	a := relation(1, "a")
	loaded(t, o, a)
	s, _ := claimed(t, o)
	write(t, s, txn(1, "v", a), txn(2, "v", a))
	awaitDurable(t, s, 250)
	x, _ := whole(t, openReader(t, kafka.ReaderOptions{Endpoint: e}))
	return e, x
}

// A cursor of the versions before is taken up, and one that is cut off is refused, wherever.
func TestCursors(t *testing.T) {
	t.Parallel()
	e, x := firstOfTwo(t, 2)
	for version, cursor := range map[int][]byte{1: asVersion1(x.Cursor), 2: asVersion2(x.Cursor)} {
		r := openReader(t, kafka.ReaderOptions{Endpoint: e, Cursor: cursor})
		if next, _ := whole(t, r); next.Commit != 200 {
			t.Errorf("from a cursor of version %d comes %v", version, next.Commit)
		}
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
