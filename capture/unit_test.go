package capture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/replication"
)

func TestTimelines(t *testing.T) {
	switches := []replication.Switch{{Timeline: 1, End: 100}, {Timeline: 2, End: 200}}
	for _, c := range []struct {
		timeline int32
		acked    millrace.LSN
		want     string
		left     millrace.LSN
	}{
		{1, 100, "", 100},
		{1, 50, "", 100},
		{1, 101, "left timeline 1 at 0/64", 0},
		{2, 200, "", 200},
		{2, 150, "", 200},
		{2, 201, "left timeline 2 at 0/C8", 0},
		{4, 10, "does not come from timeline 4", 0},
	} {
		from := millrace.Checkpoint{History: millrace.History{Timeline: c.timeline}, Acked: c.acked}
		left, err := checkTimeline(switches, 5, from)
		if left != c.left {
			t.Errorf("timeline %d was left at %v, want %v", c.timeline, left, c.left)
		}
		if c.want == "" && err != nil || c.want != "" && (millrace.KindOf(err) != millrace.KindResync || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("timeline %d up to %v: %v, want %q", c.timeline, c.acked, err, c.want)
		}
	}
}

// TestMemory makes transactions of any shape from blocks, keeps some of them
// for a while, and checks that each holds what was put into it until it is
// released.
func TestMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m memory
		var out []*millrace.Txn
		a := newAssembler(&m, nil, 0, func(txn *millrace.Txn) bool { out = append(out, txn); return true })
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		id := uint32(0)
		held := map[*millrace.Txn][]uint32{}
		for range rapid.IntRange(1, 15).Draw(t, "transactions") {
			a.open, a.seq, a.part = true, 0, 0
			var ids []uint32
			for range rng.IntN(1 + 1<<rng.IntN(13)) {
				if err := a.makeRoom(); err != nil {
					t.Fatal(err)
				}
				id++
				row := a.slab.Row(rng.IntN(5))
				data := a.block.copy(bytes.Repeat([]byte{byte(id)}, rng.IntN(1+1<<rng.IntN(10))))
				for i := range row {
					row[i] = millrace.Value{Kind: millrace.Text, Raw: data}
				}
				*a.block.change(a.txn) = millrace.Change{Seq: uint64(id), New: row}
				a.txn.Size += changeSize + int64(len(data)) + int64(len(row))*valueSize
				ids = append(ids, id)
			}
			if a.txn != nil {
				if err := a.finish(); err != nil {
					t.Fatal(err)
				}
			}
			for _, txn := range out {
				held[txn] = ids[:len(txn.Changes)]
				ids = ids[len(txn.Changes):]
			}
			out = out[:0]
			for txn, ids := range held {
				checkTxn(t, txn, ids)
				if rng.IntN(2) == 0 {
					delete(held, txn)
					txn.Release()
				}
			}
		}
		for txn, ids := range held {
			checkTxn(t, txn, ids)
			txn.Release()
		}
		a.close()
		if n := m.held.Load(); n != 0 {
			t.Fatalf("%d bytes are held", n)
		}
	})
}

func checkTxn(t *rapid.T, txn *millrace.Txn, ids []uint32) {
	if len(txn.Changes) != len(ids) || len(ids) > maxChanges {
		t.Fatalf("%d changes, want %d", len(txn.Changes), len(ids))
	}
	for i, c := range txn.Changes {
		if c.Seq != uint64(ids[i]) {
			t.Fatalf("change %d in the place of %d", c.Seq, ids[i])
		}
		for _, v := range c.New {
			for _, b := range v.Raw {
				if b != byte(ids[i]) {
					t.Fatalf("byte %x in a value of change %d", b, ids[i])
				}
			}
		}
	}
}

func queued(size int64, end millrace.LSN) *millrace.Txn {
	return &millrace.Txn{Commit: end - 1, End: end, Last: true, Size: size}
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(100, 0)
		var put int
		go func() {
			for i := range 10 {
				if !q.put(queued(40, millrace.LSN(10*i+10))) {
					return
				}
				put++
			}
			q.publish()
		}()
		synctest.Wait()
		if put != 2 {
			t.Errorf("%d were admitted, want 2", put)
		}
		for i := range 10 {
			txn, err := q.next(t.Context())
			if err != nil || txn.End != millrace.LSN(10*i+10) {
				t.Fatal(txn, err)
			}
		}
		if q.size != 0 || q.queued() {
			t.Errorf("size %d at the end", q.size)
		}
	})
}

func TestQueueAlwaysAdmitsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(100, 0)
		go func() {
			q.put(queued(1000, 10))
			q.put(queued(1, 20))
			q.publish()
		}()
		for _, want := range []millrace.LSN{10, 20} {
			txn, err := q.next(t.Context())
			if err != nil || txn.End != want {
				t.Fatal(txn, err)
			}
		}
	})
}

func TestQueueErrorComesLast(t *testing.T) {
	q := newQueue(100, 0)
	q.put(queued(1, 10))
	boom := errors.New("boom")
	q.fail(boom)
	q.fail(errors.New("a later one"))
	if txn, err := q.next(t.Context()); err != nil || txn.End != 10 {
		t.Error(txn, err)
	}
	for range 2 {
		if _, err := q.next(t.Context()); !errors.Is(err, boom) {
			t.Error(err)
		}
	}
}

func TestQueueCloseEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full, empty := newQueue(1, 0), newQueue(1, 0)
		released := 0
		first := queued(1, 10)
		first.OnRelease(func(*millrace.Txn) { released++ })
		full.put(first)
		go func() {
			time.Sleep(time.Second)
			full.close()
			empty.close()
		}()
		if full.put(queued(1, 20)) {
			t.Error("a closed queue took something")
		}
		if _, err := empty.next(t.Context()); !errors.Is(err, errNotStarted) {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := newQueue(1, 0).next(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if released != 1 {
			t.Errorf("%d released, want 1", released)
		}
	})
}

// TestIdle walks through what a sign of life does, by what is queued before it.
func TestIdle(t *testing.T) {
	real := func(end millrace.LSN) *millrace.Txn { return queued(1, end) }
	sign := func(end millrace.LSN, urgent bool) *millrace.Txn {
		return &millrace.Txn{End: end, Urgent: urgent, Last: true}
	}
	for _, c := range []struct {
		name     string
		before   []*millrace.Txn
		taken    int // of them
		acked    millrace.LSN
		position millrace.LSN
		urgent   bool
		want     string
	}{
		{"first", nil, 0, 50, 60, false, "idle 60"},
		{"nothing new", nil, 0, 50, 50, false, ""},
		{"older", nil, 0, 50, 40, false, ""},
		{"nothing new, urgent, acknowledged", nil, 0, 50, 50, true, ""},
		{"replaces", []*millrace.Txn{sign(60, false)}, 0, 50, 70, false, "idle 70"},
		{"never goes back", []*millrace.Txn{sign(60, false)}, 0, 50, 55, false, "idle 60"},
		{"makes urgent", []*millrace.Txn{sign(60, false)}, 0, 50, 60, true, "idle 60 urgent"},
		{"stays urgent", []*millrace.Txn{sign(60, true)}, 0, 50, 70, false, "idle 70 urgent"},
		{"behind a transaction", []*millrace.Txn{real(60)}, 0, 50, 70, false, "txn 60, idle 70"},
		{"not newer than the transaction", []*millrace.Txn{real(60)}, 0, 50, 60, true, "txn 60"},
		{"same as one that was taken", []*millrace.Txn{sign(60, false)}, 1, 50, 60, false, ""},
		{"same as one that was taken and rests, urgent", []*millrace.Txn{sign(60, false)}, 1, 50, 60, true, "idle 60 urgent"},
		{"same as one that was taken and is durable, urgent", []*millrace.Txn{sign(60, false)}, 1, 60, 60, true, ""},
		{"older than one that was taken and rests, urgent", []*millrace.Txn{real(60)}, 1, 50, 55, true, "idle 60 urgent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newQueue(1000, 50)
			for _, txn := range c.before {
				q.put(txn)
			}
			for range c.taken {
				if _, err := q.next(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			q.idle(nil, c.position, c.acked, c.urgent)
			var got []string
			for q.queued() {
				txn, err := q.next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				text := fmt.Sprintf("txn %d", txn.End)
				if txn.Idle() {
					text = fmt.Sprintf("idle %d", txn.End)
				}
				if txn.Urgent {
					text += " urgent"
				}
				got = append(got, text)
			}
			if s := strings.Join(got, ", "); s != c.want {
				t.Errorf("got %q, want %q", s, c.want)
			}
			if q.size < 0 {
				t.Errorf("size %d", q.size)
			}
		})
	}
}
