package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/schema"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// errTimeout is the cause of a load that has held its snapshot for too long.
var errTimeout = errors.New("not complete within snapshot.timeout")

// Besides tells whether what is left of the job's first load is done beside the
// stream, and Run has nothing more to do.
func Besides(j *record.Job) bool {
	return j != nil && j.ConsistentFrom == 0 && j.Mode == ModeIncremental && !j.LoadStarted.IsZero()
}

// fillBeside makes everything that tables need which are loaded beside the
// stream: there, changes are applied while the rows come, so keys are needed from
// the beginning. Only foreign keys wait for the end.
func (l *load) fillBeside(ctx context.Context) error {
	h, err := l.createSlot(ctx)
	if err != nil {
		return err
	}
	defer h.Release()
	if err := l.makeDefinitions(ctx, h); err != nil {
		return err
	}
	tables, err := l.pairTables(ctx, h)
	if err != nil {
		return err
	}
	if err := l.refuseChecked(tables); err != nil {
		return err
	}
	if err := l.recordTables(ctx, h, tables); err != nil {
		return err
	}
	h.Release()
	if err := l.makeIndexes(ctx); err != nil {
		return err
	}
	return l.inRecord(ctx, "begin the load", func(tx pgx.Tx) error {
		return l.beginBeside(ctx, tx, l.job.Tables)
	})
}

