package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
)

// The keys of the records in the control topic. Those that only a claimed
// producer writes, in its transactions, are read committed; state and runtime
// are signs of a single process, written at any time, outside of transactions.
const (
	keyJob        = "job"
	keyCheckpoint = "checkpoint"
	keyState      = "state"
	keyRuntime    = "runtime:"
	keyTable      = "table:"
	keyTopic      = "topic:"
)

// State is what a control topic holds.
type State struct {
	Job        *record.Job // nil: there is none
	Checkpoint millrace.Checkpoint
	// Layout and Topics are what the job's records are written to.
	Layout string
	Topics map[string]Topic
	// Generation is the number of the last first load, also of a job that is gone.
	Generation int64

	runtime map[string]*record.Runtime
	updated time.Time
	// undecided: behind what is read committed is a checkpoint whose transaction
	// has not ended, or whose marker has not come.
	undecided bool
}

// Topic is what must not change about a topic while a job writes to it.
type Topic struct {
	ID         string `json:"id"` // hexadecimal
	Partitions int    `json:"partitions"`
	Table      string `json:"table,omitempty"`
	// Schema is the number of the table's newest record in PREFIX.schema, and
	// Shape tells whether another one is due.
	Schema int    `json:"schema,omitempty"`
	Shape  string `json:"shape,omitempty"`
}

// jobJSON is the record of key job. Members are named as in millrace.job.
type jobJSON struct {
	Format          int          `json:"format"`
	Generation      int64        `json:"generation"`
	Gone            bool         `json:"gone,omitempty"` // only the generation is left
	SystemID        string       `json:"system_id,omitempty"`
	Timeline        int32        `json:"timeline,omitempty"`
	PageSize        uint64       `json:"page_size,omitempty"`
	SegmentSize     uint64       `json:"segment_size,omitempty"`
	Slot            string       `json:"slot,omitempty"`
	Publication     string       `json:"publication,omitempty"`
	Mode            string       `json:"mode,omitempty"`
	Layout          string       `json:"layout,omitempty"`
	ConsistentPoint millrace.LSN `json:"consistent_point"`
	ConsistentFrom  millrace.LSN `json:"consistent_from"`
	OwnsSlot        bool         `json:"owns_slot"`
	OwnsPublication bool         `json:"owns_publication"`
	LoadStarted     time.Time    `json:"load_started,omitzero"`
	CreatedAt       time.Time    `json:"created_at,omitzero"`
}

type tableJSON struct {
	OID      uint32 `json:"oid"`
	Schema   string `json:"schema"`
	Name     string `json:"name"`
	Filenode uint32 `json:"filenode,omitempty"`
	Shape    string `json:"shape,omitempty"`
	Copied   bool   `json:"copied"`
	Rows     int64  `json:"rows_copied"`
	Bytes    int64  `json:"bytes_copied"`
}

type checkpointJSON struct {
	SystemID     string       `json:"system_id"`
	Timeline     int32        `json:"timeline"`
	Generation   int64        `json:"generation"`
	Epoch        int64        `json:"epoch"`
	Seq          int64        `json:"seq"`
	CommitLSN    millrace.LSN `json:"commit_lsn"`
	CommittedLSN millrace.LSN `json:"committed_lsn"`
	AckedLSN     millrace.LSN `json:"acked_lsn"`
	LastXID      uint32       `json:"last_xid,omitempty"`
	LastCommit   time.Time    `json:"last_commit_ts,omitzero"`
	Cursor       []byte       `json:"cursor,omitempty"`
}

type stateJSON struct {
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	Hint   string `json:"hint,omitempty"`
}

type runtimeJSON struct {
	Instance    string    `json:"instance"`
	Host        string    `json:"host"`
	PID         int       `json:"pid"`
	Version     string    `json:"version"`
	HTTP        string    `json:"http,omitempty"`
	Condition   string    `json:"condition,omitempty"`
	StartedAt   time.Time `json:"started_at"`
	HeartbeatAt time.Time `json:"heartbeat_at"`
}

func checkpointRecord(cp *millrace.Checkpoint) checkpointJSON {
	c := checkpointJSON{SystemID: cp.System, Timeline: cp.Timeline, Generation: cp.Generation, Epoch: cp.Epoch, Seq: cp.Seq,
		CommitLSN: cp.Commit, CommittedLSN: cp.End, AckedLSN: cp.Acked, LastXID: cp.LastXID, Cursor: cp.Cursor}
	if cp.LastTime != 0 {
		c.LastCommit = time.UnixMicro(cp.LastTime).UTC()
	}
	return c
}

