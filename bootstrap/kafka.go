package bootstrap

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/datum"
	"github.com/millrace/millrace/kafka"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// KafkaOptions are those of a first load into Kafka: Options without what only
// concerns a PostgreSQL target, and where the rows go.
type KafkaOptions struct {
	Options
	Sink  kafka.Options
	State *kafka.State // of the control topic, just read
}

// kafkaLoad is a load whose destination is a prefix of topics. The order of
// steps is that of any load; each step of the record is a Kafka transaction of
// the producer that owns the job.
type kafkaLoad struct {
	load
	sink   *kafka.Sink
	loader *kafka.Loader
	opt    KafkaOptions
	begun  bool // a table is complete: what is left is done beside the stream
}

// chunkBytes is how much of a table becomes one Kafka transaction: much less
// than what a transaction's timeout allows, and a few times that in memory.
const chunkBytes = 4 << 20

// RunKafka does the first load into Kafka. On a job whose first load is complete
// it does nothing.
func RunKafka(ctx context.Context, o KafkaOptions) error {
	l := &kafkaLoad{opt: o}
	l.Options, l.log, l.tracker = o.Options, o.Log, snapshot.NewTracker(o.Progress)
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if l.SlotWait == 0 {
		l.SlotWait = time.Minute
	}
	l.job = o.State.Job
	if l.job != nil && l.job.ConsistentFrom != 0 && !l.Restart {
		l.log.Info("the first load is complete", "consistent_from", l.job.ConsistentFrom)
		return nil
	}
	defer l.close()
	if err := l.connectSource(ctx); err != nil {
		return err
	}
	if l.DryRun != nil {
		return l.dryRun(ctx)
	}
	if l.job != nil && !l.Restart && complete(l.job.Tables) > 0 {
		return l.takeUp(ctx)
	}
	for start := 1; ; start++ {
		err := l.attempt(ctx)
		if err == nil {
			return nil
		}
		advise(err)
		if l.giveUp(ctx, err) {
			l.log.Info("the first load is complete, although its last step was not confirmed", "cause", err)
			l.tracker.Enter(snapshot.PhaseDone, 0)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if l.begun {
			l.log.Warn("the load was interrupted", "cause", err)
			if err := l.connectSource(ctx); err != nil {
				return err
			}
			return l.takeUp(ctx)
		}
		if !errors.Is(err, snapshot.ErrChanged) || start == mostStarts {
			return err
		}
		l.log.Warn("starting again", "cause", err)
		if err := l.connectSource(ctx); err != nil {
			return err
		}
	}
}

// giveUp ends an attempt that failed. Its slot is dropped, which would hold up the
// source's log for nothing, since the snapshot is gone; but only if the load is
// known not to be complete, and nobody else has begun another one, whose slot has
// the same name; and not if a table is complete, which stays. done says that the last
// step was committed after all; if not, the record tells of the cause.
func (l *kafkaLoad) giveUp(ctx context.Context, cause error) (done bool) {
	if l.loader == nil {
		return false
	}
	stopped := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()
	job, ours, err := l.loader.Settle(ctx)
	l.loader.Close()
	l.loader = nil
	l.close()
	if job != nil && ours && err == nil {
		l.job = job
		if job.ConsistentFrom != 0 {
			return true
		}
		// The snapshot that was held for too long is not missed: what it has not shown is read without it.
		if l.begun = complete(job.Tables) > 0 || errors.Is(cause, errTimeout) && job.ConsistentPoint != 0; l.begun {
			return false // the slot is needed
		}
		if err := l.tell(ctx, cause, stopped); err != nil {
			l.log.Warn("the state could not be written", "cause", err)
		}
	}
	if err == nil && ours {
		if err = l.connectSource(ctx); err == nil {
			err = l.dropSlot(ctx)
		}
	}
	if err != nil || !ours {
		l.log.Warn("the slot of the interrupted load stays; bootstrap drops it when it starts over", "slot", l.Slot, "another_load", !ours && err == nil, "cause", err)
	}
	return false
}

// tell writes why the load has ended.
func (l *kafkaLoad) tell(ctx context.Context, cause error, stopped bool) error {
	ctl, err := l.opt.Sink.Endpoint.OpenControl()
	if err != nil {
		return err
	}
	defer ctl.Close()
	state, reason, hint := endState(cause, stopped, false)
	return ctl.SetState(ctx, state, reason, hint)
}

// takeUp has the rest of an interrupted load done beside the stream. Tables that are
// complete stay, since the stream goes on right behind them. What there is of the
// others is taken back by a truncate, and they are read again.
func (l *kafkaLoad) takeUp(ctx context.Context) error {
	if err := l.checkSlot(ctx); err != nil {
		return err
	}
	oids := make([]uint32, len(l.job.Tables))
	for i := range l.job.Tables {
		oids[i] = l.job.Tables[i].OID
	}
	o := l.opt.Sink
	var err error
	if o.Facts, err = FactsOf(ctx, l.source, oids); err != nil {
		return err
	}
	sink := kafka.New(o)
	defer sink.Close() //nolint:errcheck // what counts was confirmed
	if _, err := sink.Open(ctx); err != nil {
		return err
	}
	cp, err := sink.Claim(ctx)
	if err != nil {
		return err
	}
	for i := range l.job.Tables {
		t := &l.job.Tables[i]
		if t.Copied {
			continue
		}
		c, err := snapshot.DescribeChunks(ctx, l.source, t.OID, false, nil)
		if err != nil {
			return err
		}
		txn := &millrace.Txn{Chunk: &millrace.Chunk{Table: t.Name}, End: cp.Acked, Last: true,
			Marks: map[millrace.TableName]millrace.Mark{t.Name: {OID: t.OID}}}
		sink.UpdateTable(record.Table{OID: t.OID, Name: c.Rel.Name, Filenode: c.Filenode, Shape: c.Shape})
		if t.Rows > 0 {
			txn.Changes = []millrace.Change{{Op: millrace.Truncate, Seq: 1, Truncated: &millrace.Truncation{Rels: []*millrace.Relation{c.Rel}}}}
		}
		if err := sink.Write(ctx, txn); err != nil {
			return err
		}
	}
	sink.Beside(ModeIncremental)
	if _, err := sink.Drain(ctx); err != nil {
		return err
	}
	l.log.Info("the first load goes on beside the stream", "complete", complete(l.job.Tables), "tables", len(l.job.Tables))
	return nil
}

func (l *kafkaLoad) attempt(ctx context.Context) error {
	if err := l.prepare(ctx); err != nil {
		return err
	}
	created, err := l.createPublication(ctx)
	if err != nil {
		return err
	}
	if err := l.recordJob(ctx, created); err != nil {
		if created && l.loader == nil {
			l.dropPublication(ctx)
		}
		return err
	}
	if err := l.fill(ctx); err != nil {
		return err
	}
	if l.Mode == ModeIncremental {
		l.loader.Close()
		return nil
	}
	err = l.loader.Finish(ctx)
	if err == nil {
		l.tracker.Enter(snapshot.PhaseDone, 0)
		l.loader.Close()
	}
	return err
}

// prepare looks at the source before anything is changed.
func (l *kafkaLoad) prepare(ctx context.Context) error {
	problems, err := l.survey(ctx)
	if err != nil {
		return err
	}
	tables, err := l.described(ctx)
	if err != nil {
		return err
	}
	problems = append(problems, snapshot.CheckKeys(l.opt.Sink.Keys, tables)...)
	problems = append(problems, TopicProblems(&l.opt.Sink, tables)...)
	if len(problems) > 0 {
		return problemError("first load", problems)
	}
	l.logSkipped()
	return nil
}

// described gives the selected tables with their columns and indexes.
func (l *kafkaLoad) described(ctx context.Context) ([]*catalog.Table, error) {
	found, err := catalog.Describe(ctx, l.source, l.set.OIDs())
	if err != nil {
		return nil, session.Wrap("describe the tables", millrace.PeerSource, err)
	}
	tables := make([]*catalog.Table, 0, len(found))
	for _, oid := range l.set.OIDs() {
		if t := found[oid]; t != nil {
			tables = append(tables, t)
		}
	}
	return tables, nil
}

// TopicProblems finds tables whose topics or keys Kafka can't have, beside others that
// have theirs.
func TopicProblems(o *kafka.Options, tables []*catalog.Table, others ...millrace.TableName) []snapshot.Finding {
	var problems []snapshot.Finding
	names := slices.Clone(others)
	for _, t := range tables {
		names = append(names, t.Name)
		problems = append(problems, keyProblems(o, t)...)
	}
	if o.Layout == kafka.LayoutStream {
		return problems
	}
	for _, err := range kafka.CheckTopics(o.Endpoint.Prefix, names, o.Topics.Names) {
		problems = append(problems, snapshot.Finding{Subject: "topics", Text: err.Error(),
			Cure: "name another topic with destination.kafka.topics: {schema.table: NAME}"})
	}
	return problems
}

// recordKey gives the columns of the key that the records of a table have; none for
// a table without one.
func recordKey(o *kafka.Options, t *catalog.Table) []string {
	if key, chosen := o.Keys[t.Name]; chosen {
		return key
	}
	if t.Identity == millrace.IdentityFull {
		return Facts(t).PrimaryKey
	}
	return t.IdentityColumns()
}

// keyProblems finds what is wrong with the key that the records of a table would
// have.
func keyProblems(o *kafka.Options, t *catalog.Table) []snapshot.Finding {
	var problems []snapshot.Finding
	facts := Facts(t)
	key := recordKey(o, t)
	if _, chosen := o.Keys[t.Name]; chosen && o.Topics.Compact && !t.Distinct(key) {
		problems = append(problems, snapshot.Finding{Subject: t.Name.String(), Text: "keys names columns that several rows can share, of which a compacted topic would keep one",
			Cure: "CREATE UNIQUE INDEX CONCURRENTLY on these columns, all NOT NULL; or set destination.kafka.compact: false"})
	}
	if o.Topics.Compact && len(key) == 0 {
		problems = append(problems, snapshot.Finding{Subject: t.Name.String(), Text: "has no key, and a compacted topic needs one",
			Cure: "ALTER TABLE " + t.Name.SQL() + " ADD PRIMARY KEY (…), exclude the table, or set destination.kafka.compact: false"})
	}
	for _, c := range key {
		if o.Topics.Partitions > 1 && slices.Contains(facts.Loose, c) {
			problems = append(problems, snapshot.Finding{Subject: t.Name.String(), Text: kafka.LooseKey(c) + " with destination.kafka.partitions",
				Cure: "set destination.kafka.partitions: 1"})
		}
	}
	return problems
}

// Facts gives what the sink has to know of a table that the stream does not say.
func Facts(t *catalog.Table) *kafka.TableFacts {
	f := &kafka.TableFacts{}
	if x := t.PrimaryKey(); x != nil {
		for _, n := range x.Columns {
			if c := t.ByNum(n); c != nil {
				f.PrimaryKey = append(f.PrimaryKey, c.Name)
			}
		}
	}
	for i := range t.Columns {
		if t.Columns[i].DatumCollation() == datum.CollationNondeterministic {
			f.Loose = append(f.Loose, t.Columns[i].Name)
		}
	}
	return f
}

// FactsOf reads them for tables by their OIDs.
func FactsOf(ctx context.Context, q catalog.Querier, oids []uint32) (func(*millrace.Relation) *kafka.TableFacts, error) {
	found, err := catalog.Describe(ctx, q, oids)
	if err != nil {
		return nil, session.Wrap("read the keys of tables", millrace.PeerSource, err)
	}
	facts := make(map[uint32]*kafka.TableFacts, len(found))
	for oid, t := range found {
		facts[oid] = Facts(t)
	}
	return func(rel *millrace.Relation) *kafka.TableFacts { return facts[rel.OID] }, nil
}

// recordJob takes the job and records a new generation of it.
func (l *kafkaLoad) recordJob(ctx context.Context, created bool) error {
	if err := l.dropSlot(ctx); err != nil {
		return err
	}
	job := &record.Job{Name: l.Job, State: record.Bootstrapping, Reason: "the first load is running",
		SystemID: l.server.SystemID, Timeline: l.server.Timeline, PageSize: l.server.PageSize, SegmentSize: l.server.SegmentSize,
		Slot: l.Slot, Publication: l.Publication, Mode: l.Mode, OwnsSlot: true, OwnsPublication: created}
	if l.job != nil {
		job.Generation = l.job.Generation
		job.OwnsPublication = created || l.job.OwnsPublication && l.job.Publication == l.Publication && l.pub != nil
	}
	for _, t := range l.set.Tables {
		job.Tables = append(job.Tables, record.Table{OID: t.OID, Name: t.Name})
	}
	l.sink = kafka.New(l.opt.Sink)
	loader, err := l.sink.Load(ctx, job)
	if err != nil {
		return err
	}
	l.job, l.loader = job, loader
	return nil
}

// fill makes the slot and reads everything under its snapshot.
func (l *kafkaLoad) fill(ctx context.Context) (err error) {
	ctx, cancel := l.limitHold(ctx)
	defer cancel()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // and not the lost connection that it has caused
		}
	}()
	l.tracker.Enter(snapshot.PhaseSlot, 0)
	pg, err := l.Source.ConnectReplication(ctx, session.Stream)
	if err != nil {
		return err
	}
	// The exported snapshot lives until the next command on this session.
	defer pg.Close(context.WithoutCancel(ctx))
	slot, err := l.awaitSlot(ctx, pg)
	if err != nil {
		return err
	}
	l.tracker.Hold(time.Now())
	l.log.Info("created the slot", "slot", slot.Name, "consistent_point", slot.ConsistentPoint)
	h, err := snapshot.Hold(ctx, l.Source, slot.Snapshot, l.set.Tables, 0)
	if err != nil {
		return err
	}
	defer h.Release()
	if err := l.sameSet(ctx, h); err != nil {
		return err
	}
	tables, err := l.describe(ctx, h)
	if err != nil {
		return err
	}
	recorded, rels := make([]record.Table, len(tables)), make([]*millrace.Relation, len(tables))
	for i, t := range tables {
		rels[i] = t.Rel
		recorded[i] = record.Table{OID: t.Rel.OID, Name: t.Rel.Name, Filenode: h.Filenode(t.Rel.OID), Shape: t.Shape}
	}
	facts, err := FactsOf(ctx, h.Conn(), l.set.OIDs())
	if err != nil {
		return err
	}
	if err := l.loader.Keys(rels, facts); err != nil {
		return err
	}
	if err := l.loader.Start(ctx, slot.ConsistentPoint, true, l.job.OwnsPublication, l.Mode == ModeIncremental, recorded); err != nil {
		return err
	}
	if l.Mode == ModeNone || l.Mode == ModeIncremental {
		return nil
	}
	// What an asynchronous commit left in the snapshot must not vanish in a crash
	// of the source once it is here.
	if err := snapshot.AwaitFlushed(ctx, l.source, slot.ConsistentPoint); err != nil {
		return err
	}
	l.tracker.Enter(snapshot.PhaseRows, 0)
	return l.readTables(ctx, h, tables)
}

