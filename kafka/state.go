package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
)

// The keys of the records in the control topic. Those that only a claimed
// producer writes, in its transactions, are read committed; state and runtime
// are signs of a single process, written at any time, outside of transactions.
//
// A state has the generation and the epoch under which it was written in its
// key, and only that of the checkpoint counts: a former instance can write its
// own, also late, and neither it nor compaction takes away what the job's owner
// has written. Whoever claims the job writes the state under the new epoch and
// removes the others, in the transaction of the claim.
const (
	keyJob        = "job"
	keyCheckpoint = "checkpoint"
	keyState      = "state:"
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
	// Number is that of the last transaction of the generation which was written, 0 for none; -1:
	// an earlier version has written the checkpoint.
	Number int64

	runtime map[string]*record.Runtime
	states  map[string]stateJSON // by generation and epoch
	updated time.Time
	marks   []millrace.Mark // of all tables, also of those that don't count
	// undecided: behind what is read committed is a checkpoint whose transaction
	// has not ended, or whose marker has not come.
	undecided bool
}

// Topic is what must not change about a topic while a job writes to it.
type Topic struct {
	// ID is that of the topic, in hexadecimal; "" in layout stream, where a table
	// has none of its own, and the name stands for its description only.
	ID         string `json:"id"`
	Partitions int    `json:"partitions"`
	Table      string `json:"table,omitempty"`
	// Key names the columns of the table's record key; nil: not known yet.
	Key []string `json:"key"`
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
	Early           bool         `json:"early,omitempty"`
	Layout          string       `json:"layout,omitempty"`
	ConsistentPoint millrace.LSN `json:"consistent_point"`
	ConsistentFrom  millrace.LSN `json:"consistent_from"`
	OwnsSlot        bool         `json:"owns_slot"`
	OwnsPublication bool         `json:"owns_publication"`
	Set             int64        `json:"set,omitempty"`
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
	Adding   bool   `json:"adding,omitempty"` // or leaving: it does not count
	Rows     int64  `json:"rows_copied"`
	Bytes    int64  `json:"bytes_copied"`
	// Loading: the table is loaded beside the stream, and Mark says how far that is.
	Loading bool   `json:"loading,omitempty"`
	Mark    string `json:"mark,omitempty"`
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
	Number       *int64       `json:"number,omitempty"` // of the last transaction of the generation; earlier versions: nil
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
		SegmentSize: j.SegmentSize, Slot: j.Slot, Publication: j.Publication, Mode: j.Mode, Early: j.Early, Layout: layout,
		ConsistentPoint: j.ConsistentPoint, ConsistentFrom: j.ConsistentFrom, OwnsSlot: j.OwnsSlot,
		OwnsPublication: j.OwnsPublication, Set: j.Set, LoadStarted: j.LoadStarted, CreatedAt: j.CreatedAt}
}

// controlReader reads the control topic. What it has read once it does not read
// again: who waits for a position, or for another instance's end, looks often.
type controlReader struct {
	id   [16]byte // of the topic
	read *stateBuilder
	at   int64 // the offset behind it
}

// onlyPartition waits for a leader of the one partition that a control topic has, and
// gives its first offset.
func onlyPartition(ctx context.Context, cl *kgo.Client, t *topic) (led *topic, first int64, err error) {
	if len(t.leaders) != 1 {
		return nil, 0, fmt.Errorf("control topic %s has %d partitions, want one", t.name, len(t.leaders))
	}
	if t.leaders[0] < 0 {
		if t, err = awaitLeader(ctx, cl, t); err != nil {
			return nil, 0, err
		}
	}
	all, err := offsets(ctx, cl, -2, t)
	if err != nil {
		return nil, 0, err
	}
	return t, all[t][0], nil
}

// settleWithin bounds how long brokers may disagree about a topic that was just made
// or deleted.
const settleWithin = 15 * time.Second

// state reads committed records to the offset that end gives, and then the signs of
// life to the high watermark.
func (c *controlReader) state(ctx context.Context, cl *kgo.Client, name, job string, end func(page) int64) (s *State, err error) {
	err = settled(ctx, func() (err error) {
		s, err = c.once(ctx, cl, name, job, end)
		return err
	})
	return s, err
}

