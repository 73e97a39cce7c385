package kafka

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
)

// Loader does the first load of a job: it owns the job like a writer, and each
// of its steps is one Kafka transaction. A chunk is encoded while the one before is sent.
type Loader struct {
	w      *writer
	ctl    *Control
	job    *record.Job
	layout string
	chunks map[millrace.TableName]int

	batches [2]batch   // of chunks, in turn
	turn    int        // of the next
	sent    chan error // what becomes of the chunk that is being sent; nil: none is
}

// Load fences whoever wrote for the job before, records a new generation of it
// and makes its topics. job.Generation must be the one that Read gave, 0 for
// none: if another instance was faster, nothing is changed.
func (s *Sink) Load(ctx context.Context, job *record.Job) (*Loader, error) {
	const op = "record the job"
	e := s.opt.Endpoint
	if err := s.Close(); err != nil {
		return nil, err
	}
	ctl, err := e.OpenControl()
	if err != nil {
		return nil, err
	}
	s.ctl = ctl
	if err := ctl.Create(ctx, int(s.opt.Topics.replication())); err != nil {
		return nil, err
	}
	if s.state, err = ctl.Read(ctx); err != nil {
		return nil, err
	}
	old := s.state
	s.state = newState()
	s.state.Job = job
	for i := range job.Tables {
		s.known[topicName(e.Prefix, job.Tables[i].Name, s.opt.Topics.Names)] = job.Tables[i].OID
	}
	if err := ctl.OneLayout(ctx, s.opt.Layout); err != nil {
		return nil, err
	}
	dests, limit, err := s.prepare(ctx)
	if err != nil {
		return nil, err
	}
	for n, pin := range old.Topics {
		if d := dests[n]; d != nil {
			d.schema = pin.Schema // numbers go on; the record itself is written anew
		}
	}
	cl, err := e.producer(limit, transactionTimeout, s.opt.MaxHeld)
	if err != nil {
		return nil, err
	}
	state, err := fence(ctx, e, cl)
	if err == nil && (state.Generation != old.Generation || state.Job != nil && state.Job.Generation != job.Generation) {
		err = &millrace.Error{Kind: millrace.KindPreflight, Op: op, Peer: e.Peer,
			Err: fmt.Errorf("another instance has just recorded job %s", e.Job)}
	}
	var last number // of a generation that the record may have lost
	if err == nil {
		last, _, err = lastNumber(ctx, cl, s.opt.marks()[0])
	}
	if err != nil {
		cl.Close()
		return nil, e.wrap(op, err)
	}
	w := &writer{opt: &s.opt, cl: cl, timeout: transactionTimeout, admin: ctl.cl, stats: &s.stats, dests: dests, limit: limit,
		rels: map[*millrace.Relation]*route{}, known: s.known, cp: state.Checkpoint}
	w.pos = newPositions(0)
	w.q = newQueue(s.opt.MaxHeld, false, &w.cp)
	job.Format, job.Generation, job.CreatedAt = record.Format, max(state.Generation, last.generation)+1, time.Now().UTC()
	job.Epoch, job.Early = state.Checkpoint.Epoch+1, true
	w.cp = millrace.Checkpoint{History: millrace.History{System: job.SystemID, Timeline: job.Timeline, Generation: job.Generation},
		Epoch: job.Epoch, Seq: state.Checkpoint.Seq}
	l := &Loader{w: w, ctl: ctl, job: job, layout: s.opt.Layout, chunks: map[millrace.TableName]int{}}
	if err := l.commit(ctx, l.opening(state)); err != nil {
		cl.Close()
		return nil, e.wrap(op, err)
	}
	return l, nil
}

