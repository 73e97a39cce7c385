package web

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Event is a line of the log that matters: what the dashboard shows of the past.
type Event struct {
	At      time.Time
	Level   slog.Level
	Message string
	Detail  string // the attributes
	Hint    string
	See     string // where more is said
	Times   int    // in a row
}

// journalSize bounds the memory: a line is a few hundred bytes.
const journalSize = 200

// maxDetail bounds one line of it.
const maxDetail = 1000

// Journal keeps the newest log lines from Info on. It is a slog.Handler, so that
// there is one place that feeds it: whatever is logged. Lines that repeat the
// one before count it up, and replace its details.
type Journal struct {
	state *journalState
	attrs []slog.Attr
}

type journalState struct {
	mu     sync.Mutex
	events []Event // oldest first
}

// NewJournal makes an empty Journal.
func NewJournal() *Journal { return &Journal{state: &journalState{}} }

// Events gives the events, the newest first.
func (j *Journal) Events() []Event {
	if j == nil {
		return nil
	}
	j.state.mu.Lock()
	defer j.state.mu.Unlock()
	all := make([]Event, len(j.state.events))
	for i, e := range j.state.events {
		all[len(all)-1-i] = e
	}
	return all
}

// Enabled implements slog.Handler.
func (j *Journal) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

// Handle implements slog.Handler.
func (j *Journal) Handle(_ context.Context, r slog.Record) error {
	e := Event{At: r.Time, Level: r.Level, Message: r.Message, Times: 1}
	var detail []string
	add := func(a slog.Attr) bool {
		switch text := attrText(a); {
		case a.Key == "hint":
			e.Hint = text
		case a.Key == "see":
			e.See = text
		case text != "":
			detail = append(detail, a.Key+"="+text)
		}
		return true
	}
	for _, a := range j.attrs {
		add(a)
	}
	r.Attrs(add)
	e.Detail = shorten(strings.Join(detail, "  "))
	e.Hint = shorten(e.Hint)

	s := j.state
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.events); n > 0 && s.events[n-1].Message == e.Message && s.events[n-1].Level == e.Level {
		e.Times += s.events[n-1].Times
		s.events[n-1] = e
		return nil
	}
	if len(s.events) == journalSize {
		s.events = s.events[:copy(s.events, s.events[1:])]
	}
	s.events = append(s.events, e)
	return nil
}

// attrText writes a value as the log would.
func attrText(a slog.Attr) string {
	switch v := a.Value.Resolve(); v.Kind() {
	case slog.KindTime:
		return Time{v.Time()}.String()
	case slog.KindFloat64:
		return fmt.Sprintf("%.3g", v.Float64())
	default:
		if t, ok := v.Any().(time.Time); ok {
			return Time{t}.String()
		}
		return strings.Join(strings.Fields(v.String()), " ")
	}
}

func shorten(s string) string {
	if len(s) <= maxDetail {
		return s
	}
	return strings.ToValidUTF8(s[:maxDetail], "") + " …"
}

// WithAttrs implements slog.Handler.
func (j *Journal) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Journal{state: j.state, attrs: append(append([]slog.Attr(nil), j.attrs...), attrs...)}
}

// WithGroup implements slog.Handler. Groups are not used here; their names are
// left out.
func (j *Journal) WithGroup(string) slog.Handler { return j }
