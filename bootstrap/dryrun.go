package bootstrap

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/session"
)

// dryRun writes what a load would do, as a script with comments, and does
// nothing of it.
func (l *load) dryRun(ctx context.Context) error {
	if half, err := l.half(ctx); err != nil {
		return err
	} else if half {
		return l.describeRest(ctx)
	}
	if err := l.prepare(ctx); err != nil {
		return err
	}
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("-- first load of job %s, mode %s", l.Job, l.Mode)
	say("-- source %s, PostgreSQL %d; destination %s", l.Source.Redacted(), l.server.Major(), l.Target.Redacted())
	if err := l.describeRemains(ctx, say); err != nil {
		return err
	}
	say("\n-- on the destination: the record, unless it is there\nCREATE SCHEMA millrace;\n%s", strings.TrimSpace(record.Schema()))
	l.describeSource(say)
	if err := l.describeLoad(ctx, say); err != nil {
		return err
	}
	say("\n-- on the destination: from here on it is consistent\nUPDATE millrace.job_state SET consistent_from = consistent_point WHERE job = %s;",
		millrace.QuoteLiteral(l.Job))
	_, err := fmt.Fprint(l.DryRun, b.String())
	return err
}

// describeRest tells how an interrupted load goes on.
func (l *load) describeRest(ctx context.Context) error {
	copied, err := l.copiedTables(ctx)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "-- the first load of job %s was interrupted: it goes on beside the stream, from slot %s\n", l.Job, l.job.Slot)
	ranges, err := l.keptRanges(ctx, l.target)
	if err != nil {
		return err
	}
	kept := map[uint32]bool{}
	for _, t := range copied {
		_, goesOn := ranges[t.OID]
		if kept[t.OID] = t.Copied; !t.Copied && !goesOn {
			fmt.Fprintf(&b, "TRUNCATE ONLY %s;\n", t.Name.SQL())
		}
	}
	for _, t := range l.job.Tables {
		if kept[t.OID] {
			fmt.Fprintf(&b, "-- complete: %s\n", t.Name)
		} else {
			fmt.Fprintf(&b, "-- read in chunks: %s\n", t.Name)
		}
	}
	_, err = fmt.Fprint(l.DryRun, b.String())
	return err
}

// describeRemains tells what goes of an earlier load.
func (l *load) describeRemains(ctx context.Context, say func(string, ...any)) error {
	copied, err := l.copiedTables(ctx)
	if err != nil {
		return err
	}
	if l.job != nil && l.job.OwnsSlot {
		say("\n-- on the source: the slot of the last load, if it is there\nDROP_REPLICATION_SLOT %s;", millrace.QuoteIdent(l.job.Slot))
	}
	if len(copied) > 0 {
		say("\n-- on the destination: the rows of the last load")
		for _, t := range copied {
			say("TRUNCATE ONLY %s;", t.Name.SQL())
		}
	}
	return nil
}

// describeLoad tells what is copied. The definitions are read as they are now.
func (l *load) describeLoad(ctx context.Context, say func(string, ...any)) error {
	if l.Mode == ModeNone {
		say("\n-- no rows are copied: the destination is taken as equal to the source at the slot's consistent point")
		return nil
	}
	tx, err := l.source.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return session.Wrap("read definitions", millrace.PeerSource, err)
	}
	defer tx.Rollback(ctx)
	after := ""
	if l.prepared != nil {
		var id string
		if err := tx.QueryRow(ctx, `SELECT pg_export_snapshot()`).Scan(&id); err != nil {
			return session.Wrap("read definitions", millrace.PeerSource, err)
		}
		p, err := l.plan(ctx, id, tx)
		if err != nil {
			return err
		}
		for _, n := range p.Notes {
			say("-- %s", n)
		}
		for _, k := range p.Kept {
			say("-- kept: %s", k)
		}
		before, rest := p.Describe()
		say("\n-- on the destination\n%s", before)
		after = rest
	}
	here, err := catalog.Describe(ctx, tx, l.set.OIDs())
	if err != nil {
		return session.Wrap("read tables", millrace.PeerSource, err)
	}
	say("-- rows, %d streams side by side", max(1, l.Parallel))
	l.describeRows(here, say)
	say("\n%s", after)
	return nil
}

// describeRows tells how much is read.
func (l *load) describeRows(here map[uint32]*catalog.Table, say func(string, ...any)) {
	var total int64
	for _, t := range l.set.Tables {
		if s := here[t.OID]; s != nil {
			say("COPY %s; -- about %d rows, %d bytes", t.Name.SQL(), max(0, s.Rows), s.Bytes)
			total += s.Bytes
		}
	}
	say("-- about %d bytes in all, for which the source keeps old row versions and its log", total)
}

// describeSource tells what is made at the source.
func (l *load) describeSource(say func(string, ...any)) {
	say("\n-- on the source")
	if l.pub == nil {
		say("%s;", l.set.PublicationSQL(l.Publication))
	}
	say("%s;", replication.CreateSlotCommand(l.Slot, l.failoverSlot()))
}
