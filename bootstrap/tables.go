package bootstrap

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// The set of tables of a job is in its record. What changes it raises the number of
// the set there, and whoever streams starts its stream anew when it sees another
// number: that takes up what has changed.

// What the verbs do, in their errors.
const (
	opAdd   = "add tables"
	opAgain = "read tables again"
	opDrop  = "drop tables"
)

// AddTables takes tables of the source that the patterns match into the set of a
// job, which may be running: they are loaded beside the stream. It returns their
// names.
//
// The record has them before the publication does, so that no change of them
// surprises a running stream; and their load begins after that, with a snapshot
// that sees every transaction which was open then: what such a one did before is
// not in the stream.
func AddTables(ctx context.Context, o Options) (names []millrace.TableName, err error) {
	l := newRun(o)
	defer l.close()
	if err := l.openJob(ctx, opAdd); err != nil {
		return nil, err
	}
	if err := l.refuseTwoPhase(ctx, opAdd); err != nil {
		return nil, err
	}
	if err := l.selectNew(ctx); err != nil {
		return nil, err
	}
	publish, err := l.mayPublish()
	if err != nil {
		return nil, err
	}
	tables, err := l.keep.lay(ctx)
	if err != nil {
		return nil, err
	}
	for i := range tables {
		names = append(names, tables[i].Name)
	}
	if publish == "" {
		if err := l.keep.adding(ctx, tables); err != nil {
			return nil, err
		}
		return names, l.keep.added(ctx, tables)
	}
	if err := l.alter(ctx, "add tables to publication ", publish, func() error { return l.keep.adding(ctx, tables) }); err != nil {
		return nil, err
	}
	l.log.Info("added tables to the publication", "publication", l.job.Publication, "tables", len(tables))
	return names, l.keep.added(ctx, tables)
}

// openJob reads the record of a job that has one, and what is needed to change its
// set of tables.
func (l *load) openJob(ctx context.Context, op string) (err error) {
	l.aside = true
	l.keep = l.keeper()
	if l.job, err = l.keep.read(ctx); err != nil {
		return err
	}
	if l.job == nil || l.job.ConsistentFrom == 0 && !Besides(l.job) {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: op,
			Err:  fmt.Errorf("the first load of job %s is not complete", l.Job),
			Hint: "millrace bootstrap does it; the set of tables can be changed then"}
	}
	if err := l.connectSource(ctx); err != nil {
		return err
	}
	if l.server.SystemID != l.job.SystemID {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: op, Peer: millrace.PeerSource,
			Err:  fmt.Errorf("the source is system %s, the job follows system %s", l.server.SystemID, l.job.SystemID),
			Hint: "point the source's URL at the server that the job was loaded from"}
	}
	l.pub, err = catalog.ReadPublication(ctx, l.source, l.job.Publication)
	if err == nil && l.pub == nil {
		err = &millrace.Error{Kind: millrace.KindPreflight, Op: op, Peer: millrace.PeerSource,
			Err: fmt.Errorf("publication %s does not exist", l.job.Publication), Hint: restartHint}
	}
	return session.Wrap("read publication "+l.job.Publication, millrace.PeerSource, err)
}

// refuseTwoPhase refuses what no run could take up: it would stop there, and only
// dropping the table again or a new first load would help.
func (l *load) refuseTwoPhase(ctx context.Context, op string) error {
	slot, err := catalog.ReadSlot(ctx, l.source, l.job.Slot)
	if err != nil || slot == nil || !slot.TwoPhase {
		return session.Wrap("read slot "+l.job.Slot, millrace.PeerSource, err)
	}
	return &millrace.Error{Kind: millrace.KindPreflight, Op: op, Peer: millrace.PeerSource,
		Err:  fmt.Errorf("tables are loaded beside the stream, which is not available in this version while replication slot %s has two-phase commit", l.job.Slot),
		Hint: restartHint}
}

