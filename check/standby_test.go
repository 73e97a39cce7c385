package check

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/session"
)

// TestStandby reads from standbys that are set up more and more as they should
// be.
func TestStandby(t *testing.T) {
	b := newBed(t, "", "")
	b.CreatePublication = false
	primary := rig.Start(t, 16)
	b.src = primary.NewDB(t)
	b.src.Script(t, plain+"CREATE ROLE reader LOGIN REPLICATION; GRANT SELECT ON t TO reader")
	standby := rig.Standby(t, primary)
	standby.AwaitReplay(t, primary)
	from := func(url string) { b.Source = session.Static(millrace.PeerSource, url, b.Job) }
	from(standby.URLAs("reader", "", b.src.Name))
	delay := "?source: max_standby_streaming_delay is 30s: a first load that is in the way of replay for longer"
	idle := `?source: creating the slot on a standby waits for a record that an idle primary does not write => name the primary as a further host ` +
		`of the connection string, with target_session_attrs=standby, and on the primary: GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO "reader"`
	b.expect(t, []string{
		fmt.Sprintf(`!publication millrace_JOB: does not exist, and can't be created on a standby => on the primary: CREATE PUBLICATION "millrace_%s"`, b.Job),
		delay, idle,
	})
	b.src.SQL(t, "CREATE PUBLICATION "+b.Publication+" FOR TABLE t")
	standby.AwaitReplay(t, primary)
	from(rig.URLs(b.src.Name, "standby", primary, standby))
	standby.Configure(t, "max_standby_streaming_delay=-1")
	standby.Reload(t)
	b.expect(t, nil)
	from(fmt.Sprintf("host=127.0.0.1,127.0.0.1 port=%d,%d user=reader dbname=%s target_session_attrs=standby sslmode=disable", primary.Port(), standby.Port(), b.src.Name))
	b.expect(t, []string{"?source: creating the slot on a standby waits for a record that an idle primary does not write, and role reader may not ask for it " +
		`=> on the primary: GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO "reader"`})
	b.src.SQL(t, "GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO reader")
	standby.AwaitReplay(t, primary)
	b.expect(t, nil)
	standby.SQL(t, "postgres", "ALTER SYSTEM SET primary_slot_name = ''") // over what pg_basebackup wrote
	standby.Configure(t, "hot_standby_feedback=off")
	standby.Restart(t)
	rig.Eventually(t, time.Minute, func() bool {
		return standby.Query(t, "postgres", "SELECT count(*) FROM pg_stat_wal_receiver") == "1"
	}, "it streams again")
	b.expect(t, []string{
		"!source: it is a standby with hot_standby_feedback = off: the primary removes rows that the slot and the first load still need => on the standby: ALTER SYSTEM SET hot_standby_feedback = on",
		"?source: it is a standby without primary_slot_name",
	})
	standby.SQL(t, "postgres", "ALTER SYSTEM SET primary_conninfo = ''")
	standby.Configure(t, "hot_standby_feedback=on")
	standby.Restart(t)
	b.expect(t, []string{
		"!source: it is a standby that does not stream from a primary",
		"?source: it is a standby without primary_slot_name",
	})
}

// TestStandbyOfPrimaryWithoutLogical: only the primary knows what it logs.
func TestStandbyOfPrimaryWithoutLogical(t *testing.T) {
	b := newBed(t, "", "")
	primary := rig.Start(t, 18, "wal_level=replica")
	b.src = primary.NewDB(t)
	b.src.Script(t, plain+"CREATE PUBLICATION "+b.Publication+" FOR TABLE t")
	standby := rig.Standby(t, primary, "wal_level=logical", "max_standby_streaming_delay=-1")
	standby.AwaitReplay(t, primary)
	b.Source = session.Static(millrace.PeerSource, rig.URLs(b.src.Name, "standby", primary, standby), b.Job)
	b.expect(t, []string{"!source: wal_level of its primary is replica, not logical => on the primary: ALTER SYSTEM SET wal_level = logical, and restart it"})
}

// TestOldStandby is one that can't be decoded from.
func TestOldStandby(t *testing.T) {
	b := newBed(t, "", "")
	primary := rig.Start(t, 15)
	b.src = primary.NewDB(t)
	b.src.Script(t, plain+"CREATE PUBLICATION "+b.Publication+" FOR TABLE t")
	standby := rig.Standby(t, primary)
	standby.AwaitReplay(t, primary)
	b.Source = session.Static(millrace.PeerSource, rig.URLs(b.src.Name, "standby", primary, standby), b.Job)
	b.expect(t, []string{"!source: it is a standby, from which PostgreSQL 15 can't be decoded => connect to the primary, or upgrade"})
}

// TestFailover looks at a primary with standbys that are set up more and more
// as they should be.
func TestFailover(t *testing.T) {
	b := newBed(t, "", "")
	b.Failover = true
	primary := rig.Start(t, 17)
	b.src = primary.NewDB(t)
	b.src.SQL(t, plain)
	standby := rig.Standby(t, primary)
	standby.AwaitReplay(t, primary)
	b.Source = session.Static(millrace.PeerSource, b.src.URL(), b.Job)
	held := "?failover: synchronized_standby_slots is empty: a standby that is promoted may lack what was delivered, and the job then needs a new first load " +
		"=> on the source: ALTER SYSTEM SET synchronized_standby_slots = '" + standby.StandbySlot() + "'; SELECT pg_reload_conf()"
	b.expect(t, []string{held})
	b.Source = session.Static(millrace.PeerSource, rig.URLs(b.src.Name, "any", primary, standby), b.Job)
	off := "?standby: sync_replication_slots is off: it keeps no copy of the job's slot, and after its promotion the job needs a new first load"
	b.expect(t, []string{held, off,
		"?source: the connection string names several hosts and does not say which is wanted: after a failover it may reach a standby => target_session_attrs=read-write"})
	b.Source = session.Static(millrace.PeerSource, rig.URLs(b.src.Name, "read-write", primary, standby), b.Job)
	primary.HoldBack(t, standby)
	b.expect(t, []string{off})
	standby.Configure(t, "sync_replication_slots=on")
	standby.Restart(t)
	b.expect(t, nil)
	standby.Stop(t)
	b.expect(t, []string{"?failover: no standby of the connection string could be asked"})
	b.Failover = false
	b.expect(t, nil)

	old := rig.Start(t, 16)
	b.src = old.NewDB(t)
	b.src.SQL(t, plain)
	old.SQL(t, "postgres", "SELECT pg_create_physical_replication_slot('s')")
	b.Source = session.Static(millrace.PeerSource, b.src.URL(), b.Job)
	b.Failover = true
	b.expect(t, []string{"?failover: PostgreSQL 16 does not copy logical slots to standbys: after a promotion the job needs a new first load"})
}
