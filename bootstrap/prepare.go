package bootstrap

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/schema"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// definitions are what schema: create needs.
type definitions struct {
	program    schema.Program
	major      int
	plainTOAST bool // the target knows one compression method only
}

// prepare looks at both sides before anything is changed, and reports all that
// stands in the way at once.
func (l *load) prepare(ctx context.Context) error {
	target, err := catalog.ReadServer(ctx, l.target)
	if err != nil {
		return session.Wrap("read the server", millrace.PeerDestination, err)
	}
	if l.replica, err = snapshot.ReplicaAllowed(ctx, l.target); err != nil {
		return err
	}
	problems, err := l.survey(ctx)
	if err != nil {
		return err
	}
	if target.SystemID == l.server.SystemID && target.Database == l.server.Database && target.Timeline == l.server.Timeline {
		problems = append(problems, snapshot.Finding{Subject: "destination", Text: "it is the same database as the source"})
	}
	more, err := l.checkTarget(ctx)
	if err != nil {
		return err
	}
	if problems = append(problems, more...); len(problems) > 0 {
		return problemError("first load", problems)
	}
	l.logSkipped()
	return l.prepareDefinitions(ctx, target)
}

func (l *load) logSkipped() {
	for _, f := range l.set.Skipped {
		l.log.Info("table is left out", "table", f.Subject, "cause", f.Text)
	}
}

// survey reads what the source has of publication, tables and slot, and finds what
// stands in the way of a load to anywhere.
func (l *load) survey(ctx context.Context) (problems []snapshot.Finding, err error) {
	if l.pub, err = catalog.ReadPublication(ctx, l.source, l.Publication); err != nil {
		return nil, session.Wrap("read publication "+l.Publication, millrace.PeerSource, err)
	}
	if l.set, err = l.selectTables(ctx, l.source); err != nil {
		return nil, err
	}
	if problems, err = l.checkSource(ctx); err != nil {
		return nil, err
	}
	problems = append(problems, l.set.Problems...)
	if l.pub != nil {
		problems = append(problems, snapshot.CheckPublication(l.pub, l.set.Tables)...)
	} else if f := l.mayCreatePublication(); f != nil {
		problems = append(problems, *f)
	}
	slot, err := catalog.ReadSlot(ctx, l.source, l.Slot)
	if err != nil {
		return nil, session.Wrap("read slot "+l.Slot, millrace.PeerSource, err)
	}
	if slot != nil && (l.job == nil || !l.job.OwnsSlot || l.job.Slot != l.Slot) {
		problems = append(problems, snapshot.Finding{Subject: "slot " + l.Slot, Text: "exists already, and this job did not make it",
			Cure: fmt.Sprintf("name another slot, or SELECT pg_drop_replication_slot(%s)", millrace.QuoteLiteral(l.Slot))})
	}
	return problems, nil
}

// checkSource finds what would make the slot fail.
func (l *load) checkSource(ctx context.Context) ([]snapshot.Finding, error) {
	var problems []snapshot.Finding
	if l.server.InRecovery {
		standby, err := catalog.ReadStandby(ctx, l.source)
		if err != nil {
			return nil, session.Wrap("read the server", millrace.PeerSource, err)
		}
		problems, _ = snapshot.CheckStandby(l.server, standby, true)
	}
	if l.server.WALLevel != "logical" {
		problems = append(problems, snapshot.Finding{Subject: "source", Text: "wal_level is " + l.server.WALLevel,
			Cure: "ALTER SYSTEM SET wal_level = logical, and restart the server"})
	}
	return problems, nil
}

// selectTables chooses the tables as q sees them.
func (l *load) selectTables(ctx context.Context, q catalog.Querier) (snapshot.Selection, error) {
	all, err := catalog.Tables(ctx, q)
	if err != nil {
		return snapshot.Selection{}, session.Wrap("select tables", millrace.PeerSource, err)
	}
	extensions, err := snapshot.ExtensionTables(ctx, q)
	if err != nil {
		return snapshot.Selection{}, session.Wrap("select tables", millrace.PeerSource, err)
	}
	return snapshot.Select(all, l.Patterns, l.pub, extensions), nil
}

