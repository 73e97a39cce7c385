package backfill

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/rig"
)

// awaitsNobody has commits wait for a standby that is not there, where a session
// asks for it. Set while the server runs it would come into force at some time later.
var awaitsNobody = []string{"synchronous_standby_names=nobody", "synchronous_commit=local"}

// invisible commits a change that is decoded long before anybody sees it.
func invisible(t *testing.T, b *bed, sql string) (show func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), b.src.URL())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		defer conn.Close(context.Background())
		if _, err := conn.Exec(ctx, "SET synchronous_commit = on; "+sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Error(err)
		}
	})
	rig.Eventually(t, 20*time.Second, func() bool {
		return b.src.Query(t, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()") == "1"
	}, "the commit waits for the standby")
	return sync.OnceFunc(func() {
		b.src.Server.Configure(t, "synchronous_standby_names=")
		b.src.Server.Reload(t)
		waiting.Wait()
	})
}

// TestCommitThatIsNotVisibleYet: a commit can be decoded before a new snapshot sees
// it. A chunk that is read in between must not be taken for the newer one, neither
// in a run that has delivered the commit nor in the next.
func TestCommitThatIsNotVisibleYet(t *testing.T) {
	for _, again := range []bool{false, true} {
		name := "one run"
		if again {
			name = "after a restart"
		}
		t.Run(name, func(t *testing.T) {
			b := newBed(t, rig.Start(t, rig.Newest, awaitsNobody...), "CREATE TABLE a (id int PRIMARY KEY, v int)", "INSERT INTO a SELECT g, 0 FROM generate_series(1, 10) g")
			b.paused = true
			b.run(t)
			rig.Eventually(t, patience, func() bool { return len(b.backfill.Progress()) > 0 }, "the run has begun")
			show := invisible(t, b, "UPDATE a SET v = 1 WHERE id = 5")
			defer show()
			if got := b.src.Query(t, "SELECT v FROM a WHERE id = 5"); got != "0" {
				t.Fatalf("the source shows %s already", got)
			}
			// It is delivered, and dropped, since nothing of the table is read yet.
			rig.Eventually(t, patience, func() bool {
				return b.dst.Query(t, "SELECT commit_lsn IS NOT NULL FROM millrace.job") == "t"
			}, "the commit is delivered")
			if again {
				b.end()
				b.paused = false
				b.run(t)
			}
			b.backfill.Pause(false)
			rig.Eventually(t, patience, func() bool {
				return b.src.Query(t, "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'millrace:shop:copy' AND datname = current_database() AND query <> ''") == "t"
			}, "a chunk is tried")
			rig.Linger(t, time.Second, "a chunk that is read now would be used by a load that does not look for the commit")
			if got := b.dst.Query(t, "SELECT count(*) FROM a"); got != "0" {
				t.Errorf("%s rows of a snapshot that does not see what was delivered", got)
			}
			show()
			b.loaded(t)
			b.same(t, "a")
		})
	}
}