// selectNew chooses the tables that the patterns match and that the job has not.
func (l *load) selectNew(ctx context.Context) error {
	all, err := catalog.Tables(ctx, l.source)
	if err != nil {
		return session.Wrap("select tables", millrace.PeerSource, err)
	}
	extensions, err := snapshot.ExtensionTables(ctx, l.source)
	if err != nil {
		return session.Wrap("select tables", millrace.PeerSource, err)
	}
	l.set = snapshot.Select(all, l.Patterns, nil, extensions)
	problems := l.set.Problems
	l.set.Tables = slices.DeleteFunc(l.set.Tables, func(t *catalog.Table) bool {
		return slices.ContainsFunc(l.job.Tables, func(j record.Table) bool { return j.OID == t.OID && !j.Adding })
	})
	for _, t := range l.set.Tables {
		if slices.ContainsFunc(l.job.Tables, func(j record.Table) bool { return j.Name == t.Name && j.OID != t.OID }) {
			problems = append(problems, snapshot.Finding{Subject: t.Name.String(), Text: "was made anew since the job copied it",
				Cure: "millrace table drop " + t.Name.String() + " first" + l.keep.emptied()})
		}
	}
	if len(l.set.Tables) == 0 && len(problems) == 0 {
		problems = append(problems, snapshot.Finding{Subject: strings.Join(l.Patterns.Strings(), " "), Text: "the job has all of these tables already",
			Cure: "millrace table resnapshot reads a table again"})
	}
	problems = append(problems, snapshot.CheckPublication(l.pub, slices.DeleteFunc(slices.Clone(l.set.Tables),
		func(t *catalog.Table) bool { return l.pub.Table(t.OID) == nil }))...)
	if len(problems) > 0 {
		return problemError(opAdd, problems)
	}
	return nil
}

// mayPublish gives the statement that adds what the publication lacks, or the
// reason why it may not be executed.
func (l *load) mayPublish() (string, error) {
	var lacking snapshot.Selection
	for _, t := range l.set.Tables {
		if l.pub.Table(t.OID) == nil {
			lacking.Tables = append(lacking.Tables, t)
		}
	}
	if len(lacking.Tables) == 0 {
		return "", nil
	}
	sql := strings.Replace(lacking.PublicationSQL(l.job.Publication), "CREATE PUBLICATION "+millrace.QuoteIdent(l.job.Publication)+" FOR",
		"ALTER PUBLICATION "+millrace.QuoteIdent(l.job.Publication)+" ADD", 1)
	if l.server.InRecovery {
		return "", problemError(opAdd, []snapshot.Finding{{Subject: "publication " + l.job.Publication,
			Text: "lacks the tables, and can't be changed on a standby", Cure: "on the primary: " + sql}})
	}
	if l.job.OwnsPublication || l.CreatePublication && (l.AllowRemotePublication || session.Loopback(l.source)) {
		return sql, nil
	}
	return "", problemError(opAdd, []snapshot.Finding{{Subject: "publication " + l.job.Publication, Text: "lacks the tables, and is not the job's own",
		Cure: sql + "; or let millrace do it with --create-publication"}})
}

// chosen gives the tables of the job that the patterns match.
func (l *load) chosen(op string) ([]record.Table, error) {
	var tables []record.Table
	for _, t := range l.job.Tables {
		if l.Patterns.Match(t.Name) {
			tables = append(tables, t)
		}
	}
	if len(tables) == 0 {
		return nil, problemError(op, []snapshot.Finding{{Subject: strings.Join(l.Patterns.Strings(), " "), Text: "the job has no such table",
			Cure: "millrace status lists its tables"}})
	}
	return tables, nil
}

// Resnapshot has tables of the job read again, beside the stream, and what the
// destination has of them brought up to date.
func Resnapshot(ctx context.Context, o Options) (names []millrace.TableName, err error) {
	l := newRun(o)
	defer l.close()
	if err := l.openJob(ctx, opAgain); err != nil {
		return nil, err
	}
	if err := l.refuseTwoPhase(ctx, opAgain); err != nil {
		return nil, err
	}
	tables, err := l.chosen(opAgain)
	if err != nil {
		return nil, err
	}
	l.set = snapshot.Selection{}
	for _, t := range tables {
		if t.Adding {
			return nil, problemError(opAgain, []snapshot.Finding{{Subject: t.Name.String(), Text: "is not added yet",
				Cure: "millrace table add " + t.Name.String() + " has to be run again if it was interrupted"}})
		}
		l.set.Tables = append(l.set.Tables, &catalog.Table{OID: t.OID, Name: t.Name})
		names = append(names, t.Name)
	}
	return names, l.keep.again(ctx)
}

