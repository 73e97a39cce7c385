package bootstrap

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/session"
)

// standbyBed is a job that reads from a standby; from makes its connection
// string.
func standbyBed(t *testing.T, primary, standby *rig.Postgres, from func(db string) string) (*bed, *waited) {
	t.Helper()
	b := newBed(t, primary.Major(), rig.Newest, "", "")
	b.src = primary.NewDB(t)
	b.src.Script(t, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE PUBLICATION "+b.Publication+" FOR TABLE t")
	standby.AwaitReplay(t, primary)
	b.Source = session.Static(millrace.PeerSource, from(b.src.Name), b.Job)
	b.PGDump = primary.Bin("pg_dump")
	w := &waited{}
	b.OnWait = w.note
	return b, w
}

// waited is what a load said that it waits for.
type waited struct {
	mu   sync.Mutex
	said []string
}

func (w *waited) note(reason, hint string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, reason+" => "+hint)
}

func (w *waited) all() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.said, "\n")
}

// writing opens a transaction that has written, which every new slot waits for.
func writing(t *testing.T, db *rig.DB) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) }) // as a rule it was closed before
	if _, err := conn.Exec(t.Context(), "BEGIN; INSERT INTO t VALUES (2)"); err != nil {
		t.Fatal(err)
	}
	return conn
}

func noSlots(t *testing.T, standby *rig.Postgres) {
	t.Helper()
	rig.Eventually(t, time.Minute, func() bool {
		return standby.Query(t, "postgres", "SELECT count(*) FROM pg_replication_slots") == "0"
	}, "no slot is left on the standby")
}

// TestSlotOnStandbyIsBounded: what it waits for does not come, and it gives up.
func TestSlotOnStandbyIsBounded(t *testing.T) {
	for _, major := range []int{16, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			primary, standby := rig.Pair(t, major)
			b, said := standbyBed(t, primary, standby, standby.URL)
			b.SlotWait = time.Second
			open := writing(t, b.src) // nothing that the primary logs makes the slot consistent
			err := b.run(t)
			const ask = "SELECT pg_log_standby_snapshot() there, as a superuser"
			if millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(err.Error(), "not done on the standby within 2s") ||
				!strings.Contains(millrace.HintOf(err), ask) {
				t.Errorf("got %v; hint: %s", err, millrace.HintOf(err))
			}
			if got := said.all(); !strings.Contains(got, "until the primary logs which transactions are running (the connection string does not name the primary) => ") ||
				!strings.Contains(got, ask) {
				t.Errorf("it said %q", got)
			}
			noSlots(t, standby)
			if err := open.Close(t.Context()); err != nil {
				t.Error(err)
			}
			// With the primary named nobody has to do anything.
			b.Source = session.Static(millrace.PeerSource, rig.URLs(b.src.Name, "standby", primary, standby), b.Job)
			b.SlotWait = time.Minute
			b.mustRun(t)
			if got := b.jobColumns(t, "consistent_from IS NOT NULL, state, reason"); got != "t|stopped|the first load is complete" {
				t.Errorf("the record says %s", got)
			}
		})
	}
}

// TestSlotOnStandbyNamesWhoWrites: the primary is asked, as a role that has no
// more than it needs, and knows who holds up the slot.
func TestSlotOnStandbyNamesWhoWrites(t *testing.T) {
	primary, standby := rig.Pair(t, 17)
	primary.SQL(t, "postgres", "CREATE ROLE reader LOGIN REPLICATION IN ROLE pg_read_all_data")
	b, said := standbyBed(t, primary, standby, func(db string) string {
		return fmt.Sprintf("host=127.0.0.1,127.0.0.1 port=%d,%d user=reader dbname=%s target_session_attrs=standby sslmode=disable", primary.Port(), standby.Port(), db)
	})
	open := writing(t, b.src)
	done := make(chan error, 1)
	go func() { done <- Run(t.Context(), b.Options) }()
	says := func(what string) {
		t.Helper()
		rig.Eventually(t, time.Minute, func() bool { return strings.Contains(said.all(), what) }, "it says", what)
	}
	says(`permission denied for function pg_log_standby_snapshot (SQLSTATE 42501)) => an idle primary writes no such record`)
	says(`GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO "reader"`)
	// Only who may monitor sees who writes.
	b.src.SQL(t, "GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO reader; GRANT pg_monitor TO reader")
	says(fmt.Sprintf("it waits for transactions of the primary: pid %d (user postgres, database %s, since ", open.PgConn().PID(), b.src.Name))
	if _, err := open.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatalf("%v; hint: %s", err, millrace.HintOf(err))
	}
	if got := b.dst.Query(t, "SELECT count(*) FROM t"); got != "2" {
		t.Errorf("%s rows", got)
	}
}

// TestStandbyOfPrimaryWithoutLogical: the standby itself says logical, and can't
// know what its primary logs.
func TestStandbyOfPrimaryWithoutLogical(t *testing.T) {
	primary := rig.Start(t, 16, "wal_level=replica")
	standby := rig.Standby(t, primary, "wal_level=logical")
	b, _ := standbyBed(t, primary, standby, standby.URL)
	err := b.run(t)
	if millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(millrace.HintOf(err), "on the primary: ALTER SYSTEM SET wal_level = logical") {
		t.Errorf("got %v; hint: %s", err, millrace.HintOf(err))
	}
	noSlots(t, standby)
}
