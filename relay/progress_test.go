package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace"
)

func TestWaitersAreWokenInOrderOfPositions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProgress()
		p.begin(millrace.Checkpoint{Acked: 10})
		var wg sync.WaitGroup
		var mu sync.Mutex
		woken := 0
		for range 5000 {
			at := millrace.LSN(11 + rand.IntN(1000))
			wg.Go(func() {
				reached, err := p.Wait(t.Context(), at, false)
				if err != nil || reached < at {
					t.Errorf("waited for %v: %v, %v", at, reached, err)
				}
				mu.Lock()
				woken++
				mu.Unlock()
			})
		}
		synctest.Wait()
		if p.Waiting() != 5000 {
			t.Errorf("%d wait", p.Waiting())
		}
		p.durable(500)
		synctest.Wait()
		if woken == 0 || woken == 5000 || woken+p.Waiting() != 5000 {
			t.Errorf("%d woken, %d wait", woken, p.Waiting())
		}
		p.durable(2000)
		wg.Wait()
		if p.wanted() {
			t.Error("nobody waits, and still the position is wanted")
		}
	})
}

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProgress()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Wait(ctx, 1, false); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before the first session: %v", err)
		}
		if p.Waiting() != 0 {
			t.Errorf("%d left behind", p.Waiting())
		}
		failed := errors.New("gone")
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := p.Wait(t.Context(), 1, true); !errors.Is(err, failed) {
				t.Errorf("at the end: %v", err)
			}
		})
		wg.Go(func() {
			if _, err := waitXID(t.Context(), p, 7); !errors.Is(err, failed) {
				t.Errorf("at the end: %v", err)
			}
		})
		synctest.Wait()
		p.End(failed)
		wg.Wait()
		if _, err := p.Wait(t.Context(), 1, false); !errors.Is(err, failed) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestVisibleRunsAheadOfHeld(t *testing.T) {
	p := NewProgress()
	p.begin(millrace.Checkpoint{Acked: 10})
	p.visible(20)
	if p.Held() != 10 || p.Visible() != 20 {
		t.Errorf("held %v, visible %v", p.Held(), p.Visible())
	}
	if at, err := p.Wait(t.Context(), 20, true); err != nil || at != 20 {
		t.Errorf("%v, %v", at, err)
	}
	p.durable(30)
	if p.Visible() != 30 {
		t.Errorf("visible %v below held", p.Visible())
	}
	p.begin(millrace.Checkpoint{Acked: 25})
	if p.Held() != 30 {
		t.Errorf("held went back to %v", p.Held())
	}
}

func TestXIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProgress()
		p.begin(millrace.Checkpoint{Acked: 96, Commit: 88})
		var wg sync.WaitGroup
		wg.Go(func() {
			if at, err := waitXID(t.Context(), p, 5); err != nil || at != 112 {
				t.Errorf("waiting before it comes: %v, %v", at, err)
			}
		})
		synctest.Wait()
		p.written(&millrace.Txn{XID: 5, Commit: 104, End: 112, Last: true})
		wg.Wait()
		for i := range uint32(5000) {
			end := millrace.LSN(120 + 16*i)
			p.written(&millrace.Txn{XID: 4_294_965_000 + i, Commit: end - 8, End: end, Last: true})
		}
		for _, i := range []uint32{0, 1, 1023, 2295, 2299, 4999} {
			at, err := waitXID(t.Context(), p, 4_294_965_000+i)
			if err != nil || at != millrace.LSN(120+16*i) {
				t.Errorf("%d: %v, %v", i, at, err)
			}
		}
		time.Sleep(xidMemory + time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if at, err := waitXID(ctx, p, 4_294_965_001); err == nil {
			t.Errorf("after ten minutes: %v", at)
		}
		if len(p.pending) != 0 {
			t.Error("a waiter was left behind")
		}
		p.written(&millrace.Txn{XID: 4_294_965_001, Commit: 1 << 40, End: 1<<40 + 8, Last: true})
		if at, err := waitXID(t.Context(), p, 4_294_965_001); err != nil || at != 1<<40+8 {
			t.Errorf("used again: %v, %v", at, err)
		}
		if at, ok := p.xids.find(4_294_965_002, time.Now()); ok {
			t.Errorf("its neighbour came back: %v", at)
		}
	})
}

