package apply

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
)

// Fallback tells of a batch whose sets did not do what they should.
type Fallback struct {
	Table        millrace.TableName // zero when it was no single table's
	Transactions int                // source transactions in the batch
	Cause        error
}

// fallBack applies a batch row by row after its sets have failed. First within
// the same target transaction: what was before the batch stays. If that fails
// too, every source transaction gets a target transaction of its own, so that
// all before the bad one are delivered.
func (x *executor) fallBack(ctx context.Context, b *batch, cause *failure) error {
	x.note(b, cause)
	x.atServer = false
	err := x.again(ctx, b)
	var f *failure
	switch {
	case err == nil:
		x.count(b, true)
		return nil
	case !errors.As(err, &f) || x.passing(f):
		return err
	case b.large && (b.open || x.batches > 0):
		return x.largeFailed(ctx, b, f)
	case b.large || len(b.txns) == 1:
		return x.stop(ctx, b, f)
	}
	if err := x.rollback(ctx); err != nil {
		return err
	}
	for i := range b.txns {
		one := batch{txns: b.txns[i : i+1], routes: b.routes, deferrable: b.deferrable, complete: 1, history: b.history}
		last := i == len(b.txns)-1
		if last {
			one.idle = b.idle
		}
		if err := x.again(ctx, &one); err != nil {
			if errors.As(err, &f) && !x.passing(f) {
				return x.stop(ctx, &one, f)
			}
			return err
		}
		x.count(&one, true)
		if last {
			break // its COMMIT is the batch's
		}
		x.state = txReady
		if err := x.commit(ctx); err != nil {
			return err
		}
	}
	return nil
}

// again applies the batch row by row from where it began.
func (x *executor) again(ctx context.Context, b *batch) error {
	if err := x.settle(ctx); err != nil {
		return err
	}
	x.batch, x.careful = b, true
	clear(x.byName)
	switch {
	case x.state == txOpen && x.batches > 0:
		x.command("ROLLBACK TO SAVEPOINT part", anyCount, markOther)
	case x.state == txOpen:
		x.command("ROLLBACK", anyCount, markOther)
		fallthrough
	default:
		x.open()
	}
	if b.deferrable { // the rollback has undone that as well
		x.deferred = false
		x.deferConstraints(b)
	}
	for _, t := range b.txns {
		if err := x.txn(ctx, t); err != nil {
			return err
		}
	}
	return x.finish(ctx, b)
}

// largeFailed ends a large transaction that can't be applied. What failed may
// be a check at its end, for which earlier parts went in sets: so it comes again
// once, all of it row by row, before it is given up.
func (x *executor) largeFailed(ctx context.Context, b *batch, f *failure) error {
	commit := b.txns[0].Commit
	if x.forced == commit {
		return x.stop(ctx, b, f)
	}
	x.redo(commit)
	return &millrace.Error{Kind: millrace.KindRetry, Op: "apply", Peer: millrace.PeerDestination, LSN: commit,
		Err: errors.Join(errRedo, f)}
}

// stop rolls back and names what can't be applied.
func (x *executor) stop(ctx context.Context, b *batch, f *failure) error {
	if err := x.rollback(ctx); err != nil {
		return err
	}
	err := x.explain(ctx, b, f)
	var e *millrace.Error
	if b.last().Chunk != nil && session.SQLState(f.err) == "23505" && errors.As(err, &e) && x.mayClash != nil && x.mayClash() {
		e.Kind = millrace.KindRetry
	}
	return err
}

// mostClashes is how often in a run the rows of a load are read again that a unique
// constraint has refused. Behind a stream that lags, a value that has moved between
// rows can be in both: in one that was loaded, and in the newer one. That passes; what
// something else has put there does not.
const mostClashes = 5

// note tells of a fallback. On a table where sets have failed they are not
// tried for a while.
func (x *executor) note(b *batch, cause *failure) {
	x.stats.fallbacks.Add(1)
	fb := Fallback{Transactions: len(b.txns), Cause: withoutDetail(cause)}
	var to *target
	switch ref := cause.ref.(type) {
	case *setRef:
		to = ref.to
	case replacedRef:
		to = ref.to
	case *millrace.Change:
		if ref.Rel != nil {
			to = b.routes[ref.Rel].to
		}
	}
	log, level := x.log.With("transactions", fb.Transactions, "cause", fb.Cause), slog.LevelDebug
	if !b.empty() {
		log = log.With("commit_lsn", b.txns[0].Commit)
	}
	if to != nil {
		fb.Table = to.Name
		log = log.With("table", fb.Table)
		to.cool(time.Now())
		if !to.noted.Swap(true) {
			level = slog.LevelWarn // once per table
		}
	}
	log.Log(context.Background(), level, "a set failed, its changes go row by row")
	// Unless a constraint was violated the table may not be as it was described.
	if state := session.SQLState(cause.err); state != "" && !strings.HasPrefix(state, "23") {
		x.stumbled()
	}
	if x.fallback != nil {
		x.fallback(fb)
	}
}
