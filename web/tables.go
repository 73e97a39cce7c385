package web

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
)

// maxAction bounds one change of the set of tables: definitions are copied, rows
// are not.
const maxAction = 5 * time.Minute

// tableActions are the verbs of millrace table.
var tableActions = []string{"add", "resnapshot", "drop"}

// tableRequest is the body of POST /tables, and that of a good answer.
type tableRequest struct {
	Action string   `json:"action"`
	Tables []string `json:"tables"` // patterns, as the command line takes them; in the answer, names
}

// notDone is the body of an answer that says no.
type notDone struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
}

// tables changes the set of tables of the job, where the operator has enabled it.
// A page of another origin, also another port of this machine, is refused: what the
// browser says of the request's origin has to fit, and a form can't send JSON.
func (s *Server) tables(w http.ResponseWriter, r *http.Request) {
	if s.opt.Tables == nil {
		writeJSON(w, http.StatusForbidden, notDone{"actions are not enabled", "http.actions: true enables them; millrace table does the same"})
		return
	}
	if err := new(http.CrossOriginProtection).Check(r); err != nil {
		writeJSON(w, http.StatusForbidden, notDone{"the request comes from a page of another origin", ""})
		return
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		writeJSON(w, http.StatusUnsupportedMediaType, notDone{"want Content-Type: application/json", ""})
		return
	}
	req, err := readTableRequest(r.Body)
	if err != nil {
		writeJSON(w, http.StatusBadRequest, notDone{err.Error(), `want {"action": "add|resnapshot|drop", "tables": ["schema.table"]}`})
		return
	}
	if !s.acting.CompareAndSwap(false, true) {
		writeJSON(w, http.StatusConflict, notDone{"another change of the tables is going on", "try again once it has ended"})
		return
	}
	defer s.acting.Store(false)
	// It goes on to its end when the page is closed, but not when the process ends.
	ctx, cancel := context.WithTimeout(s.running, maxAction)
	defer cancel()
	names, err := s.opt.Tables(ctx, req.Action, req.Tables)
	if err != nil {
		s.opt.Log.Warn("the tables were not changed", "action", req.Action, "tables", strings.Join(req.Tables, " "), "from", r.RemoteAddr,
			"cause", err, "hint", millrace.HintOf(err))
		writeJSON(w, refusedWith(err), notDone{err.Error(), hintsOf(err)})
		return
	}
	s.opt.Log.Info("the tables were changed", "action", req.Action, "tables", strings.Join(names, " "), "from", r.RemoteAddr)
	writeJSON(w, http.StatusOK, tableRequest{req.Action, names})
}

func readTableRequest(body io.Reader) (req tableRequest, err error) {
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	switch err := d.Decode(&req); {
	case err != nil:
		return req, errors.New("the body is not the JSON that is wanted")
	case !slices.Contains(tableActions, req.Action):
		return req, errors.New("no such action")
	case len(req.Tables) == 0:
		return req, errors.New("no tables are named")
	}
	return req, nil
}

// refusedWith is the status code for an action that failed.
func refusedWith(err error) int {
	switch millrace.KindOf(err) {
	case millrace.KindConfig:
		return http.StatusBadRequest
	case millrace.KindPreflight, millrace.KindData, millrace.KindResync:
		return http.StatusConflict
	case millrace.KindRetry:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// hintsOf joins the hints of errors that were joined.
func hintsOf(err error) string {
	var all []string
	joined, ok := err.(interface{ Unwrap() []error }) // only the outermost error is a list
	if !ok {
		return millrace.HintOf(err)
	}
	for _, e := range joined.Unwrap() {
		if h := millrace.HintOf(e); h != "" && !slices.Contains(all, h) {
			all = append(all, h)
		}
	}
	return strings.Join(all, "; ")
}
