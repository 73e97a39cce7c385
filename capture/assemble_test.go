package capture

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/pgoutput"
	"github.com/millrace/millrace/replication"
)

func bytesOf(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case byte:
			b = append(b, p)
		case string:
			b = append(b, p...)
		case uint16:
			b = binary.BigEndian.AppendUint16(b, p)
		case uint32:
			b = binary.BigEndian.AppendUint32(b, p)
		case uint64:
			b = binary.BigEndian.AppendUint64(b, p)
		}
	}
	return b
}

func beginMessage(commit uint64) []byte { return bytesOf("B", commit, uint64(0), uint32(7)) }

func commitMessage(commit, end uint64) []byte {
	return bytesOf("C", byte(0), commit, end, uint64(0))
}

func endBy(a *assembler, msg []byte) (empty millrace.LSN, err error) {
	m, err := pgoutput.ParseCommit(msg)
	if err != nil {
		return 0, err
	}
	return a.end(m)
}

func insertMessage(value string) replication.Message {
	return replication.Message{Data: bytesOf("I", uint32(1), "N", uint16(1), "t", uint32(len(value)), value)}
}

var oneColumn = &millrace.Relation{OID: 1, Name: millrace.TableName{Schema: "public", Name: "t"}, Columns: []millrace.Column{{Name: "a"}}}

// TestMessagesOutOfPlace are streams that no server sends.
func TestMessagesOutOfPlace(t *testing.T) {
	twoColumns := &millrace.Relation{Columns: make([]millrace.Column, 2)}
	for _, c := range []struct {
		name string
		do   func(a *assembler) error
		want string
	}{
		{"row", func(a *assembler) error { return a.row(insertMessage("x"), oneColumn) }, "change outside"},
		{"truncate", func(a *assembler) error { return a.truncate(nil, false) }, "truncate outside"},
		{"commit", func(a *assembler) error { _, err := endBy(a, commitMessage(5, 6)); return err }, "did not begin"},
		{"begin twice", func(a *assembler) error { return errors.Join(a.onBegin(beginMessage(5)), a.onBegin(beginMessage(6))) }, "begins inside"},
		{"another commit", func(a *assembler) error {
			_, err := endBy(a, commitMessage(6, 7))
			return errors.Join(a.onBegin(beginMessage(5)), err)
		}, "did not begin"},
		{"row of other width", func(a *assembler) error {
			return errors.Join(a.onBegin(beginMessage(5)), a.row(insertMessage("x"), twoColumns))
		}, "but 2 columns"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m memory
			a := newAssembler(&m, nil, 0, func(*millrace.Txn) bool { return true })
			defer a.close()
			if err := c.do(a); !errors.Is(err, pgoutput.ErrMalformed) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// TestPositionsDoNotDependOnPatterns numbers also what is passed over.
func TestPositionsDoNotDependOnPatterns(t *testing.T) {
	var m memory
	var got []*millrace.Txn
	a := newAssembler(&m, nil, 0, func(txn *millrace.Txn) bool { got = append(got, txn); return true })
	defer a.close()
	err := errors.Join(
		a.onBegin(beginMessage(5)), a.row(insertMessage("x"), nil), a.truncate(nil, false), a.row(insertMessage("y"), oneColumn))
	if err != nil {
		t.Fatal(err)
	}
	if empty, err := endBy(a, commitMessage(5, 6)); err != nil || empty != 0 {
		t.Fatal(empty, err)
	}
	if len(got) != 1 || len(got[0].Changes) != 1 || got[0].Changes[0].Seq != 3 || got[0].End != 6 {
		t.Errorf("got %+v", got)
	}
	got[0].Release()
}

// TestApplied skips what the checkpoint holds, by the end of its last
// transaction.
func TestApplied(t *testing.T) {
	var m memory
	var got []millrace.LSN
	a := newAssembler(&m, nil, 100, func(txn *millrace.Txn) bool { got = append(got, txn.Commit); txn.Release(); return true })
	defer a.close()
	for _, commit := range []uint64{50, 99, 100, 150} {
		err := errors.Join(a.onBegin(beginMessage(commit)), a.row(insertMessage("x"), oneColumn))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := endBy(a, commitMessage(commit, commit+5)); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 2 || got[0] != 100 || got[1] != 150 || a.count.redelivered != 2 {
		t.Errorf("got %v, %d redelivered", got, a.count.redelivered)
	}
	if m.held.Load() != 0 {
		t.Errorf("%d bytes are held", m.held.Load())
	}
}

// TestNoAllocationPerTransaction holds the promise of the hot path.
func TestNoAllocationPerTransaction(t *testing.T) {
	var m memory
	a := newAssembler(&m, nil, 0, func(txn *millrace.Txn) bool { txn.Release(); return true })
	defer a.close()
	begin, commit, row := beginMessage(5), commitMessage(5, 6), insertMessage("a value")
	one := func() {
		err := a.onBegin(begin)
		for range 3 {
			err = errors.Join(err, a.row(row, oneColumn))
		}
		if _, e := endBy(a, commit); e != nil || err != nil {
			t.Fatal(err, e)
		}
	}
	for range 1000 {
		one() // fill the pools
	}
	if n := testing.AllocsPerRun(10000, one); n > 0.1 {
		t.Errorf("%v allocations a transaction", n)
	}
}

func BenchmarkAssemble(b *testing.B) {
	var m memory
	a := newAssembler(&m, nil, 0, func(txn *millrace.Txn) bool { txn.Release(); return true })
	defer a.close()
	begin, commit, row := beginMessage(5), commitMessage(5, 6), insertMessage("a value")
	b.ReportAllocs()
	for b.Loop() {
		_ = a.onBegin(begin)
		for range 3 {
			_ = a.row(row, oneColumn)
		}
		_, _ = endBy(a, commit)
	}
}
