package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace"
)

// run is a Relay between the two ends of a world, running.
type run struct {
	*Relay
	w      *world
	source *fakeSource
	sink   *fakeSink
	states []State
	conds  []string
	log    strings.Builder
	done   chan error
	cancel context.CancelFunc
}

func start(t *testing.T, w *world, set func(*run, *Options)) *run {
	t.Helper()
	r := &run{w: w, source: &fakeSource{w: w}, sink: &fakeSink{w: w}, done: make(chan error, 1)}
	opt := Options{
		Source: r.source, Sink: r.sink,
		OnState:     func(s State) { r.states = append(r.states, s) },
		OnCondition: func(c string, _ error) { r.conds = append(r.conds, c) },
		Log:         slog.New(slog.NewTextHandler(&r.log, nil)),
	}
	if set != nil {
		set(r, &opt)
	}
	r.Relay = New(opt)
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() { r.done <- r.Run(ctx) }()
	return r
}

func (r *run) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	if err := <-r.done; err != nil {
		t.Fatalf("Run: %v", err)
	}
}

func lostSource() error {
	return &millrace.Error{Kind: millrace.KindRetry, Op: "receive", Peer: millrace.PeerSource,
		Err: errors.New("connection reset"), Condition: SourceUnreachable}
}

func (w *world) cut(source, sink error) { w.change(func() { w.srcErr, w.sinkErr = source, sink }) }

func TestStreamsAcknowledgesAndDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.commit(1, 1)
		w.commit(2, 3)
		r := start(t, w, func(_ *run, o *Options) {
			o.Goal = func(context.Context) (millrace.LSN, error) { return w.position, nil }
		})
		end := w.commit(3, 1)
		synctest.Wait()
		if got := r.Progress().Held(); got != end {
			t.Errorf("held %v, want %v", got, end)
		}
		if w.flushed != end {
			t.Errorf("acknowledged %v, want %v", w.flushed, end)
		}
		r.stop(t)
		if diff := cmp.Diff([]uint32{1, 2, 3}, w.applied); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]State{CatchingUp, Streaming}, r.states); diff != "" {
			t.Error(diff)
		}
		if n := r.Stats().Transactions(); n != 3 {
			t.Errorf("%d transactions counted", n)
		}
		if n := r.Stats().Tables()[1].Changes; n != 5 {
			t.Errorf("%d changes counted", n)
		}
	})
}

// TestTalliesAreCounted: of what was applied ahead only its commit passes.
func TestTalliesAreCounted(t *testing.T) {
	var s Stats
	other := &millrace.Relation{OID: 2}
	s.count(&millrace.Txn{Commit: 1, Last: true, Phase: millrace.AppliedAhead, Size: 10,
		Tally: []millrace.Tally{{Rel: rel, Inserts: 1, Updates: 20, Deletes: 300, Bytes: 1000}, {Rel: other, Inserts: 4000, Bytes: 7}}})
	want := map[millrace.Op]int64{millrace.Insert: 4001, millrace.Update: 20, millrace.Delete: 300, millrace.Truncate: 0, millrace.Message: 0}
	if diff := cmp.Diff(want, s.Changes()); diff != "" {
		t.Error(diff)
	}
	if a, b := s.Tables()[rel.OID].Changes, s.Tables()[2].Changes; a != 321 || b != 4000 || s.Bytes() != 1017 || s.Transactions() != 1 {
		t.Errorf("%d and %d changes, %d bytes, %d transactions", a, b, s.Bytes(), s.Transactions())
	}
}

func TestRetriesWithoutEndAndLogsOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.cut(lostSource(), nil)
		r := start(t, w, nil)
		sleep(10 * time.Minute)
		if n := strings.Count(r.log.String(), "trying again"); n < 8 || n > 11 {
			t.Errorf("%d log lines in ten minutes:\n%s", n, &r.log)
		}
		// 1+2+4+8+16+30+30…
		if r.source.starts < 20 || r.source.starts > 30 {
			t.Errorf("%d tries", r.source.starts)
		}
		w.commit(1, 1)
		w.cut(nil, nil)
		sleep(31 * time.Second)
		if r.Progress().Held() != w.position {
			t.Errorf("held %v", r.Progress().Held())
		}
		if last := r.conds[len(r.conds)-1]; last != "" {
			t.Errorf("condition %q left behind", last)
		}
		if r.conds[0] != SourceUnreachable {
			t.Errorf("conditions %q", r.conds)
		}
		if !strings.Contains(r.log.String(), "connected again") {
			t.Error("the end of the outage was not logged")
		}
		r.stop(t)
	})
}

func TestBackoffStartsOverAfterProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := start(t, w, nil)
		for i := range uint32(5) {
			w.commit(i+1, 1)
			synctest.Wait()
			w.cut(lostSource(), nil)
			synctest.Wait()
			w.cut(nil, nil)
			sleep(1100 * time.Millisecond)
			if r.source.starts != int(i)+2 {
				t.Fatalf("round %d: %d starts", i, r.source.starts)
			}
		}
		r.stop(t)
	})
}

func TestNeedTextRestartsAtOnceAndOnlyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.commit(1, 1)
		r := start(t, w, func(r *run, _ *Options) { r.sink.text = func() bool { return r.source.text } })
		synctest.Wait()
		if len(w.applied) != 1 || r.source.starts != 2 {
			t.Errorf("applied %v after %d starts", w.applied, r.source.starts)
		}
		r.stop(t)

		w = newWorld()
		w.commit(1, 1)
		r = start(t, w, func(r *run, _ *Options) { r.sink.text = func() bool { return false } })
		if err := <-r.done; !errors.Is(err, millrace.ErrNeedText) {
			t.Errorf("got %v", err)
		}
	})
}

func TestCheckpointMovedBeforeTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.commit(1, 1)
		claims := 0
		r := start(t, w, func(r *run, _ *Options) {
			r.sink.claim = func() {
				// The former instance commits its last transaction before it is gone.
				if claims++; claims == 1 {
					w.change(func() {
						w.applied = append(w.applied, 1)
						w.cp.Commit, w.cp.End, w.cp.Acked = 108, 116, 116
					})
				}
			}
		})
		w.commit(2, 1)
		synctest.Wait()
		if diff := cmp.Diff([]uint32{1, 2}, w.applied); diff != "" {
			t.Error(diff)
		}
		if claims != 2 {
			t.Errorf("%d claims", claims)
		}
		r.stop(t)
	})
}

// TestMarkOfARereadBeforeTheClaim: a table is to be read again, which moves nothing but
// its mark. The source must start with that one.
func TestMarkOfARereadBeforeTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		name := millrace.TableName{Schema: "public", Name: "t"}
		mark := func(state string) map[millrace.TableName]millrace.Mark {
			return map[millrace.TableName]millrace.Mark{name: {OID: 1, State: []byte(state)}}
		}
		w.cp.Tables = mark("old")
		claims, started := 0, ""
		r := start(t, w, func(r *run, _ *Options) {
			r.source.refuse = func(cp millrace.Checkpoint) error {
				started = string(cp.Tables[name].State)
				return nil
			}
			r.sink.claim = func() {
				if claims++; claims == 1 {
					w.change(func() { w.cp.Tables = mark("anew") })
				}
			}
		})
		synctest.Wait()
		if started != "anew" {
			t.Errorf("the source has started with the mark %q", started)
		}
		r.stop(t)
	})
}

func TestSlotMovedBetweenOpenAndStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.commit(1, 1)
		r := start(t, w, func(r *run, _ *Options) {
			r.source.refuse = func(millrace.Checkpoint) error {
				if r.source.starts == 1 { // the former instance finishes and acknowledges
					w.change(func() {
						w.applied = append(w.applied, 1)
						w.cp.Commit, w.cp.End, w.cp.Acked, w.flushed = 108, 116, 116, 116
					})
				}
				return nil
			}
		})
		synctest.Wait()
		r.stop(t)
		if r.source.starts != 2 {
			t.Errorf("%d starts", r.source.starts)
		}

		w = newWorld()
		w.flushed = 1000
		r = start(t, w, nil)
		if err := <-r.done; millrace.KindOf(err) != millrace.KindResync {
			t.Errorf("a slot that is really ahead: %v", err)
		}
	})
}

// TestSlotAheadOfAnUndecidedCommit: what was confirmed and acknowledged is not
// shown by the destination until its marker has come.
func TestSlotAheadOfAnUndecidedCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.commit(1, 1)
		w.flushed = 116
		r := start(t, w, func(r *run, _ *Options) {
			r.sink.undecided = func() bool {
				if r.source.starts == 3 {
					w.change(func() {
						w.applied = append(w.applied, 1)
						w.cp.Commit, w.cp.End, w.cp.Acked = 108, 116, 116
					})
				}
				return true
			}
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		r.stop(t)
		if r.source.starts != 4 || len(w.applied) != 1 {
			t.Errorf("%d starts, applied %v", r.source.starts, w.applied)
		}
	})
}

func TestStopBeforeTheBadTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := start(t, w, nil)
		synctest.Wait()
		bad := &millrace.Error{Kind: millrace.KindData, Op: "read", Err: errors.New("a table nobody knows")}
		r.sink.stuck = true
		w.commit(1, 1)
		synctest.Wait()
		r.sink.stuck = false
		w.cut(bad, nil)
		if err := <-r.done; !errors.Is(err, bad) {
			t.Errorf("got %v", err)
		}
		if len(w.applied) != 1 || w.flushed != 116 {
			t.Errorf("applied %v, acknowledged %v", w.applied, w.flushed)
		}
	})
}

func TestStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := start(t, w, func(r *run, _ *Options) { r.sink.stuck = true })
		w.commit(1, 1)
		synctest.Wait()
		began := time.Now()
		r.stop(t)
		if d := time.Since(began); d != drainWithin {
			t.Errorf("took %v", d)
		}
		if w.flushed != 100 {
			t.Errorf("acknowledged %v, which is not durable", w.flushed)
		}
	})
}

func TestStopWhileTryingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.cut(nil, &millrace.Error{Kind: millrace.KindRetry, Condition: DestinationUnreachable, Err: errors.New("refused")})
		r := start(t, w, nil)
		sleep(time.Minute)
		r.stop(t)
	})
}

// A large transaction that is open at the stop is rolled back, not waited for.
func TestStopInTheMiddleOfATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.commit(1, 1)
		w.change(func() { w.history = append(w.history, millrace.Txn{XID: 2, Commit: 124, End: 132}) })
		r := start(t, w, nil)
		synctest.Wait()
		r.stop(t)
		if diff := cmp.Diff([]uint32{1}, w.applied); diff != "" {
			t.Error(diff)
		}
	})
}

func TestUntil(t *testing.T) {
	for name, until := range map[string]millrace.LSN{"between": 120, "at the commit record": 124, "at the end": 116} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.commit(1, 1)
				w.commit(2, 1)
				r := start(t, w, func(_ *run, o *Options) { o.Until = until })
				if err := <-r.done; err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff([]uint32{1}, w.applied); diff != "" {
					t.Error(diff)
				}
				if w.flushed < until || w.flushed > 124 {
					t.Errorf("acknowledged %v", w.flushed)
				}
			})
		})
	}
}

func TestUntilCurrentOnAnIdleSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.commit(1, 1)
		w.change(func() { w.position += 4096 }) // unpublished traffic
		r := start(t, w, func(_ *run, o *Options) {
			o.Goal = func(context.Context) (millrace.LSN, error) { return w.position, nil }
			o.UntilGoal = true
		})
		if err := <-r.done; err != nil {
			t.Fatal(err)
		}
		if r.Progress().Held() != w.position {
			t.Errorf("held %v of %v", r.Progress().Held(), w.position)
		}
	})
}

// A keepalive that came before the waiter rests in the sink; it must not be
// mistaken for one that is on its way.
func TestWaiterBehindARestingSignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := start(t, w, nil)
		synctest.Wait()
		w.change(func() { w.position += 4096; r.source.keepalive = true })
		synctest.Wait()
		if r.Progress().Held() != 100 {
			t.Fatal("the sign of life did not rest")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Progress().Wait(ctx, w.position, false); err != nil {
			t.Error(err)
		}
		// And one that comes while somebody waits does not rest.
		asked := r.source.requests
		w.change(func() { w.position += 4096; r.source.keepalive = true })
		if _, err := r.Progress().Wait(ctx, w.position, false); err != nil {
			t.Error(err)
		}
		if r.source.requests > asked+1 {
			t.Errorf("asked %d times", r.source.requests-asked)
		}
		r.stop(t)
	})
}

type sqlError string

func (e sqlError) Error() string    { return "SQLSTATE " + string(e) }
func (e sqlError) SQLState() string { return string(e) }

func TestWrongPassword(t *testing.T) {
	refused := &millrace.Error{Kind: millrace.KindPreflight, Peer: millrace.PeerSource, Op: "connect", Err: sqlError("28P01")}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.cut(refused, nil)
		r := start(t, w, nil)
		if err := <-r.done; !errors.Is(err, refused) {
			t.Errorf("at the start: %v", err)
		}

		w = newWorld()
		r = start(t, w, nil)
		synctest.Wait()
		w.cut(refused, nil)
		sleep(time.Minute)
		if got := r.conds[len(r.conds)-1]; got != SourceUnreachable {
			t.Errorf("condition %q", got)
		}
		w.cut(nil, nil)
		w.commit(1, 1)
		sleep(time.Minute)
		if len(w.applied) != 1 {
			t.Error("the new password was not taken")
		}
		r.stop(t)
	})
}

func TestSinkErrorEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := start(t, w, nil)
		synctest.Wait()
		drift := &millrace.Error{Kind: millrace.KindData, Op: "apply", Key: "(id)=(7)", Err: fmt.Errorf("row is missing")}
		w.cut(nil, drift)
		if err := <-r.done; !errors.Is(err, drift) {
			t.Errorf("got %v", err)
		}
	})
}

// sleep lets virtual time pass, and then everything that is to happen happen.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
