package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/web"
)

// waitPause is the longest pause between two looks at the checkpoint.
const waitPause = 100 * time.Millisecond

func (a *app) waitCommand() *cobra.Command {
	var lsn string
	var now bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "wait",
		Short: "Return once the destination holds a position",
		Long: `Wait returns when the destination durably holds a position of the source: --lsn, taken
with pg_current_wal_insert_lsn() after COMMIT has returned, or the source's position now.

It reads the destination's checkpoint. It also waits for the job's record to appear,
through the first load, and while the job is stopped. Exit code 1 after the timeout, 3
when the job is in state error or resync_required.`,
		Example: `  millrace wait --now
  millrace wait --lsn 16/B374D848 --timeout 5s`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			w := waiter{app: a, now: now, timeout: timeout}
			if (lsn != "") == now {
				return usage(c, errors.New("give either --lsn or --now"))
			}
			if lsn != "" {
				token, err := web.ParseToken(lsn)
				if err != nil {
					return usage(c, err)
				}
				if token.IsXID {
					return &millrace.Error{Kind: millrace.KindConfig, Op: "--lsn " + lsn,
						Err:  errors.New("only a running instance knows transactions by number"),
						Hint: "ask its /wait?xid=N, or use an LSN"}
				}
				w.token = token
			}
			load := a.loadTarget // a token needs no source
			if now {
				load = func() (*settings, error) { return a.load() }
			}
			s, err := load()
			if err != nil {
				return err
			}
			w.settings = s
			return w.run(c.Context())
		},
	}
	c.Flags().StringVar(&lsn, "lsn", "", "`TOKEN`: an LSN such as 16/B374D848, or SYSTEM:TIMELINE:GENERATION:LSN")
	c.Flags().BoolVar(&now, "now", false, "the source's position at this moment")
	c.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "give up after this `TIME`")
	return c
}

// waiter is one millrace wait.
type waiter struct {
	*app
	*settings
	token   web.Token
	now     bool
	timeout time.Duration

	at     millrace.LSN // normalised; 0 until the sizes of the source's WAL are known
	held   millrace.LSN
	doing  string // what a timeout is to say
	trying error  // the last lost connection

	stopped bool // the job, when it was looked at last
}

func (w *waiter) run(ctx context.Context) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	err := w.wait(ctx)
	if err != nil {
		if ctx.Err() == nil || interrupted(ctx) {
			return err
		}
		return &millrace.Error{Kind: millrace.KindRetry, Op: "wait", Err: w.timedOut(),
			Hint: w.advice()}
	}
	return w.print(time.Since(began))
}

// advice is the hint of a timeout.
func (w *waiter) advice() string {
	switch {
	case w.trying != nil:
		return or(millrace.HintOf(w.trying), "millrace status shows what the job is doing")
	case w.stopped:
		return "the job does not run: millrace run takes it up again"
	}
	return "millrace status shows what the job is doing"
}

func (w *waiter) timedOut() error {
	if w.trying != nil {
		return fmt.Errorf("not held within %v: %w", w.timeout, w.trying)
	}
	return fmt.Errorf("not held within %v: %s", w.timeout, w.doing)
}

func (w *waiter) print(took time.Duration) error {
	if w.json {
		return w.printJSON(map[string]any{"job": w.Job, "lsn": w.token.LSN, "held_lsn": w.held, "waited_seconds": took.Seconds()})
	}
	_, err := fmt.Fprintf(w.stdout, "held %s\n", w.held)
	return err
}

