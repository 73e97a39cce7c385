// Package hooks tells others what happens to a job: by a POST to a URL, by a
// command, or both.
//
// It never delays who tells it: Tell only takes note, one goroutine delivers.
// What is told says nothing of rows and holds no secret. The invariant it owns:
// of each subject at most one event waits and at most one is sent in ten
// seconds, the newest, so that the last state always arrives if anything does.
package hooks

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Event is what is told. Its JSON is the body of the POST and the command's
// standard input.
type Event struct {
	Event    string    `json:"event"` // state, alarm or alarm_ended
	Job      string    `json:"job"`
	At       time.Time `json:"at"` // UTC
	Host     string    `json:"host"`
	Instance string    `json:"instance"`
	Version  string    `json:"version"`
	State    string    `json:"state"`
	Reason   string    `json:"reason"`
	Hint     string    `json:"hint"`
	See      string    `json:"see,omitempty"`     // where more is said about the reason
	Alarm    string    `json:"alarm,omitempty"`   // its name
	Message  string    `json:"message,omitempty"` // of the alarm
}

// subject is what an event replaces an older one of.
func (e *Event) subject() string {
	if e.Alarm != "" {
		return "alarm " + e.Alarm
	}
	return "state"
}

// Options say who is told.
type Options struct {
	// URL and Authorization are asked for each time, so that they can change;
	// nil: no webhook. Authorization gives the whole header, "" for none.
	URL, Authorization func() (string, error)
	Command            []string // program and arguments; none: no command
	Log                *slog.Logger
}

const (
	// apart is the least time between two events of one subject.
	apart = 10 * time.Second
	// within bounds one try of a webhook, and a command.
	within = 10 * time.Second
	// tries is how often a webhook is tried, with a pause of a second, then two.
	tries = 3
	// logEvery is how often a failure that goes on is logged.
	logEvery = time.Minute
)

// Teller delivers events. A nil Teller delivers nothing.
type Teller struct {
	opt  Options
	wake chan struct{}
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	pending []Event // at most one of each subject, oldest first
	closing bool
	sent    map[string]time.Time // by subject
	logged  time.Time
}

// New starts a Teller; nil when nobody is to be told. Close ends it.
func New(opt Options) *Teller {
	if opt.URL == nil && len(opt.Command) == 0 {
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	t := &Teller{opt: opt, wake: make(chan struct{}, 1), stop: stop, done: make(chan struct{}), sent: map[string]time.Time{}}
	go t.run(ctx)
	return t
}

// Tell takes note of an event. It does not block.
func (t *Teller) Tell(e Event) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.pending = slices.DeleteFunc(t.pending, func(p Event) bool { return p.subject() == e.subject() })
	t.pending = append(t.pending, e)
	t.mu.Unlock()
	t.poke()
}

func (t *Teller) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Close delivers what is waiting, without pauses, for at most the given time.
func (t *Teller) Close(limit time.Duration) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.closing = true
	t.mu.Unlock()
	t.poke()
	timer := time.AfterFunc(limit, t.stop)
	<-t.done
	timer.Stop()
	t.stop()
}

func (t *Teller) run(ctx context.Context) {
	defer close(t.done)
	for ctx.Err() == nil {
		e, pause, end := t.next(time.Now())
		switch {
		case end:
			return
		case e != nil:
			t.deliver(ctx, *e)
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-t.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// next takes the oldest event that may be sent now, or says how long none may.
func (t *Teller) next(now time.Time) (e *Event, pause time.Duration, end bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pause = time.Hour
	for i := range t.pending {
		subject := t.pending[i].subject()
		wait := t.sent[subject].Add(apart).Sub(now)
		if wait > 0 && !t.closing {
			pause = min(pause, wait)
			continue
		}
		taken := t.pending[i]
		t.pending = slices.Delete(t.pending, i, i+1)
		t.sent[subject] = now
		return &taken, 0, false
	}
	return nil, pause, t.closing
}

func (t *Teller) deliver(ctx context.Context, e Event) {
	if t.opt.URL != nil {
		if err := t.post(ctx, e); err != nil {
			t.failed("webhook", e, err)
		}
	}
	if len(t.opt.Command) > 0 {
		if err := t.execute(ctx, e); err != nil {
			t.failed("command", e, err)
		}
	}
}

// failed logs that an event was lost; others follow.
func (t *Teller) failed(how string, e Event, err error) {
	level := slog.LevelDebug
	if time.Since(t.logged) >= logEvery {
		level, t.logged = slog.LevelWarn, time.Now()
	}
	t.opt.Log.Log(context.Background(), level, "a hook failed", "hook", how, "event", e.Event, "cause", err)
}
