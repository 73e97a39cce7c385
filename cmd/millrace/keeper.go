package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/relay"
)

const (
	// writeRetry is the pause after a write to the record that failed.
	writeRetry = time.Second
	// writeWithin bounds one write, so that a dead connection is noticed.
	writeWithin = 5 * time.Second
	// rivalEvery is how often an instance that waits for the slot looks whether
	// the other one lives.
	rivalEvery = time.Second
	// silentBeats is after how many missed heartbeats an instance counts as gone.
	silentBeats = 3
)

// keeper writes what the record shows of this instance: the job's state, the
// heartbeat and the condition. Its methods only take note; a goroutine writes,
// on a connection of its own, so that nothing waits for the target.
type keeper struct {
	open     func(context.Context) (ledger, error)
	interval time.Duration
	standby  bool
	log      *slog.Logger
	// onRival is called once when another instance turns out to live while
	// this one waits for the slot.
	onRival func(record.Runtime)
	// onState is called when another state was written by this instance; nil:
	// nobody asks.
	onState func(state record.State, reason, hint string)

	mu     sync.Mutex
	rt     record.Runtime
	state  record.State
	reason string
	hint   string
	why    string       // the cause of rt.Condition; stands before the reason
	calm   [2]string    // condition and cause while nothing is waited for
	dirty  bool         // state, reason or hint are not written
	shy    bool         // another instance may live: the state is not ours to write
	told   record.State // the last one that onState was told
	fence  record.Fence // as last read or claimed; zero before there is a record
	rivals map[string]time.Time

	wake chan struct{}
	book ledger
	done chan struct{}
	stop context.CancelFunc
}

func newKeeper(s *settings) *keeper {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &keeper{
		open: s.openLedger, interval: s.Safety.HeartbeatInterval, log: s.log,
		rt: record.Runtime{Job: s.Job, Instance: instanceID(), Host: host, PID: os.Getpid(),
			Version: version(), StartedAt: time.Now().UTC()},
		rivals: make(map[string]time.Time),
		wake:   make(chan struct{}, 1),
	}
}

func instanceID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// set takes note of a new state. Those that need a hint end the run: finish
// writes them.
func (k *keeper) set(state record.State, reason string) {
	k.mu.Lock()
	if state != k.state {
		k.log.Info("state changed", "state", state, "reason", reason)
	}
	k.state, k.reason, k.hint, k.dirty = state, reason, hintOf(state), true
	k.mu.Unlock()
	k.poke()
}

// swap is set if the present state and reason are these.
func (k *keeper) swap(from record.State, because string, to record.State, reason string) {
	k.mu.Lock()
	same := k.state == from && k.reason == because
	if same {
		k.log.Info("state changed", "state", to, "reason", reason)
		k.state, k.reason, k.hint, k.dirty = to, reason, hintOf(to), true
	}
	k.mu.Unlock()
	if same {
		k.poke()
	}
}

// tell passes a state on, once.
func (k *keeper) tell(state record.State, reason, hint string) {
	k.mu.Lock()
	changed := k.told != state
	k.told = state
	k.mu.Unlock()
	if changed && k.onState != nil {
		k.onState(state, reason, hint)
	}
}

// isShy tells whether the state is another instance's to write.
func (k *keeper) isShy() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.shy
}

// hintOf is the hint of a state in which nothing is wrong.
func hintOf(state record.State) string {
	switch state {
	case record.Bootstrapping:
		return "wait: the source keeps its log and old row versions until the first load is complete"
	case record.CatchingUp:
		return "wait: the lag shows how far it is"
	case record.Paused:
		return "wait: the load goes on once the slot keeps less than three quarters of resources.wal_retention_alarm; the lag shows how the stream gets on"
	case record.Streaming:
		return "millrace wait --now returns once the destination holds what the source has"
	}
	return ""
}

// follow takes note of a state that somebody else writes to the record.
func (k *keeper) follow(state record.State, reason string) {
	k.mu.Lock()
	if state != k.state {
		k.log.Info("state changed", "state", state, "reason", reason)
	}
	k.state, k.reason, k.hint, k.dirty = state, reason, hintOf(state), false
	k.mu.Unlock()
	k.tell(state, reason, hintOf(state))
}

