package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
)

// Written is what the job that writes to a prefix says of it.
type Written struct {
	Job string
	// History is that of the newest generation; zero before its first load has begun.
	History               millrace.History
	PageSize, SegmentSize uint64
	// Point is the consistent point of the first load, and From where the topics
	// hold everything from, 0 until they do.
	Point, From millrace.LSN
	// Acked is the position up to which the topics hold everything, and Number that of the
	// last transaction; see State.
	Acked  millrace.LSN
	Number int64
	Gone   bool // the job was cleaned up: nothing more comes
	// Beside: tables were loaded beside the stream, so that changes of rows can stand
	// before the rows; Early: each record says whether that is so, which those of
	// earlier versions did not. Loading: a table is loaded like that now.
	Beside, Early, Loading bool
	Rowless                bool // the first load has copied no rows
	// Topics and Tables are those of the job, with what was loaded of each table.
	Topics map[string]Topic
	Tables []record.Table
}

// written looks at a control topic's state.
func (s *State) written(job string) *Written {
	w := &Written{Job: job, Topics: maps.Clone(s.Topics), History: millrace.History{Generation: s.Generation}}
	if s.Job == nil {
		w.Gone = true
		return w
	}
	j := s.Job
	w.Beside, w.Early, w.Loading = j.Mode == modeBeside, j.Early, len(s.Checkpoint.Tables) > 0
	w.Rowless = j.Mode == modeNone
	w.History = millrace.History{System: j.SystemID, Timeline: j.Timeline, Generation: j.Generation}
	w.PageSize, w.SegmentSize, w.Point, w.From, w.Tables = j.PageSize, j.SegmentSize, j.ConsistentPoint, j.ConsistentFrom, j.Tables
	if s.Checkpoint.Generation == j.Generation {
		w.Acked, w.Number = s.Checkpoint.Acked, s.Number
	}
	return w
}

// ReadWritten finds the job that writes to the prefix, and what it says. It is nil
// as long as there is none.
func (e *Endpoint) ReadWritten(ctx context.Context) (*Written, error) {
	cl, err := e.client()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	w, _, err := findWritten(ctx, e, cl)
	return w, e.wrap("look for the job that writes to the prefix", err)
}

// findWritten looks at the control topics of the prefix. One whose job is gone
// counts if there is no other.
func findWritten(ctx context.Context, e *Endpoint, cl *kgo.Client) (*Written, *writtenReader, error) {
	all, err := topics(ctx, cl)
	if err != nil {
		return nil, nil, err
	}
	var found *Written
	var at *writtenReader
	for name := range all {
		job, ok := strings.CutPrefix(name, controlPrefix(e.Prefix))
		if !ok {
			continue
		}
		r, err := newWrittenReader(ctx, cl, name, job)
		if err != nil {
			return nil, nil, err
		}
		if _, err := r.toStable(ctx); err != nil {
			return nil, nil, err
		}
		w := r.builder.clone().finish().written(job)
		switch {
		case w.Gone && w.History.Generation == 0: // somebody has only made the topic
		case found == nil || found.Gone && !w.Gone:
			found, at = w, r
		case !w.Gone:
			return nil, nil, &millrace.Error{Kind: millrace.KindPreflight, Op: "read Kafka", Peer: e.Peer,
				Err:  fmt.Errorf("jobs %s and %s both write to prefix %s", found.Job, job, e.Prefix),
				Hint: "clean one of them up: a prefix belongs to one job"}
		}
	}
	return found, at, nil
}

// writtenReader reads a control topic, and goes on from there.
type writtenReader struct {
	topic   *topic
	fetcher *fetcher
	builder *stateBuilder
	at      int64
}

func newWrittenReader(ctx context.Context, cl *kgo.Client, name, job string) (*writtenReader, error) {
	found, err := topics(ctx, cl, name)
	if err != nil {
		return nil, err
	}
	if found[name] == nil {
		return nil, fmt.Errorf("control topic %s is not there", name)
	}
	t, first, err := onlyPartition(ctx, cl, found[name])
	if err != nil {
		return nil, err
	}
	return &writtenReader{topic: t, fetcher: newFetcher(cl, true), at: first,
		builder: &stateBuilder{state: newState(), name: job, tables: map[string]tableJSON{}}}, nil
}

