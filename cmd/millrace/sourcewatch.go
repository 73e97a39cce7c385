package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/relay"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/web"
)

const (
	// watchEvery is how often the source's position and the slot are read.
	watchEvery = 500 * time.Millisecond
	// watchRetry is the longest pause between tries to reach the source.
	watchRetry = 30 * time.Second
	// oldestEvery is how many looks pass before the oldest transaction is
	// looked for: it concerns WAL that is kept for minutes.
	oldestEvery = 10
)

// sourceWatch knows where the source and the job's slot are, as of half a
// second ago. It only reads, on a connection of its own.
type sourceWatch struct {
	source   *session.Endpoint
	progress *relay.Progress
	governor *governor
	log      *slog.Logger
	wake     chan struct{}
	// onFree is called at each look that finds the slot unused.
	onFree func()

	mu       sync.Mutex
	slotName string
	server   *catalog.Server // kept when the source can't be reached
	position millrace.LSN    // 0: unknown now
	slot     *catalog.Slot   // nil: unknown now, or there is none
	moved    time.Time       // when confirmed_flush_lsn was last seen to move
	sender   *catalog.Sender // nil: unknown, or nobody asked since nothing lags
	spilled  bool            // it has spilled since the look before
	oldest   *catalog.Backend
	looks    int
	free     *int64 // bytes of the disk there; nil: can't be seen
	walDir   string // where the source keeps its WAL, as far as that is on this machine
}

// run watches until ctx ends.
func (w *sourceWatch) run(ctx context.Context) {
	pause := watchEvery
	for ctx.Err() == nil {
		conn, err := w.source.Connect(ctx, session.Watch)
		if err == nil {
			pause = watchEvery
			err = w.follow(ctx, conn)
			_ = conn.Close(context.WithoutCancel(ctx)) // it may be broken
		}
		w.forget()
		if ctx.Err() != nil {
			return
		}
		w.log.Debug("watch the source", "cause", err)
		select {
		case <-time.After(pause):
			pause = min(2*pause, watchRetry)
		case <-ctx.Done():
		}
	}
}

func (w *sourceWatch) follow(ctx context.Context, conn *pgx.Conn) error {
	server, err := catalog.ReadServer(ctx, conn)
	if err != nil {
		return err
	}
	w.know(server)
	w.walDir = walDir(ctx, conn)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		if err := w.look(ctx, conn); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-w.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// lookNow has the slot read at once: it is known to have changed.
func (w *sourceWatch) lookNow() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *sourceWatch) look(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	// The position is read first: what is held of it later is held for certain.
	position, err := catalog.Position(ctx, conn)
	if err != nil {
		return err
	}
	w.mu.Lock()
	name := w.slotName
	w.mu.Unlock()
	slot, err := catalog.ReadSlot(ctx, conn, name)
	if err != nil {
		return err
	}
	if err := w.lookCloser(ctx, conn, name, slot); err != nil {
		return err
	}
	now, free := time.Now(), freeSpace(w.walDir)
	w.mu.Lock()
	w.free = free
	if slot != nil && (w.slot == nil || slot.ConfirmedFlush != w.slot.ConfirmedFlush) {
		w.moved = now
	}
	w.position, w.slot = position, slot
	oldest := w.oldest
	w.mu.Unlock()
	w.progress.Observe(position, now)
	w.governor.observe(observation{at: now, slot: slot, lag: w.progress.Lag(now), free: free, oldest: oldest})
	if slot != nil && !slot.Active {
		w.onFree()
	}
	return nil
}

// lookCloser looks at the walsender while something is missing that it has not
// sent, and now and then for the oldest transaction.
func (w *sourceWatch) lookCloser(ctx context.Context, conn *pgx.Conn, name string, slot *catalog.Slot) error {
	var sender *catalog.Sender
	var err error
	lag := w.progress.Lag(time.Now())
	if slot != nil && slot.Active && lag.WaitsFor != nil && *lag.WaitsFor == relay.WaitsForStream {
		if sender, err = catalog.ReadSender(ctx, conn, name); err != nil {
			return err
		}
	}
	w.mu.Lock()
	w.spilled = sender != nil && w.sender != nil && sender.SpillBytes > w.sender.SpillBytes
	w.sender = sender
	due := w.looks%oldestEvery == 0
	w.looks++
	w.mu.Unlock()
	if !due {
		return nil
	}
	oldest, err := catalog.OldestTransaction(ctx, conn)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.oldest = oldest
	w.mu.Unlock()
	return nil
}

