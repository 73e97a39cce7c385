package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/relay"
	"github.com/millrace/millrace/session"
)

// recorded is a database with the record of a loaded job.
func recorded(t *testing.T, job string) (*session.Endpoint, *pgx.Conn) {
	t.Helper()
	target := session.Static(millrace.PeerDestination, rig.Shared(t, targetMajor).NewDB(t).URL(), job)
	conn := connectTo(t, target)
	if err := record.Install(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	j := &record.Job{Name: job, State: record.Failed, Reason: "old", SystemID: "77", Timeline: 1, PageSize: 8192, SegmentSize: 16 << 20,
		Slot: "millrace_" + job, Publication: "millrace_" + job, Mode: "consistent"}
	if err := record.Create(t.Context(), conn, j); err != nil {
		t.Fatal(err)
	}
	if err := record.FirstProgress(t.Context(), conn, j.Fence(), 1, 0x1000); err != nil {
		t.Fatal(err)
	}
	if err := record.SetConsistentFrom(t.Context(), conn, job, 0x1000); err != nil {
		t.Fatal(err)
	}
	return target, conn
}

func connectTo(t *testing.T, e *session.Endpoint) *pgx.Conn {
	t.Helper()
	conn, err := e.Connect(t.Context(), session.Watch)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func state(t *testing.T, conn *pgx.Conn, job string) record.State {
	t.Helper()
	j, _, err := record.Read(t.Context(), conn, job)
	if err != nil || j == nil {
		t.Fatal(err)
	}
	return j.State
}

// keeperOf is one that beats only when it is woken.
func keeperOf(target *session.Endpoint) *keeper {
	s := &settings{Config: config.Default(), target: target, log: slog.New(slog.DiscardHandler)}
	s.Job, s.Safety.HeartbeatInterval = "shop", time.Minute
	return newKeeper(s)
}

func TestKeeperWritesBeforeAnythingElse(t *testing.T) {
	target, conn := recorded(t, "shop")
	k := keeperOf(target)
	k.set(record.CatchingUp, "starting")
	if err := k.start(t.Context(), &pgLedger{connectTo(t, target), "shop"}); err != nil {
		t.Fatal(err)
	}
	if got := state(t, conn, "shop"); got != record.CatchingUp {
		t.Errorf("state %s", got)
	}
	rt, err := record.ReadRuntime(t.Context(), conn, "shop")
	if err != nil || rt == nil || rt.Instance != k.rt.Instance || rt.PID == 0 {
		t.Errorf("runtime %+v, %v", rt, err)
	}
	k.setCondition(relay.SourceUnreachable, "connection refused")
	rig.Eventually(t, patience, func() bool {
		rt, err := record.ReadRuntime(t.Context(), conn, "shop")
		j, _, err2 := record.Read(t.Context(), conn, "shop")
		return err == nil && err2 == nil && rt.Condition == relay.SourceUnreachable && j.Reason == "connection refused"
	})
	k.setCalm(relay.Converging, "rows are right one by one")
	if k.rt.Condition != relay.SourceUnreachable {
		t.Errorf("the condition is %q", k.rt.Condition)
	}
	k.setCondition("", "")
	rig.Eventually(t, patience, func() bool {
		rt, err := record.ReadRuntime(t.Context(), conn, "shop")
		return err == nil && rt.Condition == relay.Converging
	})
	k.setCalm("", "")
	if k.rt.Condition != "" {
		t.Errorf("the condition is %q", k.rt.Condition)
	}
	if err := k.finish(time.Second, record.Stopped, "a signal", "run"); err != nil {
		t.Fatal(err)
	}
	if rt, err := record.ReadRuntime(t.Context(), conn, "shop"); err != nil || rt != nil {
		t.Errorf("left behind: %+v, %v", rt, err)
	}
	if got := state(t, conn, "shop"); got != record.Stopped {
		t.Errorf("state %s", got)
	}
}

// While another instance may live the state is that one's to write; once this
// one owns the slot it is its own.
func TestKeeperIsShyOfAnother(t *testing.T) {
	target, conn := recorded(t, "shop")
	other := &record.Runtime{Job: "shop", Instance: "other", Host: "h", PID: 7, StartedAt: time.Now()}
	if err := record.Beat(t.Context(), conn, other); err != nil {
		t.Fatal(err)
	}
	if err := record.SetState(t.Context(), conn, "shop", record.Streaming, "", ""); err != nil {
		t.Fatal(err)
	}
	k := keeperOf(target)
	rivals := make(chan record.Runtime, 16)
	k.onRival = func(r record.Runtime) { rivals <- r }
	k.set(record.CatchingUp, "starting")
	if err := k.start(t.Context(), &pgLedger{connectTo(t, target), "shop"}); err != nil {
		t.Fatal(err)
	}
	if got := state(t, conn, "shop"); got != record.Streaming {
		t.Errorf("the other one's state was overwritten with %s", got)
	}
	k.setCondition(relay.WaitingForSlot, "slot is active")
	rig.Eventually(t, patience, func() bool {
		if err := record.Beat(t.Context(), conn, other); err != nil {
			t.Fatal(err)
		}
		return len(rivals) > 0
	}, "no rival was seen")
	if r := <-rivals; r.PID != 7 || r.Host != "h" {
		t.Errorf("rival %+v", r)
	}
	k.own()
	k.setCondition("", "")
	rig.Eventually(t, patience, func() bool { return state(t, conn, "shop") == record.CatchingUp })
	if err := k.finish(time.Second, "", "", ""); err != nil {
		t.Fatal(err)
	}
}

// An instance that lost the job writes no state any more, not even its last, and
// the one that has it does.
func TestKeeperIsFenced(t *testing.T) {
	target, conn := recorded(t, "shop")
	j, _, err := record.Read(t.Context(), conn, "shop")
	if err != nil {
		t.Fatal(err)
	}
	k := keeperOf(target)
	k.know(j.Generation, j.Epoch)
	k.set(record.CatchingUp, "starting")
	if err := k.start(t.Context(), &pgLedger{connectTo(t, target), "shop"}); err != nil {
		t.Fatal(err)
	}
	if got := state(t, conn, "shop"); got != record.CatchingUp {
		t.Errorf("state %s", got)
	}
	epoch, _, err := record.Claim(t.Context(), conn, "shop", "other")
	if err != nil {
		t.Fatal(err)
	}
	if err := record.SetState(t.Context(), conn, "shop", record.Streaming, "", ""); err != nil {
		t.Fatal(err)
	}
	k.set(record.Failed, "of a former instance")
	if err := k.finish(time.Second, record.Failed, "of a former instance", "none"); !errors.Is(err, record.ErrFenced) {
		t.Errorf("the last write: %v", err)
	}
	if got := state(t, conn, "shop"); got != record.Streaming {
		t.Errorf("the state was overwritten with %s", got)
	}

	k = keeperOf(target)
	k.know(j.Generation, epoch)
	if err := k.start(t.Context(), &pgLedger{connectTo(t, target), "shop"}); err != nil {
		t.Fatal(err)
	}
	if err := k.finish(time.Second, record.Stopped, "a signal", "run"); err != nil {
		t.Error(err)
	}
	if got := state(t, conn, "shop"); got != record.Stopped {
		t.Errorf("state %s", got)
	}
}
