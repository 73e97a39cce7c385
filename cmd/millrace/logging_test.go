package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/web"
)

// TestLogFormat: text on a terminal, JSON elsewhere, and what was asked for
// everywhere; quiet hides from stderr what the journal keeps.
func TestLogFormat(t *testing.T) {
	for _, c := range []struct {
		terminal bool
		format   string
		json     bool
	}{{true, "", false}, {false, "", true}, {true, "json", true}, {false, "text", false}} {
		var out bytes.Buffer
		a := &app{stderr: &out, terminal: c.terminal, logFormat: c.format}
		journal := web.NewJournal()
		log, err := a.logger(journal)
		if err != nil {
			t.Fatal(err)
		}
		log.Info("hello", "hint", "")
		if json.Valid(out.Bytes()) != c.json || strings.Contains(out.String(), "hint") {
			t.Errorf("%+v: %s", c, out.String())
		}
		if e := journal.Events(); len(e) != 1 || e[0].Message != "hello" {
			t.Errorf("journal %+v", e)
		}
	}
	var out bytes.Buffer
	log, err := (&app{stderr: &out}).logger(web.NewJournal())
	if err != nil {
		t.Fatal(err)
	}
	log.With("job", "x").Warn("trying again", "cause", errors.New("connect to source: FATAL: password authentication failed for user \"u\""), "hint", "correct it")
	if want := `"see":"https://github.com/millrace/millrace/blob/main/docs/troubleshooting.md#password-authentication-failed"`; !strings.Contains(out.String(), want) {
		t.Errorf("no link: %s", out.String())
	}
	out.Reset()
	journal := web.NewJournal()
	log, err = (&app{stderr: &out, quiet: true}).logger(journal)
	if err != nil {
		t.Fatal(err)
	}
	log.With("a", 1).Info("kept")
	if out.Len() > 0 || len(journal.Events()) != 1 {
		t.Errorf("stderr %q, journal %+v", out.String(), journal.Events())
	}
}

// TestLogLimit: a message that comes a thousand times is written a few times,
// and the next line says how many were left out; others and details pass.
func TestLogLimit(t *testing.T) {
	var out bytes.Buffer
	l := newLimiter(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	now := time.Unix(0, 0)
	l.now = func() time.Time { return now }
	log := slog.New(l)
	for i := range 1000 {
		log.With("round", i).Warn("lost the connection")
	}
	log.Info("something else")
	for range 50 {
		log.Debug("a detail")
	}
	if n := strings.Count(out.String(), "lost the connection"); n != burst {
		t.Errorf("%d lines, want %d", n, burst)
	}
	if !strings.Contains(out.String(), "something else") || strings.Count(out.String(), "a detail") != 50 {
		t.Error("other lines were left out")
	}
	now = now.Add(refill)
	log.Warn("lost the connection")
	log.Warn("lost the connection")
	if n := strings.Count(out.String(), "lost the connection"); n != burst+1 || !strings.Contains(out.String(), "omitted_before=980") {
		t.Errorf("%d lines after a pause: %s", n, out.String())
	}
}
