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
	// maxWaiters bounds the memory that waiting connections take: about 20 KiB
	// each.
	maxWaiters = 2048
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

func (s *Server) wait(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	answer := waitAnswer{Job: s.opt.Job}
	err := s.waitFor(r, &answer)
	answer.Waited = time.Since(began).Seconds()
	code := http.StatusOK
	if err != nil {
		code, answer.Error = http.StatusInternalServerError, err.Error()
		var no *refusal
		if errors.As(err, &no) {
			code, answer.Hint = no.code, no.hint
		}
	}
	if r.Context().Err() != nil {
		return // the client is gone
	}
	s.metrics.waited(code, answer.Waited)
	writeJSON(w, code, answer)
}

func (s *Server) waitFor(r *http.Request, answer *waitAnswer) error {
	q := r.URL.Query()
	wanted := q.Get("lsn")
	if wanted == "" && q.Get("xid") != "" {
		wanted = xidPrefix + q.Get("xid")
	}
	token, err := ParseToken(wanted)
	if err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	timeout, err := parseTimeout(q.Get("timeout"))
	if err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	visible, err := parseFlag(q.Get("visible"))
	if err != nil {
		return refuse(http.StatusBadRequest, "visible: %v", err)
	}
	if job := q.Get("job"); job != "" && job != s.opt.Job {
		return refuse(http.StatusNotFound, "no job %q here: this process runs job %q", job, s.opt.Job)
	}
	if err := s.open(); err != nil {
		return err
	}
	if s.waiting.Add(1) > maxWaiters {
		s.waiting.Add(-1)
		return refuse(http.StatusServiceUnavailable, "more than %d wait already", maxWaiters)
	}
	defer s.waiting.Add(-1)
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	held, err := s.hold(ctx, token, visible, answer)
	answer.Held = KnownLSN(held)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return refuse(http.StatusRequestTimeout, "not held within %v", timeout)
	case errors.Is(err, relay.ErrEnded):
		return refuse(http.StatusServiceUnavailable, "%v", err)
	}
	return err
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

// hold waits until the token is held and returns what is held then.
func (s *Server) hold(ctx context.Context, t Token, visible bool, answer *waitAnswer) (millrace.LSN, error) {
	p := s.opt.Progress
	answer.LSN = KnownLSN(t.LSN)
	var at millrace.LSN
	if t.IsXID {
		end, err := p.WaitXID(ctx, t.XID)
		if err != nil {
			return p.Held(), s.ended(err)
		}
		answer.LSN, at = &end, end
	} else {
		// Before the first session neither the history nor the sizes are known.
		if held, err := p.Wait(ctx, 1, visible); err != nil {
			return held, s.ended(err)
		}
		page, segment := s.opt.WALSizes()
		at = t.LSN.Normalize(page, segment)
	}
	for {
		h := p.History()
		if why := t.Foreign(h); why != "" {
			return p.Held(), refuse(http.StatusConflict, "%s", why)
		}
		if t.History != nil && t.History.Timeline < h.Timeline {
			return s.holdEarlier(ctx, t, at, h)
		}
		held, err := p.Wait(ctx, at, visible)
		if err != nil {
			return held, s.ended(err)
		}
		if t.History == nil || t.History.Timeline == p.History().Timeline {
			return held, nil
		}
		select {
		case <-time.After(timelineEvery):
		case <-ctx.Done():
			return held, ctx.Err()
		}
	}
}

// holdEarlier decides a token of an earlier timeline: what was applied before
// the stream left that timeline is held; anything else of it never comes.
func (s *Server) holdEarlier(ctx context.Context, t Token, at millrace.LSN, h millrace.History) (millrace.LSN, error) {
	held := s.opt.Progress.Held()
	if s.opt.HeldOn != nil {
		ok, err := s.opt.HeldOn(ctx, t.History.Timeline, at)
		if err != nil {
			return held, err
		}
		if ok {
			return held, nil
		}
	}
	return held, refuse(http.StatusConflict, "position %v of timeline %d is not on the history that the job follows (timeline %d)",
		at, t.History.Timeline, h.Timeline)
}

// ended turns the error that ended a run into the answer that its state calls
// for.
func (s *Server) ended(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
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
