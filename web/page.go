package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/millrace/millrace/docs"
	"github.com/millrace/millrace/relay"
)

//go:embed assets
var files embed.FS

// assetVersion changes with what the page loads, so that browsers may keep it
// for ever.
var assetVersion = func() string {
	h := sha256.New()
	_ = fs.WalkDir(files, "assets", func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			b, _ := files.ReadFile(p) // it is embedded
			h.Write(b)
		}
		return err
	})
	return hex.EncodeToString(h.Sum(nil))[:12]
}()

var pages = template.Must(template.New("").Funcs(template.FuncMap{
	"asset":  func(name string) string { return "/assets/" + name + "?v=" + assetVersion },
	"size":   func(n *int64) string { return shown(n, Size) },
	"count":  func(n *int64) string { return shown(n, Count) },
	"number": Count,
	"rate":   func(n *float64) string { return shown(n, Rate) },
	"bytesPerSecond": func(n *float64) string {
		return shown(n, func(v float64) string { return Size(int64(v)) + "/s" })
	},
	"span":  func(s *float64) string { return shown(s, func(v float64) string { return about(seconds(v)) }) },
	"word":  func(s *string) string { return shown(s, func(v string) string { return v }) },
	"clock": func(t *Time) string { return shown(t, func(t Time) string { return t.UTC().Format("15:04:05 UTC") }) },
	"text":  func(v any) string { return textOf(v) },
	"help": func(link string) string {
		if s := docs.Named(link); s != nil {
			return "/help/errors/" + s.Name
		}
		return link
	},
}).ParseFS(files, "assets/*.html"))

// dash stands for what is unknown.
const dash = "–"

func shown[T any](v *T, form func(T) string) string {
	if v == nil {
		return dash
	}
	return form(*v)
}

// textOf writes what a pointer points to.
func textOf(v any) string {
	switch v := v.(type) {
	case fmt.Stringer:
		if s := fmt.Sprint(v); s != "<nil>" {
			return s
		}
	case *string:
		return shown(v, func(s string) string { return s })
	case *int32:
		return shown(v, func(n int32) string { return fmt.Sprint(n) })
	case *int64:
		return shown(v, func(n int64) string { return fmt.Sprint(n) })
	}
	return dash
}

