package kafka

import (
	"errors"
	"runtime"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/record"
)

// TestNewsOfAFailedLook: what a look has read before it failed is known with the next one that ends well,
// though that reads nothing new.
func TestNewsOfAFailedLook(t *testing.T) {
	r := &writtenReader{builder: &stateBuilder{state: newState(), name: "job", tables: map[string]tableJSON{}}, at: 5}
	f := &follower{now: &Written{Job: "job"}}
	e := &Endpoint{Prefix: "p", Job: "job"}
	if err := r.builder.add(e.control(keyJob, jobRecord(&record.Job{Generation: 3}, LayoutTables))); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("connection reset")
	f.took(r, true, broken)
	if w, err := f.look(); !errors.Is(err, broken) || w.History.Generation != 0 || f.passed(5) {
		t.Errorf("behind the failure: %+v, %v, passed %v", w, err, f.passed(5))
	}
	r.at = 6
	f.took(r, false, nil)
	if w, err := f.look(); err != nil || w.History.Generation != 3 || !f.passed(6) || f.passed(7) {
		t.Errorf("behind the next look: %+v, %v, passed %v, %v", w, err, f.passed(6), f.passed(7))
	}
}

// TestWideRowsHaveTimesOfTheirOwn: the client gives a record up by its time, and of wide ones a few
// fill its buffer, behind which the next ones wait: so the clock is looked at for each mebibyte, of small
// ones for every few.
func TestWideRowsHaveTimesOfTheirOwn(t *testing.T) {
	for _, c := range []struct{ bytes, records, looks int }{{100, 160, 10}, {400 << 10, 30, 10}, {2 << 20, 10, 10}} {
		var s stamps
		looks := 0
		for range c.records {
			if s.due(c.bytes) {
				looks++
			}
		}
		if looks != c.looks {
			t.Errorf("%d records of %d bytes: %d looks at the clock, want %d", c.records, c.bytes, looks, c.looks)
		}
	}
}

// TestRecordsThatWaitKeepLittle: records of a large transaction share memory, and those of one partition
// may wait for its leader while all others have gone.
func TestRecordsThatWaitKeepLittle(t *testing.T) {
	const n, every = 1 << 14, 256
	value := make([]byte, 240)
	packed := pack(nil, &kgo.Record{Topic: "t", Value: value}, 0)
	var waiting []*kgo.Record
	before := heap()
	u := unpacker{}
	for i := range n {
		r, err := u.record(u.own(packed))
		if err != nil {
			t.Fatal(err)
		}
		if i%every == 0 {
			waiting = append(waiting, r)
		}
	}
	u = unpacker{}
	kept := heap() - before
	if most := int64(n*len(packed)) / 2; kept > most {
		t.Errorf("%d of %d records keep %d bytes, of %d that all have", len(waiting), n, kept, n*len(packed))
	}
	runtime.KeepAlive(waiting)
}

// TestArenasLetGo: what a batch has needed beyond the usual is not kept.
func TestArenasLetGo(t *testing.T) {
	var a arena
	var h headerArena
	for range 4 * 70 {
		a.copy(make([]byte, arenaBlock/4))
		h.take(headerBlock / 4)
	}
	a.reset()
	h.reset()
	if n, m := len(a.blocks), len(h.blocks); n != 64 || m != 64 {
		t.Fatalf("%d blocks of bytes and %d of headers are kept", n, m)
	}
	for _, b := range a.blocks[64:cap(a.blocks)] {
		if b != nil {
			t.Fatal("bytes that are not used any more are kept")
		}
	}
	for _, b := range h.blocks[64:cap(h.blocks)] {
		if b != nil {
			t.Fatal("headers that are not used any more are kept")
		}
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
