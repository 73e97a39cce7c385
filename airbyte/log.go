package airbyte

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
)

// NewLogger gives a logger whose lines are LOG messages: platforms show stdout
// and throw stderr away.
func NewLogger(w *Writer, level slog.Level) *slog.Logger {
	h := &logHandler{out: w, buf: &bytes.Buffer{}, mu: &sync.Mutex{}}
	h.text = slog.NewTextHandler(h.buf, &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
			return slog.Attr{} // the LOG message has its own
		}
		return a
	}})
	return slog.New(h)
}

type logHandler struct {
	out  *Writer
	text slog.Handler
	mu   *sync.Mutex
	buf  *bytes.Buffer
}

// Enabled implements slog.Handler.
func (h *logHandler) Enabled(ctx context.Context, l slog.Level) bool { return h.text.Enabled(ctx, l) }

// Handle implements slog.Handler.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buf.Reset()
	if err := h.text.Handle(ctx, r); err != nil {
		return err
	}
	text := strings.TrimRight(r.Message+" "+h.buf.String(), " \n")
	return h.out.Send(&Message{Type: "LOG", Log: &Log{Level: logLevel(r.Level), Message: text}})
}

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.text = h.text.WithAttrs(attrs)
	return &with
}

// WithGroup implements slog.Handler.
func (h *logHandler) WithGroup(name string) slog.Handler {
	with := *h
	with.text = h.text.WithGroup(name)
	return &with
}

func logLevel(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "ERROR"
	case l >= slog.LevelWarn:
		return "WARN"
	case l >= slog.LevelInfo:
		return "INFO"
	}
	return "DEBUG"
}