func (c *checkpointJSON) checkpoint() millrace.Checkpoint {
	cp := millrace.Checkpoint{History: millrace.History{System: c.SystemID, Timeline: c.Timeline, Generation: c.Generation},
		Epoch: c.Epoch, Seq: c.Seq, Commit: c.CommitLSN, End: c.CommittedLSN, Acked: c.AckedLSN, LastXID: c.LastXID, Cursor: c.Cursor}
	if !c.LastCommit.IsZero() {
		cp.LastTime = c.LastCommit.UnixMicro()
	}
	return cp
}

func jobRecord(j *record.Job, layout string) jobJSON {
	return jobJSON{Format: j.Format, Generation: j.Generation, SystemID: j.SystemID, Timeline: j.Timeline, PageSize: j.PageSize,
		SegmentSize: j.SegmentSize, Slot: j.Slot, Publication: j.Publication, Mode: j.Mode, Layout: layout,
		ConsistentPoint: j.ConsistentPoint, ConsistentFrom: j.ConsistentFrom, OwnsSlot: j.OwnsSlot,
		OwnsPublication: j.OwnsPublication, LoadStarted: j.LoadStarted, CreatedAt: j.CreatedAt}
}

// Control is the job's record in its control topic, for one process. Its methods
// may be called by one goroutine at a time.
type Control struct {
	e  *Endpoint
	cl *kgo.Client
}

// OpenControl makes a Control. It connects when it is first used.
func (e *Endpoint) OpenControl() (*Control, error) {
	// One request at a time and no linger: a heartbeat is a record, not a load.
	cl, err := e.client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RecordDeliveryTimeout(retryWithin), kgo.ProducerLinger(0))
	if err != nil {
		return nil, err
	}
	return &Control{e: e, cl: cl}, nil
}

// Close disconnects.
func (c *Control) Close() { c.cl.Close() }

// Read gives what the control topic holds now: committed records up to the last
// stable offset, and the signs of life behind it. It changes nothing. A topic
// that does not exist is an empty State.
func (c *Control) Read(ctx context.Context) (*State, error) {
	s, err := readControl(ctx, c.cl, controlTopic(c.e.Prefix, c.e.Job), c.e.Job, func(p page) int64 { return p.stable })
	return s, c.e.wrap("read the job's record", err)
}

