package apply

import (
	"context"
	"errors"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

// The references of the commands of two-phase commit.
const (
	markPrepare mark = "prepare the transaction"
	markDecide  mark = "decide the prepared transaction"
)

// canPrepare tells whether two-phase commit is to begin. While tables are still
// being loaded it does not: their marks go with progress rows, which a prepared
// transaction has none of.
func (s *Sink) canPrepare(ctx context.Context, cp *millrace.Checkpoint) (bool, error) {
	if !s.opt.TwoPhase || len(cp.Tables) > 0 {
		return false, nil
	}
	var most int
	err := s.side.QueryRow(ctx, `SELECT pg_catalog.current_setting('max_prepared_transactions')::int`).Scan(&most)
	if err != nil {
		return false, session.Wrap("open the destination", millrace.PeerDestination, err)
	}
	if most == 0 {
		s.opt.Log.Warn("prepared transactions are delivered once they are committed: the destination has max_prepared_transactions = 0")
	}
	return most > 0, nil
}

// TwoPhase tells whether two-phase commit is asked for and the target, as Open
// has found it, permits it.
func (s *Sink) TwoPhase() bool { return s.twoPhase.Load() }

// claimPrepared finds what former sessions have prepared. What is of an earlier
// generation will never be decided.
func (s *Sink) claimPrepared(ctx context.Context, cp *millrace.Checkpoint) (*record.Prepared, error) {
	dropped, err := record.RollbackPrepared(ctx, s.side, s.opt.Job, cp.Generation)
	if err != nil {
		return nil, err
	}
	if len(dropped) > 0 {
		s.opt.Log.Warn("rolled back what an earlier generation of the job had prepared at the destination", "gids", dropped)
	}
	return record.ReadPrepared(ctx, s.side, s.opt.Job, cp.Generation)
}

// meet looks whether the target has a transaction already because it was
// prepared there. It is false for what needs no more.
func (w *writer) meet(t *millrace.Txn) bool {
	switch t.Phase {
	case millrace.Prepared:
		return !w.prepared.Undecided[t.XID] && !w.prepared.Committed[t.XID]
	case millrace.CommitPrepared, millrace.RollbackPrepared:
		delete(w.prepared.Undecided, t.XID)
		delete(w.prepared.Committed, t.XID)
	}
	return true
}

// finishPrepare ends a transaction that is to be prepared: without a progress
// row, on which the next transaction would have to wait.
func (x *executor) finishPrepare(ctx context.Context, b *batch) error {
	if x.deferred {
		x.command("SET CONSTRAINTS ALL IMMEDIATE", anyCount, markConstraints)
	}
	t := b.last()
	gid := x.prepared.GID(t.XID)
	args := record.InsertPreparedArgs(x.job, &x.cp, gid, t.Commit)
	x.bind(&x.insertPreparedStmt, len(args), false)
	for _, a := range args {
		x.value(a)
	}
	x.wire.execute(1, markProgress)
	// As with COMMIT, what was asked for must be known to have happened.
	x.sync()
	if err := x.await(ctx); err != nil {
		return err
	}
	x.command("PREPARE TRANSACTION "+literal(gid), anyCount, markPrepare)
	x.sync()
	if err := x.await(ctx); err != nil {
		return err
	}
	x.state = txNone
	return nil
}

func literal(gid string) string { return strings.TrimSpace(millrace.QuoteLiteral(gid)) }

// decide commits or rolls back a prepared transaction. That it is not there any
// more is right after a crash: whether it was committed is known by its row.
func (x *executor) decide(ctx context.Context, b *batch) error {
	if err := x.commit(ctx); err != nil {
		return err
	}
	verb := "COMMIT PREPARED "
	if b.phase == millrace.RollbackPrepared {
		verb = "ROLLBACK PREPARED "
	}
	x.command(verb+literal(x.prepared.GID(b.last().XID)), anyCount, markDecide)
	x.sync()
	err := x.await(ctx)
	var f *failure
	if !errors.As(err, &f) {
		return x.wrap(b, err)
	}
	switch e := x.explainPrepared(b, f); {
	case session.SQLState(f.err) == "42704":
		return nil
	case e != nil && !x.passing(f):
		return e
	}
	return x.wrap(b, err)
}

// forget removes the row of a prepared transaction, with the progress row of its
// commit. One that is missing was not committed.
func (x *executor) forget(b *batch) {
	if b.phase != millrace.CommitPrepared {
		return
	}
	x.bind(&x.deletePreparedStmt, 2, false)
	x.value([]byte(x.job))
	x.value([]byte(x.prepared.GID(b.last().XID)))
	x.wire.execute(1, markDecide)
}

// explainPrepared says what cures a failure of two-phase commit itself, which
// is none of the changes'.
func (x *executor) explainPrepared(b *batch, f *failure) *millrace.Error {
	m, _ := f.ref.(mark)
	if m != markPrepare && m != markDecide {
		return nil
	}
	e := &millrace.Error{Kind: millrace.KindData, Op: string(m) + " " + x.prepared.GID(b.last().XID), Peer: millrace.PeerDestination,
		LSN: b.last().Commit, Err: f.err}
	switch {
	case f.err == nil:
		e.Err = errors.New("it is not at the destination: something else has rolled it back there")
		e.Hint = "the source does not send it again: take the first load anew with bootstrap --restart-snapshot"
	case m == markPrepare:
		e.Hint = "raise max_prepared_transactions at the destination, which takes a restart" + goesOn
	default:
		e.Hint = "COMMIT PREPARED needs the role that has prepared it, or a superuser" + goesOn
	}
	return e
}

// prepareStmts are the statements of two-phase commit.
type prepareStmts struct {
	insertPreparedStmt, deletePreparedStmt stmt
	prepared                               *record.Prepared
}

func newPrepareStmts() prepareStmts {
	return prepareStmts{
		insertPreparedStmt: stmt{sql: record.InsertPreparedSQL, types: record.InsertPreparedTypes},
		deletePreparedStmt: stmt{sql: record.DeletePreparedSQL, types: record.DeletePreparedTypes},
	}
}
