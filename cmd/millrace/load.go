package main

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/millrace/millrace/snapshot"
	"github.com/millrace/millrace/web"
)

// lineEvery is how often a load says where it stands where there is no
// terminal for a bar.
const lineEvery = 10 * time.Second

// load shows how a first load goes: on the terminal, in the log and in the
// status.
type load struct {
	stderr   io.Writer
	terminal bool
	quiet    bool
	log      *slog.Logger
	onPhase  func() // the record has changed

	mu     sync.Mutex
	now    snapshot.Progress
	phase  snapshot.Phase
	logged time.Time
	bar    *progressbar.ProgressBar
}

func newLoad(a *app, log *slog.Logger, onPhase func()) *load {
	return &load{stderr: a.stderr, terminal: a.terminal, quiet: a.quiet, log: log, onPhase: onPhase}
}

// Report implements snapshot.Reporter.
func (l *load) Report(p snapshot.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := p.Phase != l.phase
	l.now, l.phase = p, p.Phase
	if changed {
		l.onPhase()
	}
	bar := l.terminal && p.Phase == snapshot.PhaseRows
	switch {
	case l.quiet:
	case changed:
		l.finishBar()
		fallthrough
	case !bar && time.Since(l.logged) >= lineEvery:
		l.logged = time.Now()
		l.log.Info("first load", lineOf(p)...)
	case bar:
		l.draw(p)
	}
}

func lineOf(p snapshot.Progress) []any {
	args := []any{"phase", string(p.Phase)}
	if p.Phase == snapshot.PhaseRows {
		args = append(args, "rows", p.Rows, "bytes", p.Bytes, "tables_done", p.TablesDone, "tables", len(p.Tables))
		if p.BytesPerSecond > 0 {
			args = append(args, "bytes_per_second", int64(p.BytesPerSecond), "eta_seconds", int64(p.ETA.Seconds()))
		}
	}
	if p.Steps > 0 {
		args = append(args, "steps_done", p.StepsDone, "steps", p.Steps)
	}
	return args
}

// draw moves the bar of the copy.
func (l *load) draw(p snapshot.Progress) {
	total := max(p.EstimatedBytes, p.Bytes, 1)
	if l.bar == nil {
		l.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(l.stderr),
			progressbar.OptionShowBytes(true),
			progressbar.OptionUseIECUnits(true),
			progressbar.OptionSetWidth(20),
			progressbar.OptionThrottle(100*time.Millisecond))
	}
	l.bar.ChangeMax64(total)
	l.bar.Describe(fmt.Sprintf("%d/%d tables, %s rows", p.TablesDone, len(p.Tables), count(p.Rows)))
	_ = l.bar.Set64(min(p.Bytes, total-1)) // the terminal is gone; a full bar would end itself
}

func (l *load) finishBar() {
	if l.bar != nil {
		_ = l.bar.Exit() // the terminal is gone
		fmt.Fprintln(l.stderr)
		l.bar = nil
	}
}

// close leaves the terminal's line.
func (l *load) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finishBar()
}

// show adds the load to a status. A nil load adds nothing.
func (l *load) show(st *web.Status) {
	if l == nil {
		return
	}
	l.mu.Lock()
	p := l.now
	l.mu.Unlock()
	st.LoadRows = &p.Rows
	st.Load = loadStatus(p)
	if p.Phase == snapshot.PhaseDone {
		st.LoadRest = web.Known(int64(0))
		return
	}
	if st.State == "bootstrapping" && p.Phase != "" {
		st.Reason = "the first load is " + string(p.Phase)
	}
	st.LoadStarted = web.KnownTime(p.Held)
	if len(p.Tables) == 0 {
		return
	}
	st.LoadRest = web.Known(max(p.EstimatedBytes-p.Bytes, 0))
	st.Tables = make([]web.Table, len(p.Tables))
	for i, t := range p.Tables {
		w := web.Table{Table: t.Name.String(), State: "waiting", RowsCopied: &p.Tables[i].Rows, BytesCopied: &p.Tables[i].Bytes}
		if t.EstimatedRows >= 0 {
			w.RowsEstimated = &p.Tables[i].EstimatedRows
		}
		switch {
		case t.Done:
			w.State = "copied"
		case t.Bytes > 0:
			w.State = "copying"
		}
		st.Tables[i] = w
	}
}

func loadStatus(p snapshot.Progress) *web.Load {
	if p.Phase == "" {
		return nil
	}
	l := &web.Load{Phase: string(p.Phase), Rows: p.Rows, Bytes: p.Bytes, TablesDone: p.TablesDone,
		Steps: p.Steps, StepsDone: p.StepsDone}
	if p.EstimatedBytes > 0 {
		l.EstimatedBytes = &p.EstimatedBytes
	}
	if p.BytesPerSecond > 0 {
		l.BytesPerSecond = &p.BytesPerSecond
	}
	if p.ETA > 0 {
		l.ETASeconds = web.Known(p.ETA.Seconds())
	}
	return l
}
