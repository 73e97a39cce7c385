package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/relay"
	"github.com/millrace/millrace/web"
)

const (
	// smoothed is the time over which rates are averaged. restart_lsn moves in
	// steps of about 15 s; a minute sees through them.
	smoothed = time.Minute
	// settled is how long is watched before a rate is believed.
	settled = 30 * time.Second
	// nearEnd is how near an end of the slot or of the disk must be to raise an
	// alarm, and farEnd how far away it must be to end it.
	nearEnd, farEnd = time.Hour, 90 * time.Minute
	// actAfter is how long an alarm lasts, without getting better, before
	// anything is done about it.
	actAfter = time.Minute
)

// observation is what one look at the source has shown.
type observation struct {
	at     time.Time
	slot   *catalog.Slot // nil: unknown, or there is none
	lag    relay.Lag
	free   *int64           // bytes of the source's disk; nil: can't be seen
	oldest *catalog.Backend // oldest transaction that has written; nil: none, or unknown
}

// governor watches what the slot makes the source keep: it raises alarms,
// foresees the end, and tells when the job is to stop. It never touches the slot.
type governor struct {
	maxLag, maxRetained int64  // bytes; 0: no alarm
	action              string // one of config's Action…
	log                 *slog.Logger
	onAlarm             func(name, message string) // with an empty message it has ended
	stop                func(error)
	// rest has what is loaded beside the stream rest, or go on, and tells
	// whether something rests.
	rest func(on bool, why string) bool

	began    time.Time
	last     observation
	growth   float64   // bytes per second by which the kept WAL grows, smoothed
	since    time.Time // the retention alarm's, as far as it is for us to act on
	stopping bool
	resting  bool // the load rests
	blamed   bool // it was told that a transaction holds the WAL

	mu     sync.Mutex
	active map[string]web.Alarm // the alarms, by name
}

func newGovernor(s *settings, log *slog.Logger) *governor {
	return &governor{maxLag: int64(s.Resources.MaxReplicationLag), maxRetained: int64(s.Resources.WALRetentionAlarm),
		action: s.Safety.WALRetentionAction, log: log, active: make(map[string]web.Alarm),
		onAlarm: func(string, string) {}, stop: func(error) {}, rest: func(bool, string) bool { return false }}
}

// observe judges one look. It is called by one goroutine.
func (g *governor) observe(o observation) {
	g.measure(o)
	held := heldByTransaction(o.slot)
	left, what := headroom(o)
	g.set("max_replication_lag", g.behind(o.lag))
	g.set("slow_sink", g.slow(o.lag))
	kept := g.retained(o, held)
	g.set("wal_retention_alarm", kept)
	g.blame(kept, held && o.oldest != nil)
	g.set("wal_status", unsafeText(o.slot))
	g.set("wal_forecast", g.forecast(left, what))
	switch g.action {
	case config.ActionPauseLoad:
		g.pause(o, held, kept)
	case config.ActionStop:
		g.act(o, held)
	}
}

// measure smooths the growth of what the slot keeps. A gap in the looks, or
// another slot, begins anew.
func (g *governor) measure(o observation) {
	was := g.last
	g.last = o
	if o.slot == nil || o.slot.Restart == 0 {
		g.began = time.Time{}
		return
	}
	dt := o.at.Sub(was.at).Seconds()
	if g.began.IsZero() || was.slot == nil || dt <= 0 || dt > settled.Seconds() {
		g.began, g.growth = o.at, 0
		return
	}
	now := float64(o.slot.RetainedBytes-was.slot.RetainedBytes) / dt
	g.growth += (1 - math.Exp(-dt/smoothed.Seconds())) * (now - g.growth)
}

// rate is the growth in bytes per second; 0 while it is not known, or falls.
func (g *governor) rate() float64 {
	if g.began.IsZero() || g.last.at.Sub(g.began) < settled {
		return 0
	}
	return max(g.growth, 0)
}

// heldByTransaction tells a lag of ours from a transaction of the source that is
// older than what we have confirmed: the slot keeps WAL back to its beginning,
// and no reader of the slot can help.
func heldByTransaction(slot *catalog.Slot) bool {
	return slot != nil && slot.RetainedBytes >= muchWAL &&
		int64(slot.ConfirmedFlush)-int64(slot.Restart) > slot.RetainedBytes/2
}

// headroom is how much WAL can be kept before something gives way, and what.
func headroom(o observation) (left *int64, what string) {
	if o.slot != nil && o.slot.SafeWALSize != nil {
		left, what = o.slot.SafeWALSize, "the slot is invalidated (max_slot_wal_keep_size)"
	}
	if o.free != nil && (left == nil || *o.free < *left) {
		left, what = o.free, "the source's disk is full"
	}
	return left, what
}

func (g *governor) forecast(left *int64, what string) string {
	rate := g.rate()
	if left == nil || rate < 1 {
		return ""
	}
	until := float64(max(*left, 0)) / rate
	limit := nearEnd
	if g.has("wal_forecast") {
		limit = farEnd
	}
	if until > limit.Seconds() {
		return ""
	}
	return fmt.Sprintf("in about %s %s: what the slot keeps grows by %s/s, and %s are left",
		time.Duration(until*float64(time.Second)).Round(time.Minute), what, web.Size(int64(rate)), web.Size(*left))
}

