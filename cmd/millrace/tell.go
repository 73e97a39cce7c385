package main

import (
	"errors"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/docs"
	"github.com/millrace/millrace/hooks"
	"github.com/millrace/millrace/record"
)

// tellWithin bounds how long the last event may take: of a stop, which has 10 s
// for everything, and of an error, which nobody waits for.
const (
	tellWithin        = time.Second
	tellWithinOfError = 15 * time.Second
)

// newTeller makes the hooks of the configuration; nil if there are none.
func newTeller(s *settings) *hooks.Teller {
	o := hooks.Options{Command: s.Hooks.Command, Log: s.log}
	if !s.Hooks.Webhook.URL.Empty() {
		o.URL, o.Authorization = s.Hooks.Webhook.URL.Get, s.Hooks.Webhook.Authorization.Get
	}
	return hooks.New(o)
}

// tellState tells that the job's state has changed.
func (r *runner) tellState(state record.State, reason, hint string) {
	rt, _, _, _ := r.keeper.current()
	r.hooks.Tell(hooks.Event{Event: "state", Job: r.Job, At: time.Now().UTC(), Host: rt.Host, Instance: rt.Instance,
		Version: rt.Version, State: string(state), Reason: reason, Hint: hint, See: docs.See(reason, hint)})
}

// tellEnd tells how the run ended. Before there is a record, or while a first
// load writes it, the run has no state of its own.
func (r *runner) tellEnd(state record.State, reason, hint string, err error) {
	if r.keeper.isShy() {
		return // another instance runs the job
	}
	if err != nil {
		reason, hint = oneLine(withoutKey(err)), or(hint, oneLine(millrace.HintOf(err)))
	}
	if state == "" {
		state = record.Stopped
		if millrace.KindOf(err) == millrace.KindResync {
			state = record.ResyncRequired
		}
	}
	r.tellState(state, reason, hint)
}

// tellAlarm tells that an alarm began, or that it ended.
func (r *runner) tellAlarm(name, message string) {
	rt, state, _, hint := r.keeper.current()
	e := hooks.Event{Event: "alarm", Job: r.Job, At: time.Now().UTC(), Host: rt.Host, Instance: rt.Instance,
		Version: rt.Version, State: string(state), Hint: hint, Alarm: name, Message: message}
	if message == "" {
		e.Event = "alarm_ended"
	}
	r.hooks.Tell(e)
}

// withoutKey is an error's text for those outside: without the key of a row,
// which the record and the log have.
func withoutKey(err error) string {
	var e *millrace.Error
	if !errors.As(err, &e) || e.Key == "" {
		return err.Error()
	}
	bare := *e
	bare.Key = ""
	return bare.Error()
}