// about rounds a duration to what one wants to read.
func about(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return Span(d)
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// page is what the templates show.
type page struct {
	*Status
	Tone     string // ok, busy, warn, bad or off: how bad it is, for colour
	Headline string
	Since    string
	Waits    string // what the lag waits for, in words
	CatchUp  string // when the lag is gone, at the present rates
	Kept     *meter
	Rows     []tableRow
	Loading  bool // one of them has a progress to show
	More     int  // tables that are not shown
	Past     []pastEvent
	At       string
	Actions  bool // tables can be added, read again and dropped here
}

// meter is a bar of a share of a limit.
type meter struct {
	Percent int
	Text    string
}

type tableRow struct {
	Table
	Percent *int
	ETA     string
}

type pastEvent struct {
	Event
	Clock, When, Tone string
}

// maxRows bounds the page; /status has all tables.
const maxRows = 500

// sectionNames are the parts of the page that are kept current.
var sectionNames = []string{"top", "verdict", "path", "lag", "wal", "load", "tables", "past"}

func (s *Server) page(now time.Time) *page {
	st := s.current()
	p := &page{Status: st, Tone: tone(st), At: now.UTC().Format("15:04:05 UTC"), Actions: s.opt.Tables != nil}
	p.Headline = headline(st)
	p.Waits = Waits(st.Lag)
	p.CatchUp = catchUp(st)
	p.Kept = kept(&st.Source)
	tables := st.Tables
	if len(tables) > maxRows {
		p.More = len(tables) - maxRows
		tables = tables[:maxRows]
	}
	for i := range tables {
		row := rowOf(tables[i], st.Load)
		p.Loading = p.Loading || row.Percent != nil
		p.Rows = append(p.Rows, row)
	}
	for _, e := range s.opt.Journal.Events() {
		p.Past = append(p.Past, pastEvent{Event: e, Clock: e.At.UTC().Format("15:04:05"),
			When: Time{e.At}.String(), Tone: strings.ToLower(e.Level.String())})
	}
	return p
}

func rowOf(t Table, l *Load) tableRow {
	r := tableRow{Table: t}
	if t.State != "copying" && t.State != "waiting" && t.State != "paused" || t.RowsEstimated == nil || *t.RowsEstimated <= 0 || t.RowsCopied == nil {
		return r
	}
	r.Percent = Known(int(min(99, 100**t.RowsCopied / *t.RowsEstimated)))
	if l != nil && l.BytesPerSecond != nil && *l.BytesPerSecond > 0 && *t.RowsCopied > 0 && t.BytesCopied != nil {
		// What is left, at the width of the rows so far and the present rate.
		rest := float64(max(*t.RowsEstimated-*t.RowsCopied, 0)) * float64(*t.BytesCopied) / float64(*t.RowsCopied)
		r.ETA = about(seconds(rest / *l.BytesPerSecond))
	}
	return r
}

func tone(st *Status) string {
	switch {
	case st.State == "error" || st.State == "resync_required":
		return "bad"
	case st.State == "stopped":
		return "off"
	case st.Condition != nil || len(st.Alarms) > 0 || st.State == "paused" || st.Lag.BlockingPID != nil:
		return "warn"
	case st.State == string(relay.Streaming):
		return "ok"
	}
	return "busy"
}

var conditionWords = map[string]string{
	relay.SourceUnreachable:      "The source can't be reached",
	relay.DestinationUnreachable: "The destination can't be reached",
	relay.WaitingForSlot:         "Waiting for the slot",
	relay.ChangingTables:         "Waiting for a change of the set of tables to end",
	relay.Converging:             "Rows are right one by one, not yet together",
}

// headline is the one sentence that somebody reads who was woken up.
func headline(st *Status) string {
	if st.Condition != nil {
		if w, ok := conditionWords[*st.Condition]; ok {
			return w
		}
		return *st.Condition
	}
	switch st.State {
	case "error":
		return "Stopped by an error"
	case "resync_required":
		return "A new first load is needed"
	case "stopped":
		return "Stopped"
	case "paused":
		return "The first load rests"
	case "bootstrapping":
		return loadHeadline(st.Load)
	case "preflight":
		return "Looking at both ends"
	}
	behind := "Behind by an unknown amount"
	switch l := st.Lag; {
	case l.WaitsFor != nil && *l.WaitsFor == relay.WaitsForNothing:
		behind = "Up to date"
	case l.Seconds != nil:
		behind = about(seconds(*l.Seconds)) + " behind"
	case l.Bytes != nil:
		behind = Size(*l.Bytes) + " behind"
	}
	if st.State == string(relay.CatchingUp) {
		return "Catching up: " + strings.ToLower(behind[:1]) + behind[1:]
	}
	return behind
}

func loadHeadline(l *Load) string {
	if l == nil || l.Phase == "" {
		return "First load"
	}
	text := "First load: " + l.Phase
	if p := l.Percent(); p != nil {
		text += fmt.Sprintf(", %d %%", *p)
	}
	if l.ETASeconds != nil && *l.ETASeconds > 0 {
		text += ", about " + about(seconds(*l.ETASeconds)) + " left"
	}
	return text
}

// Percent is how much of the rows, or of the steps of another phase, is done.
func (l *Load) Percent() *int {
	switch {
	case l == nil:
		return nil
	case l.Steps > 0:
		return Known(100 * l.StepsDone / l.Steps)
	case l.EstimatedBytes != nil && *l.EstimatedBytes > 0:
		return Known(int(min(99, 100*l.Bytes / *l.EstimatedBytes)))
	}
	return nil
}

var waitWords = map[string]string{
	"nothing":            "nothing",
	"source_transaction": "a transaction on the source",
	"decoding":           "decoding on the source",
	"decoding_spill":     "decoding on the source, which spills to disk",
	"network":            "the network",
	"idle_position":      "the source's next sign of life",
	"queue":              "our queue",
	"target":             "the destination's work",
	"target_lock":        "a lock on the destination",
}

// Waits says in words what a lag waits for.
func Waits(l relay.Lag) string {
	if l.WaitsFor == nil {
		return dash
	}
	if w, ok := waitWords[*l.WaitsFor]; ok {
		return w
	}
	return *l.WaitsFor
}

// catchUp is when the lag will be gone at the present rates, for a lag that is
// worth it.
func catchUp(st *Status) string {
	const worth = 16 << 20
	b, wal, held := st.Lag.Bytes, st.Rates.WAL, st.Rates.Held
	if b == nil || *b < worth || wal == nil || held == nil {
		return ""
	}
	if *held <= *wal {
		return "the lag does not shrink at present"
	}
	return "about " + about(seconds(float64(*b)/(*held-*wal))) + " to catch up at the present rates"
}

func kept(s *Source) *meter {
	if s.RetainedWALBytes == nil || s.SafeWALSizeBytes == nil {
		return nil
	}
	limit := *s.RetainedWALBytes + max(*s.SafeWALSizeBytes, 0)
	if limit <= 0 {
		return nil
	}
	return &meter{Percent: int(100 * *s.RetainedWALBytes / limit), Text: Size(limit)}
}

// sections renders the parts of the page that change.
func (s *Server) sections() []section {
	p := s.page(time.Now())
	all := make([]section, 0, len(sectionNames))
	for _, name := range sectionNames {
		var b bytes.Buffer
		if err := pages.ExecuteTemplate(&b, name, p); err != nil {
			s.opt.Log.Debug("render the page", "section", name, "cause", err)
			continue
		}
		all = append(all, section{name: name, html: strings.TrimSpace(b.String())})
	}
	return all
}

func securityHeaders(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "+
		"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
}

// index is the dashboard. It shows the state without any script; with one it is
// kept current.
func (s *Server) index(w http.ResponseWriter, _ *http.Request) {
	securityHeaders(w)
	if err := pages.ExecuteTemplate(w, "page", s.page(time.Now())); err != nil {
		s.opt.Log.Debug("write the page", "cause", err)
	}
}

// help serves what docs/troubleshooting.md says about an error. It is the same
// for everybody and needs no token.
func (s *Server) help(w http.ResponseWriter, r *http.Request) {
	if section := docs.Named(r.PathValue("name")); section != nil {
		writeText(w, http.StatusOK, section.Plain())
		return
	}
	writeText(w, http.StatusNotFound, "there is no such section")
}

// asset serves what the page loads. It is the same for everybody and needs no
// token.
func (s *Server) asset(w http.ResponseWriter, r *http.Request) {
	name := path.Clean(r.PathValue("name"))
	b, err := files.ReadFile("assets/" + name)
	kind := map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
		".svg": "image/svg+xml"}[path.Ext(name)]
	if err != nil || kind == "" {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(b) // the client may be gone
}
