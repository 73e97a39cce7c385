package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/kafka"
	krecord "github.com/millrace/millrace/kafka/record"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// FromKafka records a job whose source is a prefix of topics. The rows of its first
// load come through the stream like everything else; whoever streams calls
// FinishFromKafka once they are at the destination. The record has the system,
// timeline and generation of the topics' records. On a job that has a record it
// does nothing, unless a restart is asked for. A prefix that nobody writes to yet
// is waited for.
func FromKafka(ctx context.Context, o Options, from *kafka.Endpoint) error {
	l := newRun(o)
	defer l.close()
	var err error
	if l.target, err = l.Target.Connect(ctx, session.Copy); err != nil {
		return err
	}
	if l.job, _, err = record.Read(ctx, l.target, l.Job); err != nil {
		return err
	}
	if l.job != nil && !l.Restart {
		l.log.Info("the job is recorded", "consistent_from", l.job.ConsistentFrom)
		return nil
	}
	if l.job != nil && l.ByKey {
		return sharedRestart(l.Job)
	}
	if l.DryRun != nil {
		return l.describeWritten(ctx, from)
	}
	w, err := l.awaitWritten(ctx, from)
	if err == nil {
		err = from.Unfit(w)
	}
	if err != nil {
		return err
	}
	if l.job != nil {
		if err := l.refuseRival(ctx); err != nil {
			return err
		}
	}
	if err := record.Install(ctx, l.target); err != nil {
		return err
	}
	return l.recordWritten(ctx, w)
}