// opening are the records of a new generation, and the removal of those of the
// last one.
func (l *Loader) opening(old *State) []*kgo.Record {
	e := l.w.opt.Endpoint
	gone := map[string]bool{}
	if old.Job != nil {
		for i := range old.Job.Tables {
			gone[tableKey(old.Job.Tables[i].OID)] = true
		}
	}
	for name := range old.Topics {
		gone[keyTopic+name] = true
	}
	for key := range old.states {
		gone[key] = true
	}
	var records []*kgo.Record
	for _, n := range l.w.opt.marks() {
		records = append(records, l.w.pin(l.w.dests[n], millrace.TableName{}))
		delete(gone, keyTopic+n)
	}
	for i := range l.job.Tables {
		t := &l.job.Tables[i]
		d := l.w.dests[topicName(e.Prefix, t.Name, l.w.opt.Topics.Names)]
		records = append(records, e.table(t), l.w.pin(d, t.Name))
		delete(gone, tableKey(t.OID))
		delete(gone, keyTopic+d.name)
	}
	for key := range gone {
		records = append(records, e.control(key, nil))
	}
	return append(records, e.control(keyJob, jobRecord(l.job, l.layout)),
		l.state(stateJSON{string(l.job.State), l.job.Reason, l.job.Hint}))
}

func (l *Loader) state(s stateJSON) *kgo.Record {
	return l.w.opt.Endpoint.control(stateKey(l.w.cp.Generation, l.w.cp.Epoch), s)
}

func tableKey(oid uint32) string { return keyTable + strconv.FormatUint(uint64(oid), 10) }

func (e *Endpoint) table(t *record.Table) *kgo.Record { return e.tableMark(t, nil) }

// tableMark is the record of a table that is loaded beside the stream, if it has a
// mark.
func (e *Endpoint) tableMark(t *record.Table, m *millrace.Mark) *kgo.Record {
	j := tableJSON{OID: t.OID, Schema: t.Name.Schema, Name: t.Name.Name, Filenode: t.Filenode, Shape: t.Shape, Copied: t.Copied, Adding: t.Adding, Rows: t.Rows, Bytes: t.Bytes}
	if m != nil {
		j.Loading, j.Mark = true, string(m.State)
	}
	return e.control(tableKey(t.OID), j)
}

func (l *Loader) commit(ctx context.Context, records []*kgo.Record) error {
	if err := l.Flush(ctx); err != nil {
		return err
	}
	return l.w.opt.Endpoint.wrap("write the job's record", l.w.commit(ctx, &batch{control: records}))
}

// Generation is the number of this load.
func (l *Loader) Generation() int64 { return l.job.Generation }

// Start records the slot's consistent point, what of slot and publication is
// ours, and what is known of the tables under its snapshot. beside: they are to be
// loaded beside the stream, which is all that this load has to do.
func (l *Loader) Start(ctx context.Context, point millrace.LSN, ownsSlot, ownsPublication, beside bool, tables []record.Table) error {
	var mark *millrace.Mark
	l.job.ConsistentPoint, l.job.OwnsSlot, l.job.OwnsPublication, l.job.LoadStarted = point, ownsSlot, ownsPublication, time.Now().UTC()
	l.job.Tables = tables
	l.w.cp.End, l.w.cp.Acked = point, point
	records := []*kgo.Record{l.w.opt.Endpoint.control(keyJob, jobRecord(l.job, l.layout))}
	if beside {
		mark = &millrace.Mark{}
		records = append(records, l.state(stateJSON{State: string(record.Stopped), Reason: "the first load goes on beside the stream",
			Hint: "millrace run, or millrace bootstrap, takes it up"}))
	}
	for i := range tables {
		d := l.w.dests[topicName(l.w.opt.Endpoint.Prefix, tables[i].Name, l.w.opt.Topics.Names)]
		records = append(records, l.w.opt.Endpoint.tableMark(&tables[i], mark), l.w.pin(d, tables[i].Name))
	}
	return l.commit(ctx, records)
}

// Keys chooses the keys of the tables' records by what they are, and what the
// catalog says of them, under the snapshot of the load. Start records them.
func (l *Loader) Keys(rels []*millrace.Relation, facts func(*millrace.Relation) *TableFacts) error {
	l.w.opt.Facts = facts
	for _, rel := range rels {
		d := l.w.dests[topicName(l.w.opt.Endpoint.Prefix, rel.Name, l.w.opt.Topics.Names)]
		key, err := l.w.opt.key(rel, d)
		if err != nil {
			return err
		}
		d.key = namesOf(rel, key)
	}
	return nil
}