// refuseChecked refuses foreign keys that would be checked while rows come in any
// order.
func (l *load) refuseChecked(tables []*snapshot.Table) error {
	if l.replica {
		return nil
	}
	var problems []snapshot.Finding
	for _, t := range tables {
		if len(t.Target.ForeignKeys) > 0 {
			problems = append(problems, snapshot.Finding{Subject: t.Name().String(),
				Text: "has foreign keys on the target, which are checked there while rows are loaded beside the stream",
				Cure: "GRANT SET ON PARAMETER session_replication_role to the target's role, or drop the foreign keys until the load is complete"})
			break
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return problemError("load beside the stream", problems)
}

// beginBeside leaves the marks from which the stream takes the load up.
func (l *load) beginBeside(ctx context.Context, tx pgx.Tx, tables []record.Table) error {
	kept, err := l.keptRanges(ctx, tx)
	if err != nil {
		return err
	}
	for _, t := range tables {
		if _, goesOn := kept[t.OID]; t.Copied || t.Adding || goesOn {
			continue
		}
		if err := record.BeginLoad(ctx, tx, l.Job, t.OID, ""); err != nil {
			return err
		}
	}
	if err := record.SetBeside(ctx, tx, l.Job, ModeIncremental); err != nil {
		return err
	}
	return record.SetState(ctx, tx, l.Job, record.Stopped, "the first load goes on beside the stream",
		"millrace run, or millrace bootstrap, takes it up")
}

// goOn is resume, and leaves a note of how it failed.
func (l *load) goOn(ctx context.Context) error {
	l.recorded = false // there is something to be kept
	err := l.resume(ctx)
	if err == nil {
		return nil
	}
	advise(err)
	stopped := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()
	state := record.Failed
	switch {
	case stopped, session.Retryable(err), millrace.KindOf(err) == millrace.KindPreflight:
		state = record.Stopped
	case millrace.KindOf(err) == millrace.KindResync:
		state = record.ResyncRequired
	}
	l.close() // they may be in any state
	if conn, e := l.Target.Connect(ctx, session.Copy); e == nil {
		l.target = conn
		if e := record.SetState(ctx, conn, l.Job, state, err.Error(), cmp.Or(millrace.HintOf(err), againHint)); e != nil {
			l.log.Warn("the state could not be written", "cause", e)
		}
	}
	return err
}

// resume takes up a load whose exported snapshot is gone. Tables that are complete
// stay, since the stream goes on right behind them; the others are emptied, and
// read beside the stream.
func (l *load) resume(ctx context.Context) error {
	if err := l.adopt(ctx); err != nil {
		return err
	}
	if err := l.emptyUnfinished(ctx); err != nil {
		return err
	}
	if err := l.planNow(ctx); err != nil {
		return err
	}
	if p := l.definitions; p != nil {
		if err := p.ApplyBefore(ctx, l.target); err != nil {
			return err
		}
	}
	if err := l.makeIndexes(ctx); err != nil {
		return err
	}
	tables, err := l.pairNow(ctx)
	if err != nil {
		return err
	}
	if err := l.refuseChecked(tables); err != nil {
		return err
	}
	err = l.inRecord(ctx, "go on beside the stream", func(tx pgx.Tx) error {
		for i, t := range l.job.Tables {
			if t.Copied {
				continue
			}
			s := tables[i].Source
			if err := record.UpdateTable(ctx, tx, l.Job, record.Table{OID: s.OID, Name: s.Name, TargetOID: tables[i].Target.OID,
				Filenode: s.Filenode, Shape: catalog.ShapeOf(s)}); err != nil {
				return err
			}
		}
		return l.beginBeside(ctx, tx, l.job.Tables)
	})
	if err == nil {
		l.log.Info("the first load goes on beside the stream", "complete", complete(l.job.Tables), "tables", len(l.job.Tables))
	}
	return err
}

// adopt takes the set of tables from the record, and makes sure that the slot is
// there, which alone knows what happened since.
func (l *load) adopt(ctx context.Context) error {
	if err := l.checkSlot(ctx); err != nil {
		return err
	}
	var err error
	if l.replica, err = snapshot.ReplicaAllowed(ctx, l.target); err != nil {
		return err
	}
	if l.job.Tables, err = record.Tables(ctx, l.target, l.Job); err != nil {
		return err
	}
	l.set = snapshot.Selection{}
	l.job.Tables = slices.DeleteFunc(l.job.Tables, func(t record.Table) bool { return t.Adding })
	for _, t := range l.job.Tables {
		l.set.Tables = append(l.set.Tables, &catalog.Table{OID: t.OID, Name: t.Name})
	}
	target, err := catalog.ReadServer(ctx, l.target)
	if err != nil {
		return session.Wrap("read the server", millrace.PeerDestination, err)
	}
	return l.prepareDefinitions(ctx, target)
}

// checkSlot makes sure that the job's slot is there, on the system that the job was
// begun from.
func (l *load) checkSlot(ctx context.Context) error {
	slot, err := catalog.ReadSlot(ctx, l.source, l.job.Slot)
	if err != nil {
		return session.Wrap("read slot "+l.job.Slot, millrace.PeerSource, err)
	}
	if slot == nil || slot.WALStatus == "lost" || slot.InvalidationReason != "" {
		return &millrace.Error{Kind: millrace.KindResync, Op: "first load", Peer: millrace.PeerSource,
			Err:  fmt.Errorf("an earlier one was interrupted, and its slot %s is lost", l.job.Slot),
			Hint: restartHint}
	}
	if l.server.SystemID != l.job.SystemID {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: "first load", Peer: millrace.PeerSource,
			Err:  fmt.Errorf("the source is system %s, the job was begun from system %s", l.server.SystemID, l.job.SystemID),
			Hint: "point the source's URL at that server, or start over: " + restartHint}
	}
	return nil
}

// emptyUnfinished ends whoever still writes, and takes the rows of tables away
// that are not complete.
func (l *load) emptyUnfinished(ctx context.Context) error {
	return l.inRecord(ctx, "empty unfinished tables", func(tx pgx.Tx) error {
		if err := record.EndWriters(ctx, tx, l.Job); err != nil {
			return err
		}
		copied, err := l.copiedTables(ctx)
		if err != nil {
			return err
		}
		kept, err := l.keptRanges(ctx, tx)
		if err != nil {
			return err
		}
		var unfinished []record.Table
		for _, t := range copied {
			if _, goesOn := kept[t.OID]; t.Copied || goesOn {
				continue
			}
			unfinished = append(unfinished, t)
			if err := record.ClearParts(ctx, tx, l.Job, t.OID); err != nil {
				return err
			}
		}
		return l.empty(ctx, tx, unfinished)
	})
}

// planNow compares the definitions as they are now.
func (l *load) planNow(ctx context.Context) (err error) {
	l.definitions = nil
	if l.prepared == nil {
		return nil
	}
	l.definitions, err = l.plan(ctx, "", l.source)
	return err
}

// pairNow matches the tables of the record on both sides, in its order.
func (l *load) pairNow(ctx context.Context) ([]*snapshot.Table, error) {
	here, err := catalog.Describe(ctx, l.source, l.set.OIDs())
	if err != nil {
		return nil, session.Wrap("read tables", millrace.PeerSource, err)
	}
	return l.pair(ctx, here)
}

// makeIndexes makes the indexes and constraints, but no foreign keys.
func (l *load) makeIndexes(ctx context.Context) error {
	p := l.definitions
	if p == nil {
		return nil
	}
	n := 0
	for _, g := range p.Indexes {
		n += len(g)
	}
	l.tracker.Enter(snapshot.PhaseIndexes, n)
	return p.ApplyAfter(ctx, l.Target, l.Parallel, l.made)
}

// made counts a statement.
func (l *load) made(s schema.Statement) {
	l.log.Debug("created", "object", s.Object)
	l.tracker.Step()
	l.tracker.Report()
}

// mostFinishes is how often the foreign keys are tried when they get in the way of
// the stream, and the stream in theirs.
const mostFinishes = 5

// Finish ends a load that was done beside the stream, which goes on meanwhile: the
// destination holds all rows, and everything up to from. Foreign keys are added
// and validated, and the record says that it is consistent.
func Finish(ctx context.Context, o Options, from millrace.LSN) error {
	l := newRun(o)
	defer l.close()
	return l.retried(ctx, func() error { return l.finishBeside(ctx, from) })
}

// retried does the end of a load up to mostFinishes times, connected anew each time.
func (l *load) retried(ctx context.Context, finish func() error) error {
	for try := 1; ; try++ {
		err := finish()
		if err == nil || !session.Retryable(err) || try == mostFinishes {
			return err
		}
		l.log.Warn("trying again", "cause", err)
		l.close()
		timer := time.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}

func (l *load) finishBeside(ctx context.Context, from millrace.LSN) (err error) {
	l.aside = true
	if l.target, err = l.Target.Connect(ctx, session.Watch); err != nil {
		return err
	}
	if l.job, _, err = record.Read(ctx, l.target, l.Job); err != nil {
		return err
	}
	if l.job == nil || l.job.ConsistentFrom != 0 {
		return nil
	}
	if err := l.connectSource(ctx); err != nil {
		return err
	}
	if err := l.adopt(ctx); err != nil {
		return err
	}
	if err := l.planNow(ctx); err != nil {
		return err
	}
	if p := l.definitions; p != nil {
		l.tracker.Enter(snapshot.PhaseKeys, len(p.Keys)+len(p.Validate))
		if err := p.ApplyKeys(ctx, l.target, l.made); err != nil {
			return err
		}
	}
	for _, t := range l.job.Tables {
		if _, err := l.target.Exec(ctx, `ANALYZE `+t.Name.SQL()); err != nil {
			return session.Wrap(fmt.Sprintf("analyze %s", t.Name), millrace.PeerDestination, err)
		}
	}
	if err := l.inRecord(ctx, "finish the load", func(tx pgx.Tx) error {
		var all []uint32
		for _, t := range l.job.Tables {
			all = append(all, t.OID)
		}
		if err := record.KeysMade(ctx, tx, l.Job, all); err != nil {
			return err
		}
		return record.SetConsistentFrom(ctx, tx, l.Job, from)
	}); err != nil {
		return err
	}
	l.tracker.Enter(snapshot.PhaseDone, 0)
	l.log.Info("the first load is complete", "consistent_from", from, "tables", len(l.job.Tables))
	return nil
}