// wait tries until ctx ends; lost connections are tried again.
func (w *waiter) wait(ctx context.Context) error {
	w.doing = "the destination was not reached"
	pause := 10 * time.Millisecond
	for {
		err := w.attempt(ctx)
		if err == nil {
			return nil
		}
		if !session.Retryable(err) {
			return err
		}
		if ctx.Err() == nil {
			w.trying = err
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *waiter) attempt(ctx context.Context) error {
	if w.now && w.token.LSN == 0 {
		if err := w.askSource(ctx); err != nil {
			return err
		}
	}
	book, err := w.openLedger(ctx)
	if err != nil {
		return err
	}
	defer book.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it was only read
	w.trying = nil
	pause := time.Millisecond
	for {
		done, err := w.look(ctx, book)
		if err != nil {
			return session.Wrap("wait", millrace.PeerDestination, err)
		}
		if done {
			return book.Settle(ctx)
		}
		select {
		case <-time.After(pause):
			pause = min(pause*3/2+time.Millisecond, waitPause)
		case <-ctx.Done():
			return session.Wrap("wait", millrace.PeerDestination, ctx.Err())
		}
	}
}

func (w *waiter) askSource(ctx context.Context) error {
	if w.prefix != nil {
		at, err := w.prefixPosition(ctx)
		w.token.LSN, w.at = at, at
		return err
	}
	conn, err := w.source.Connect(ctx, session.Watch)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	at, err := catalog.Position(ctx, conn)
	if err != nil {
		return session.Wrap("read the source's position", millrace.PeerSource, err)
	}
	w.token.LSN, w.at = at, at
	return nil
}

// look reads the checkpoint once and tells whether it holds the token.
func (w *waiter) look(ctx context.Context, book ledger) (bool, error) {
	j, cp, err := book.Read(ctx)
	if err != nil {
		return false, err
	}
	if j == nil {
		w.doing = "there is no record of job " + w.Job + " yet"
		return false, nil
	}
	if j.State == record.Failed || j.State == record.ResyncRequired {
		return false, &exit{exitJob, &millrace.Error{Kind: millrace.KindData, Op: "wait",
			Err: fmt.Errorf("the job is in state %s: %s", j.State, j.Reason), Hint: j.Hint}}
	}
	if why := w.token.Foreign(cp.History); why != "" {
		return false, &millrace.Error{Kind: millrace.KindPreflight, Op: "wait", Err: errors.New(why), Hint: takeNewToken}
	}
	if w.at == 0 {
		w.at = w.token.LSN.Normalize(j.PageSize, j.SegmentSize)
	}
	w.held, w.stopped = cp.Acked, j.State == record.Stopped
	if j.ConsistentFrom == 0 {
		w.doing = fmt.Sprintf("the first load is not complete (state %s)", j.State)
		return false, nil
	}
	w.doing = fmt.Sprintf("the destination holds %s (state %s)", cp.Acked, j.State)
	line := cp.Timeline
	if w.token.History != nil {
		line = w.token.History.Timeline
	}
	if line < cp.Timeline {
		return w.lookBack(ctx, book, line, cp.Timeline)
	}
	return line == cp.Timeline && cp.Acked >= w.at, nil
}

// takeNewToken is for a token that this job never holds.
const takeNewToken = "take a new token from the source that the job follows, after the commit it is to stand for"

// lookBack decides a token of an earlier timeline.
func (w *waiter) lookBack(ctx context.Context, book ledger, line, current int32) (bool, error) {
	held, err := book.HeldOn(ctx, line, w.at)
	if err != nil || held {
		return held, err
	}
	return false, &millrace.Error{Kind: millrace.KindPreflight, Op: "wait",
		Err:  fmt.Errorf("position %s of timeline %d is not on the history that the job follows (timeline %d)", w.at, line, current),
		Hint: takeNewToken}
}

// heldOn tells whether a position of an earlier timeline was applied before the
// stream left that timeline: the newest progress row of each one is kept.
func heldOn(ctx context.Context, q record.Querier, job string, timeline int32, at millrace.LSN) (bool, error) {
	var held bool
	err := q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM millrace.progress
		WHERE job = $1 AND timeline <= $2 AND acked_lsn >= $3::pg_lsn)`, job, timeline, at.String()).Scan(&held)
	return held, session.Wrap("read earlier progress", millrace.PeerDestination, err)
}

func durableCommit(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	// A commit is flushed only if its transaction has written to the log; having
	// a number is not enough. A message writes there and nowhere else.
	if _, err := tx.Exec(ctx, `SELECT pg_catalog.pg_logical_emit_message(true, 'millrace', ''),
		CASE WHEN pg_catalog.current_setting('synchronous_commit') IN ('off', 'local')
		     THEN pg_catalog.set_config('synchronous_commit', 'on', true) END`); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