// waits takes note of what a first load waits for, which the load writes itself.
func (k *keeper) waits(reason, hint string) {
	k.mu.Lock()
	k.reason, k.hint = reason, hint
	k.mu.Unlock()
}

// instance is the name of this process in the record.
func (k *keeper) instance() string { return k.rt.Instance }

// setCalm takes note of the condition, and why, while nothing is waited for.
func (k *keeper) setCalm(condition, why string) {
	k.mu.Lock()
	now := k.rt.Condition == k.calm[0]
	k.calm = [2]string{condition, why}
	k.mu.Unlock()
	if now {
		k.setCondition("", "")
	}
}

// setCondition takes note of what the instance waits for and why; "" ends it.
func (k *keeper) setCondition(condition, why string) {
	k.mu.Lock()
	if condition == "" {
		condition, why = k.calm[0], k.calm[1]
	}
	changed := k.rt.Condition != condition || k.why != why
	if k.rt.Condition != condition {
		clear(k.rivals)
	}
	k.rt.Condition, k.why = condition, why
	k.dirty = k.dirty || changed && k.state != "" && k.state != record.Bootstrapping
	k.mu.Unlock()
	if changed {
		k.poke()
	}
}

func (k *keeper) setHTTP(address string) {
	k.mu.Lock()
	k.rt.HTTP = address
	k.mu.Unlock()
}

// own says that this instance holds the slot: the state is its to write.
func (k *keeper) own() {
	k.mu.Lock()
	k.shy = false
	k.mu.Unlock()
	k.poke()
}

// know takes note of the generation and epoch under which this instance works:
// the state is its to write as long as they are those of the record.
func (k *keeper) know(generation, epoch int64) {
	k.mu.Lock()
	k.fence = record.Fence{Job: k.rt.Job, Generation: generation, Epoch: epoch}
	k.mu.Unlock()
}

// setState writes the state, unless another instance has claimed the job since.
// Then it is that one's to write until this one owns it again.
func (k *keeper) setState(ctx context.Context, state record.State, reason, hint string) error {
	k.mu.Lock()
	fence := k.fence
	k.mu.Unlock()
	if book, ok := k.book.(fencedLedger); ok && fence.Generation != 0 {
		return book.SetStateAs(ctx, fence, state, reason, hint)
	}
	return k.book.SetState(ctx, state, reason, hint)
}

// current gives what is shown of the instance.
func (k *keeper) current() (rt record.Runtime, state record.State, reason, hint string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.rt, k.state, or(k.why, k.reason), k.hint
}

func (k *keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// start looks whether another instance may live, writes for the first time and
// goes on writing. book is the keeper's from here on.
func (k *keeper) start(ctx context.Context, book ledger) error {
	k.book = book
	other, age, err := book.Newest(ctx, k.rt.Instance)
	if err != nil {
		return err
	}
	if other != nil && other.Condition != relay.WaitingForSlot {
		k.shy = age < silentBeats*k.interval
	}
	if err := k.write(ctx); err != nil {
		k.log.Debug("first heartbeat", "cause", err) // it is tried again
	}
	ctx, k.stop = context.WithCancel(context.WithoutCancel(ctx))
	k.done = make(chan struct{})
	go k.run(ctx)
	return nil
}

func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	beat := time.NewTicker(k.interval)
	defer beat.Stop()
	look := time.NewTicker(rivalEvery)
	defer look.Stop()
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
		case <-k.wake:
		case <-retry:
		case <-look.C:
			k.lookForRivals(ctx)
			continue
		}
		retry = nil
		if err := k.write(ctx); err != nil && ctx.Err() == nil {
			k.log.Debug("write the job's record", "cause", err)
			retry = time.After(writeRetry)
		}
	}
}