func (g *governor) behind(lag relay.Lag) string {
	if g.maxLag <= 0 || lag.Bytes == nil || *lag.Bytes <= g.maxLag {
		return ""
	}
	return fmt.Sprintf("the destination is %s behind, more than %s", web.Size(*lag.Bytes), web.Size(g.maxLag))
}

// slow tells that the destination is what holds the job up. Once begun it ends when the
// lag does, since what is waited for changes from one look to the next.
func (g *governor) slow(lag relay.Lag) string {
	waits := lag.WaitsFor != nil && *lag.WaitsFor == relay.WaitsForApply
	if g.behind(lag) == "" || !waits && !g.has("slow_sink") {
		return ""
	}
	return fmt.Sprintf("the destination takes less than the source gives, and is %s behind: no more is received than fits into the memory, and the source keeps the rest",
		web.Size(*lag.Bytes))
}

func (g *governor) retained(o observation, held bool) string {
	if o.slot == nil || g.maxRetained <= 0 || o.slot.RetainedBytes <= g.maxRetained {
		return ""
	}
	text := fmt.Sprintf("slot %s keeps %s of WAL at the source, more than %s", o.slot.Name,
		web.Size(o.slot.RetainedBytes), web.Size(g.maxRetained))
	switch {
	case held && o.oldest != nil:
		text += ", held by " + backendText(o.oldest) + ", not by this job: ending that transaction frees it"
	case held:
		text += ", held by an old transaction of the source that has ended or can't be seen, not by this job"
	}
	return text
}

func unsafeText(slot *catalog.Slot) string {
	if slot == nil || slot.WALStatus != "unreserved" && slot.WALStatus != "lost" {
		return ""
	}
	return fmt.Sprintf("slot %s is %s: the source is about to remove, or has removed, WAL that it needs", slot.Name, slot.WALStatus)
}

// blame tells once per alarm which transaction is what holds the WAL: at the
// alarm's beginning that may not be known yet.
func (g *governor) blame(kept string, held bool) {
	if held && kept != "" && !g.blamed {
		g.log.Warn("alarm", "alarm", "wal_retention_alarm", "message", kept)
		g.onAlarm("wal_retention_alarm", kept)
	}
	g.blamed = kept != "" && (held || g.blamed)
}

// pause has the load rest from the alarm on, and go on once a quarter of the limit
// is free again: what the stream lags behind is the reason of most retained WAL, and
// the load takes the destination's time from it. It goes on as well where a
// transaction of the source is what holds the WAL, which no pause frees.
func (g *governor) pause(o observation, held bool, kept string) {
	switch {
	case o.slot == nil: // unknown: as it was
	case g.resting && (held || o.slot.RetainedBytes <= g.maxRetained-g.maxRetained/4):
		g.resting = g.rest(false, "")
	case !g.resting && !held && kept != "":
		g.resting = g.rest(true, kept)
	}
}

// act ends the run where the configuration wants that, once the alarm has lasted
// and nothing gets better: a job that catches up is left to it, and so is one
// that can't help it.
func (g *governor) act(o observation, held bool) {
	if held || !g.has("wal_retention_alarm") || g.growth < 0 {
		g.since = time.Time{}
		return
	}
	if g.since.IsZero() {
		g.since = o.at
	}
	if g.stopping || o.at.Sub(g.since) < actAfter {
		return
	}
	g.stopping = true
	g.stop(&millrace.Error{Kind: millrace.KindData, Op: "watch the slot", Peer: millrace.PeerSource,
		Err:  errors.New(g.retained(o, held) + "; safety.wal_retention_action is stop"),
		Hint: "the slot still keeps it: remove what holds the job back and start it again, or give the job up with millrace cleanup --yes"})
}

// has tells whether an alarm is active.
func (g *governor) has(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.active[name]
	return ok
}

// set begins an alarm, renews its message, or ends it with an empty one.
func (g *governor) set(name, message string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was, ok := g.active[name]
	switch {
	case message == "" && ok:
		delete(g.active, name)
		g.log.Info("alarm ended", "alarm", name, "since", was.Since.Time)
		g.onAlarm(name, "")
	case message != "" && !ok:
		g.active[name] = web.Alarm{Name: name, Since: web.Time{Time: time.Now()}, Message: message}
		g.log.Warn("alarm", "alarm", name, "message", message)
		g.onAlarm(name, message)
	case message != "":
		was.Message = message
		g.active[name] = was
	}
}

// list gives the alarms in the order of their names.
func (g *governor) list() []web.Alarm {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := []web.Alarm{}
	for _, name := range []string{"max_replication_lag", "slow_sink", "wal_forecast", "wal_retention_alarm", "wal_status"} {
		if alarm, ok := g.active[name]; ok {
			all = append(all, alarm)
		}
	}
	return all
}
