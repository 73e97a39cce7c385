package kafka

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
)

// judge holds a transaction's history against the one that is wanted.
func (r *Reader) judge(at millrace.LSN) (old bool, err error) {
	want := r.opt.History
	if want == nil {
		return false, nil
	}
	got := r.history
	if got.System == want.System && got.Generation <= want.Generation {
		return got.Generation < want.Generation, nil
	}
	return false, otherHistory(r.opt.Endpoint, got, want, at)
}

// otherHistory is the error of a prefix that goes on with another history.
func otherHistory(e *Endpoint, got, want *millrace.History, at millrace.LSN) error {
	m := &millrace.Error{Kind: millrace.KindResync, Op: "read Kafka", Peer: e.Peer, LSN: at,
		Hint: "millrace bootstrap --restart-snapshot --yes, of the job that reads, empties its tables and starts over with what the prefix holds now"}
	if got.System != want.System {
		m.Err = fmt.Errorf("the prefix holds changes of another database: of system %s, and the job follows %s", got.System, want.System)
		m.Hint = "point the source at the prefix that the job was loaded from; or start over: " + m.Hint
		return m
	}
	m.Err = fmt.Errorf("the job that writes to the prefix was started over: its records are of generation %d, and the job follows %d",
		got.Generation, want.Generation)
	return m
}

// follow takes note of the history that a transaction belongs to.
func (r *Reader) follow(rec *kgo.Record) error {
	h := millrace.History{System: string(krecord.Header(rec, headerSystem))}
	timeline, err := strconv.ParseInt(string(krecord.Header(rec, headerTimeline)), 10, 32)
	if err != nil {
		return r.malformed(rec, err)
	}
	if h.Generation, err = strconv.ParseInt(string(krecord.Header(rec, headerGeneration)), 10, 64); err != nil {
		return r.malformed(rec, err)
	}
	h.Timeline = int32(timeline)
	if r.history == nil || *r.history != h {
		r.history = &h
	}
	return nil
}

// counted holds the number of a transaction of the wanted history, which has come to its last record,
// against the one before.
func (r *Reader) counted(rec *kgo.Record) error {
	n, err := numberOf(rec)
	if err != nil {
		return r.malformed(rec, errors.New("header generation or number is malformed"))
	}
	was, want := r.last, int64(1)
	if n.generation == was.generation {
		want = was.of + 1
	}
	r.last = n
	switch {
	case n.of == 0: // of an earlier version
		r.last.of = -1
		return nil
	case was.of < 0, n.of == want:
		return nil
	case n.of > want:
		return r.lost(want, n)
	}
	return &millrace.Error{Kind: millrace.KindResync, Op: "read Kafka", Peer: r.opt.Endpoint.Peer,
		Err: fmt.Errorf("transaction %d of generation %d comes again in %s, behind transaction %d: the job that writes had lost what it knew of it",
			n.of, n.generation, rec.Topic, was.of),
		Hint: lostHint}
}

// reaches makes sure that what was read up to the end has the transactions that the job
// that writes has written.
func (r *Reader) reaches(w *Written) error {
	if r.last.of < 0 || r.last.generation != w.History.Generation || r.last.of >= w.Number {
		return nil
	}
	return r.lost(r.last.of+1, number{w.History.Generation, w.Number + 1})
}

// lost is the error of transactions that are not there, up to the one before n.
func (r *Reader) lost(from int64, n number) error {
	return &millrace.Error{Kind: millrace.KindResync, Op: "read Kafka", Peer: r.opt.Endpoint.Peer,
		Err:  fmt.Errorf("transactions %d to %d of generation %d are not in %s: the cluster has lost them", from, n.of-1, n.generation, r.main()),
		Hint: lostHint}
}
