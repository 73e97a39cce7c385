package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/web"
)

// logger makes the logger that the common flags ask for. Its lines go to stderr
// and, from Info on, to the journal that the dashboard shows: whatever is worth
// a line there is an event here.
func (a *app) logger(journal *web.Journal) (*slog.Logger, error) {
	level := slog.LevelInfo
	switch {
	case a.quiet && a.verbose:
		return nil, &millrace.Error{Kind: millrace.KindConfig, Op: "--quiet and --verbose",
			Err: fmt.Errorf("one excludes the other"), Hint: "leave one of them out"}
	case a.quiet:
		level = slog.LevelWarn
	case a.verbose:
		level = slog.LevelDebug
	}
	opt := &slog.HandlerOptions{Level: level, ReplaceAttr: contractForm}
	format := a.logFormat
	if format == "" {
		format = "json"
		if a.terminal {
			format = "text"
		}
	}
	switch format {
	case "text":
		return slog.New(seeing{tee{journal, newLimiter(slog.NewTextHandler(a.stderr, opt))}}), nil
	case "json":
		return slog.New(seeing{tee{journal, newLimiter(slog.NewJSONHandler(a.stderr, opt))}}), nil
	}
	return nil, &millrace.Error{Kind: millrace.KindConfig, Op: "--log-format " + a.logFormat,
		Err: fmt.Errorf("unknown format"), Hint: "use text or json"}
}

// contractForm writes times as everywhere else, and leaves out hints that there
// are none of.
func contractForm(_ []string, attr slog.Attr) slog.Attr {
	if attr.Value.Kind() == slog.KindTime {
		attr.Value = slog.StringValue(web.Time{Time: attr.Value.Time()}.String())
	}
	if t, ok := attr.Value.Any().(time.Time); ok {
		attr.Value = slog.StringValue(web.Time{Time: t}.String())
	}
	if attr.Key == "hint" && attr.Value.Kind() == slog.KindString && attr.Value.String() == "" {
		return slog.Attr{}
	}
	return attr
}

// quietLog is for what is shown in another way.
func (s *settings) quietLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// tee hands each record to both.
type tee struct{ a, b slog.Handler }

func (t tee) Enabled(ctx context.Context, l slog.Level) bool {
	return t.a.Enabled(ctx, l) || t.b.Enabled(ctx, l)
}

func (t tee) Handle(ctx context.Context, r slog.Record) error {
	if t.a.Enabled(ctx, r.Level) {
		if err := t.a.Handle(ctx, r.Clone()); err != nil {
			return err
		}
	}
	if t.b.Enabled(ctx, r.Level) {
		return t.b.Handle(ctx, r)
	}
	return nil
}

func (t tee) WithAttrs(attrs []slog.Attr) slog.Handler {
	return tee{t.a.WithAttrs(attrs), t.b.WithAttrs(attrs)}
}

func (t tee) WithGroup(name string) slog.Handler {
	return tee{t.a.WithGroup(name), t.b.WithGroup(name)}
}

const (
	// burst is how many lines of the same message pass at once; behind them
	// one passes per refill, and says how many were left out.
	burst  = 20
	refill = 5 * time.Second
	// maxMessages bounds the memory: messages are constants of the program.
	maxMessages = 1000
)

// limiter leaves out lines whose message comes too often, so that nothing that
// goes wrong a thousand times a second fills a disk. Details (Debug) are not
// limited.
type limiter struct {
	next slog.Handler
	now  func() time.Time
	*buckets
}

type buckets struct {
	mu  sync.Mutex
	all map[string]*bucket
}

type bucket struct {
	left    int
	since   time.Time
	omitted int
}

func newLimiter(next slog.Handler) *limiter {
	return &limiter{next: next, now: time.Now, buckets: &buckets{all: make(map[string]*bucket)}}
}

func (l *limiter) Enabled(ctx context.Context, level slog.Level) bool {
	return l.next.Enabled(ctx, level)
}

func (l *limiter) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo {
		return l.next.Handle(ctx, r)
	}
	omitted, pass := l.take(r.Level.String() + r.Message)
	if !pass {
		return nil
	}
	if omitted > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("omitted_before", omitted))
	}
	return l.next.Handle(ctx, r)
}

// take gives how many lines were left out since the last that passed.
func (b *buckets) takeAt(message string, now time.Time) (int, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.all[message]
	if k == nil {
		if len(b.all) == maxMessages {
			clear(b.all)
		}
		k = &bucket{left: burst, since: now}
		b.all[message] = k
	}
	if n := int(now.Sub(k.since) / refill); n > 0 {
		k.left = min(burst, k.left+n)
		k.since = k.since.Add(time.Duration(n) * refill)
	}
	if k.left == 0 {
		k.omitted++
		return 0, false
	}
	k.left--
	omitted := k.omitted
	k.omitted = 0
	return omitted, true
}

func (l *limiter) take(message string) (int, bool) { return l.takeAt(message, l.now()) }

func (l *limiter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limiter{next: l.next.WithAttrs(attrs), now: l.now, buckets: l.buckets}
}

func (l *limiter) WithGroup(name string) slog.Handler {
	return &limiter{next: l.next.WithGroup(name), now: l.now, buckets: l.buckets}
}