// toStable reads what is committed now, and tells whether something came that is
// more than a sign of life.
func (r *writtenReader) toStable(ctx context.Context) (news bool, err error) {
	r.at, err = r.fetcher.readAll(ctx, r.topic, r.at, func(p page) int64 { return p.stable }, func(rec *kgo.Record) error {
		news = news || !strings.HasPrefix(string(rec.Key), keyRuntime)
		return r.builder.add(rec)
	})
	return news, err
}

// follower keeps up with what the writing job says. It has a client of its own: a
// broker answers the requests of one connection in turn, and these wait.
type follower struct {
	e     *Endpoint
	cl    *kgo.Client
	topic *topic // as it was found; not the one that is read
	stop  context.CancelFunc
	done  chan struct{}

	mu     sync.Mutex
	now    *Written
	unread bool  // something came of a look that failed later
	at     int64 // up to which the topic was read
	err    error
}

// followEvery is the pause between two looks.
const followEvery = 200 * time.Millisecond

var errNoWriter = errors.New("no job writes to the prefix yet")

// follow begins to follow; without a job it is an error to try again.
func follow(ctx context.Context, e *Endpoint) (*follower, error) {
	cl, err := e.client()
	if err != nil {
		return nil, err
	}
	w, r, err := findWritten(ctx, e, cl)
	if err == nil && w == nil {
		err = awaited(e)
	}
	if err != nil {
		cl.Close()
		return nil, e.wrap("read Kafka", err)
	}
	f := &follower{e: e, cl: cl, topic: &topic{name: r.topic.name, leaders: make([]int32, 1)}, done: make(chan struct{}), now: w, at: r.at}
	ctx, f.stop = context.WithCancel(context.WithoutCancel(ctx))
	go f.run(ctx, r)
	return f, nil
}

// awaited is the error of a prefix that nobody has written to yet.
func awaited(e *Endpoint) error {
	return &millrace.Error{Kind: millrace.KindRetry, Op: "read Kafka", Peer: e.Peer, Err: fmt.Errorf("%s: %w", e.Prefix, errNoWriter),
		Condition: unreachable(e.Peer), Hint: "start the job that writes to the prefix: its topics are waited for"}
}

func (f *follower) run(ctx context.Context, r *writtenReader) {
	defer close(f.done)
	for {
		select {
		case <-time.After(followEvery):
		case <-ctx.Done():
			return
		}
		news, err := r.toStable(ctx)
		if ctx.Err() != nil {
			return
		}
		f.took(r, news, err)
	}
}

// took takes note of what came of a look.
func (f *follower) took(r *writtenReader, news bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unread, f.err = f.unread || news, err
	if err != nil {
		return
	}
	if f.unread {
		f.unread = false
		f.now = r.builder.clone().finish().written(f.now.Job)
	}
	f.at = r.at
}

// pinned tells which topic the job has under a name, by its id; "" is none. Where that
// is not known, it is one that nobody finds.
func (f *follower) pinned(topic string) string {
	w, err := f.look()
	if err != nil || w.Gone || w.Topics == nil {
		return "unknown"
	}
	return w.Topics[topic].ID
}

// look gives what the job said last.
func (f *follower) look() (*Written, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now, f.err
}

// reached gives the offset behind all that is in the control topic now, -1 if that can't be
// told at present; passed tells whether look knows of everything before an offset.
func (f *follower) reached(ctx context.Context) (int64, error) {
	all, err := offsets(ctx, f.cl, -1, f.topic)
	if leaderMoved(err) {
		return -1, nil
	}
	if err != nil {
		return -1, err
	}
	return all[f.topic][0], nil
}

func (f *follower) passed(offset int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err == nil && f.at >= offset
}

func (f *follower) close() {
	f.stop()
	<-f.done
	f.cl.Close()
}
