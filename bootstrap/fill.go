package bootstrap

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/schema"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// plan reads the definitions under the snapshot and compares them with the
// target's.
func (l *load) plan(ctx context.Context, snapshotID string, q schema.Querier) (*schema.Plan, error) {
	d, err := schema.Read(ctx, schema.Request{
		Program:    l.prepared.program,
		Source:     l.Source,
		Snapshot:   snapshotID,
		Tables:     l.set.OIDs(),
		Catalog:    q,
		PlainTOAST: l.prepared.plainTOAST,
		Log:        l.log,
	})
	if err != nil {
		return nil, err
	}
	p, err := d.Plan(ctx, q, schema.Target{Major: l.prepared.major, Replica: l.replica, Catalog: l.target})
	if err != nil {
		return nil, err
	}
	if len(p.Problems) > 0 {
		var problems []snapshot.Finding
		for _, d := range p.Problems {
			problems = append(problems, snapshot.Finding{Subject: d.Object, Text: d.Text})
		}
		err := problemError("copy definitions", problems)
		var e *millrace.Error
		if errors.As(err, &e) {
			e.Hint = "make them equal or drop them on the target; with destination.postgres.schema: existing the target's own are used"
		}
		return nil, err
	}
	return p, nil
}

// makeDefinitions creates on the target what the rows need.
func (l *load) makeDefinitions(ctx context.Context, h *snapshot.Holder) error {
	l.definitions = nil
	if l.prepared == nil {
		return nil
	}
	l.tracker.Enter(snapshot.PhaseDefinitions, 0)
	p, err := l.plan(ctx, h.ID, h.Conn())
	if err != nil {
		return err
	}
	for _, n := range p.Notes {
		l.log.Info("definition is not copied as it is", "object", n.Object, "cause", n.Text)
	}
	if err := p.ApplyBefore(ctx, l.target); err != nil {
		return err
	}
	l.definitions = p
	l.log.Info("copied definitions", "created", len(p.Before), "kept", len(p.Kept))
	return nil
}

// pairTables matches the tables of both sides as they are now.
func (l *load) pairTables(ctx context.Context, h *snapshot.Holder) ([]*snapshot.Table, error) {
	here, err := catalog.Describe(ctx, h.Conn(), l.set.OIDs())
	if err != nil {
		return nil, session.Wrap("read tables", millrace.PeerSource, err)
	}
	return l.pair(ctx, here)
}

// pair matches the tables of the set, as the source has them, with the target's.
func (l *load) pair(ctx context.Context, here map[uint32]*catalog.Table) ([]*snapshot.Table, error) {
	var names []millrace.TableName
	for _, t := range l.set.Tables {
		names = append(names, t.Name)
	}
	there, err := catalog.DescribeByName(ctx, l.target, names)
	if err != nil {
		return nil, session.Wrap("read tables", millrace.PeerDestination, err)
	}
	var tables []*snapshot.Table
	var problems []snapshot.Finding
	for _, t := range l.set.Tables {
		s, d := here[t.OID], there[t.Name]
		if s == nil || d == nil {
			problems = append(problems, snapshot.Finding{Subject: t.Name.String(), Text: "is gone"})
			continue
		}
		pair, found := snapshot.Pair(s, d)
		problems = append(problems, found...)
		tables = append(tables, &pair)
	}
	if len(problems) > 0 {
		return nil, problemError("compare tables", problems)
	}
	return tables, nil
}

// copyRows copies all rows.
func (l *load) copyRows(ctx context.Context, h *snapshot.Holder, tables []*snapshot.Table) error {
	levels, err := l.order(ctx, tables)
	if err != nil {
		return err
	}
	l.tracker.Enter(snapshot.PhaseRows, 0)
	flushed, stop := l.awaitFlushed(ctx)
	err = snapshot.Copy(ctx, snapshot.Options{
		Source: l.Source, Target: l.Target, Holder: h, Tables: tables, Levels: levels, Rate: l.Rate, Replica: l.replica,
		Mark: func(ctx context.Context, tx pgx.Tx, c snapshot.Copied) error {
			if err := flushed(); err != nil {
				return err
			}
			return l.mark(ctx, tx, c)
		},
		Marked: l.marked, Keys: l.Keys, MinKeyed: l.MinKeyed,
		LockMark: func(ctx context.Context, tx pgx.Tx, oid uint32) (millrace.Mark, error) {
			return record.LockMark(ctx, tx, l.job.Fence(), oid)
		},
		Tracker: l.tracker, Log: l.log,
	})
	if err == nil {
		err = flushed()
	}
	stop()
	return err
}

// awaitFlushed waits, while rows are read already, until the source has flushed
// the consistent point: what an asynchronous commit left in the snapshot must not
// vanish in a crash of the source once it is committed here.
func (l *load) awaitFlushed(ctx context.Context) (flushed func() error, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		conn, err := l.Source.Connect(ctx, session.Watch)
		if err == nil {
			err = snapshot.AwaitFlushed(ctx, conn, l.job.ConsistentPoint)
			_ = conn.Close(context.WithoutCancel(ctx)) // it was only asked
		}
		ended <- err
	}()
	flushed = sync.OnceValue(func() error { return <-ended })
	return flushed, func() {
		cancel()
		_ = flushed() // told before, unless the copy has failed
	}
}