// sending gives what the walsender was doing at the last look, and whether it
// has spilled to disk.
func (w *sourceWatch) sending() (*catalog.Sender, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sender, w.spilled
}

// follows sets the name of the slot: once there is a record, that counts.
func (w *sourceWatch) follows(slot string) {
	w.mu.Lock()
	w.slotName = slot
	w.mu.Unlock()
}

// know takes note of the server.
func (w *sourceWatch) know(server *catalog.Server) {
	w.mu.Lock()
	w.server = server
	w.mu.Unlock()
}

func (w *sourceWatch) forget() {
	w.mu.Lock()
	w.position, w.slot = 0, nil
	w.sender, w.spilled, w.oldest, w.looks, w.free = nil, false, nil, 0, nil
	w.mu.Unlock()
	w.progress.Observe(0, time.Now())
}

// sizes gives the source's WAL page and segment size, 0 while unknown.
func (w *sourceWatch) sizes() (page, segment uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.server == nil {
		return 0, 0
	}
	return w.server.PageSize, w.server.SegmentSize
}

// status gives what is known of the source now.
func (w *sourceWatch) status() web.Source {
	w.mu.Lock()
	defer w.mu.Unlock()
	st := sourceStatus(w.slotName, w.server, w.position, w.slot, w.oldest)
	st.DiskFreeBytes = w.free
	return st
}

// confirmedAge is how long confirmed_flush_lsn has rested.
func (w *sourceWatch) confirmedAge() *float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.slot == nil {
		return nil
	}
	return web.Known(time.Since(w.moved).Seconds())
}

func sourceStatus(name string, server *catalog.Server, position millrace.LSN, slot *catalog.Slot, oldest *catalog.Backend) web.Source {
	s := web.Source{Slot: name, CurrentLSN: web.KnownLSN(position), OldestTransaction: backendStatus(oldest)}
	if server != nil {
		s.SystemID = &server.SystemID
		if !server.InRecovery { // where SQL shows the timeline of the last restart point
			s.Timeline = &server.Timeline
		}
		if server.MaxSlotWALKeep >= 0 {
			s.MaxSlotWALKeepBytes = &server.MaxSlotWALKeep
		}
	}
	if slot == nil {
		return s
	}
	s.SlotActive, s.WALStatus = &slot.Active, &slot.WALStatus
	if slot.InvalidationReason != "" {
		s.InvalidationReason = &slot.InvalidationReason
	}
	s.RestartLSN, s.ConfirmedFlushLSN = web.KnownLSN(slot.Restart), web.KnownLSN(slot.ConfirmedFlush)
	if slot.Restart != 0 {
		s.RetainedWALBytes = &slot.RetainedBytes
		s.WALHeldBy = known(walHeldBy(slot, oldest))
	}
	s.SafeWALSizeBytes = slot.SafeWALSize
	return s
}

// muchWAL is from where it matters who holds WAL back: a few segments are kept
// in the normal course, since restart_lsn moves only now and then.
const muchWAL = 64 << 20

// walHeldBy tells a lag of ours from a transaction at the source that is older
// than what we have confirmed: no reader of the slot can help there.
func walHeldBy(slot *catalog.Slot, oldest *catalog.Backend) string {
	switch {
	case slot.RetainedBytes < muchWAL:
		return ""
	case heldByTransaction(slot) && oldest != nil:
		return waitsForTransaction
	case heldByTransaction(slot):
		return ""
	}
	return "lag"
}

func backendStatus(b *catalog.Backend) *web.Backend {
	if b == nil {
		return nil
	}
	s := &web.Backend{PID: b.PID, Application: known(b.Application), State: known(b.State)}
	if b.Open > 0 {
		s.Seconds = web.Known(b.Open.Seconds())
	}
	return s
}
