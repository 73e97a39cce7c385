package catalog_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/internal/rig"
)

// TestActivity: what a lag waits for is seen by a role that has no rights of
// supervision, on all versions.
func TestActivity(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		db := pg.NewDB(t)
		role := "activity_" + db.Name
		db.SQL(t, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
		db.SQL(t, "CREATE ROLE "+role+" LOGIN; GRANT ALL ON t TO "+role)
		t.Cleanup(func() { db.SQL(t, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
		connect := func(user, application string) *pgx.Conn {
			cfg, err := pgx.ParseConfig(db.URL())
			if err != nil {
				t.Fatal(err)
			}
			if user != "" {
				cfg.User = user
			}
			cfg.RuntimeParams["application_name"] = application
			conn, err := pgx.ConnectConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close(t.Context()) })
			return conn
		}
		exec := func(c *pgx.Conn, sql string) {
			if _, err := c.Exec(t.Context(), sql); err != nil {
				t.Errorf("%s: %v", sql, err)
			}
		}
		watch, apply, holder := connect(role, "millrace:x:watch"), connect(role, "millrace:x:apply"), connect("", "somebody")
		if a, err := catalog.ReadApplier(t.Context(), watch, "millrace:x:", "apply"); err != nil || a == nil || a.Blocker != nil {
			t.Errorf("at rest: %+v %v", a, err)
		}
		if a, err := catalog.ReadApplier(t.Context(), watch, "millrace:y:", "apply"); err != nil || a != nil {
			t.Errorf("another job: %+v %v", a, err)
		}
		if s, err := catalog.ReadSender(t.Context(), watch, "no_such_slot"); err != nil || s != nil {
			t.Errorf("no slot: %+v %v", s, err)
		}
		exec(holder, "BEGIN")
		exec(holder, "UPDATE t SET id = 2")
		blocked := make(chan struct{})
		go func() {
			defer close(blocked)
			exec(apply, "UPDATE t SET id = id + 10")
		}()
		var a *catalog.Applier
		rig.Eventually(t, time.Minute, func() bool {
			var err error
			if a, err = catalog.ReadApplier(t.Context(), watch, "millrace:x:", "apply"); err != nil {
				t.Fatal(err)
			}
			return a != nil && a.Blocker != nil
		}, "the session that waits for the row is seen")
		if a.Blocker.PID != int32(holder.PgConn().PID()) || a.PID != int32(apply.PgConn().PID()) || a.Table != "public.t" && a.Table != "t" {
			t.Errorf("%+v, blocked by %+v", a, a.Blocker)
		}
		// Another role's session keeps its secrets, and its number is enough.
		oldest, err := catalog.OldestTransaction(t.Context(), watch)
		if err != nil || oldest == nil { // on a shared server it may be somebody else's
			t.Errorf("oldest transaction: %+v %v", oldest, err)
		}
		exec(holder, "ROLLBACK")
		<-blocked
	})
}
