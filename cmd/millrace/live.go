package main

import (
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/docs"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/relay"
	"github.com/millrace/millrace/web"
)

// status is the status of this instance as it is now, from memory.
func (r *runner) status() *web.Status {
	rt, state, reason, hint := r.keeper.current()
	r.mu.Lock()
	j, cp, e, l, resting := r.record, r.cp, r.engine, r.load, r.resting
	r.mu.Unlock()
	st := &web.Status{Job: r.Job, State: string(state), Reason: reason, Hint: hint, See: docs.See(reason, hint), Condition: known(rt.Condition),
		Version: rt.Version, Instance: &rt.Instance, HeartbeatAt: web.KnownTime(rt.HeartbeatAt), HTTP: known(rt.HTTP),
		Source: r.watch.status(), Alarms: r.governor.list(), Tables: []web.Table{}}
	switch {
	case e != nil && e.from != nil:
		st.Source.CurrentLSN = web.KnownLSN(max(e.from.Position(), r.progress.Held()))
		st.Lag = r.lag(st.Source.CurrentLSN)
	case e != nil:
		// The stream tells of its server's position as well, and what is held
		// has been there.
		if at := max(e.source.Stats().Position, r.progress.Held()); st.Source.CurrentLSN != nil && at > *st.Source.CurrentLSN {
			st.Source.CurrentLSN = &at
			r.progress.Observe(at, time.Now())
		}
		st.Lag = r.lag(st.Source.CurrentLSN)
	}
	if st.State == "" {
		st.State = string(record.Preflight)
	}
	source, target := r.sourceServer(), r.destinationServer()
	st.Source.Server = &source
	st.Destination.Kind, st.Destination.Server = r.kind(), &target
	if j == nil {
		l.show(st)
		return st
	}
	if st.Source.SystemID == nil {
		st.Source.SystemID = &j.SystemID
	}
	if st.Source.Timeline == nil && e != nil && e.source != nil {
		if line := e.source.Timeline(); line != 0 {
			st.Source.Timeline = &line
		}
	}
	if st.Source.Timeline == nil {
		st.Source.Timeline = &j.Timeline
	}
	st.LoadStarted = loadStarted(j)
	st.Destination = destinationStatus(j, cp)
	st.Destination.Kind, st.Destination.Server = r.kind(), &target
	if held := r.progress.Held(); held != 0 {
		applied := r.progress.Applied()
		st.Destination.AckedLSN = &held
		st.Destination.CommitLSN, st.Destination.CommittedLSN = web.KnownLSN(applied.Commit), web.KnownLSN(applied.End)
	}
	var changes map[uint32]relay.TableStats
	if e != nil {
		changes = e.relay.Stats().Tables()
		st.Fallbacks = web.Known(e.fallbacks())
	}
	st.Tables = tableStatus(j, changes)
	if e != nil {
		e.showLoads(st, resting.since)
	}
	l.show(st)
	return st
}

// lag is the engine's, with what both ends say that it waits for.
func (r *runner) lag(position *millrace.LSN) relay.Lag {
	lag := r.progress.Lag(time.Now())
	f := facts{applier: r.applies.seen()}
	f.sender, f.spilled = r.watch.sending()
	if position != nil {
		f.position = *position
	}
	word, detail, pid := explain(lag, f)
	lag.WaitsFor, lag.WaitsDetail = known(word), known(detail)
	if pid != 0 {
		lag.BlockingPID = &pid
	}
	return lag
}

// numbers are the counters for /metrics.
func (r *runner) numbers() web.Numbers {
	r.mu.Lock()
	e := r.engine
	r.mu.Unlock()
	n := web.Numbers{ConfirmedAge: r.watch.confirmedAge(), Errors: r.errors.all()}
	if e != nil {
		n.Relay = e.relay.Stats()
		e.numbers(&n)
	}
	return n
}

// errorCounts counts errors by what they ask for.
type errorCounts struct {
	mu     sync.Mutex
	counts map[string]int64
}

var kinds = map[millrace.Kind]string{
	millrace.KindUnknown: "data", millrace.KindRetry: "retry", millrace.KindData: "data",
	millrace.KindResync: "resync", millrace.KindPreflight: "preflight", millrace.KindConfig: "config",
}

func (c *errorCounts) count(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = make(map[string]int64)
	}
	c.counts[kinds[millrace.KindOf(err)]]++
}

func (c *errorCounts) all() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]int64, len(kinds))
	for _, kind := range kinds {
		all[kind] = c.counts[kind]
	}
	return all
}
