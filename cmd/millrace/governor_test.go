package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/relay"
	"github.com/millrace/millrace/web"
)

const mb = 1 << 20

// governed is a governor that is shown one look after another.
type governed struct {
	*governor
	log     strings.Builder
	told    []string
	stopped []error
	now     time.Time
	slot    catalog.Slot
	free    *int64
	oldest  *catalog.Backend
}

func newGoverned(action string) *governed {
	x := &governed{now: time.Unix(1_000_000, 0), slot: catalog.Slot{Name: "s", Restart: 1 << 40, ConfirmedFlush: 1 << 40, WALStatus: "reserved"}}
	s := &settings{Config: config.Default()}
	s.Resources.MaxReplicationLag, s.Resources.WALRetentionAlarm = 1000*mb, 2000*mb
	s.Safety.WALRetentionAction = action
	x.governor = newGovernor(s, slog.New(slog.NewTextHandler(&x.log, nil)))
	x.onAlarm = func(name, message string) { x.told = append(x.told, name+": "+message) }
	x.stop = func(err error) { x.stopped = append(x.stopped, err) }
	return x
}

// grow looks every half second for d, while what is kept and what can still be
// kept change by so many bytes per second.
func (x *governed) grow(d time.Duration, rate int64) {
	for range int(d / watchEvery) {
		x.now = x.now.Add(watchEvery)
		step := rate / int64(time.Second/watchEvery)
		x.slot.RetainedBytes += step
		if x.slot.SafeWALSize != nil {
			x.slot.SafeWALSize = web.Known(*x.slot.SafeWALSize - step)
		}
		slot := x.slot
		x.observe(observation{at: x.now, slot: &slot, free: x.free, oldest: x.oldest})
	}
}

func (x *governed) names() string {
	var all []string
	for _, a := range x.list() {
		all = append(all, a.Name)
	}
	return strings.Join(all, " ")
}

func (x *governed) message(name string) string {
	for _, a := range x.list() {
		if a.Name == name {
			return a.Message
		}
	}
	return ""
}

// TestAlarmsWithoutSlot: a Kafka source has no slot; how far the destination is behind
// is judged nevertheless, and nothing else is made up.
func TestAlarmsWithoutSlot(t *testing.T) {
	x := newGoverned(config.ActionPauseLoad)
	look := func(lag int64) {
		x.now = x.now.Add(watchEvery)
		x.observe(observation{at: x.now, lag: relay.Lag{Bytes: &lag}})
	}
	for range 2 * int(actAfter/watchEvery) {
		look(1200 * mb)
	}
	if got := x.names(); got != "max_replication_lag" {
		t.Errorf("alarms %q", got)
	}
	look(0)
	if got := x.names(); got != "" || len(x.stopped) > 0 || x.resting {
		t.Errorf("alarms %q, stopped %v, resting %v", got, x.stopped, x.resting)
	}
}

func TestAlarms(t *testing.T) {
	x := newGoverned(config.ActionAlarm)
	var waits *string
	look := func(lag, retained int64, status string) {
		slot := x.slot
		slot.RetainedBytes, slot.WALStatus = retained, status
		x.observe(observation{at: x.now, slot: &slot, lag: relay.Lag{Bytes: &lag, WaitsFor: waits}})
	}
	look(1000*mb, 2000*mb, "reserved")
	if len(x.list()) != 0 {
		t.Errorf("alarms at the limit: %v", x.list())
	}
	look(1001*mb, 2001*mb, "reserved")
	look(1002*mb, 2002*mb, "reserved")
	if got := x.names(); got != "max_replication_lag wal_retention_alarm" {
		t.Errorf("alarms %s", got)
	}
	if n := strings.Count(x.log.String(), "level=WARN"); n != 2 || len(x.told) != 2 {
		t.Errorf("%d lines and %d events for two alarms:\n%s", n, len(x.told), &x.log)
	}
	if !strings.Contains(x.message("max_replication_lag"), "1002.0 MiB behind") {
		t.Errorf("the message is not kept current: %s", x.message("max_replication_lag"))
	}
	x.observe(observation{at: x.now})
	if len(x.list()) != 0 || strings.Count(x.log.String(), "alarm ended") != 2 || len(x.told) != 4 {
		t.Errorf("not ended: %v %q\n%s", x.list(), x.told, &x.log)
	}
	x.told = nil
	for _, step := range []struct {
		lag   int64
		waits string
		want  string
	}{
		{999 * mb, relay.WaitsForApply, ""},
		{1001 * mb, relay.WaitsForStream, "max_replication_lag"},
		{1001 * mb, relay.WaitsForApply, "max_replication_lag slow_sink"},
		{1002 * mb, relay.WaitsForStream, "max_replication_lag slow_sink"},
		{999 * mb, relay.WaitsForApply, ""},
	} {
		waits = &step.waits
		if look(step.lag, 0, "reserved"); x.names() != step.want {
			t.Errorf("%+v: alarms %q", step, x.names())
		}
	}
	look(0, 0, "unreserved")
	if got := x.names(); got != "wal_status" {
		t.Errorf("alarms %s", got)
	}
}

