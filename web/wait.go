package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/relay"
)

const (
	defaultWait = 30 * time.Second
	maxWait     = 5 * time.Minute
	// parkAfter is how long a request waits on its own goroutine: what is on its
	// way comes within that time, and the connection can be used again.
	parkAfter = 200 * time.Millisecond
	// maxInline bounds those, about 25 KiB each; what comes beyond is parked at
	// once.
	maxInline = 256
	// maxWaiters bounds the memory of those that are parked, about 1.5 KiB each.
	maxWaiters = 20000
	// timelineEvery is how often a wait for a later timeline looks whether the
	// stream has come to it. It happens around a failover only.
	timelineEvery = 250 * time.Millisecond
)

// waitAnswer is the body of every answer of /wait; refusals have an error.
type waitAnswer struct {
	Job    string        `json:"job"`
	LSN    *millrace.LSN `json:"lsn"`
	Held   *millrace.LSN `json:"held_lsn"`
	Waited float64       `json:"waited_seconds"`
	Error  string        `json:"error,omitempty"`
	Hint   string        `json:"hint,omitempty"`
}

// refusal is an answer other than 200.
type refusal struct {
	code int
	text string
	hint string
}

func (r *refusal) Error() string { return r.text }

func refuse(code int, format string, args ...any) *refusal {
	return &refusal{code: code, text: fmt.Sprintf(format, args...)}
}

// pending is one wait that has no answer yet.
type pending struct {
	token    Token
	at       millrace.LSN // the token's position once it is known; 0 before
	visible  bool
	began    time.Time
	deadline time.Time
	timeout  time.Duration
	answer   waitAnswer
}

// wait answers at once what can be answered at once, and soon what comes soon.
// Whoever has to wait for longer is parked: its connection is taken out of the
// HTTP server, so that it costs no goroutine and no buffers until it is woken.
func (s *Server) wait(w http.ResponseWriter, r *http.Request) {
	p := &pending{began: time.Now(), answer: waitAnswer{Job: s.opt.Job}}
	err := s.accept(r, p)
	if err == nil {
		if s.waiting.Add(1) > maxWaiters {
			err = refuse(http.StatusServiceUnavailable, "more than %d wait already", maxWaiters)
			s.waiting.Add(-1)
		} else {
			var parked bool
			if parked, err = s.inline(w, r, p); parked {
				return // s.waiting is counted down by the one who answers
			}
			s.waiting.Add(-1)
		}
	}
	if r.Context().Err() != nil {
		return // the client is gone
	}
	writeJSON(w, s.conclude(p, err), p.answer)
}

// conclude completes the answer and gives its code.
func (s *Server) conclude(p *pending, err error) int {
	p.answer.Waited = time.Since(p.began).Seconds()
	code := http.StatusOK
	if errors.Is(err, context.DeadlineExceeded) {
		err = refuse(http.StatusRequestTimeout, "not held within %v", p.timeout)
	}
	if err != nil {
		code, p.answer.Error = http.StatusInternalServerError, err.Error()
		var no *refusal
		if errors.As(err, &no) {
			code, p.answer.Hint = no.code, no.hint
		}
	}
	s.metrics.waited(code, p.answer.Waited)
	return code
}

// accept reads the request and refuses what is malformed or hopeless.
func (s *Server) accept(r *http.Request, p *pending) error {
	q := r.URL.Query()
	wanted := q.Get("lsn")
	if wanted == "" && q.Get("xid") != "" {
		wanted = xidPrefix + q.Get("xid")
	}
	var err error
	if p.token, err = ParseToken(wanted); err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	if p.timeout, err = parseTimeout(q.Get("timeout")); err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	if p.visible, err = parseFlag(q.Get("visible")); err != nil {
		return refuse(http.StatusBadRequest, "visible: %v", err)
	}
	if job := q.Get("job"); job != "" && job != s.opt.Job {
		return refuse(http.StatusNotFound, "no job %q here: this process runs job %q", job, s.opt.Job)
	}
	p.deadline = p.began.Add(p.timeout)
	p.answer.LSN = KnownLSN(p.token.LSN)
	return s.open()
}

// open refuses a wait that the job's state makes hopeless.
func (s *Server) open() error {
	st := s.opt.Status()
	var no *refusal
	switch st.State {
	case "resync_required":
		no = refuse(http.StatusConflict, "the job needs a new first load: %s", st.Reason)
	case "stopped", "error":
		no = refuse(http.StatusServiceUnavailable, "the job is in state %s: %s", st.State, st.Reason)
	default:
		return nil
	}
	no.hint = st.Hint
	return no
}