// mayCreatePublication tells what stands in the way of a publication that has to
// be created.
func (l *load) mayCreatePublication() *snapshot.Finding {
	f := &snapshot.Finding{Subject: "publication " + l.Publication, Text: "does not exist", Cure: l.set.PublicationSQL(l.Publication)}
	switch {
	case l.server.InRecovery:
		f.Cure = "on the primary: " + f.Cure
	case l.CreatePublication && (l.AllowRemotePublication || session.Loopback(l.source)):
		return nil
	case l.CreatePublication:
		f.Cure += "; or allow it in the configuration file with safety.allow_remote_publication_create: true"
	default:
		f.Cure += "; or let millrace create it with --create-publication"
	}
	return f
}

// checkTarget looks at tables of the selected names that are there already.
// Whether their definitions fit is seen later, under the snapshot.
func (l *load) checkTarget(ctx context.Context) ([]snapshot.Finding, error) {
	names := make([]millrace.TableName, len(l.set.Tables))
	for i, t := range l.set.Tables {
		names[i] = t.Name
	}
	there, err := catalog.DescribeByName(ctx, l.target, names)
	if err != nil {
		return nil, session.Wrap("read tables", millrace.PeerDestination, err)
	}
	var problems []snapshot.Finding
	var tables []*catalog.Table
	for _, name := range names {
		switch t := there[name]; {
		case t != nil && t.Kind == 'r':
			tables = append(tables, t)
		case t == nil && (l.SchemaMode == SchemaExisting || l.Mode == ModeNone):
			problems = append(problems, snapshot.Finding{Subject: name.String(), Text: "does not exist on the target", Cure: "create it there with the source's columns, or use destination.postgres.schema: create"})
		}
	}
	if l.Mode == ModeNone {
		return problems, nil
	}
	filled, err := l.foreignRows(ctx, tables)
	return append(problems, filled...), err
}

// foreignRows names the tables that hold rows which are not this job's.
func (l *load) foreignRows(ctx context.Context, tables []*catalog.Table) ([]snapshot.Finding, error) {
	copied, err := l.copiedTables(ctx)
	if err != nil {
		return nil, err
	}
	ours := map[millrace.TableName]bool{}
	for _, t := range copied {
		ours[t.Name] = true // emptied before anything is copied
	}
	filled, err := snapshot.Filled(ctx, l.target, tables)
	if err != nil {
		return nil, err
	}
	var problems []snapshot.Finding
	for _, t := range filled {
		if !ours[t.Name] {
			problems = append(problems, snapshot.Finding{Subject: t.Name.String(), Text: "holds rows on the target",
				Cure: "TRUNCATE " + t.Name.SQL() + " there, or take the target as it is with snapshot.mode: none"})
		}
	}
	return problems, nil
}

// prepareDefinitions looks for pg_dump before anything is changed.
func (l *load) prepareDefinitions(ctx context.Context, target *catalog.Server) error {
	l.prepared = nil
	if l.SchemaMode == SchemaExisting || l.Mode == ModeNone {
		return nil
	}
	program, err := schema.Find(ctx, l.PGDump, l.server.Major())
	if err != nil {
		return err
	}
	l.prepared = &definitions{program: program, major: target.Major()}
	err = l.target.QueryRow(ctx, `SELECT NOT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression'`).
		Scan(&l.prepared.plainTOAST)
	return session.Wrap("read settings", millrace.PeerDestination, err)
}

// problemError makes one error of all problems.
func problemError(op string, problems []snapshot.Finding) error {
	var texts, cures []string
	for _, p := range problems {
		texts = append(texts, p.Subject+": "+p.Text)
		if p.Cure != "" {
			cures = append(cures, p.Cure)
		}
	}
	return &millrace.Error{Kind: millrace.KindPreflight, Op: op, Err: fmt.Errorf("%s", strings.Join(texts, "; ")),
		Hint: strings.Join(cures, "; ")}
}

// recordJob writes the job's record, from which point on a crash leaves traces.
// What the last load left goes in the same step.
func (l *load) recordJob(ctx context.Context) error {
	if err := record.Install(ctx, l.target); err != nil {
		return err
	}
	if err := l.dropSlot(ctx); err != nil {
		return err
	}
	created, err := l.createPublication(ctx)
	if err != nil {
		return err
	}
	err = l.replaceRecord(ctx, created)
	if err != nil && created {
		l.dropPublication(ctx)
	}
	return err
}

