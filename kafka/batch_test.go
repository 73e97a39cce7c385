package kafka

import (
	"bytes"
	"strconv"
	"testing"
	"time"

	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
)

// Records of a batch are what they were however many transactions come behind them, and
// also once the batch's memory is used again.
func TestBatchKeepsRecords(t *testing.T) {
	w := &writer{opt: &Options{Endpoint: &Endpoint{Prefix: "shop"}}, limit: maxBatch}
	b, from := &batch{}, &millrace.History{System: "77", Timeline: 1, Generation: 2}
	for round := range 3 {
		const transactions = 3000 // more than one block of headers and of bytes
		for xid := range uint32(transactions) {
			o := w.begun(b, TransactionID(xid, millrace.LSN(xid)), xid, millrace.LSN(xid), time.Now(), from)
			value := []byte("value " + strconv.Itoa(int(xid)))
			special := []kgo.RecordHeader{{Key: krecord.HeaderOldKey, Value: value}}
			r := kgo.Record{Topic: "shop.t", Key: b.memory.copy(value), Headers: w.headers(special, uint64(xid)+7)}
			o.counts.add(slot{r.Topic, int32(xid % 12)})
			if err := w.put(&r); err != nil {
				t.Fatal(err)
			}
			clear(value) // it was the encoder's
			if err := w.marks(o, time.Now(), Position{XID: xid}); err != nil {
				t.Fatal(err)
			}
			w.complete(b)
		}
		if len(b.records) != 3*transactions {
			t.Fatalf("%d records", len(b.records))
		}
		for i := range b.records {
			r, xid := &b.records[i], i/3
			p, err := krecord.PositionOf(r)
			if i%3 > 0 { // a mark has no seq
				want := `{"id":"` + TransactionID(uint32(xid), millrace.LSN(xid)) + `"}`
				number := ""
				if i%3 == 2 { // END
					number = strconv.Itoa(round*transactions + xid + 1)
				}
				if string(r.Key) != want || string(krecord.Header(r, headerXID)) != strconv.Itoa(xid) || string(krecord.Header(r, headerNumber)) != number {
					t.Fatalf("mark %d: key %s, headers %v", i, r.Key, r.Headers)
				}
				continue
			}
			want := krecord.Position{XID: uint32(xid), Commit: millrace.LSN(xid), Seq: uint64(xid) + 7, History: *from}
			value := "value " + strconv.Itoa(xid)
			if err != nil || p != want || string(r.Key) != value || string(krecord.Header(r, krecord.HeaderOldKey)) != value {
				t.Fatalf("record %d: %+v (%v), key %s, headers %v", i, p, err, r.Key, r.Headers)
			}
		}
		b.reset()
	}
}

// A tally counts as a map does, in the order in which things first came.
func TestTally(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c tally[int]
		for range 3 {
			counts, order := map[int]int{}, []int{}
			for range rapid.IntRange(0, 100).Draw(t, "n") {
				k := rapid.IntRange(0, 30).Draw(t, "k")
				if counts[k]++; counts[k] == 1 {
					order = append(order, k)
				}
				c.add(k)
			}
			if len(c.entries) != len(order) {
				t.Fatalf("%v, want %v in the order %v", c.entries, counts, order)
			}
			for i, e := range c.entries {
				if e.of != order[i] || e.n != counts[e.of] {
					t.Fatalf("%v, want %v in the order %v", c.entries, counts, order)
				}
			}
			c = c.empty()
		}
	})
}

// What is compressed is a frame of independent blocks of 64 KiB without a checksum, as
// Java's client makes it, and comes out again.
func TestCompress(t *testing.T) {
	c := &compressor{}
	for _, n := range []int{0, 1, 64 << 10, 64<<10 + 1, 1 << 20} {
		src := bytes.Repeat([]byte("0123456789abcdefghijklmnopqrstuvwxyz,"), n/37+1)[:n]
		var dst bytes.Buffer
		got, codec := c.Compress(&dst, src)
		if codec != kgo.CodecLz4 || len(got) < 7 || got[4] != 0x60 || got[5] != 0x40 {
			t.Fatalf("%d bytes: codec %v, head % x", n, codec, got[:min(len(got), 7)])
		}
		var back bytes.Buffer
		if _, err := back.ReadFrom(lz4.NewReader(bytes.NewReader(got))); err != nil || !bytes.Equal(back.Bytes(), src) {
			t.Fatalf("%d bytes come back as %d: %v", n, back.Len(), err)
		}
	}
}