// DropTables takes tables out of the job. Their rows stay. excluded tells whether
// the job's configuration excludes a table; where it does not, a change of it
// would stop the stream, unless it leaves the publication.
func DropTables(ctx context.Context, o Options, excluded func(millrace.TableName) bool) (names []millrace.TableName, err error) {
	l := newRun(o)
	defer l.close()
	if err := l.openJob(ctx, opDrop); err != nil {
		return nil, err
	}
	tables, err := l.chosen(opDrop)
	if err != nil {
		return nil, err
	}
	if len(tables) == len(l.job.Tables) {
		return nil, problemError(opDrop, []snapshot.Finding{{Subject: "job " + l.Job, Text: "would have no table left",
			Cure: "millrace cleanup ends a job"}})
	}
	var published []string
	for _, t := range tables {
		names = append(names, t.Name)
		switch {
		case l.pub.Table(t.OID) == nil:
		case l.job.OwnsPublication && !l.pub.AllTables:
			published = append(published, "ONLY "+t.Name.SQL())
		case excluded(t.Name):
		default:
			return nil, problemError(opDrop, []snapshot.Finding{{Subject: t.Name.String(), Text: "is in a publication that is not the job's own",
				Cure: fmt.Sprintf("exclude it in the configuration with '!%s' and restart the run, or ALTER PUBLICATION %s DROP TABLE %s", t.Name, millrace.QuoteIdent(l.job.Publication), t.Name.SQL())}})
		}
	}
	if len(published) > 0 {
		if err := l.unpublish(ctx, tables, published); err != nil {
			return nil, err
		}
	}
	return names, l.keep.dropped(ctx, tables)
}

// unpublish takes tables out of the publication. The record says that before: a run that
// starts from then on does not miss them there.
func (l *load) unpublish(ctx context.Context, tables []record.Table, published []string) error {
	dropping := func() error { return l.keep.dropping(ctx, tables) }
	sql := "ALTER PUBLICATION " + millrace.QuoteIdent(l.job.Publication) + " DROP TABLE " + strings.Join(published, ", ")
	if !l.server.InRecovery {
		return l.alter(ctx, "drop tables from publication ", sql, dropping)
	}
	if err := dropping(); err != nil {
		return err
	}
	return problemError(opDrop, []snapshot.Finding{{Subject: "publication " + l.job.Publication,
		Text: "has the tables, and can't be changed on a standby", Cure: "on the primary: " + sql + "; then do this again, before which a change of them is waited for"}})
}

// alter changes the publication, with what is recorded before that. The statement comes
// first all the same: it can be refused, or wait long for a lock, and a table of which the
// record says that it is about to join or to leave holds up a run once it changes. Nobody
// sees the publication changed before the commit, which needs nothing more.
func (l *load) alter(ctx context.Context, what, sql string, recorded func() error) error {
	tx, err := l.source.Begin(ctx)
	if err != nil {
		return session.Wrap(what+l.job.Publication, millrace.PeerSource, err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, sql); err != nil {
		return l.refusedAlter(what, sql, err)
	}
	if err := recorded(); err != nil {
		return err
	}
	return session.Wrap(what+l.job.Publication, millrace.PeerSource, tx.Commit(ctx))
}

// refusedAlter gives the statement to who may execute it.
func (l *load) refusedAlter(what, sql string, err error) error {
	wrapped := session.Wrap(what+l.job.Publication, millrace.PeerSource, err)
	if session.SQLState(err) != "42501" {
		return wrapped
	}
	return &millrace.Error{Kind: millrace.KindPreflight, Op: what + l.job.Publication, Peer: millrace.PeerSource, Err: err,
		Hint: "as the owner of publication and tables: " + sql + "; then do this again"}
}
