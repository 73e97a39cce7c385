package kafka_test

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
)

// A backlog of many pages in several partitions is the same whether the next page is
// fetched while one is used, or there is no room for that; and a Reader can be closed
// while one is on its way.
func TestReaderFetchesAhead(t *testing.T) {
	t.Parallel()
	e := endpoint(rig.SharedKafka(t), newPrefix())
	o := readable(t, e, 3)
	a, b := relation(1, "a"), relation(2, "b")
	loaded(t, o, a, b)
	s, _ := claimed(t, o)
	const txns, rows = 60, 100
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // any bytes that don't get smaller do
	value := func() string {
		raw := make([]byte, 1000)
		for i := range raw {
			raw[i] = byte(random.Uint32())
		}
		return hex.EncodeToString(raw)
	}
	var want []string
	for n := 1; n <= txns; n++ {
		x := txn(n, "v")
		for i := range rows {
			c := millrace.Change{Op: millrace.Insert, Seq: uint64(i + 1), Rel: a, New: text(fmt.Sprint(n*rows+i), value())}
			if i%3 == 0 {
				c.Rel = b
			}
			x.Changes = append(x.Changes, c)
			want = append(want, describeChange(&c))
		}
		write(t, s, x)
	}
	awaitDurable(t, s, txns*100+50)
	for _, held := range []int64{1, 0, 32 << 20} {
		r := openReader(t, kafka.ReaderOptions{Endpoint: e, MaxHeld: held})
		at := 0
		for n := 1; n <= txns; n++ {
			x, changes := whole(t, r)
			if x.Commit != millrace.LSN(n*100) || len(changes) != rows {
				t.Fatalf("with room for %d: transaction %d has %d changes: %+v", held, n, len(changes), x)
			}
			for i := range changes {
				if got := describeChange(&changes[i]); got != want[at] {
					t.Fatalf("with room for %d: change %d is %.60s, want %.60s", held, at, got, want[at])
				}
				at++
			}
		}
	}
	r := openReader(t, kafka.ReaderOptions{Endpoint: e})
	whole(t, r) // and its Cleanup closes it, with pages on their way
}