// replaceRecord writes the record of a new generation.
func (l *load) replaceRecord(ctx context.Context, createdPublication bool) error {
	job := &record.Job{
		Name: l.Job, State: record.Bootstrapping, Reason: "the first load is running",
		SystemID: l.server.SystemID, Timeline: l.server.Timeline,
		PageSize: l.server.PageSize, SegmentSize: l.server.SegmentSize,
		Slot: l.Slot, Publication: l.Publication, Mode: l.Mode,
		OwnsSlot:        true, // as soon as it exists; it does not now
		OwnsPublication: createdPublication,
	}
	if l.job != nil {
		job.Generation = l.job.Generation
		job.OwnsPublication = createdPublication || l.job.OwnsPublication && l.job.Publication == l.Publication && l.pub != nil
	}
	for _, t := range l.set.Tables {
		job.Tables = append(job.Tables, record.Table{OID: t.OID, Name: t.Name})
	}
	// What an earlier generation has prepared holds locks on the tables.
	gids, err := record.RollbackPrepared(ctx, l.target, l.Job, 0)
	if err != nil {
		return err
	}
	if len(gids) > 0 {
		l.log.Info("rolled back prepared transactions of an earlier load", "gids", gids)
	}
	if err := l.writeRecord(ctx, job, func(pgx.Tx) error { return nil }); err != nil {
		return err
	}
	l.job, l.recorded = job, true
	return nil
}

// writeRecord makes the job's record, in one step with the removal of what an earlier
// load has left and with what else belongs to it. What was left is looked for once
// nobody can add to it any more.
func (l *load) writeRecord(ctx context.Context, job *record.Job, also func(pgx.Tx) error) error {
	const op = "record the job"
	tx, err := l.target.Begin(ctx)
	if err != nil {
		return session.Wrap(op, millrace.PeerDestination, err)
	}
	defer tx.Rollback(ctx)
	if err := record.Seize(ctx, tx, l.Job); err != nil {
		return err
	}
	copied, err := l.copiedTables(ctx)
	if err != nil {
		return err
	}
	if err := l.empty(ctx, tx, copied); err != nil {
		return err
	}
	if err := record.Create(ctx, tx, job); err != nil {
		return err
	}
	if err := also(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return session.Wrap(op, millrace.PeerDestination, err)
	}
	for _, t := range copied {
		l.log.Info("emptied the table", "table", t.Name)
	}
	return nil
}

// createPublication makes the publication, unless there is one. It comes before
// the record, which says whose it is: one that a crash leaves in between counts
// as found.
func (l *load) createPublication(ctx context.Context) (created bool, err error) {
	if l.pub != nil {
		return false, nil
	}
	sql := l.set.PublicationSQL(l.Publication)
	if _, err := l.source.Exec(ctx, sql); err != nil {
		if session.SQLState(err) == "42501" {
			return false, &millrace.Error{Kind: millrace.KindPreflight, Op: "create publication", Peer: millrace.PeerSource, Err: err,
				Hint: "as the owner of the tables, with CREATE on the database: " + sql}
		}
		return false, session.Wrap("create publication "+l.Publication, millrace.PeerSource, err)
	}
	l.log.Info("created the publication", "publication", l.Publication)
	return true, nil
}

func (l *load) dropPublication(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()
	if _, err := l.source.Exec(ctx, `DROP PUBLICATION `+millrace.QuoteIdent(l.Publication)); err != nil {
		l.log.Warn("the publication stays", "publication", l.Publication, "cause", err)
	}
}

// recordTables writes what is known of the tables under the snapshot.
func (l *load) recordTables(ctx context.Context, h *snapshot.Holder, tables []*snapshot.Table) error {
	return l.inRecord(ctx, "record the tables", func(tx pgx.Tx) error {
		for _, t := range tables {
			if err := record.UpdateTable(ctx, tx, l.Job, record.Table{OID: t.Source.OID, Name: t.Source.Name, TargetOID: t.Target.OID,
				Filenode: h.Filenode(t.Source.OID), Shape: catalog.ShapeOf(t.Source)}); err != nil {
				return err
			}
		}
		return nil
	})
}