// Settle finds out what has become of a load whose last step has failed, which
// may have been committed all the same, from what is recorded of the job now. ours:
// nobody else has recorded the job since. While it is ours, the job is taken
// over from whatever of this Loader is still on its way.
func (l *Loader) Settle(ctx context.Context) (job *record.Job, ours bool, err error) {
	const op = "look what has become of the first load"
	e := l.w.opt.Endpoint
	ctl, err := e.OpenControl()
	if err != nil {
		return nil, false, err
	}
	defer ctl.Close()
	s, err := ctl.Read(ctx)
	if err != nil || s.Generation > l.job.Generation {
		return nil, false, err
	}
	cl, err := e.producer(maxBatch, transactionTimeout, 0)
	if err != nil {
		return nil, false, err
	}
	defer cl.Close()
	if s, err = fence(ctx, e, cl); err != nil {
		return nil, false, e.wrap(op, err)
	}
	return s.Job, s.Generation == l.job.Generation, nil
}

// Finish records that the destination is consistent from the consistent point.
func (l *Loader) Finish(ctx context.Context) error {
	if err := l.Flush(ctx); err != nil {
		return err
	}
	l.job.ConsistentFrom = l.job.ConsistentPoint
	err := l.commit(ctx, []*kgo.Record{l.w.opt.Endpoint.control(keyJob, jobRecord(l.job, l.layout)),
		l.state(stateJSON{State: string(record.CatchingUp), Reason: "the first load is complete"})})
	if err != nil {
		return err
	}
	return l.shown(ctx)
}

// shown waits until the record of the job can be read: a commit is confirmed before its
// marker is in the topic, and whoever looked at once would take the load for incomplete and
// wait for the rest of it. A job that is not there was cleaned up just now.
func (l *Loader) shown(ctx context.Context) error {
	for {
		s, err := l.ctl.Read(ctx)
		if err != nil {
			return err
		}
		if s.Generation > l.job.Generation || s.Job == nil || s.Job.Generation == l.job.Generation && s.Job.ConsistentFrom != 0 {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close gives the job up.
func (l *Loader) Close() {
	l.w.cl.Close() // which ends what is being sent
	if l.sent != nil {
		<-l.sent //nolint:errcheck // nobody waits for what becomes of it
	}
}

// chunkID names a chunk in its BEGIN and END.
func chunkID(t millrace.TableName, n int) string {
	return "chunk:" + t.Schema + "." + t.Name + ":" + strconv.Itoa(n)
}

// Chunk makes rows of a table durable, with their mark, in one Kafka
// transaction. t holds one Read per row, has the time and the history, and is
// the caller's again when Chunk returns. last says that the table is complete; the numbers
// are those of the whole table.
//
// It returns when the chunk before is durable, or with the error of that one: Flush waits
// for the last.
func (l *Loader) Chunk(ctx context.Context, rel *millrace.Relation, t *millrace.Txn, table *record.Table) error {
	w, b := l.w, &l.batches[l.turn]
	l.turn = 1 - l.turn
	b.reset()
	b.history = t.From
	l.chunks[rel.Name]++
	o := w.begun(b, chunkID(rel.Name, l.chunks[rel.Name]), 0, l.job.ConsistentPoint, t.Time, t.From)
	defer func() { w.open, w.batch = nil, nil }()
	w.opt.Encoder.Begin(o.id, t)
	if _, err := w.route(ctx, rel); err != nil {
		return err
	}
	for i := range t.Changes {
		if err := w.change(ctx, &t.Changes[i]); err != nil {
			return w.locate(err, t)
		}
	}
	if err := w.finish(o, t.Time, Position{Commit: l.job.ConsistentPoint, End: l.job.ConsistentPoint}); err != nil {
		return err
	}
	w.complete(b)
	b.control = append(b.control, w.opt.Endpoint.table(table))
	if err := l.Flush(ctx); err != nil {
		return err
	}
	l.sent = make(chan error, 1)
	go func() {
		l.sent <- w.opt.Endpoint.wrap("load "+strings.TrimSpace(rel.Name.String()), w.commit(ctx, b))
	}()
	return nil
}

// Flush waits until the last chunk is durable.
func (l *Loader) Flush(ctx context.Context) error {
	if l.sent == nil {
		return nil
	}
	select {
	case err := <-l.sent:
		l.sent = nil
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
