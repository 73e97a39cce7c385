package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
)

// Revision is a change of the record of a job, of which another process may write:
// what Revise gives to who decides about it.
type Revision struct {
	// Job is the job as it is recorded, and Again says that this is not the first try:
	// the one before may have been committed.
	Job   *record.Job
	Again bool

	state   *State
	opt     *Options
	records []*kgo.Record
}

// mostRevisions bounds how often Revise tries. Whoever writes for the job, and takes
// it back, needs longer for that than a try takes.
const mostRevisions = 20

// Revise changes the record of a job in one Kafka transaction. It fences whoever
// writes for the job, as a claim does, so that nothing of it comes between the reading
// of the record and its change; but the job's epoch stays, and with it its owner,
// who starts anew with the record as it is then. If do fails or records nothing,
// nothing is changed.
func Revise(ctx context.Context, o *Options, generation int64, do func(*Revision) error) error {
	for try := 1; ; try++ {
		err := revise(ctx, o, generation, try > 1, do)
		if millrace.KindOf(err) != millrace.KindRetry || try == mostRevisions || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(time.Duration(try) * 50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func revise(ctx context.Context, o *Options, generation int64, again bool, do func(*Revision) error) error {
	const op = "change the job's record"
	e := o.Endpoint
	cl, err := e.producer(maxBatch, transactionTimeout, 0)
	if err != nil {
		return err
	}
	defer cl.Close()
	s, err := fence(ctx, e, cl)
	if err != nil {
		return e.wrap(op, err)
	}
	if s.Job == nil || s.Generation != generation {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: op, Peer: e.Peer,
			Err: fmt.Errorf("job %s was cleaned up or started over just now", e.Job), Hint: "millrace status shows what there is"}
	}
	r := &Revision{Job: s.Job, Again: again, state: s, opt: o}
	if err := do(r); err != nil || len(r.records) == 0 {
		return err
	}
	cp := s.Checkpoint
	cp.Seq++
	return e.wrap(op, commitControl(ctx, cl, append(r.records, e.checkpoint(&cp, s.Number))))
}

// commitControl writes records of a control topic in one transaction.
func commitControl(ctx context.Context, cl *kgo.Client, records []*kgo.Record) error {
	if err := cl.BeginTransaction(); err != nil {
		return err
	}
	if err := cl.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	return cl.EndTransaction(ctx, kgo.TryCommit)
}

// Table gives what is recorded of a table, nil if it is none of the job's.
func (r *Revision) Table(oid uint32) *record.Table {
	i := slices.IndexFunc(r.Job.Tables, func(t record.Table) bool { return t.OID == oid })
	if i < 0 {
		return nil
	}
	return &r.Job.Tables[i]
}

// mark gives that of a table which is loaded beside the stream, nil if it is not.
func (r *Revision) mark(oid uint32) *millrace.Mark {
	i := slices.IndexFunc(r.state.marks, func(m millrace.Mark) bool { return m.OID == oid })
	if i < 0 {
		return nil
	}
	return &r.state.marks[i]
}

// Mark gives how far the load of a table is; nothing if there is none, or it has not begun.
func (r *Revision) Mark(oid uint32) []byte {
	if m := r.mark(oid); m != nil {
		return m.State
	}
	return nil
}

// Record records a table. Its load beside the stream, if there is one, goes on.
func (r *Revision) Record(t record.Table) {
	mark := r.mark(t.OID)
	r.records = append(r.records, r.opt.Endpoint.tableMark(&t, mark))
}

// Load records a table whose load beside the stream begins, with mark.
func (r *Revision) Load(t record.Table, mark string) {
	t.Copied, t.Rows, t.Bytes = false, 0, 0
	r.records = append(r.records, r.opt.Endpoint.tableMark(&t, &millrace.Mark{OID: t.OID, State: []byte(mark)}))
}

// Join records the topic of a table that joins the job.
func (r *Revision) Join(j *Joining) {
	r.records = append(r.records, r.opt.Endpoint.control(keyTopic+j.Name, j.pin))
}

// Drop takes a table out of the record, and its topic, which stays as it is.
func (r *Revision) Drop(t record.Table) {
	e := r.opt.Endpoint
	r.records = append(r.records, e.control(tableKey(t.OID), nil))
	for name, pin := range r.state.Topics {
		if pin.Table == t.Name.String() {
			r.records = append(r.records, e.control(keyTopic+name, nil))
		}
	}
}

// RaiseSet tells whoever streams that the set of tables, or what is to be loaded of
// it, is another one.
func (r *Revision) RaiseSet() {
	j := *r.Job
	j.Set++
	r.records = append(r.records, r.opt.Endpoint.control(keyJob, jobRecord(&j, r.state.Layout)))
}

// Joining is what a table needs that joins a job: its topic, which is there, and the
// key of its records.
type Joining struct {
	Name string // of the topic; in layout stream the name that it would have
	// Used: there are records of the table already, from before it left the job, or of another
	// one of its name; or of itself in another topic, since it had another name.
	Used bool

	pin Topic
}

// Join makes the topics of tables that are to join a job, and chooses the keys of their
// records by what they are, and what o.Facts says of them, now. The numbers of their descriptions go on behind
// those that are in PREFIX.schema: records may be there that need them.
func Join(ctx context.Context, o *Options, rels []*millrace.Relation) ([]Joining, error) {
	e := o.Endpoint
	ctl, err := e.OpenControl()
	if err != nil {
		return nil, err
	}
	defer ctl.Close()
	described, err := e.Described(ctx)
	if err != nil {
		return nil, err
	}
	numbers, known := map[string]int{}, map[uint32]bool{}
	for _, v := range described {
		numbers[v.Topic] = v.Version
		known[v.OID] = true
	}
	all, names := make([]Joining, len(rels)), make([]string, len(rels))
	for i, rel := range rels {
		names[i] = topicName(e.Prefix, rel.Name, o.Topics.Names)
	}
	dests := map[string]*dest{}
	if !o.stream() {
		if dests, err = e.ensure(ctx, ctl.cl, &o.Topics, names); err != nil {
			return nil, err
		}
	}
	for i, rel := range rels {
		d := dests[names[i]]
		if d == nil {
			d = &dest{name: names[i], partitions: 1}
		}
		key, err := o.key(rel, d)
		if err != nil {
			return nil, err
		}
		d.key, d.schema = namesOf(rel, key), numbers[d.name]
		all[i] = Joining{Name: d.name, Used: d.schema > 0 || known[rel.OID], pin: d.pin(rel.Name)}
	}
	return all, nil
}

// Keyless tells whether the records of a table of the job have no key by which whoever
// reads them could tell its rows apart.
func (s *State) Keyless(table millrace.TableName) bool {
	for _, pin := range s.Topics {
		if pin.Table == table.String() {
			return pin.Key != nil && len(pin.Key) == 0
		}
	}
	return false
}

// fenced tells whether somebody has taken the transactional id over, or the broker has
// given the transaction up.
func fenced(err error) bool {
	return errors.Is(err, kerr.InvalidProducerEpoch) || errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidTxnState) ||
		errors.Is(err, kerr.InvalidProducerIDMapping)
}

// revisedWithin is how long a writer that was fenced waits for the change of the record
// for which that was done. Who does it has the time for that: a writer that takes the
// job back at once would be in the way.
const revisedWithin = time.Second

// revised looks why a commit has failed. If the record was changed under the same epoch,
// nobody else has the job, and the writer starts anew at once.
func (w *writer) revised(ctx context.Context, cause error) error {
	if !fenced(cause) && !errors.Is(cause, kerr.UnknownServerError) { // so in the moment of the fencing
		return cause
	}
	e := w.opt.Endpoint
	var c controlReader
	for until := time.Now().Add(revisedWithin); time.Now().Before(until); {
		s, err := c.state(ctx, w.admin, controlTopic(e.Prefix, e.Job), e.Job, func(p page) int64 { return p.stable })
		switch {
		case err != nil, s.Checkpoint.Generation != w.cp.Generation, s.Checkpoint.Epoch != w.epoch:
			return cause
		case s.Checkpoint.Seq > w.cp.Seq:
			return fmt.Errorf("the set of tables is being changed: %w", millrace.ErrStartAnew)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return cause
		}
	}
	return cause
}
