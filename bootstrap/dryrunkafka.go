package bootstrap

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/kafka"
	krecord "github.com/millrace/millrace/kafka/record"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

// dryRun writes what a load into Kafka would do, and does nothing of it.
func (l *kafkaLoad) dryRun(ctx context.Context) error {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	describe := l.describeFirst
	if l.job != nil && !l.Restart && complete(l.job.Tables) > 0 {
		describe = func(context.Context, func(string, ...any)) error { l.describeRest(say); return nil }
	}
	if err := describe(ctx, say); err != nil {
		return err
	}
	_, err := fmt.Fprint(l.DryRun, b.String())
	return err
}

// describeFirst tells of a load that begins.
func (l *kafkaLoad) describeFirst(ctx context.Context, say func(string, ...any)) error {
	if err := l.prepare(ctx); err != nil {
		return err
	}
	tables, err := l.described(ctx)
	if err != nil {
		return err
	}
	e := l.opt.Sink.Endpoint
	say("-- first load of job %s, mode %s", l.Job, l.Mode)
	say("-- source %s, PostgreSQL %d; destination %s", l.Source.Redacted(), l.server.Major(), e)
	if l.job != nil {
		say("\n-- a new generation; what the topics hold stays\n-- on the source: the slot of the last load, if it is there\nDROP_REPLICATION_SLOT %s;",
			millrace.QuoteIdent(l.job.Slot))
	}
	l.describeSource(say)
	if err := l.describeTopics(ctx, tables, say); err != nil {
		return err
	}
	if l.Mode == ModeNone {
		say("\n-- no rows are copied")
		return nil
	}
	here := map[uint32]*catalog.Table{}
	for _, t := range tables {
		here[t.OID] = t
	}
	say("\n-- rows, one table after the other")
	l.describeRows(here, say)
	return nil
}

// describeTopics tells which topics there are, which are made, and the records' keys.
func (l *kafkaLoad) describeTopics(ctx context.Context, tables []*catalog.Table, say func(string, ...any)) error {
	ctl, err := l.opt.Sink.Endpoint.OpenControl()
	if err != nil {
		return err
	}
	defer ctl.Close()
	if err := ctl.OneLayout(ctx, l.opt.Sink.Layout); err != nil {
		return err
	}
	names := make([]millrace.TableName, len(tables))
	for i, t := range tables {
		names[i] = t.Name
	}
	planned, err := ctl.Plan(ctx, &l.opt.Sink, names)
	if err != nil {
		return err
	}
	say("\n-- in Kafka")
	for _, t := range planned {
		if t.There {
			say("-- topic %s: is there, and is used as it is; partitions: %d", t.Name, t.Partitions)
			continue
		}
		replication := "the cluster's default"
		if t.Replication > 0 {
			replication = fmt.Sprint(t.Replication)
		}
		var config strings.Builder
		for _, k := range slices.Sorted(maps.Keys(t.Config)) {
			config.WriteString(", " + k + "=" + t.Config[k])
		}
		say("-- topic %s: is made; partitions: %d, replication: %s%s", t.Name, t.Partitions, replication, config.String())
	}
	for _, t := range tables {
		key := "none"
		if columns := recordKey(&l.opt.Sink, t); len(columns) > 0 {
			quoted := make([]string, len(columns))
			for i, c := range columns {
				quoted[i] = millrace.QuoteIdent(c)
			}
			key = strings.Join(quoted, ", ")
		}
		say("-- key of the records of %s: %s", t.Name, key)
	}
	return nil
}

// describeRest tells how an interrupted load goes on.
func (l *kafkaLoad) describeRest(say func(string, ...any)) {
	say("-- the first load of job %s was interrupted: it goes on beside the stream, from slot %s", l.Job, l.job.Slot)
	for i := range l.job.Tables {
		switch t := &l.job.Tables[i]; {
		case t.Copied:
			say("-- complete: %s", t.Name)
		case t.Rows > 0:
			say("-- taken back by a record t (truncate), and read in chunks: %s", t.Name)
		default:
			say("-- read in chunks: %s", t.Name)
		}
	}
}

// describeWritten writes what a job that reads a prefix would do, as far as the prefix
// tells now.
func (l *load) describeWritten(ctx context.Context, from *kafka.Endpoint) error {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("-- first load of job %s\n-- source %s; destination %s", l.Job, from, l.Target.Redacted())
	w, err := from.ReadWritten(ctx)
	if err != nil {
		return err
	}
	if err := l.describeRemains(ctx, say); err != nil {
		return err
	}
	say("\n-- on the destination: the record, unless it is there\nCREATE SCHEMA millrace;\n%s", strings.TrimSpace(record.Schema()))
	if w == nil || w.Gone || w.Point == 0 {
		say("\n-- no job has begun to write to prefix %s: it is waited for, and tables are made as they come", from.Prefix)
	} else if err := l.describeVersions(ctx, from, w, say); err != nil {
		return err
	}
	_, err = fmt.Fprint(l.DryRun, b.String())
	return err
}

// describeVersions tells of the tables that the prefix describes now.
func (l *load) describeVersions(ctx context.Context, from *kafka.Endpoint, w *kafka.Written, say func(string, ...any)) error {
	if err := from.Unfit(w); err != nil {
		return err
	}
	all, err := from.Described(ctx)
	if err != nil {
		return err
	}
	written := map[uint32]bool{}
	for i := range w.Tables {
		written[w.Tables[i].OID] = true
	}
	versions := slices.DeleteFunc(all, func(v *krecord.TableVersion) bool { return !written[v.OID] || !l.Patterns.Match(v.Name()) })
	names := make([]millrace.TableName, len(versions))
	for i, v := range versions {
		names[i] = v.Name()
	}
	there, err := catalog.DescribeByName(ctx, l.target, names)
	if err != nil {
		return session.Wrap("read tables", millrace.PeerDestination, err)
	}
	say("\n-- job %s writes to the prefix: system %s, generation %d", w.Job, w.History.System, w.History.Generation)
	say("-- tables, each when its description comes in the stream, and then their rows; others may join")
	var keys []string
	for _, v := range versions {
		switch {
		case there[v.Name()] != nil:
			say("-- kept, and must be empty: %s", v.Name())
			continue
		case l.SchemaMode != SchemaCreate:
			say("-- missing, and must be made by hand (destination.postgres.schema): %s", v.Name())
			continue
		case l.ByKey:
			v = alone(v)
		}
		types, err := v.CreateTypes()
		if err != nil {
			return err
		}
		table, foreign := v.CreateTable()
		for _, sql := range append(types, table) {
			say("%s;", sql)
		}
		keys = append(keys, foreign...)
	}
	if len(keys) > 0 {
		say("\n-- once all rows are there")
	}
	for _, sql := range keys {
		say("%s;", sql)
	}
	return nil
}
