package capture_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/capture"
	"github.com/millrace/millrace/internal/rig"
)

const twoTables = "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)"

// refusals break one thing each.
var refusals = []struct {
	name    string
	disturb func(t *testing.T, s *source)
	kind    millrace.Kind
	text    string
	hint    string
}{
	{
		name:    "no slot",
		disturb: func(t *testing.T, s *source) { s.db.SQL(t, "SELECT pg_drop_replication_slot('"+s.db.Name+"')") },
		kind:    millrace.KindPreflight, text: "does not exist", hint: "run never creates a slot",
	},
	{
		name: "slot of another plugin",
		disturb: func(t *testing.T, s *source) {
			s.db.SQL(t, "SELECT pg_drop_replication_slot('"+s.db.Name+"')")
			s.db.SQL(t, "SELECT pg_create_logical_replication_slot('"+s.db.Name+"', 'test_decoding')")
		},
		kind: millrace.KindResync, text: `is of plugin "test_decoding"`, hint: "--restart-snapshot",
	},
	{
		name: "slot of another database",
		disturb: func(t *testing.T, s *source) {
			s.db.SQL(t, "SELECT pg_drop_replication_slot('"+s.db.Name+"')")
			s.db.Server.SQL(t, "postgres", "SELECT pg_create_logical_replication_slot('"+s.db.Name+"', 'pgoutput')")
			t.Cleanup(func() { s.db.Server.SQL(t, "postgres", "SELECT pg_drop_replication_slot('"+s.db.Name+"')") })
		},
		kind: millrace.KindResync, text: `in database "postgres"`, hint: "--restart-snapshot",
	},
	{
		name: "physical slot",
		disturb: func(t *testing.T, s *source) {
			s.db.SQL(t, "SELECT pg_drop_replication_slot('"+s.db.Name+"')")
			s.db.SQL(t, "SELECT pg_create_physical_replication_slot('"+s.db.Name+"')")
			t.Cleanup(func() { s.db.Server.SQL(t, "postgres", "SELECT pg_drop_replication_slot('"+s.db.Name+"')") })
		},
		kind: millrace.KindResync, text: "is a physical one", hint: "--restart-snapshot",
	},
	{
		name:    "another system",
		disturb: func(_ *testing.T, s *source) { s.cp.System = "1234567890" },
		kind:    millrace.KindResync, text: "the destination holds the history of system 1234567890", hint: "--restart-snapshot",
	},
	{
		name:    "a later timeline",
		disturb: func(_ *testing.T, s *source) { s.cp.Timeline = 2 },
		kind:    millrace.KindResync, text: "the destination holds timeline 2", hint: "--restart-snapshot",
	},
	{
		name: "slot ahead of the destination",
		disturb: func(t *testing.T, s *source) {
			s.db.SQL(t, "INSERT INTO t VALUES (1)")
			s.db.SQL(t, "SELECT pg_replication_slot_advance('"+s.db.Name+"', pg_current_wal_insert_lsn())")
		},
		kind: millrace.KindResync, text: "but the destination holds the history only up to", hint: "--restart-snapshot",
	},
	{
		name:    "source behind the destination",
		disturb: func(_ *testing.T, s *source) { s.cp.Acked += 1 << 30; s.cp.End = s.cp.Acked },
		kind:    millrace.KindResync, text: "it was restored or replaced", hint: "--restart-snapshot",
	},
	{
		name:    "no publication",
		disturb: func(t *testing.T, s *source) { s.db.SQL(t, "DROP PUBLICATION everything") },
		kind:    millrace.KindData, text: `publication "everything" does not exist`, hint: "--create-publication",
	},
	{
		name: "publication without a table",
		disturb: func(t *testing.T, s *source) {
			s.db.SQL(t, "DROP PUBLICATION everything; CREATE PUBLICATION everything FOR TABLE u")
		},
		kind: millrace.KindData, text: `table public.t: is not in publication "everything"`, hint: `ALTER PUBLICATION "everything" ADD TABLE "public"."t"`,
	},
	{
		name:    "dropped table",
		disturb: func(t *testing.T, s *source) { s.db.SQL(t, "DROP TABLE t") },
		kind:    millrace.KindData, text: "table public.t: was dropped at the source", hint: "'!public.t'",
	},
	{
		name: "publish subset",
		disturb: func(t *testing.T, s *source) {
			s.db.SQL(t, "ALTER PUBLICATION everything SET (publish = 'insert, update, delete')")
		},
		kind: millrace.KindData, text: "only some operations", hint: "SET (publish = 'insert, update, delete, truncate')",
	},
	{
		name: "via root",
		disturb: func(t *testing.T, s *source) {
			s.db.SQL(t, "ALTER PUBLICATION everything SET (publish_via_partition_root)")
		},
		kind: millrace.KindData, text: "publish_via_partition_root", hint: "publish_via_partition_root = false",
	},
	{
		name: "row filter",
		disturb: func(t *testing.T, s *source) {
			s.db.SQL(t, "DROP PUBLICATION everything; CREATE PUBLICATION everything FOR TABLE u, TABLE t WHERE (id > 0)")
		},
		kind: millrace.KindData, text: "table public.t: has a row filter", hint: "without WHERE",
	},
	{
		name: "column list",
		disturb: func(t *testing.T, s *source) {
			s.db.SQL(t, "DROP PUBLICATION everything; CREATE PUBLICATION everything FOR TABLE u, TABLE t (id)")
		},
		kind: millrace.KindData, text: "table public.t: has a column list", hint: "without a column list",
	},
}