func (l *kafkaLoad) describe(ctx context.Context, h *snapshot.Holder) ([]*snapshot.ChunkTable, error) {
	var tables []*snapshot.ChunkTable
	for _, t := range l.set.Tables {
		c, err := snapshot.DescribeChunks(ctx, h.Conn(), t.OID, false, nil)
		if err != nil {
			return nil, err
		}
		tables = append(tables, c)
	}
	return tables, nil
}

// readTables reads one table after the other: the producer, which has one
// transaction at a time, is what limits.
func (l *kafkaLoad) readTables(ctx context.Context, h *snapshot.Holder, tables []*snapshot.ChunkTable) error {
	r, err := snapshot.NewChunkReader(ctx, l.Source, snapshot.NewLimiter(l.Rate))
	if err != nil {
		return err
	}
	defer r.Close()
	for _, sql := range []string{`BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`, `SET TRANSACTION SNAPSHOT ` + millrace.QuoteLiteral(h.ID)} {
		if _, err := r.Conn().Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return session.Wrap("import the snapshot", millrace.PeerSource, err)
		}
	}
	for _, t := range tables {
		if err := l.readTable(ctx, r, t, h.Filenode(t.Rel.OID)); err != nil {
			return err
		}
	}
	return nil
}

// readTable reads a table while the piece before is made into records, and the one before
// that is sent.
func (l *kafkaLoad) readTable(ctx context.Context, r *snapshot.ChunkReader, t *snapshot.ChunkTable, filenode uint32) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pieces, read := make(chan *snapshot.Rows), make(chan error, 1)
	go func() {
		defer close(pieces)
		read <- r.All(ctx, t, chunkBytes, func(rows *snapshot.Rows) error {
			select {
			case pieces <- rows:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	from := &millrace.History{System: l.job.SystemID, Timeline: l.job.Timeline, Generation: l.job.Generation}
	mark := record.Table{OID: t.Rel.OID, Name: t.Rel.Name, Filenode: filenode, Shape: t.Shape}
	var failed error
	for rows := range pieces {
		if failed != nil {
			continue // the reader is about to end
		}
		mark.Rows += int64(len(rows.Changes))
		mark.Bytes += rows.Size
		mark.Copied = rows.Final
		txn := &millrace.Txn{Time: time.Now(), From: from, Changes: rows.Changes, Chunk: &millrace.Chunk{Table: t.Rel.Name, Upto: l.job.ConsistentPoint}, Last: true}
		if failed = l.loader.Chunk(ctx, t.Rel, txn, &mark); failed != nil {
			cancel()
			continue
		}
	}
	if failed != nil {
		return errors.Join(failed, ended(<-read))
	}
	if err := errors.Join(<-read, l.loader.Flush(ctx)); err != nil {
		return err
	}
	l.log.Info("read the table", "table", t.Rel.Name, "rows", mark.Rows)
	return nil
}

// ended leaves out what a cancelled read says.
func ended(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