// order gives the order that foreign keys ask for, where they can't be switched
// off.
func (l *load) order(ctx context.Context, tables []*snapshot.Table) ([][]uint32, error) {
	if l.replica {
		return nil, nil
	}
	var oids []uint32
	names := map[uint32]string{}
	for _, t := range tables {
		oids = append(oids, t.Target.OID)
		names[t.Target.OID] = t.Name().String()
	}
	levels, circle, err := snapshot.ForeignKeyLevels(ctx, l.target, oids)
	if err != nil || len(circle) == 0 {
		return levels, err
	}
	var problems []snapshot.Finding
	for _, oid := range circle {
		problems = append(problems, snapshot.Finding{Subject: names[oid], Text: "its foreign keys go in a circle"})
	}
	err = problemError("copy in the order of foreign keys", problems)
	var e *millrace.Error
	if errors.As(err, &e) {
		e.Hint = "GRANT SET ON PARAMETER session_replication_role to the target's role, or drop the foreign keys for the time of the load"
	}
	return nil, err
}

// mark records a part in the transaction that holds its rows.
func (l *load) mark(ctx context.Context, tx pgx.Tx, c snapshot.Copied) error {
	oid := c.Part.Table.Source.OID
	if !c.TableDone && c.Part.Keyed {
		return record.SetMark(ctx, tx, l.Job, millrace.Mark{OID: oid, State: c.Mark, Rows: c.TableRows, Bytes: c.TableBytes})
	}
	if !c.TableDone {
		return record.MarkPart(ctx, tx, l.job.Fence(), record.Part{OID: oid, Number: c.Part.Number, Rows: c.Rows, Bytes: c.Bytes})
	}
	if err := record.MarkCopied(ctx, tx, l.job.Fence(), oid, c.TableRows, c.TableBytes); err != nil {
		return err
	}
	if c.Part.Whole() {
		return nil
	}
	return record.ClearParts(ctx, tx, l.Job, oid)
}

func (l *load) marked(ctx context.Context, conn *pgx.Conn, p *snapshot.Part) (snapshot.Marked, error) {
	if p.Keyed {
		marks, err := record.Marks(ctx, conn, l.Job)
		if err != nil {
			return snapshot.Marked{}, err
		}
		_, table, err := record.Marked(ctx, conn, l.Job, p.Table.Source.OID, 0)
		m := marks[p.Table.Name()]
		return snapshot.Marked{Done: table, Table: table, Rows: m.Rows, Bytes: m.Bytes, Mark: m.State}, err
	}
	part, table, err := record.Marked(ctx, conn, l.Job, p.Table.Source.OID, p.Number)
	found := snapshot.Marked{Done: part != nil || table, Table: table}
	if part != nil {
		found.Rows, found.Bytes = part.Rows, part.Bytes
	}
	return found, err
}

const (
	persistFor   = 10 * time.Minute
	persistPause = time.Second
	persistMost  = 15 * time.Second
)

// persist repeats what can be repeated when the target's connection is lost: once
// all rows are copied, a restart of the target must not cost the load.
func (l *load) persist(ctx context.Context, do func() error) error {
	pause := persistPause
	for until := time.Now().Add(persistFor); ; pause = min(2*pause, persistMost) {
		err := do()
		if err == nil || !session.Retryable(err) || ctx.Err() != nil || time.Now().After(until) {
			return err
		}
		l.log.Warn("trying again", "cause", err)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		if err := l.renewTarget(ctx); err != nil && !session.Retryable(err) {
			return err
		}
	}
}

// renewTarget opens the session again if it is lost, and ends the backends of
// other lost ones: one may still be at the work that is about to be repeated.
func (l *load) renewTarget(ctx context.Context) error {
	if l.target.Ping(ctx) != nil {
		conn, err := l.Target.Connect(ctx, session.Copy)
		if err != nil {
			return err
		}
		l.target = conn
	}
	return l.inRecord(ctx, "end lost sessions", func(tx pgx.Tx) error { return record.EndWriters(ctx, tx, l.Job) })
}

// complete makes what goes over the rows: indexes, constraints and foreign keys.
func (l *load) complete(ctx context.Context) error {
	if err := l.makeIndexes(ctx); err != nil {
		return err
	}
	p := l.definitions
	if p == nil {
		return nil
	}
	l.tracker.Enter(snapshot.PhaseKeys, len(p.Keys)+len(p.Validate))
	return p.ApplyKeys(ctx, l.target, l.made)
}

// analyze takes statistics of the tables, without which the first queries of
// readers scan whole tables. The target is equal to the source already, and the
// record says so: nobody who waits for the rows waits for this. What fails here is
// done by autovacuum in time.
func (l *load) analyze(ctx context.Context, tables []*snapshot.Table) {
	l.tracker.Enter(snapshot.PhaseAnalyze, len(tables))
	for _, t := range tables {
		if _, err := l.target.Exec(ctx, `ANALYZE `+t.Target.Name.SQL()); err != nil {
			l.log.Warn("the tables lack statistics until autovacuum takes them", "from", t.Name(), "cause", err, "hint", "ANALYZE at the destination")
			return
		}
		l.tracker.Step()
	}
}
