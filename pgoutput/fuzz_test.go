package pgoutput_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/millrace/millrace"
	. "github.com/millrace/millrace/pgoutput"
)

// FuzzParse feeds any bytes to every parser. What is taken must lie within the
// message, and memory must stay in proportion to it.
func FuzzParse(f *testing.F) {
	for _, rec := range recordings {
		for _, msg := range readHex(f, rec.name) {
			f.Add(msg)
		}
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		var values int
		slab := NewSlab(func(n int) []millrace.Value {
			values += n
			return make([]millrace.Value, n)
		})
		m, err := parse(msg, slab)
		if values > len(msg) {
			t.Errorf("%d values from %d bytes", values, len(msg))
		}
		if xid, plain, err := Unstream(bytes.Clone(msg)); err == nil {
			if len(plain) != len(msg)-4 || plain[0] != msg[0] || !bytes.Equal(plain[1:], msg[5:]) || xid != binary.BigEndian.Uint32(msg[1:]) {
				t.Errorf("%x became %d, %x", msg, xid, plain)
			}
		} else if len(msg) >= 5 {
			t.Error(err)
		}
		if err != nil {
			return
		}
		if size := payload(m); size > len(msg) {
			t.Errorf("%d bytes of payload from %d bytes", size, len(msg))
		}
		if _, ok := m.(StreamAbort); ok && len(msg) < 25 {
			return // has a longer form
		}
		// Being strict means that the same message with more behind it is none.
		if _, err := parse(append(msg[:len(msg):len(msg)], 'N'), new(Slab)); !errors.Is(err, ErrMalformed) {
			t.Errorf("one byte more gives %v", err)
		}
	})
}

// payload is how many bytes of the message came out as values and names.
func payload(m any) int {
	size := 0
	row := func(r millrace.Row) {
		for _, v := range r {
			size += len(v.Raw)
		}
	}
	switch m := m.(type) {
	case *millrace.Relation:
		for _, c := range m.Columns {
			size += len(c.Name) + relationColumn
		}
	case Insert:
		row(m.New)
	case Update:
		row(m.Old)
		row(m.New)
	case Delete:
		row(m.Old)
	case Truncate:
		size = 4 * len(m.OIDs)
	case Message:
		size = len(m.Prefix) + len(m.Content)
	case Origin:
		size = len(m.Name)
	case Prepare:
		size = len(m.GID)
	case CommitPrepared:
		size = len(m.GID)
	case RollbackPrepared:
		size = len(m.GID)
	}
	return size
}

// relationColumn is what a column takes in a Relation message beside its name.
const relationColumn = 10
