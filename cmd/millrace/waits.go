package main

import (
	"context"
	"fmt"
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

// What a lag waits for, as the status says it.
const (
	waitsForNothing     = "nothing"
	waitsForTransaction = "source_transaction"
	waitsForDecoding    = "decoding"
	waitsForSpill       = "decoding_spill"
	waitsForNetwork     = "network"
	waitsForIdle        = "idle_position"
	waitsForQueue       = "queue"
	waitsForTarget      = "target"
	waitsForLock        = "target_lock"
)

// facts are what was seen of both ends; nil is unknown.
type facts struct {
	sender   *catalog.Sender
	spilled  bool // the walsender has written to disk since the look before
	position millrace.LSN
	applier  *catalog.Applier
}

// explain says what a lag waits for, in a word and in a sentence, and the
// session that blocks, 0 for none. "" is unknown. The engine knows whether
// received transactions are waiting; if so the reason lies behind us, else
// before us.
func explain(lag relay.Lag, f facts) (word, detail string, pid int32) {
	if lag.WaitsFor == nil {
		return "", "", 0
	}
	switch *lag.WaitsFor {
	case relay.WaitsForApply:
		return behind(f.applier)
	case relay.WaitsForStream:
		return before(f)
	}
	return waitsForNothing, "", 0
}

func behind(a *catalog.Applier) (word, detail string, pid int32) {
	switch {
	case a == nil:
		return waitsForTarget, "", 0
	case a.Blocker != nil:
		at := ""
		if a.Table != "" {
			at = " on " + a.Table
		}
		return waitsForLock, fmt.Sprintf("%s holds a lock%s that pid %d needs", backendText(a.Blocker), at, a.PID), a.Blocker.PID
	case a.State == "active" && a.WaitType == "":
		return waitsForTarget, fmt.Sprintf("pid %d executes", a.PID), 0
	case a.State == "active" && a.WaitType != "Client":
		return waitsForTarget, fmt.Sprintf("pid %d waits for %s %s", a.PID, a.WaitType, a.Wait), 0
	}
	return waitsForQueue, "received transactions are being prepared", 0
}

func before(f facts) (word, detail string, pid int32) {
	s, a := f.sender, f.applier
	switch {
	case a != nil && a.Blocker != nil: // the first parts of a transaction that is still coming
		return behind(a)
	case s == nil || !s.Visible:
		return "", "", 0
	case s.Wait == "WalSenderWriteData" && a != nil && a.State == "active":
		return behind(a) // the stream is held up, since nothing more fits in here
	case s.BlockedBy != 0:
		return waitsForTransaction, fmt.Sprintf("the walsender (pid %d) waits for the transaction of pid %d to end", s.PID, s.BlockedBy), s.BlockedBy
	case s.Wait == "WalSenderWriteData":
		return waitsForNetwork, fmt.Sprintf("the walsender (pid %d) can't send as fast as it decodes", s.PID), 0
	case f.spilled || s.Wait == "ReorderBufferWrite" || s.Wait == "ReorderBufferRead":
		return waitsForSpill, fmt.Sprintf("the walsender (pid %d) writes a transaction larger than logical_decoding_work_mem to disk", s.PID), 0
	case s.WaitType == "Activity" && s.Sent != 0 && s.Sent >= f.position:
		return waitsForIdle, "nothing is left to send; the position is written down within 10 s", 0
	case s.WaitType == "Activity":
		return waitsForIdle, "the walsender waits for the source to write more", 0
	}
	return waitsForDecoding, fmt.Sprintf("the walsender (pid %d) decodes", s.PID), 0
}

// backendText names a session; a prepared transaction has none.
func backendText(b *catalog.Backend) string {
	if b.PID == 0 {
		return "a prepared transaction (pg_prepared_xacts)"
	}
	s := fmt.Sprintf("pid %d", b.PID)
	var more string
	if b.User != "" {
		more = "user " + b.User
	}
	if b.Application != "" {
		more = join(more, b.Application)
	}
	if b.State != "" && b.State != "active" {
		more = join(more, b.State)
	}
	if b.Open > 0 {
		more = join(more, "for "+web.Span(b.Open))
	}
	if more == "" {
		return s
	}
	return s + " (" + more + ")"
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}

// targetEvery is how often the session that applies is looked at while received
// transactions wait, and patientFor how old the oldest has to be before: in the
// normal course nobody asks.
const (
	targetEvery = time.Second
	patientFor  = 500 * time.Millisecond
)

// targetWatch knows what the session that applies is doing while that takes
// long. It only reads, on a connection of its own, which it has only then.
type targetWatch struct {
	target   *session.Endpoint
	progress *relay.Progress
	log      *slog.Logger

	mu      sync.Mutex
	applier *catalog.Applier // nil: unknown
	held    millrace.LSN     // when it was seen
}

func (w *targetWatch) run(ctx context.Context) {
	var conn *pgx.Conn
	defer func() { w.drop(ctx, conn) }()
	tick := time.NewTicker(targetEvery)
	defer tick.Stop()
	quiet := 0
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !w.slow() {
			w.set(nil, 0)
			if quiet++; quiet == 60 && conn != nil { // a minute
				w.drop(ctx, conn)
				conn = nil
			}
			continue
		}
		quiet = 0
		held := w.progress.Held()
		a, err := w.look(ctx, &conn)
		if err != nil && ctx.Err() == nil {
			w.log.Debug("look at the session that applies", "cause", err)
			w.drop(ctx, conn)
			conn = nil
		}
		w.set(a, held)
	}
}

func (w *targetWatch) slow() bool {
	lag := w.progress.Lag(time.Now())
	return lag.Transactions != nil && *lag.Transactions > 0 && lag.Seconds != nil && *lag.Seconds > patientFor.Seconds()
}

func (w *targetWatch) look(ctx context.Context, conn **pgx.Conn) (*catalog.Applier, error) {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	if *conn == nil {
		c, err := w.target.Connect(ctx, session.Watch)
		if err != nil {
			return nil, err
		}
		*conn = c
	}
	return catalog.ReadApplier(ctx, *conn, w.target.ApplicationName(""), string(session.Apply))
}

func (w *targetWatch) set(a *catalog.Applier, held millrace.LSN) {
	w.mu.Lock()
	w.applier, w.held = a, held
	w.mu.Unlock()
}

// seen gives what was seen last. A lock that was waited for then is over once
// more is held.
func (w *targetWatch) seen() *catalog.Applier {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.applier != nil && w.applier.Blocker != nil && w.progress.Held() != w.held {
		return nil
	}
	return w.applier
}

func (w *targetWatch) drop(ctx context.Context, conn *pgx.Conn) {
	if conn != nil {
		conn.Close(context.WithoutCancel(ctx))
	}
}