// settled does what asks brokers for a topic, again until they agree about it.
func settled(ctx context.Context, do func() error) error {
	for began := time.Now(); ; {
		err := do()
		if !unsettled(err) || time.Since(began) > settleWithin {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// unsettled tells whether a topic has no leader yet, or another one, or the one that the metadata
// names does not know it: not yet, or no longer.
func unsettled(err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID) || leaderMoved(err)
}

// once is state for brokers that agree.
func (c *controlReader) once(ctx context.Context, cl *kgo.Client, name, job string, end func(page) int64) (*State, error) {
	found, err := topics(ctx, cl, name)
	if err != nil {
		return nil, err
	}
	t := found[name]
	if t == nil {
		return newState(), nil
	}
	t, first, err := onlyPartition(ctx, cl, t)
	if err != nil {
		return nil, err
	}
	if c.read == nil || c.id != t.id || c.at < first {
		c.id, c.at = t.id, first
		c.read = &stateBuilder{state: newState(), name: job, tables: map[string]tableJSON{}}
	}
	if c.at, err = newFetcher(cl, true).readAll(ctx, t, c.at, end, c.read.add); err != nil {
		c.read = nil
		return nil, err
	}
	b := c.read.clone()
	_, err = newFetcher(cl, false).readAll(ctx, t, c.at, func(p page) int64 { return p.high }, func(r *kgo.Record) error {
		switch k := string(r.Key); {
		case k == keyCheckpoint:
			b.state.undecided = true
		case r.Attrs.IsTransactional(): // of a transaction that is not decided
		case strings.HasPrefix(k, keyState), strings.HasPrefix(k, keyRuntime):
			return b.add(r)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b.finish(), nil
}

// clone gives a builder that goes on by itself.
func (b *stateBuilder) clone() *stateBuilder {
	s := &State{Topics: maps.Clone(b.state.Topics), runtime: maps.Clone(b.state.runtime), states: maps.Clone(b.state.states), updated: b.state.updated}
	return &stateBuilder{state: s, name: b.name, job: b.job, checkpoint: b.checkpoint, tables: maps.Clone(b.tables)}
}

func newState() *State {
	return &State{Topics: map[string]Topic{}, runtime: map[string]*record.Runtime{}, states: map[string]stateJSON{}}
}

func stateKey(generation, epoch int64) string {
	return keyState + strconv.FormatInt(generation, 10) + "." + strconv.FormatInt(epoch, 10)
}

// stateBuilder makes a State of records in their order; later ones win.
type stateBuilder struct {
	state      *State
	name       string
	job        *jobJSON
	checkpoint *checkpointJSON
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
	case kind+":" == keyState:
		delete(b.state.states, key)
		if gone {
			return nil
		}
		var s stateJSON
		if err := json.Unmarshal(value, &s); err != nil {
			return err
		}
		b.state.states[key] = s
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
	if b.checkpoint != nil {
		s.Checkpoint, s.Number = b.checkpoint.checkpoint(), -1
		if n := b.checkpoint.Number; n != nil {
			s.Number = *n
		}
	}
	life := s.states[stateKey(s.Checkpoint.Generation, s.Checkpoint.Epoch)]
	s.Layout = j.Layout
	s.Job = &record.Job{Name: b.name, Format: j.Format, Generation: j.Generation, State: record.State(life.State),
		Reason: life.Reason, Hint: life.Hint, SystemID: j.SystemID, Timeline: j.Timeline, PageSize: j.PageSize,
		SegmentSize: j.SegmentSize, Slot: j.Slot, Publication: j.Publication, Mode: j.Mode, Early: j.Early, ConsistentPoint: j.ConsistentPoint,
		ConsistentFrom: j.ConsistentFrom, OwnsSlot: j.OwnsSlot, OwnsPublication: j.OwnsPublication,
		Set: j.Set, LoadStarted: j.LoadStarted, CreatedAt: j.CreatedAt, UpdatedAt: s.updated.UTC()}
	if s.Job.State == "" {
		s.Job.State = record.Bootstrapping
	}
	for _, t := range b.tables {
		name := millrace.TableName{Schema: t.Schema, Name: t.Name}
		s.Job.Tables = append(s.Job.Tables, record.Table{OID: t.OID, Name: name,
			Filenode: t.Filenode, Shape: t.Shape, Copied: t.Copied, Adding: t.Adding, Rows: t.Rows, Bytes: t.Bytes})
		if !t.Loading {
			continue
		}
		m := millrace.Mark{OID: t.OID, State: []byte(t.Mark), Rows: t.Rows, Bytes: t.Bytes}
		if s.marks = append(s.marks, m); t.Adding {
			continue
		}
		if s.Checkpoint.Tables == nil {
			s.Checkpoint.Tables = map[millrace.TableName]millrace.Mark{}
		}
		s.Checkpoint.Tables[name] = m
	}
	sortTables(s.Job.Tables)
	if b.checkpoint != nil {
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

// leftovers are the keys of all that is recorded beside job and checkpoint.
func (s *State) leftovers() []string {
	var keys []string
	for i := range s.Job.Tables {
		keys = append(keys, tableKey(s.Job.Tables[i].OID))
	}
	for name := range s.Topics {
		keys = append(keys, keyTopic+name)
	}
	for name := range s.runtime {
		keys = append(keys, keyRuntime+name)
	}
	for key := range s.states {
		keys = append(keys, key)
	}
	return keys
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
