package rig

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/rig/pgserver"
)

// Pair gives the test a primary and a hot standby of it which, from 17 on, keeps
// copies of the primary's failover slots.
func Pair(t testing.TB, major int, settings ...string) (primary, standby *Postgres) {
	t.Helper()
	primary = Start(t, major, settings...)
	var sync []string
	if major >= 17 {
		sync = []string{"sync_replication_slots=on"}
	}
	return primary, Standby(t, primary, sync...)
}

// HoldBack has a primary (17+) send to nobody but the standby what the standby
// has not confirmed.
func (p *Postgres) HoldBack(t testing.TB, standby *Postgres) {
	t.Helper()
	p.Configure(t, "synchronized_standby_slots="+standby.StandbySlot())
	p.Reload(t)
}

// AwaitReplay waits until a standby has replayed what its primary has written.
func (p *Postgres) AwaitReplay(t testing.TB, primary *Postgres) {
	t.Helper()
	at := primary.Query(t, "postgres", "SELECT pg_current_wal_lsn()")
	Eventually(t, time.Minute, func() bool {
		return p.Query(t, "postgres", "SELECT pg_last_wal_replay_lsn() >= '"+at+"'") == "t"
	}, "the standby replays up to", at)
}

// AwaitSlotCopy waits until a standby has a copy of a slot of its primary that
// will be there after a promotion.
func (p *Postgres) AwaitSlotCopy(t testing.TB, primary *Postgres, slot string) {
	t.Helper()
	Eventually(t, 2*time.Minute, func() bool {
		// The copy becomes durable once the standby has reached its positions.
		primary.SQL(t, "postgres", "SELECT pg_log_standby_snapshot()")
		return p.Query(t, "postgres", fmt.Sprintf("SELECT synced AND NOT temporary AND invalidation_reason IS NULL FROM pg_replication_slots WHERE slot_name = '%s'", slot)) == "t"
	}, "a copy of slot", slot)
}

// URLs is the address of a database on several servers: see [pgserver.URLs].
func URLs(db, attrs string, servers ...*Postgres) string {
	all := make([]*pgserver.Server, len(servers))
	for i, s := range servers {
		all[i] = s.Server
	}
	return pgserver.URLs(db, attrs, all...)
}
