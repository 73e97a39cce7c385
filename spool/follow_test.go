package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestFollow reads while others append and drop, at random: what was read and not
// reported as dropped, in its order, is what a Reader has at the end.
func TestFollow(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s := open(t, Options{})
	txn, other := s.Begin(), s.Begin()
	f := txn.Follow(2 * frameSize)
	type read struct {
		sub  uint32
		data []byte
	}
	var got []read
	drain := func(all bool) {
		for {
			records, dropped, err := f.Next(all)
			got = slices.DeleteFunc(got, func(r read) bool { return slices.Contains(dropped, r.sub) })
			for _, r := range records {
				got = append(got, read{r.Sub, bytes.Clone(r.Data)})
			}
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	record := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.IntN(256)) // takes its full size on disk
		}
		return b
	}
	sub := uint32(1)
	for range 3000 {
		switch k := rng.IntN(100); {
		case k < 70:
			if err := txn.Append(sub, record([]int{10, 3000, 20_000, 2 * frameSize}[min(rng.IntN(40)/10, rng.IntN(4))])); err != nil {
				t.Fatal(err)
			}
		case k < 75:
			sub++
		case k < 80 && sub > 1:
			if err := txn.DropSub(sub); err != nil {
				t.Fatal(err)
			}
			sub++
		case k < 90:
			if err := other.Append(1, record(50_000)); err != nil {
				t.Fatal(err)
			}
		default:
			drain(false)
		}
	}
	drain(true)
	r, err := txn.Read()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; ; n++ {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || n >= len(got) || got[n].sub != rec.Sub || !bytes.Equal(got[n].data, rec.Data) {
			t.Fatalf("record %d of %d is another one (%v)", n, len(got), err)
		}
	}
	if n != len(got) {
		t.Errorf("%d records were read, there are %d", len(got), n)
	}
	if err := errors.Join(r.Close(), f.Close(), txn.Drop()); err != nil {
		t.Error(err)
	}
	long := s.Begin()
	f2 := long.Follow(2*frameSize - 1)
	if err := long.Append(1, record(2*frameSize)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f2.Next(false); !errors.Is(err, ErrTooLong) {
		t.Errorf("a record that is too long: %v", err)
	}
	if err := errors.Join(f2.Close(), long.Drop()); err != nil {
		t.Error(err)
	}
	if _, _, err := f.Next(false); !errors.Is(err, errDropped) {
		t.Error(fmt.Errorf("after the drop: %w", err))
	}
}