// TestForecast: the time until the slot is invalidated comes from what can still
// be kept and from how fast that is used up, whichever of slot and disk is first.
func TestForecast(t *testing.T) {
	x := newGoverned(config.ActionAlarm)
	x.slot.SafeWALSize = web.Known(int64(100_000 * mb))
	x.grow(10*time.Minute, 10*mb)
	if got := x.message("wal_forecast"); got != "" {
		t.Errorf("alarm hours before: %s", got)
	}
	*x.slot.SafeWALSize = 24_000 * mb // 40 minutes
	x.grow(time.Second, 10*mb)
	if got := x.message("wal_forecast"); got != "in about 40m0s the slot is invalidated (max_slot_wal_keep_size): what the slot keeps grows by 10.0 MiB/s, and 23.4 GiB are left" {
		t.Errorf("got %q", got)
	}
	x.free = web.Known(int64(6_000 * mb)) // 10 minutes
	x.grow(time.Second, 10*mb)
	if got := x.message("wal_forecast"); !strings.HasPrefix(got, "in about 10m0s the source's disk is full: ") {
		t.Errorf("got %q", got)
	}
	x.free = nil
	*x.slot.SafeWALSize = 48_000 * mb // 80 minutes: not far enough to end it
	x.grow(time.Second, 10*mb)
	if x.message("wal_forecast") == "" {
		t.Error("the alarm flaps")
	}
	x.grow(5*time.Minute, 0)
	if got := x.message("wal_forecast"); got != "" {
		t.Errorf("nothing grows any more: %s", got)
	}
}

// TestNoForecastOfSteps: restart_lsn moves in steps of 15 s; what is kept goes up
// and down, and nothing is foreseen.
func TestNoForecastOfSteps(t *testing.T) {
	x := newGoverned(config.ActionAlarm)
	x.slot.SafeWALSize = web.Known(int64(30_000 * mb))
	for range 40 {
		x.grow(15*time.Second, 10*mb)
		x.slot.RetainedBytes -= 150 * mb
		*x.slot.SafeWALSize += 150 * mb
	}
	if len(x.told) != 0 {
		t.Errorf("told %q", x.told)
	}
}

// TestPauseAction: the load rests from the alarm on until a quarter of the limit is
// free again. There may be nothing that could rest yet, and nothing rests where a
// transaction of the source holds the WAL.
func TestPauseAction(t *testing.T) {
	x := newGoverned(config.ActionPauseLoad)
	var told []string
	loading := false
	x.rest = func(on bool, why string) bool {
		told = append(told, fmt.Sprint(on, " ", strings.Contains(why, "slot s keeps")))
		return on && loading
	}
	look := func(retained, confirmed int64, want ...string) {
		t.Helper()
		told = nil
		slot := x.slot
		slot.RetainedBytes, slot.ConfirmedFlush = retained, slot.Restart+millrace.LSN(confirmed)
		x.observe(observation{at: x.now, slot: &slot})
		if !slices.Equal(told, want) {
			t.Errorf("%d MiB retained: %q, want %q", retained/mb, told, want)
		}
	}
	look(2000*mb, 0)
	look(2001*mb, 0, "true true") // nothing to load
	loading = true
	look(2001*mb, 0, "true true")
	look(2001*mb, 0)
	look(1501*mb, 0)
	x.observe(observation{at: x.now}) // the source can't be reached
	look(1501*mb, 0)
	look(1500*mb, 0, "false false")
	look(1501*mb, 0)
	look(2001*mb, 0, "true true")
	look(2001*mb, 1900*mb, "false false") // held by a transaction
	look(2001*mb, 1900*mb)
	if len(x.stopped) != 0 {
		t.Errorf("stopped: %v", x.stopped)
	}
}

// TestStopAction: the run ends once the alarm has lasted and nothing gets better,
// and once only. Nothing happens while the job catches up, nor where a
// transaction of the source is what holds the WAL.
func TestStopAction(t *testing.T) {
	x := newGoverned(config.ActionStop)
	x.slot.RetainedBytes = 3000 * mb
	x.slot.ConfirmedFlush += 10 * mb
	x.grow(5*time.Minute, -mb)
	if len(x.stopped) != 0 {
		t.Fatalf("stopped while it caught up: %v", x.stopped)
	}
	x.grow(2*time.Minute, mb)
	x.grow(actAfter-watchEvery, mb)
	x.grow(2*time.Minute, mb)
	if len(x.stopped) != 1 {
		t.Fatalf("stopped %d times", len(x.stopped))
	}
	err := x.stopped[0]
	if millrace.KindOf(err) != millrace.KindData || !strings.Contains(err.Error(), "slot s keeps") || !strings.Contains(millrace.HintOf(err), "cleanup") {
		t.Errorf("%v: %s", err, millrace.HintOf(err))
	}

	for action, oldest := range map[string]*catalog.Backend{config.ActionAlarm: nil, config.ActionStop: {PID: 7, User: "alice", Application: "psql", Open: time.Hour}} {
		x := newGoverned(action)
		x.oldest = oldest
		x.slot.RetainedBytes = 3000 * mb
		if oldest != nil {
			x.slot.ConfirmedFlush += 2990 * mb
		}
		x.grow(10*time.Minute, mb/10)
		if len(x.stopped) != 0 {
			t.Errorf("%s: stopped: %v", action, x.stopped)
		}
		if got := x.message("wal_retention_alarm"); oldest != nil && !strings.Contains(got, "held by pid 7 (user alice, psql, for 1h0m0s), not by this job") {
			t.Errorf("got %q", got)
		}
	}
}