// TestStartRefuses goes through the refusals; none may change the slot.
func TestStartRefuses(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		for _, c := range refusals {
			t.Run(c.name, func(t *testing.T) {
				noLeaks(t)
				s := prepare(t, pg.NewDB(t), twoTables)
				c.disturb(t, s)
				before := slotState(t, s)
				err := s.Start(t.Context(), s.cp)
				if err == nil {
					t.Fatal("it started")
				}
				if kind := millrace.KindOf(err); kind != c.kind {
					t.Errorf("kind %d, want %d", kind, c.kind)
				}
				if !strings.Contains(err.Error(), c.text) {
					t.Errorf("got  %v\nwant %s", err, c.text)
				}
				if hint := millrace.HintOf(err); !strings.Contains(hint, c.hint) {
					t.Errorf("hint: %s\nwant %s", hint, c.hint)
				}
				if after := slotState(t, s); after != before {
					t.Errorf("the slot went from %s to %s", before, after)
				}
			})
		}
	}, versions...)
}

// slotState is what a refused start must not change.
func slotState(t *testing.T, s *source) string {
	t.Helper()
	return s.db.Query(t, "SELECT active, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '"+s.db.Name+"'")
}

func TestStartOnBusySlot(t *testing.T) {
	s := prepare(t, rig.Shared(t, 18).NewDB(t), twoTables)
	s.start(t)
	other := &source{db: s.db, tables: s.tables, cp: s.cp}
	opt := options(other)
	other.Source = capture.New(opt)
	err := other.Start(t.Context(), s.cp)
	pid := s.db.Query(t, "SELECT active_pid FROM pg_replication_slots WHERE slot_name = '"+s.db.Name+"'")
	want := fmt.Sprintf("is active for PID %s", pid)
	if millrace.KindOf(err) != millrace.KindRetry || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if c := conditionOf(err); c != "waiting_for_slot" {
		t.Errorf("condition %q", c)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := other.Start(t.Context(), s.cp); err != nil { // at once: Close waits for the server
		t.Errorf("after the slot was given back: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

func TestStartOnLostSlot(t *testing.T) {
	for _, major := range versions {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			pg := rig.Start(t, major, "max_slot_wal_keep_size=1MB", "min_wal_size=32MB", "max_wal_size=32MB")
			s := prepare(t, pg.NewDB(t), twoTables)
			for range 6 {
				s.db.SQL(t, "INSERT INTO t SELECT 1, 'x' FROM pg_switch_wal() ON CONFLICT DO NOTHING")
				s.db.SQL(t, "UPDATE t SET v = v || 'x'")
			}
			s.db.SQL(t, "CHECKPOINT")
			rig.Eventually(t, time.Minute, func() bool {
				s.db.SQL(t, "SELECT pg_switch_wal()")
				s.db.SQL(t, "UPDATE t SET v = v || 'x'; ")
				s.db.SQL(t, "CHECKPOINT")
				return s.db.Query(t, "SELECT wal_status FROM pg_replication_slots") == "lost"
			}, "the slot to be lost")
			err := s.Start(t.Context(), s.cp)
			if millrace.KindOf(err) != millrace.KindResync || !strings.Contains(err.Error(), "is lost") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestStartOnStandby(t *testing.T) {
	primary, standby := rig.Pair(t, 18)
	s := &source{db: &rig.DB{Server: standby, Name: "postgres"}}
	s.Source = capture.New(options(s))
	err := s.Start(t.Context(), millrace.Checkpoint{})
	if millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(err.Error(), "is a standby, and replication slot") ||
		!strings.Contains(millrace.HintOf(err), "target_session_attrs=read-write") {
		t.Errorf("without the slot: %v", err)
	}
	primary.SQL(t, "postgres", "SELECT pg_create_logical_replication_slot('postgres', 'pgoutput', false, false, true)")
	rig.Eventually(t, time.Minute, func() bool {
		return standby.Query(t, "postgres", "SELECT count(*) FROM pg_replication_slots") == "1"
	}, "the copy")
	err = s.Start(t.Context(), millrace.Checkpoint{})
	if millrace.KindOf(err) != millrace.KindRetry || conditionOf(err) != "source_unreachable" || !strings.Contains(err.Error(), "copy of replication slot") {
		t.Errorf("with a copy of it: %v", err)
	}
}

// TestStartAfterPromotion goes on from a slot that was made on the standby
// before it was promoted, and refuses a checkpoint from beyond the switch.
func TestStartAfterPromotion(t *testing.T) {
	primary := rig.Start(t, 18)
	standby := rig.Standby(t, primary)
	p, db := &rig.DB{Server: primary, Name: "postgres"}, &rig.DB{Server: standby, Name: "postgres"}
	p.Script(t, twoTables+"; CREATE PUBLICATION everything FOR ALL TABLES")
	made := make(chan string)
	go func() {
		point, err := standby.TryQuery("postgres", "SELECT lsn FROM pg_create_logical_replication_slot('postgres', 'pgoutput')")
		if err != nil {
			t.Error(err)
		}
		made <- point
	}()
	var point string
	rig.Eventually(t, time.Minute, func() bool {
		p.SQL(t, "SELECT pg_log_standby_snapshot()") // the slot waits for one
		select {
		case point = <-made:
			return true
		case <-time.After(100 * time.Millisecond):
			return false
		}
	}, "the slot on the standby")
	s := &source{db: db, cp: checkpoint(t, db, point)}
	s.Source = capture.New(options(s))
	standby.Promote(t)
	s.tables = set(t, db)
	db.SQL(t, "INSERT INTO t VALUES (1, repeat('x', 100000))")

	ahead := s.cp
	ahead.Acked = s.insertPosition(t)
	err := s.Start(t.Context(), ahead)
	if millrace.KindOf(err) != millrace.KindResync || !strings.Contains(err.Error(), "the source left timeline 1 at") {
		t.Errorf("from beyond the switch: %v", err)
	}
	s.start(t)
	txn := s.txn(t)
	if len(txn.Changes) != 1 || txn.From.Timeline != 2 {
		t.Errorf("got %+v from %+v", txn, txn.From)
	}
	txn.Release()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestDroppedTableCanBeExcluded is the cure that its hint names.
func TestDroppedTableCanBeExcluded(t *testing.T) {
	s := prepare(t, rig.Shared(t, 18).NewDB(t), twoTables, func(o *capture.Options) {
		o.Match = func(n millrace.TableName) bool { return n.Name != "t" }
	})
	s.db.Script(t, "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); INSERT INTO u VALUES (1)")
	s.start(t)
	txn := s.txn(t)
	if len(txn.Changes) != 1 || txn.Changes[0].Rel.Name.Name != "u" {
		t.Errorf("got %+v", txn)
	}
	txn.Release()
	if n := s.Stats().PassedOver; n != 1 {
		t.Errorf("%d changes passed over, want 1", n)
	}
}

func TestStartUnreachable(t *testing.T) {
	pg := rig.Start(t, 18)
	s := prepare(t, &rig.DB{Server: pg, Name: "postgres"}, twoTables)
	pg.Stop(t)
	err := s.Start(t.Context(), s.cp)
	if millrace.KindOf(err) != millrace.KindRetry || conditionOf(err) != "source_unreachable" {
		t.Errorf("got %v", err)
	}
	if _, err := s.Next(context.Background()); err == nil {
		t.Error("Next works without a start")
	}
	s.Ack(5) // does nothing, and no harm
	s.RequestPosition()
	if s.Queued() {
		t.Error("something is queued")
	}
}
