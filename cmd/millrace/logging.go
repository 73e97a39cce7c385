package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/web"
)

// logger makes the logger that the common flags ask for.
func (a *app) logger() (*slog.Logger, error) {
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
	switch a.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(a.stderr, opt)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(a.stderr, opt)), nil
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
