package main

import (
	"context"
	"log/slog"

	"github.com/millrace/millrace/check"
	"github.com/millrace/millrace/docs"
)

// seeCall is how to read about an error with nothing but the program; "" when
// there is no section about it.
func seeCall(text, hint string) string {
	if s := docs.Find(text, hint); s != nil {
		return "millrace help errors " + s.Name
	}
	return ""
}

// seeing adds the link of the section to log lines that have a hint. The text is
// the cause, or the message where there is none.
type seeing struct{ slog.Handler }

func (h seeing) Handle(ctx context.Context, r slog.Record) error {
	text, hint := r.Message, ""
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "cause", "reason":
			text = a.Value.String()
		case "hint":
			hint = a.Value.String()
		}
		return true
	})
	if hint != "" {
		if link := docs.See(text, hint); link != "" {
			r = r.Clone()
			r.AddAttrs(slog.String("see", link))
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h seeing) WithAttrs(attrs []slog.Attr) slog.Handler { return seeing{h.Handler.WithAttrs(attrs)} }

func (h seeing) WithGroup(name string) slog.Handler { return seeing{h.Handler.WithGroup(name)} }

// finding is one of a check's, with the link of its section.
type finding struct {
	check.Finding
	See string `json:"see,omitempty"`
}

// findings is what check --json prints.
type findings struct {
	Problems []finding `json:"problems"`
	Warnings []finding `json:"warnings"`
}

func withLinks(r check.Report) findings {
	links := func(list []check.Finding) []finding {
		all := make([]finding, len(list))
		for i, f := range list {
			all[i] = finding{f, docs.See(f.String(), f.Cure)}
		}
		return all
	}
	return findings{links(r.Problems), links(r.Warnings)}
}
