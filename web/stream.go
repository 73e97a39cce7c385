package web

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

const (
	// maxStreams bounds the pages that are open at once; each costs a goroutine
	// and a connection.
	maxStreams = 64
	// streamWrite bounds one write to a page that may have gone to sleep.
	streamWrite = 10 * time.Second
)

// hub renders the page's sections once a second, as long as a page is open, and
// hands the result to all that are.
type hub struct {
	mu      sync.Mutex
	streams int
	tick    uint64
	changed chan struct{} // closed and made anew by every tick
	view    []section
	sample  []byte // the newest one of the history
	samples uint64 // how many there were
	ended   bool
}

// section is a part of the page; version grows when its HTML changes.
type section struct {
	name, html string
	version    uint64
}

func newHub() *hub { return &hub{changed: make(chan struct{})} }

func (h *hub) join() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended || h.streams >= maxStreams {
		return false
	}
	h.streams++
	return true
}

func (h *hub) leave() {
	h.mu.Lock()
	h.streams--
	h.mu.Unlock()
}

func (h *hub) open() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.streams
}

// end lets all streams end.
func (h *hub) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.ended = true
		close(h.changed)
	}
}

// show publishes the sections, and a sample of the history if there is a new one.
func (h *hub) show(view []section, sample []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return
	}
	h.tick++
	for i := range view {
		view[i].version = h.tick
		if i < len(h.view) && h.view[i].html == view[i].html {
			view[i].version = h.view[i].version
		}
	}
	h.view = view
	if sample != nil {
		h.sample = sample
		h.samples++
	}
	close(h.changed)
	h.changed = make(chan struct{})
}

// frame is what a stream has to know: the newest state and what to wait for.
type frame struct {
	view    []section
	sample  []byte
	samples uint64
	changed <-chan struct{}
	ended   bool
}

func (h *hub) frame() frame {
	h.mu.Lock()
	defer h.mu.Unlock()
	return frame{h.view, h.sample, h.samples, h.changed, h.ended}
}

// observe keeps the history, and the hub's view while somebody looks.
func (s *Server) observe(done <-chan struct{}) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		s.look(time.Now())
		select {
		case <-tick.C:
		case <-done:
			return
		}
	}
}

func (s *Server) look(now time.Time) {
	var n Numbers
	if s.opt.Numbers != nil {
		n = s.opt.Numbers()
	}
	var sample []byte
	if s.history.add(now, s.opt.Status(), n) {
		sample = s.history.json(true)
	}
	if s.hub.open() > 0 {
		s.hub.show(s.sections(), sample)
	}
}

// events is the stream of the page: first the history, then whatever changes, in
// server-sent events.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	if !s.hub.join() {
		w.Header().Set("Retry-After", "10")
		writeText(w, http.StatusServiceUnavailable, "too many pages are open")
		return
	}
	defer s.hub.leave()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // a proxy in between is not to wait for more
	out := stream{w: w, control: http.NewResponseController(w), sent: make(map[string]uint64)}

	f := s.hub.frame()
	f.view = s.sections() // what the hub has may be from an hour ago
	samples := f.samples
	if !out.event("history", s.history.json(false)) {
		return
	}
	for {
		if f.samples != samples {
			samples = f.samples
			if !out.event("sample", f.sample) {
				return
			}
		}
		if !out.sections(f.view) || f.ended {
			return
		}
		select {
		case <-f.changed:
			f = s.hub.frame()
		case <-r.Context().Done():
			return
		}
	}
}

// stream writes to one page.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	sent    map[string]uint64 // version of each section
}

// sections writes those that the page does not have yet. Without any a comment
// is written: a page that is gone is noticed.
func (o *stream) sections(view []section) bool {
	changed := make(map[string]string)
	for _, x := range view {
		if v, ok := o.sent[x.name]; !ok || v != x.version {
			changed[x.name] = x.html
			o.sent[x.name] = x.version
		}
	}
	b, err := json.Marshal(changed)
	return err == nil && o.event("page", b)
}

func (o *stream) event(name string, data []byte) bool {
	if err := o.control.SetWriteDeadline(time.Now().Add(streamWrite)); err != nil {
		return false
	}
	b := make([]byte, 0, len(data)+32)
	b = append(b, "event: "+name+"\ndata: "...)
	b = append(b, data...)
	b = append(b, "\n\n"...)
	if _, err := o.w.Write(b); err != nil {
		return false
	}
	return o.control.Flush() == nil
}
