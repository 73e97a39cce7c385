package backfill

import (
	"testing"
	"testing/synctest"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/snapshot"
)

// TestTwoChunksUnderWay: a reader reads the next chunk while the destination is at work
// with the one before, and keeps it until that is committed there. So a kill costs
// each reader two chunks at most, however slow the destination is.
func TestTwoChunksUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newFiltered(t, "")
		s.turn = s.opt.ChunkBytes // chunks need not wait for the stream
		offer := func(p *pending, from, to int64) <-chan bool {
			p.view, p.rows = view(100, 2000), &snapshot.Rows{}
			for n := from; n <= to; n++ {
				p.rows.Changes = append(p.rows.Changes, millrace.Change{Op: millrace.Read, Rel: rel, New: millrace.Row{id(n), text}})
				p.rows.Keys = append(p.rows.Keys, key(t, l, n))
			}
			used := make(chan bool, 1)
			go func() {
				ok, err := s.offer(t.Context(), p)
				if err != nil {
					t.Error(err)
				}
				used <- ok
			}()
			synctest.Wait()
			return used
		}
		give := func() *millrace.Txn {
			t.Helper()
			txn, err := s.chunk(t.Context())
			if err != nil || txn == nil {
				t.Fatal(txn, err)
			}
			synctest.Wait()
			s.turn = s.opt.ChunkBytes
			return txn
		}
		first := s.nextLocked()
		used := offer(first, 1, 3)
		chunk := give()
		if !<-used {
			t.Fatal("the first chunk is not used")
		}
		second := s.nextLocked()
		second.after = first.after
		used = offer(second, 4, 6)
		if len(s.ready) != 0 {
			t.Fatal("the second chunk can be given away before the first is committed")
		}
		chunk.Stored()(true)
		synctest.Wait()
		chunk = give()
		if !<-used {
			t.Fatal("the second chunk is not used")
		}
		// What lets go of a chunk without taking that over says so as well.
		third := s.nextLocked()
		third.after = second.after
		used = offer(third, 7, 9)
		if len(s.ready) != 0 {
			t.Fatal("the third chunk can be given away before the second is committed")
		}
		chunk.Release()
		synctest.Wait()
		give()
		if !<-used {
			t.Fatal("the third chunk is not used")
		}
	})
}

// TestWaitingChunkHoldsItsOwnRows: a chunk that waits for the stream holds changes of its
// own rows, and not of all that its range was before; the rest can be read meanwhile.
func TestWaitingChunkHoldsItsOwnRows(t *testing.T) {
	s, l := newFiltered(t, "")
	l.table.Limited = true
	for n := int64(100); n <= 300; n += 100 {
		l.segments[0].cuts = append(l.segments[0].cuts, key(t, l, n))
	}
	take := func(xid uint32, ids ...int64) {
		t.Helper()
		txn := &millrace.Txn{XID: xid, Commit: millrace.LSN(xid), End: millrace.LSN(xid) + 1, Last: true}
		for _, n := range ids {
			txn.Changes = append(txn.Changes, millrace.Change{Op: millrace.Insert, Rel: rel, New: millrace.Row{id(n), text}})
		}
		if err := s.take(t.Context(), txn); err != nil || len(txn.Changes) != 0 {
			t.Fatalf("%v, %v", txn.Changes, err)
		}
	}
	first := s.nextLocked()
	take(210, 5, 50, 250)
	first.view = view(200, 2000)
	first.rows = &snapshot.Rows{}
	for n := int64(1); n <= 10; n++ {
		first.rows.Changes = append(first.rows.Changes, millrace.Change{Op: millrace.Read, Rel: rel, New: millrace.Row{id(n), text}})
		first.rows.Keys = append(first.rows.Keys, key(t, l, n))
	}
	if err := s.narrow(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	take(220, 6, 60, 260)
	if len(first.held) != 2 || string(first.held[0].key) != string(key(t, l, 5)) || string(first.held[1].key) != string(key(t, l, 6)) {
		t.Errorf("%d changes are held, want those of keys 5 and 6", len(first.held))
	}
	second := s.nextLocked()
	if second == nil || string(second.in.After) != string(key(t, l, 10)) || string(second.in.Upto) != string(key(t, l, 100)) || len(second.before) != 2 {
		t.Fatalf("the next chunk is %+v", second)
	}
	if got := l.states(); got != "unread unread" {
		t.Errorf("ranges: %s", got)
	}
	// Given up while the rest is read, it stays as it is; else it is as before.
	s.giveUp(first)
	if got := l.states(); got != "unread unread" {
		t.Errorf("ranges: %s", got)
	}
	s.giveUp(second)
	again := s.nextLocked()
	if again == nil || again.in.After != nil || string(again.in.Upto) != string(key(t, l, 10)) {
		t.Fatalf("it is read again as %+v", again)
	}
	again.view, again.rows = first.view, &snapshot.Rows{Keys: first.rows.Keys[:5], Changes: first.rows.Changes[:5]}
	if err := s.narrow(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if got := l.states(); got != "unread unread unread" {
		t.Errorf("ranges: %s", got)
	}
	s.giveUp(again)
	if got := l.states(); got != "unread unread" || len(l.segments[1].cuts) != 3 {
		t.Errorf("ranges: %s, with %d cuts", got, len(l.segments[1].cuts))
	}
}