// inline waits for a short while on the request's own goroutine, and parks the
// request then. Where that can't be, since the connection is shared by several
// requests, it goes on waiting.
func (s *Server) inline(w http.ResponseWriter, r *http.Request, p *pending) (parked bool, err error) {
	patience := parkAfter
	if s.inlined.Add(1) > maxInline {
		patience = 0
	}
	defer s.inlined.Add(-1)
	ctx, cancel := context.WithDeadline(r.Context(), p.deadline)
	defer cancel()
	park := time.NewTimer(patience)
	defer park.Stop()
	for {
		next, err := s.step(ctx, p)
		if err != nil || next == nil {
			return false, err
		}
		come := make(chan struct{})
		stop := s.notify(next, func() { close(come) })
		select {
		case <-come:
		case <-ctx.Done():
			stop()
			return false, ctx.Err()
		case <-park.C:
			stop()
			if r.Method == http.MethodGet && s.park(w, p) {
				return true, nil
			}
		}
	}
}

// next is what a wait waits for: a need, or a pause.
type next struct {
	relay.Need
	pause time.Duration
}

// notify calls wake once, when it is time for another step.
func (s *Server) notify(n *next, wake func()) (stop func()) {
	if n.pause > 0 {
		timer := time.AfterFunc(n.pause, wake)
		return func() { timer.Stop() }
	}
	return s.opt.Progress.Notify(n.Need, func(millrace.LSN) { wake() })
}

// step looks where a wait stands. With neither what is next nor an error the
// token is held.
func (s *Server) step(ctx context.Context, w *pending) (*next, error) {
	p := s.opt.Progress
	held, failed := p.Reached(w.visible)
	w.answer.Held = KnownLSN(held)
	if w.at == 0 {
		if need, err := s.locate(w, held, failed); need != nil || err != nil {
			return need, err
		}
	}
	h, t := p.History(), w.token.History
	if why := w.token.Foreign(h); why != "" {
		return nil, refuse(http.StatusConflict, "%s", why)
	}
	switch {
	case t != nil && t.Timeline < h.Timeline:
		return nil, s.holdEarlier(ctx, w.token, w.at, h)
	case held >= w.at && (t == nil || t.Timeline == h.Timeline):
		return nil, nil
	case failed != nil:
		return nil, s.ended(failed)
	case held >= w.at: // the stream has not come to the token's timeline
		return &next{pause: timelineEvery}, nil
	}
	return &next{Need: relay.Need{At: w.at, Visible: w.visible}}, nil
}

// locate finds the position of a token, or what is to come before that can be.
func (s *Server) locate(w *pending, held millrace.LSN, failed error) (*next, error) {
	t := &w.token
	if t.IsXID {
		end, ok := s.opt.Progress.Come(t.XID)
		if ok {
			w.answer.LSN, w.at = &end, end
			return nil, nil
		}
		if failed != nil {
			return nil, s.ended(failed)
		}
		return &next{Need: relay.Need{XID: t.XID}}, nil
	}
	// Before the first session neither the history nor the sizes are known.
	if held == 0 {
		if failed != nil {
			return nil, s.ended(failed)
		}
		return &next{Need: relay.Need{At: 1, Visible: w.visible}}, nil
	}
	page, segment := s.opt.WALSizes()
	w.at = max(t.LSN.Normalize(page, segment), 1)
	return nil, nil
}

// holdEarlier decides a token of an earlier timeline: what was applied before
// the stream left that timeline is held; anything else of it never comes.
func (s *Server) holdEarlier(ctx context.Context, t Token, at millrace.LSN, h millrace.History) error {
	if s.opt.HeldOn != nil {
		ok, err := s.opt.HeldOn(ctx, t.History.Timeline, at)
		if err != nil || ok {
			return err
		}
	}
	return refuse(http.StatusConflict, "position %v of timeline %d is not on the history that the job follows (timeline %d)",
		at, t.History.Timeline, h.Timeline)
}

// ended turns the error that ended a run into the answer that its state calls
// for.
func (s *Server) ended(err error) error {
	no := refuse(http.StatusServiceUnavailable, "%v", err)
	if millrace.KindOf(err) == millrace.KindResync {
		no.code = http.StatusConflict
	}
	no.hint = millrace.HintOf(err)
	return no
}

func parseTimeout(s string) (time.Duration, error) {
	if s == "" {
		return defaultWait, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		seconds, err := strconv.ParseFloat(s, 64)
		if err != nil || !(seconds >= 0 && seconds <= 1e6) {
			return 0, fmt.Errorf("malformed timeout %q: want a duration such as 30s", s)
		}
		d = time.Duration(seconds * float64(time.Second))
	}
	if d < 0 {
		return 0, fmt.Errorf("negative timeout %q", s)
	}
	return min(d, maxWait), nil
}

func parseFlag(s string) (bool, error) {
	if s == "" {
		return false, nil
	}
	return strconv.ParseBool(s)
}