func TestXIDMemoryIsBounded(t *testing.T) {
	var x xids
	now := time.Now()
	for i := range uint32(3 * maxXIDPages) {
		x.add(i*xidPage, millrace.LSN(8*i+8), now)
	}
	if len(x.pages) > maxXIDPages || len(x.order) != len(x.pages) {
		t.Errorf("%d pages, %d in order", len(x.pages), len(x.order))
	}
	if _, ok := x.find((3*maxXIDPages-1)*xidPage, now); !ok {
		t.Error("the newest is gone")
	}
}

func TestLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProgress()
		p.Observe(90, time.Now())
		if lag := p.Lag(time.Now()); lag != (Lag{}) {
			t.Errorf("before the first session: %+v", lag)
		}
		p.begin(millrace.Checkpoint{Acked: 100})
		p.Observe(100, time.Now())
		if lag := p.Lag(time.Now()); *lag.Seconds != 0 || *lag.Bytes != 0 || *lag.WaitsFor != WaitsForNothing {
			t.Errorf("caught up: %+v", lag)
		}
		time.Sleep(3 * time.Second)
		p.Observe(150, time.Now())
		if lag := p.Lag(time.Now()); *lag.Seconds != 3 || *lag.Bytes != 50 || *lag.WaitsFor != WaitsForStream {
			t.Errorf("nothing received: %v s", *lag.Seconds)
		}
		committed := time.Now().Add(-5 * time.Second)
		p.written(&millrace.Txn{XID: 1, Commit: 140, End: 150, Time: committed, Last: true})
		p.written(&millrace.Txn{XID: 2, Commit: 190, End: 200, Time: time.Now().Add(time.Hour)})
		p.Observe(0, time.Now())
		if lag := p.Lag(time.Now()); *lag.Seconds != 5 || lag.Bytes != nil || *lag.Transactions != 2 {
			t.Errorf("position unknown: %+v", lag)
		}
		p.durable(150)
		time.Sleep(time.Second)
		p.Observe(200, time.Now())
		// The source's clock is an hour ahead.
		if lag := p.Lag(time.Now()); *lag.Seconds != 1 || *lag.Transactions != 1 || *lag.WaitsFor != WaitsForStream {
			t.Errorf("second only: %+v", lag)
		}
		p.durable(200) // its last part has not come
		if lag := p.Lag(time.Now()); *lag.Seconds != 1 {
			t.Errorf("open: %+v", lag)
		}
		p.written(&millrace.Txn{XID: 2, Commit: 190, End: 200, Part: 1, Last: true})
		p.durable(200)
		if lag := p.Lag(time.Now()); *lag.Transactions != 0 || *lag.Seconds != 0 {
			t.Errorf("all durable: %+v", lag)
		}
		for i := range 1000 {
			p.Observe(millrace.LSN(1000+i), time.Now())
			time.Sleep(time.Second)
		}
		p.Finishing(func() bool { return true })
		if lag := p.Lag(time.Now()); *lag.WaitsFor != WaitsForApply || *lag.Transactions != 1 {
			t.Errorf("the destination finishes a transaction that has come: waits for %s, %d transactions", *lag.WaitsFor, *lag.Transactions)
		}
		p.Finishing(nil)
		if n := len(p.observed.ahead); n > maxObservations {
			t.Errorf("%d observations kept", n)
		}
		if lag := p.Lag(time.Now()); *lag.Seconds < 999 {
			t.Errorf("far behind: %v s", *lag.Seconds)
		}
	})
}

// waitXID waits for a transaction as /wait does.
func waitXID(ctx context.Context, p *Progress, xid uint32) (millrace.LSN, error) {
	come := make(chan millrace.LSN, 1)
	defer p.Notify(Need{XID: xid}, func(end millrace.LSN) { come <- end })()
	select {
	case end := <-come:
		if end == 0 {
			_, err := p.Reached(false)
			return 0, err
		}
		return end, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// TestLoading: while rows are loaded beside the stream no position counts, whether it
// is asked for before or after it was made durable.
func TestLoading(t *testing.T) {
	p := NewProgress()
	p.Loading(true)
	woken := make(chan millrace.LSN, 2)
	for _, visible := range []bool{false, true} {
		stop := p.Notify(Need{At: 100, Visible: visible}, func(at millrace.LSN) { woken <- at })
		defer stop()
	}
	p.visible(150)
	p.durable(140)
	if at, _ := p.Reached(false); at != 0 || len(woken) != 0 {
		t.Errorf("reached %v, %d were woken", at, len(woken))
	}
	if p.Held() != 140 {
		t.Errorf("held %v, want 0/8C", p.Held())
	}
	p.Loading(false)
	if at, _ := p.Reached(true); at != 150 || len(woken) != 2 {
		t.Errorf("reached %v, %d of 2 were woken", at, len(woken))
	}
}
