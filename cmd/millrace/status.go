package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/docs"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/relay"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
	"github.com/millrace/millrace/web"
)

const (
	// askWithin bounds the request to the running instance: it may listen on a
	// loopback address of another machine.
	askWithin = 2 * time.Second
	// maxStatus bounds the answer.
	maxStatus = 16 << 20
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show state, positions, lag and tables of a job",
		Long: `Status shows the state of a job, whether it runs or not: from the running instance if that
can be reached, else from the job's record at the destination and from the source. With
--to and --job alone nothing is said of the source unless the job runs.

Exit code 3 when the job is in state error or resync_required.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.loadTarget()
			if err != nil {
				return err
			}
			return a.status(c.Context(), s)
		},
	}
}

func (a *app) status(ctx context.Context, s *settings) error {
	st, err := readStatus(ctx, s)
	if err != nil {
		return err
	}
	if a.json {
		err = a.printJSON(st)
	} else {
		_, err = fmt.Fprint(a.stdout, statusText(st, time.Now()))
	}
	if err == nil && (st.State == string(record.Failed) || st.State == string(record.ResyncRequired)) {
		return &exit{code: exitJob}
	}
	return err
}

// readStatus asks the running instance, if there is one that can be reached,
// and puts the status together itself otherwise.
func readStatus(ctx context.Context, s *settings) (*web.Status, error) {
	book, err := s.openLedger(ctx)
	if err != nil {
		return nil, err
	}
	defer book.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it was only read
	j, cp, err := book.Read(ctx)
	if err != nil {
		return nil, err
	}
	if j == nil {
		return nil, noJob(s)
	}
	rt, alive, err := readRuntime(ctx, book, s)
	if err != nil {
		return nil, err
	}
	if alive && rt.HTTP != "" {
		if st := askInstance(ctx, s, rt); st != nil {
			return st, nil
		}
	}
	st := recordStatus(j, cp, rt, alive)
	st.Destination.Server = known(s.destinationServer())
	st.Destination.Kind = s.kind()
	switch {
	case s.prefix != nil:
		addPrefix(ctx, s, st, j, cp)
	case s.source != nil:
		addSource(ctx, s, st, j, cp)
	}
	return st, nil
}

func noJob(s *settings) error {
	return &millrace.Error{Kind: millrace.KindPreflight, Op: "job " + s.Job, Peer: millrace.PeerDestination,
		Err:  fmt.Errorf("no record of it at %s", s.destinationServer()),
		Hint: "millrace bootstrap records the job and copies its tables; --job or job: names another one"}
}

// readRuntime reads the newest sign of life and judges it by its age.
func readRuntime(ctx context.Context, book ledger, s *settings) (*record.Runtime, bool, error) {
	rt, age, err := book.Newest(ctx, "")
	return rt, rt != nil && age < silentBeats*s.Safety.HeartbeatInterval, err
}

// askInstance gives nil when the instance that answers is not the one of the
// record, or none does.
func askInstance(ctx context.Context, s *settings, rt *record.Runtime) *web.Status {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+rt.HTTP+"/status", nil)
	if err != nil {
		return nil
	}
	if token, err := s.HTTP.Token.Get(); err == nil && token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	var st web.Status
	err = json.NewDecoder(http.MaxBytesReader(nil, res.Body, maxStatus)).Decode(&st)
	if err != nil || res.StatusCode != http.StatusOK || st.Instance == nil || *st.Instance != rt.Instance {
		return nil
	}
	return &st
}

// recordStatus is what the record alone tells.
func recordStatus(j *record.Job, cp millrace.Checkpoint, rt *record.Runtime, alive bool) *web.Status {
	st := &web.Status{Job: j.Name, State: string(j.State), Reason: j.Reason, Hint: j.Hint, See: docs.See(j.Reason, j.Hint), Version: version(),
		Alarms: []web.Alarm{}, LoadStarted: loadStarted(j)}
	st.Source.Slot, st.Source.SystemID, st.Source.Timeline = j.Slot, &j.SystemID, &j.Timeline
	st.Destination = destinationStatus(j, cp)
	st.Tables = tableStatus(j, nil)
	if rt != nil {
		st.Instance, st.HeartbeatAt, st.Version = &rt.Instance, web.KnownTime(rt.HeartbeatAt), rt.Version
		if alive {
			st.HTTP = known(rt.HTTP)
			st.Condition = known(rt.Condition)
			return st
		}
	}
	// Nobody runs the job, whatever the state says that was written last.
	last := j.UpdatedAt
	if rt != nil && rt.HeartbeatAt.After(last) {
		last = rt.HeartbeatAt
	}
	st.StoppedAt = web.KnownTime(last)
	switch j.State {
	case record.Stopped, record.Failed, record.ResyncRequired:
	default:
		st.State = string(record.Stopped)
		st.Reason = fmt.Sprintf("no heartbeat; the state was %s", j.State)
		st.Hint = "millrace run takes the job up again"
		if j.ConsistentFrom == 0 {
			st.Hint = "millrace bootstrap takes the first load up again"
		}
		st.See = docs.See(st.Reason, st.Hint)
	}
	return st
}

func loadStarted(j *record.Job) *web.Time {
	if j.ConsistentFrom != 0 {
		return nil
	}
	return web.KnownTime(j.LoadStarted)
}

func known(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func destinationStatus(j *record.Job, cp millrace.Checkpoint) web.Destination {
	return web.Destination{Kind: "postgres", Generation: &j.Generation, Epoch: &j.Epoch,
		CommitLSN: web.KnownLSN(cp.Commit), CommittedLSN: web.KnownLSN(cp.End), AckedLSN: web.KnownLSN(cp.Acked),
		ConsistentFrom: web.KnownLSN(j.ConsistentFrom)}
}

// tableStatus shows the job's set. changes counts by OID at the source; nil when
// no instance counts.
func tableStatus(j *record.Job, changes map[uint32]relay.TableStats) []web.Table {
	tables := make([]web.Table, 0, len(j.Tables))
	for i := range j.Tables {
		t := &j.Tables[i]
		w := web.Table{Table: t.Name.String(), State: "waiting"}
		switch {
		case t.Copied && j.ConsistentFrom != 0:
			w.State = "streaming"
		case t.Copied:
			w.State = "copied"
		case j.ConsistentFrom != 0: // snapshot.mode none
			w.State = "streaming"
		}
		if t.Copied {
			w.RowsCopied, w.BytesCopied = &t.Rows, &t.Bytes
		}
		if changes != nil {
			w.Changes = web.Known(changes[t.OID].Changes)
		}
		tables = append(tables, w)
	}
	return tables
}

// addSource adds what the source tells, if it can be reached.
func addSource(ctx context.Context, s *settings, st *web.Status, j *record.Job, cp millrace.Checkpoint) {
	conn, err := s.source.Connect(ctx, session.Watch)
	if err != nil {
		s.log.Warn("the source can't be asked", "cause", err)
		return
	}
	defer conn.Close(context.WithoutCancel(ctx))
	server, err := catalog.ReadServer(ctx, conn)
	var position millrace.LSN
	if err == nil {
		position, err = catalog.Position(ctx, conn)
	}
	var slot *catalog.Slot
	if err == nil {
		slot, err = catalog.ReadSlot(ctx, conn, j.Slot)
	}
	if err != nil {
		s.log.Warn("the source can't be asked", "cause", session.Wrap("read the source's state", millrace.PeerSource, err))
		return
	}
	var oldest *catalog.Backend
	if oldest, err = catalog.OldestTransaction(ctx, conn); err != nil {
		s.log.Warn("the source's transactions can't be read", "cause", err)
	}
	st.Source = sourceStatus(j.Slot, server, position, slot, oldest)
	st.Source.Server = known(s.source.Redacted())
	if j.ConsistentFrom != 0 && cp.Acked != 0 && server.SystemID == j.SystemID {
		behind := max(int64(position)-int64(cp.Acked), 0)
		st.Lag.Bytes = &behind
		if behind == 0 {
			st.Lag.Seconds, st.Lag.Transactions = web.Known(0.0), web.Known(int64(0))
		}
	}
	g := newGovernor(s, s.quietLog())
	g.observe(observation{at: time.Now(), slot: slot, lag: st.Lag, oldest: oldest})
	st.Alarms = g.list()
	if slot == nil {
		st.Alarms = append(st.Alarms, web.Alarm{Name: "slot_missing", Since: web.Time{Time: time.Now()},
			Message: "the source has no slot " + j.Slot})
	}
}

// statusText is the status for people.
func statusText(st *web.Status, now time.Time) string {
	var b strings.Builder
	rows := [][]string{{"job", st.Job}, {"state", st.State + conditionText(st)}}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, value})
		}
	}
	add("reason", st.Reason)
	add("hint", st.Hint)
	add("see", seeCall(st.Reason, st.Hint))
	if st.StoppedAt != nil {
		add("stopped since", fmt.Sprintf("%s (%s ago)", st.StoppedAt, span(now.Sub(st.StoppedAt.Time))))
	} else if st.HeartbeatAt != nil {
		add("heartbeat", fmt.Sprintf("%s (%s ago)", st.HeartbeatAt, span(now.Sub(st.HeartbeatAt.Time))))
	}
	add("http", text(st.HTTP, func(s string) string { return s }))
	if st.LoadStarted != nil && st.Source.Slot != "" {
		add("load started", fmt.Sprintf("%s (the source's xmin is held since then)", st.LoadStarted))
	}
	add("first load", loadText(st.Load))
	if st.LoadPaused != nil {
		add("load rests", fmt.Sprintf("since %s (the stream goes on)", st.LoadPaused))
	}
	add("lag", lagText(st.Lag))
	add("waits for", waitsText(st.Lag))
	add("rates", ratesText(st.Rates))
	rows = append(rows,
		[]string{"source", named(st.Source.Server) + fmt.Sprintf("at %s, system %s, timeline %s", unknown(st.Source.CurrentLSN),
			unknown(st.Source.SystemID), unknown(st.Source.Timeline))})
	if st.Source.Slot != "" { // a prefix of topics has none
		rows = append(rows, []string{"slot", slotText(&st.Source)})
	}
	add("held by", heldByText(&st.Source))
	rows = append(rows,
		[]string{"destination", named(st.Destination.Server) + fmt.Sprintf("holds %s, applied %s, consistent from %s", unknown(st.Destination.AckedLSN),
			unknown(st.Destination.CommittedLSN), unknown(st.Destination.ConsistentFrom))})
	if st.Fallbacks != nil && *st.Fallbacks > 0 {
		add("row path", count(*st.Fallbacks)+" transactions")
	}
	for _, a := range st.Alarms {
		add("alarm", fmt.Sprintf("%s: %s (since %s)", a.Name, a.Message, a.Since))
	}
	b.WriteString(grid(rows))
	if len(st.Tables) > 0 {
		b.WriteByte('\n')
		b.WriteString(tablesText(st.Tables))
	}
	return b.String()
}

func conditionText(st *web.Status) string {
	if st.Condition == nil {
		return ""
	}
	return " (" + *st.Condition + ")"
}

func lagText(l relay.Lag) string {
	parts := []string{
		text(l.Seconds, func(s float64) string { return span(time.Duration(s * float64(time.Second))) }),
		text(l.Bytes, size),
		text(l.Transactions, func(n int64) string { return count(n) + " transactions" }),
	}
	var known []string
	for _, p := range parts {
		if p != "" {
			known = append(known, p)
		}
	}
	if len(known) == 0 {
		return "unknown"
	}
	return strings.Join(known, ", ")
}

// waitsText is nothing where nothing is waited for.
func waitsText(l relay.Lag) string {
	if l.WaitsFor == nil || *l.WaitsFor == waitsForNothing {
		return ""
	}
	if l.WaitsDetail == nil {
		return web.Waits(l)
	}
	return web.Waits(l) + ": " + *l.WaitsDetail
}

func ratesText(r web.Rates) string {
	if r.Changes == nil || r.Applied == nil {
		return ""
	}
	s := fmt.Sprintf("%s changes/s received, %s transactions/s applied", web.Rate(*r.Changes), web.Rate(*r.Applied))
	if r.WAL != nil {
		s += ", " + size(int64(*r.WAL)) + "/s of WAL at the source"
	}
	return s
}

func loadText(l *web.Load) string {
	if l == nil || l.Phase == string(snapshot.PhaseDone) {
		return ""
	}
	s := fmt.Sprintf("%s: %s rows, %s", l.Phase, count(l.Rows), size(l.Bytes))
	if p := l.Percent(); p != nil {
		s += fmt.Sprintf(", %d %%", *p)
	}
	if l.ETASeconds != nil {
		s += ", " + span(time.Duration(*l.ETASeconds*float64(time.Second))) + " left"
	}
	return s
}

// heldByText says who holds much WAL.
func heldByText(s *web.Source) string {
	if s.WALHeldBy == nil {
		return ""
	}
	if *s.WALHeldBy != waitsForTransaction || s.OldestTransaction == nil {
		return "our lag holds most of the WAL"
	}
	o := s.OldestTransaction
	b := catalog.Backend{PID: o.PID, Application: text(o.Application, func(s string) string { return s }),
		State: text(o.State, func(s string) string { return s })}
	if o.Seconds != nil {
		b.Open = time.Duration(*o.Seconds * float64(time.Second))
	}
	return "a transaction at the source holds most of the WAL: " + backendText(&b)
}

func named(server *string) string {
	if server == nil {
		return ""
	}
	return *server + ", "
}

func slotText(s *web.Source) string {
	if s.SlotActive == nil {
		return s.Slot + ", unknown"
	}
	active := "not active"
	if *s.SlotActive {
		active = "active"
	}
	line := fmt.Sprintf("%s, %s, confirmed %s", s.Slot, active, unknown(s.ConfirmedFlushLSN))
	if s.RetainedWALBytes != nil {
		line += ", keeps " + size(*s.RetainedWALBytes) + " of WAL"
	}
	if s.SafeWALSizeBytes != nil {
		line += ", lost after " + size(*s.SafeWALSizeBytes) + " more"
		if s.SecondsUntilLost != nil {
			line += " (" + span(time.Duration(*s.SecondsUntilLost*float64(time.Second))) + " at the present rate)"
		}
	}
	if s.WALStatus != nil && *s.WALStatus != "reserved" && *s.WALStatus != "extended" {
		line += ", WAL " + *s.WALStatus
	}
	if s.InvalidationReason != nil {
		line += " (" + *s.InvalidationReason + ")"
	}
	return line
}

func tablesText(tables []web.Table) string {
	rows := [][]string{{"table", "state", "rows_copied", "bytes_copied", "changes"}}
	for i := range tables {
		t := &tables[i]
		rows = append(rows, []string{t.Table, t.State, dash(text(t.RowsCopied, count)),
			dash(text(t.BytesCopied, size)), dash(text(t.Changes, count))})
	}
	return grid(rows)
}

func text[T any](v *T, form func(T) string) string {
	if v == nil {
		return ""
	}
	return form(*v)
}

func unknown[T any](v *T) string {
	if v == nil {
		return "unknown"
	}
	return fmt.Sprint(*v)
}

func dash(s string) string { return or(s, "-") }