// readControl reads committed records to the offset that end gives, and then the
// signs of life to the high watermark.
func readControl(ctx context.Context, cl *kgo.Client, name, job string, end func(page) int64) (*State, error) {
	s := &State{Topics: map[string]Topic{}, runtime: map[string]*record.Runtime{}}
	found, err := topics(ctx, cl, name)
	if err != nil {
		return nil, err
	}
	t := found[name]
	if t == nil {
		return s, nil
	}
	if len(t.leaders) != 1 {
		return nil, fmt.Errorf("control topic %s has %d partitions, want one", name, len(t.leaders))
	}
	if t.leaders[0] < 0 {
		if t, err = awaitLeader(ctx, cl, t); err != nil {
			return nil, err
		}
	}
	first, err := offsets(ctx, cl, -2, t)
	if err != nil {
		return nil, err
	}
	b := &stateBuilder{state: s, name: job, tables: map[string]tableJSON{}}
	at, err := newFetcher(cl, true).readAll(ctx, t, first[t][0], end, b.add)
	if err != nil {
		return nil, err
	}
	_, err = newFetcher(cl, false).readAll(ctx, t, at, func(p page) int64 { return p.high }, func(r *kgo.Record) error {
		switch k := string(r.Key); {
		case k == keyState || strings.HasPrefix(k, keyRuntime):
			return b.add(r)
		case k == keyCheckpoint:
			s.undecided = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b.finish(), nil
}

// stateBuilder makes a State of records in their order; later ones win.
type stateBuilder struct {
	state      *State
	name       string
	job        *jobJSON
	checkpoint *checkpointJSON
	life       stateJSON
	tables     map[string]tableJSON
}

func (b *stateBuilder) add(r *kgo.Record) error {
	if err := b.take(string(r.Key), r.Value, r.Timestamp); err != nil {
		return &millrace.Error{Kind: millrace.KindResync, Op: "read the job's record", Peer: millrace.PeerDestination,
			Err:  fmt.Errorf("the record with key %s at offset %d of topic %s can't be read: %w", r.Key, r.Offset, r.Topic, err),
			Hint: "somebody else has written to the control topic; start over with `millrace bootstrap --restart-snapshot --yes`"}
	}
	return nil
}

func (b *stateBuilder) take(key string, value []byte, at time.Time) error {
	kind, name, _ := strings.Cut(key, ":")
	gone := value == nil
	if kind+":" != keyRuntime && at.After(b.state.updated) {
		b.state.updated = at
	}
	switch {
	case key == keyJob:
		b.job = nil
		if gone {
			return nil
		}
		b.job = &jobJSON{}
		return json.Unmarshal(value, b.job)
	case key == keyCheckpoint:
		b.checkpoint = nil
		if gone {
			return nil
		}
		b.checkpoint = &checkpointJSON{}
		return json.Unmarshal(value, b.checkpoint)
	case key == keyState:
		b.life = stateJSON{}
		if gone {
			return nil
		}
		return json.Unmarshal(value, &b.life)
	case kind+":" == keyRuntime:
		delete(b.state.runtime, name)
		if gone {
			return nil
		}
		var r runtimeJSON
		if err := json.Unmarshal(value, &r); err != nil {
			return err
		}
		b.state.runtime[name] = &record.Runtime{Job: b.name, Instance: r.Instance, Host: r.Host, PID: r.PID, Version: r.Version,
			HTTP: r.HTTP, Condition: r.Condition, StartedAt: r.StartedAt.UTC(), HeartbeatAt: r.HeartbeatAt.UTC()}
	case kind+":" == keyTable:
		delete(b.tables, name)
		if gone {
			return nil
		}
		var t tableJSON
		if err := json.Unmarshal(value, &t); err != nil {
			return err
		}
		b.tables[name] = t
	case kind+":" == keyTopic:
		delete(b.state.Topics, name)
		if gone {
			return nil
		}
		var t Topic
		if err := json.Unmarshal(value, &t); err != nil {
			return err
		}
		b.state.Topics[name] = t
	default:
		return errors.New("it is not known in this version")
	}
	return nil
}

func (b *stateBuilder) finish() *State {
	s := b.state
	if b.job == nil {
		return s
	}
	s.Generation = b.job.Generation
	if b.job.Gone {
		return s
	}
	j := b.job
	s.Layout = j.Layout
	s.Job = &record.Job{Name: b.name, Format: j.Format, Generation: j.Generation, State: record.State(b.life.State),
		Reason: b.life.Reason, Hint: b.life.Hint, SystemID: j.SystemID, Timeline: j.Timeline, PageSize: j.PageSize,
		SegmentSize: j.SegmentSize, Slot: j.Slot, Publication: j.Publication, Mode: j.Mode, ConsistentPoint: j.ConsistentPoint,
		ConsistentFrom: j.ConsistentFrom, OwnsSlot: j.OwnsSlot, OwnsPublication: j.OwnsPublication,
		LoadStarted: j.LoadStarted, CreatedAt: j.CreatedAt, UpdatedAt: s.updated.UTC()}
	if s.Job.State == "" {
		s.Job.State = record.Bootstrapping
	}
	for _, t := range b.tables {
		s.Job.Tables = append(s.Job.Tables, record.Table{OID: t.OID, Name: millrace.TableName{Schema: t.Schema, Name: t.Name},
			Filenode: t.Filenode, Shape: t.Shape, Copied: t.Copied, Rows: t.Rows, Bytes: t.Bytes})
	}
	sortTables(s.Job.Tables)
	if b.checkpoint != nil {
		s.Checkpoint = b.checkpoint.checkpoint()
		s.Job.Epoch, s.Job.Timeline = s.Checkpoint.Epoch, s.Checkpoint.Timeline
	}
	return s
}

// Newest gives the instance with the newest heartbeat that is not called except,
// or nil.
func (s *State) Newest(except string) *record.Runtime {
	var newest *record.Runtime
	for name, r := range s.runtime {
		if name != except && (newest == nil || r.HeartbeatAt.After(newest.HeartbeatAt)) {
			newest = r
		}
	}
	return newest
}

// write produces records outside of any transaction and waits for them.
func (c *Control) write(ctx context.Context, op string, records ...*kgo.Record) error {
	err := c.cl.ProduceSync(ctx, records...).FirstErr()
	return c.e.wrap(op, err)
}

// SetState writes the job's state with its reason and hint.
func (c *Control) SetState(ctx context.Context, state record.State, reason, hint string) error {
	return c.write(ctx, "write the job's state", c.e.control(keyState, stateJSON{string(state), reason, hint}))
}

// Exists tells whether there is a control topic.
func (c *Control) Exists(ctx context.Context) (bool, error) {
	name := controlTopic(c.e.Prefix, c.e.Job)
	found, err := topics(ctx, c.cl, name)
	return found[name] != nil, c.e.wrap("look for the job's record", err)
}

// Beat writes the instance's sign of life, with this machine's clock.
func (c *Control) Beat(ctx context.Context, r *record.Runtime) error {
	now := time.Now().UTC()
	rec := c.e.control(keyRuntime+r.Instance, runtimeJSON{Instance: r.Instance, Host: r.Host, PID: r.PID, Version: r.Version,
		HTTP: r.HTTP, Condition: r.Condition, StartedAt: r.StartedAt, HeartbeatAt: now})
	if err := c.write(ctx, "write the heartbeat", rec); err != nil {
		return err
	}
	r.HeartbeatAt = now
	return nil
}

// UpdateTable records what is newly known of a table: its name, and Filenode
// and Shape where they are not zero.
func (c *Control) UpdateTable(ctx context.Context, t record.Table) error {
	s, err := c.Read(ctx)
	if err != nil {
		return err
	}
	if s.Job == nil {
		return noJob("record table " + t.Name.String())
	}
	for _, old := range s.Job.Tables {
		if old.OID != t.OID {
			continue
		}
		old.Name = t.Name
		if t.Filenode != 0 {
			old.Filenode = t.Filenode
		}
		if t.Shape != "" {
			old.Shape = t.Shape
		}
		return c.write(ctx, "record table "+t.Name.String(), c.e.control(tableKey(t.OID), tableJSON{OID: old.OID, Schema: old.Name.Schema,
			Name: old.Name.Name, Filenode: old.Filenode, Shape: old.Shape, Copied: old.Copied, Rows: old.Rows, Bytes: old.Bytes}))
	}
	return nil
}

// Delete removes the job's record. What stays is the number of its last
// generation: records of it are in the topics, which stay as well.
func (c *Control) Delete(ctx context.Context) error {
	s, err := c.Read(ctx)
	if err != nil || s.Job == nil {
		return err
	}
	records := []*kgo.Record{c.e.control(keyJob, jobJSON{Format: s.Job.Format, Generation: s.Generation, Gone: true}),
		c.e.control(keyState, nil)}
	for i := range s.Job.Tables {
		records = append(records, c.e.control(tableKey(s.Job.Tables[i].OID), nil))
	}
	for name := range s.Topics {
		records = append(records, c.e.control(keyTopic+name, nil))
	}
	for name := range s.runtime {
		records = append(records, c.e.control(keyRuntime+name, nil))
	}
	return c.write(ctx, "remove the job's record", records...)
}

// Leave removes the instance's sign of life.
func (c *Control) Leave(ctx context.Context, instance string) error {
	return c.write(ctx, "remove the heartbeat", c.e.control(keyRuntime+instance, nil))
}

// Create makes the control topic, unless it exists. replication -1 is the
// broker's default.
//
// One record a commit comes into it, and its active segment is never compacted,
// so that segments are small.
func (c *Control) Create(ctx context.Context, replication int) error {
	name := controlTopic(c.e.Prefix, c.e.Job)
	configs := map[string]*string{
		"cleanup.policy":            kadm.StringPtr("compact"),
		"segment.bytes":             kadm.StringPtr(strconv.Itoa(16 << 20)),
		"segment.ms":                kadm.StringPtr("600000"),
		"min.cleanable.dirty.ratio": kadm.StringPtr("0.1"),
		"delete.retention.ms":       kadm.StringPtr("600000"),
		"max.message.bytes":         kadm.StringPtr(strconv.Itoa(8 << 20)),
	}
	res, err := kadm.NewClient(c.cl).CreateTopic(ctx, 1, int16(replication), configs, name)
	if err == nil {
		err = res.Err
	}
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return nil
	}
	if err != nil {
		return c.e.wrap("create topic "+name, err)
	}
	return c.e.wrap("create topic "+name, awaitTopics(ctx, c.cl, name))
}

// Rivals names the other jobs that have a control topic at the prefix.
func (c *Control) Rivals(ctx context.Context) ([]string, error) {
	all, err := topics(ctx, c.cl)
	if err != nil {
		return nil, c.e.wrap("list topics", err)
	}
	var jobs []string
	for name := range all {
		if job, ok := strings.CutPrefix(name, controlPrefix(c.e.Prefix)); ok && job != c.e.Job {
			jobs = append(jobs, job)
		}
	}
	return jobs, nil
}

// control makes a record of the control topic; a nil value removes the key.
func (e *Endpoint) control(key string, value any) *kgo.Record {
	r := &kgo.Record{Topic: controlTopic(e.Prefix, e.Job), Key: []byte(key)}
	if value != nil {
		r.Value = mustJSON(value)
	}
	return r
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // a struct of ours that JSON can't hold
	}
	return b
}