// awaitWritten waits until the job that writes to the prefix has begun its first load.
func (l *load) awaitWritten(ctx context.Context, from *kafka.Endpoint) (*kafka.Written, error) {
	for told := false; ; told = true {
		w, err := from.ReadWritten(ctx)
		if err != nil || w != nil && !w.Gone && w.Point != 0 {
			return w, err
		}
		reason := "no job writes to prefix " + from.Prefix + " yet"
		if w != nil && !w.Gone {
			reason = "job " + w.Job + ", which writes to prefix " + from.Prefix + ", has not begun its first load yet"
		}
		if !told {
			l.log.Info("waiting", "cause", reason)
		}
		if l.OnWait != nil {
			l.OnWait(reason, "start the job that writes to the prefix")
		}
		timer := time.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// recordWritten makes the record, in one step with the removal of what an earlier
// load has left. The first position is 0/0: nothing is here.
func (l *load) recordWritten(ctx context.Context, w *kafka.Written) error {
	job := &record.Job{Name: l.Job, State: record.Stopped, Reason: "the first load goes on beside the stream",
		Hint: "millrace run, or millrace bootstrap, takes it up", SystemID: w.History.System, Timeline: w.History.Timeline,
		PageSize: w.PageSize, SegmentSize: w.SegmentSize, Mode: ModeIncremental, Follows: w.History.Generation, LoadStarted: time.Now()}
	if l.job != nil {
		job.Generation = l.job.Generation
	}
	err := l.writeRecord(ctx, job, func(tx pgx.Tx) error {
		if err := record.SetSlot(ctx, tx, l.Job, w.Point, false, false); err != nil {
			return err
		}
		return record.FirstProgress(ctx, tx, job.Fence(), job.Timeline, 0)
	})
	if err != nil {
		return err
	}
	l.log.Info("recorded the job", "prefix_of", w.Job, "system", w.History.System, "generation", w.History.Generation)
	return nil
}

// FinishFromKafka ends the first load of such a job, while the stream goes on: the
// destination holds all its rows, and everything up to from. Foreign keys are added
// as far as the tables' descriptions know them.
func FinishFromKafka(ctx context.Context, o Options, from millrace.LSN, versions []*krecord.TableVersion) error {
	l := newRun(o)
	defer l.close()
	return l.retried(ctx, func() error { return l.finishWritten(ctx, from, versions) })
}

func (l *load) finishWritten(ctx context.Context, from millrace.LSN, versions []*krecord.TableVersion) (err error) {
	// Whoever applies beside this may lose its connection, for one by a deadlock with the
	// keys that are added here, and goes on under another epoch.
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
	if l.SchemaMode == SchemaCreate && !l.ByKey {
		if l.replica, err = snapshot.ReplicaAllowed(ctx, l.target); err != nil {
			return err
		}
		l.tracker.Enter(snapshot.PhaseKeys, len(versions))
		for _, v := range versions {
			if !slices.ContainsFunc(l.job.Tables, func(t record.Table) bool { return t.OID == v.OID }) {
				continue // of an earlier generation
			}
			if err := addKeys(ctx, l.target, v, l.replica, l.log); err != nil {
				return err
			}
			l.tracker.Step()
		}
	}
	for _, t := range l.job.Tables {
		if _, err := l.target.Exec(ctx, `ANALYZE `+t.Name.SQL()); err != nil {
			return session.Wrap(fmt.Sprintf("analyze %s", t.Name), millrace.PeerDestination, err)
		}
	}
	if err := l.inRecord(ctx, "finish the load", func(tx pgx.Tx) error {
		return record.SetConsistentFrom(ctx, tx, l.Job, from)
	}); err != nil {
		return err
	}
	l.tracker.Enter(snapshot.PhaseDone, 0)
	l.log.Info("the first load is complete", "consistent_from", from, "tables", len(l.job.Tables))
	return nil
}

// Unbottled sees to the tables of a job whose source is a prefix of topics, as
// their descriptions come. It is used by one goroutine.
type Unbottled struct {
	opt   Options
	loads func() bool // the first load is not complete
	conn  *pgx.Conn
	known map[uint32]record.Table // the job's set, by OID at the source
	owed  map[uint32]bool         // tables whose foreign keys a former run has not made
}

// NewUnbottled makes one. It connects when it is first needed.
func NewUnbottled(o Options, loads func() bool) *Unbottled {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Unbottled{opt: o, loads: loads}
}

// Close disconnects.
func (u *Unbottled) Close() {
	if u.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		u.conn.Close(ctx)
		u.conn, u.known = nil, nil
	}
}

// Described takes note of a version of a table before its first change comes. A table
// that is new to the job is made, where the job makes tables, and joins its set. A
// new shape of a known one is left to whoever applies: as with any other source it
// has to be altered at the destination first.
func (u *Unbottled) Described(ctx context.Context, v *krecord.TableVersion) error {
	err := u.described(ctx, v)
	if err != nil {
		u.Close()
	}
	return session.Wrap("make table "+v.Name().String(), millrace.PeerDestination, err)
}

func (u *Unbottled) described(ctx context.Context, v *krecord.TableVersion) error {
	if err := u.connect(ctx); err != nil {
		return err
	}
	t, ok := u.known[v.OID]
	switch {
	case ok && t.Name == v.Name():
		if u.owed[v.OID] {
			return u.makeKeys(ctx, v)
		}
		return nil
	case ok:
		return u.renamed(ctx, &t, v)
	}
	for _, other := range u.known {
		if other.Name == v.Name() {
			return u.remade(ctx, &other, v)
		}
	}
	return u.join(ctx, v)
}

func (u *Unbottled) connect(ctx context.Context) (err error) {
	if u.conn != nil && !u.conn.IsClosed() {
		return nil
	}
	if u.conn, err = u.opt.Target.Connect(ctx, session.Watch); err != nil {
		return err
	}
	tables, err := record.Tables(ctx, u.conn, u.opt.Job)
	if err != nil {
		return err
	}
	u.known = map[uint32]record.Table{}
	for i := range tables {
		u.known[tables[i].OID] = tables[i]
	}
	owed, err := record.KeysOwed(ctx, u.conn, u.opt.Job)
	u.owed = map[uint32]bool{}
	for _, oid := range owed {
		u.owed[oid] = true
	}
	return err
}

// renamed follows a table that has another name at the source, once the destination's
// has it too. Whoever applies makes sure that it is the same table, and records it.
func (u *Unbottled) renamed(ctx context.Context, t *record.Table, v *krecord.TableVersion) error {
	there, err := catalog.DescribeByName(ctx, u.conn, []millrace.TableName{v.Name(), t.Name})
	if err != nil {
		return err
	}
	if there[t.Name] == nil && there[v.Name()] != nil {
		t.Name = v.Name()
		u.known[v.OID] = *t
		return nil
	}
	return &millrace.Error{Kind: millrace.KindData, Op: "follow the source", Peer: millrace.PeerDestination, Table: v.Name(), LSN: v.Commit,
		Err:  fmt.Errorf("the source's table %s was renamed to it", t.Name),
		Hint: "rename table " + t.Name.SQL() + " at the destination as well; the next run goes on at this transaction"}
}

// remade follows a table that was dropped and made anew at the source. The job that writes
// would have stopped there; so it was taken out of that job and added again, and what
// comes first is the removal of all rows that there are. Whoever applies sees whether its columns are those
// of the table that is here.
func (u *Unbottled) remade(ctx context.Context, was *record.Table, v *krecord.TableVersion) error {
	tx, err := u.conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	loads := u.loads()
	if err := record.DropTable(ctx, tx, u.opt.Job, was.OID); err != nil {
		return err
	}
	if err := record.AddTable(ctx, tx, u.opt.Job, record.Table{OID: v.OID, Name: v.Name(), Copied: !loads}); err != nil {
		return err
	}
	if loads {
		if err := record.BeginLoad(ctx, tx, u.opt.Job, v.OID, ""); err != nil {
			return err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	u.opt.Log.Info("a table was made anew at the source", "table", v.Name(), "oid", v.OID)
	delete(u.known, was.OID)
	u.known[v.OID] = record.Table{OID: v.OID, Name: v.Name()}
	return nil
}

// join takes a table into the set, in one transaction with its creation. What is
// loaded has a mark until the load is complete.
func (u *Unbottled) join(ctx context.Context, v *krecord.TableVersion) error {
	tx, err := u.conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	there, err := catalog.DescribeByName(ctx, tx, []millrace.TableName{v.Name()})
	if err != nil {
		return err
	}
	loads := u.loads()
	t := there[v.Name()]
	switch {
	case t != nil && u.opt.ByKey:
		if err = refuseShared(ctx, tx, t, v); err == nil {
			err = refuseOthersRows(ctx, tx, t, u.opt.Job)
		}
	case t != nil:
		err = refuseRows(ctx, tx, t)
	case u.opt.SchemaMode != SchemaCreate:
		err = &millrace.Error{Kind: millrace.KindData, Op: "take in a table", Peer: millrace.PeerDestination, Table: v.Name(), LSN: v.Commit,
			Err:  errors.New("no such table at the destination"),
			Hint: "create it there, with the columns of the source's table, or use destination.postgres.schema: create; the next run goes on at this transaction"}
	case u.opt.ByKey:
		err = createShared(ctx, tx, v)
	default:
		err = createTable(ctx, tx, v)
	}
	if err != nil {
		return err
	}
	if err := record.AddTable(ctx, tx, u.opt.Job, record.Table{OID: v.OID, Name: v.Name(), Copied: !loads}); err != nil {
		return err
	}
	keys := !loads && u.opt.SchemaMode == SchemaCreate && t == nil && !u.opt.ByKey
	switch {
	case loads:
		err = record.BeginLoad(ctx, tx, u.opt.Job, v.OID, "")
	case keys:
		err = record.OweKeys(ctx, tx, u.opt.Job, v.OID)
	}
	if err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	u.known[v.OID] = record.Table{OID: v.OID, Name: v.Name()}
	if keys {
		return u.makeKeys(ctx, v)
	}
	return nil
}

// makeKeys makes the foreign keys of a table that has joined. A run that ends before leaves that to
// the next one.
func (u *Unbottled) makeKeys(ctx context.Context, v *krecord.TableVersion) error {
	replica, err := snapshot.ReplicaAllowed(ctx, u.conn)
	if err != nil {
		return err
	}
	if err := addKeys(ctx, u.conn, v, replica, u.opt.Log); err != nil {
		return err
	}
	delete(u.owed, v.OID)
	return record.KeysMade(ctx, u.conn, u.opt.Job, []uint32{v.OID})
}

// refuseRows: the rows that come would be added to what is there.
func refuseRows(ctx context.Context, tx pgx.Tx, t *catalog.Table) error {
	var filled bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+t.Name.SQL()+`)`).Scan(&filled); err != nil || !filled {
		return err
	}
	return &millrace.Error{Kind: millrace.KindData, Op: "take in a table", Peer: millrace.PeerDestination, Table: t.Name,
		Err: errors.New("holds rows at the destination"), Hint: "TRUNCATE " + t.Name.SQL() + " there; the next run goes on at this transaction"}
}