// write writes what is new, and the heartbeat.
func (k *keeper) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	if err := k.connect(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	rt, state, reason, hint := k.rt, k.state, or(k.why, k.reason), k.hint
	dirty := k.dirty && !k.shy
	k.mu.Unlock()
	if dirty {
		// One that is fenced learns a newer epoch, or ends soon.
		if err := k.setState(ctx, state, reason, hint); err != nil && !errors.Is(err, record.ErrFenced) {
			return err
		} else if err != nil {
			k.log.Debug("write the job's record", "cause", err)
			return k.book.Beat(ctx, &rt)
		}
		k.mu.Lock()
		k.dirty = k.state != state || or(k.why, k.reason) != reason || k.hint != hint
		k.mu.Unlock()
		k.tell(state, reason, hint)
	}
	if there, err := k.recorded(ctx); err != nil || !there {
		return err
	}
	if err := k.book.Beat(ctx, &rt); err != nil {
		return err
	}
	k.mu.Lock()
	k.rt.HeartbeatAt = rt.HeartbeatAt.UTC()
	k.mu.Unlock()
	return nil
}

// recorded tells whether there is a place to write the heartbeat to.
func (k *keeper) recorded(ctx context.Context) (bool, error) {
	k.mu.Lock()
	beaten := !k.rt.HeartbeatAt.IsZero()
	k.mu.Unlock()
	if beaten {
		return true, nil
	}
	return k.book.Ready(ctx)
}

func (k *keeper) connect(ctx context.Context) error {
	if k.book != nil && !k.book.Closed() {
		return nil
	}
	book, err := k.open(ctx)
	if err != nil {
		return err
	}
	k.book = book
	return nil
}

// lookForRivals ends this instance when another one's heartbeat moves while
// this one waits for the slot. One that waits itself does not hold the slot.
func (k *keeper) lookForRivals(ctx context.Context) {
	k.mu.Lock()
	waiting := k.rt.Condition == relay.WaitingForSlot && !k.standby
	k.mu.Unlock()
	if !waiting {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	if err := k.connect(ctx); err != nil {
		return
	}
	other, _, err := k.book.Newest(ctx, k.rt.Instance)
	if err != nil || other == nil || other.Condition == relay.WaitingForSlot {
		return
	}
	k.mu.Lock()
	seen, ok := k.rivals[other.Instance]
	k.rivals[other.Instance] = other.HeartbeatAt
	k.mu.Unlock()
	if ok && other.HeartbeatAt.After(seen) && k.onRival != nil {
		k.onRival(*other)
	}
}

// finish writes the last state, takes the sign of life away and disconnects.
// within bounds all of it. With an empty state only the sign of life goes.
func (k *keeper) finish(within time.Duration, state record.State, reason, hint string) error {
	if k.stop == nil {
		return nil // it never began
	}
	k.stop()
	<-k.done
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	k.mu.Lock()
	write := state != "" && !k.shy
	if write {
		k.state, k.reason, k.hint = state, reason, hint
	}
	k.rt.Condition, k.why = "", ""
	k.mu.Unlock()
	for {
		err := k.last(ctx, write)
		if err == nil || ctx.Err() != nil || millrace.KindOf(err) != millrace.KindRetry {
			return err
		}
		select {
		case <-time.After(writeRetry / 4):
		case <-ctx.Done():
		}
	}
}

func (k *keeper) last(ctx context.Context, write bool) error {
	if err := k.connect(ctx); err != nil {
		return err
	}
	var fenced error
	if write {
		fenced = k.setState(ctx, k.state, k.reason, k.hint)
		if fenced != nil && !errors.Is(fenced, record.ErrFenced) {
			return fenced
		}
	}
	if there, err := k.recorded(ctx); err != nil {
		return err
	} else if there {
		if err := k.book.Leave(ctx, k.rt.Instance); err != nil {
			return err
		}
	}
	return cmp.Or(fenced, k.book.Close(ctx))
}

// rivalError says who runs the job.
func rivalError(other record.Runtime) error {
	return &millrace.Error{Kind: millrace.KindPreflight, Op: "run job " + other.Job,
		Err:  fmt.Errorf("another instance runs it on host %s with pid %d", other.Host, other.PID),
		Hint: "stop that one, or wait behind it with run --standby"}
}
