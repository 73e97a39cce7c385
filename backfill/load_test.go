package backfill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/rig"
)

const shopDDL = `CREATE EXTENSION IF NOT EXISTS citext SCHEMA public;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE ints (id int8 PRIMARY KEY, n int NOT NULL DEFAULT 0, big text);
ALTER TABLE ints ALTER big SET STORAGE EXTERNAL;
CREATE TABLE names (name public.citext, kind mood, v numeric, n int NOT NULL DEFAULT 0, PRIMARY KEY (name, kind, v));
CREATE TABLE fulls (k text, n int NOT NULL DEFAULT 0);
ALTER TABLE fulls REPLICA IDENTITY FULL;`

const shopFill = `INSERT INTO ints SELECT g, 0, CASE WHEN g % 25 = 0 THEN repeat(md5(g::text), 100) END FROM generate_series(1, 2500) g;
INSERT INTO names SELECT 'Name' || g % 500, (enum_range(NULL::mood))[1 + g % 3], g / 3.0, 0 FROM generate_series(1, 2000) g;
INSERT INTO fulls SELECT 'k' || g % 100, g FROM generate_series(1, 500) g;`

// writer changes the tables in all ways, as long as ctx lives.
func writer(ctx context.Context, t *testing.T, b *bed, seed uint64, truncates bool) {
	conn, err := pgx.Connect(context.Background(), b.src.URL())
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close(context.Background())
	rng := rand.New(rand.NewPCG(seed, 7))
	for ctx.Err() == nil {
		id, to := rng.IntN(4000), rng.IntN(4000)
		stmts := []string{
			fmt.Sprintf("UPDATE ints SET n = n + 1 WHERE id = %d", id),
			fmt.Sprintf("INSERT INTO ints VALUES (%d, 1, repeat('x', 3000)) ON CONFLICT (id) DO UPDATE SET n = ints.n + 1", id),
			fmt.Sprintf("DELETE FROM ints WHERE id = %d", id),
			fmt.Sprintf("UPDATE ints SET id = %d WHERE id = %d AND NOT EXISTS (SELECT FROM ints WHERE id = %d)", to, id, to),
			fmt.Sprintf("UPDATE names SET n = n + 1 WHERE name = 'name%d'", rng.IntN(500)),
			fmt.Sprintf("INSERT INTO names VALUES ('NAME%d', 'ok', %d, 5) ON CONFLICT DO NOTHING", rng.IntN(600), rng.IntN(700)),
			fmt.Sprintf("UPDATE names SET v = v * 1.00 WHERE name = 'name%d'", rng.IntN(500)),
			fmt.Sprintf("DELETE FROM names WHERE name = 'name%d' AND kind = 'sad'", rng.IntN(500)),
			fmt.Sprintf("UPDATE fulls SET n = n + 1 WHERE k = 'k%d'", rng.IntN(120)),
			fmt.Sprintf("INSERT INTO fulls VALUES ('k%d', 1), ('k%d', 1)", rng.IntN(120), rng.IntN(120)),
			"INSERT INTO ints SELECT g, 2 FROM generate_series(5000, 5300) g ON CONFLICT (id) DO UPDATE SET n = ints.n + 2",
			"DELETE FROM ints WHERE id BETWEEN 5100 AND 5200",
		}
		if truncates && rng.IntN(400) == 0 {
			stmts = []string{"TRUNCATE ints; INSERT INTO ints SELECT g, 9 FROM generate_series(1, 2500) g"}
		}
		n := 1 + rng.IntN(3)
		var sql []string
		for range n {
			sql = append(sql, stmts[rng.IntN(len(stmts))])
		}
		text := "BEGIN; " + strings.Join(sql, "; ") + "; COMMIT"
		if rng.IntN(8) == 0 {
			text = "BEGIN; " + strings.Join(sql, "; ") + "; ROLLBACK"
		}
		if _, err := conn.Exec(context.Background(), text, pgx.QueryExecModeSimpleProtocol); err != nil {
			_, _ = conn.Exec(context.Background(), "ROLLBACK") // two writers collided
		}
	}
}

// write runs writers until the returned function is called.
func (b *bed) write(t *testing.T, writers int, truncates bool) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() { writer(ctx, t, b, uint64(i+1), truncates) })
	}
	stopped := sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stopped)
	return stopped
}

// small makes chunks so small that a load has many.
func small(b *bed) { b.opt.ChunkBytes = 48 << 10 }

// TestLoadsAnIdleTable loads tables that nobody writes to.
func TestLoadsAnIdleTable(t *testing.T) {
	b := newBed(t, rig.Shared(t, rig.Newest), shopDDL, shopFill)
	b.run(t)
	b.loaded(t)
	b.same(t, "ints", "names", "fulls")
	if n := b.dst.Query(t, "SELECT count(*) FROM millrace.chunk"); n != "0" {
		t.Errorf("%s marks are left", n)
	}
}

// TestLoadsUnderWrites loads tables of all kinds of keys while all kinds of
// changes come in.
func TestLoadsUnderWrites(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		b := newBed(t, pg, shopDDL, shopFill)
		small(b)
		stop := b.write(t, 2, true)
		b.run(t)
		b.loaded(t)
		stop()
		b.same(t, "ints", "names", "fulls")
	}, 16, 18)
}

// TestResumesAfterKills ends the job again and again while it loads.
func TestResumesAfterKills(t *testing.T) {
	b := newBed(t, rig.Shared(t, rig.Newest), shopDDL, shopFill)
	small(b)
	stop := b.write(t, 1, false)
	rng := rand.New(rand.NewPCG(3, 4))
	for range 4 {
		b.run(t)
		left := b.dst.Query(t, "SELECT coalesce(sum(rows), 0) FROM millrace.chunk")
		rig.Eventually(t, patience, func() bool {
			return b.dst.Query(t, "SELECT coalesce(sum(rows), 0) FROM millrace.chunk") != left || b.dst.Query(t, "SELECT count(*) FROM millrace.job_table WHERE NOT copied") == "0"
		}, "the load goes on")
		if rng.IntN(2) == 0 {
			// Whoever writes is ended in the middle of whatever it does.
			b.dst.SQL(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'millrace:%' AND datname = current_database()")
		} else {
			b.src.SQL(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'millrace:%' AND datname = current_database()")
		}
		b.end()
	}
	b.run(t)
	b.loaded(t)
	stop()
	b.same(t, "ints", "names", "fulls")
}

// TestLogIsAcknowledged: while a load goes on that is held to a rate, what the stream
// has passed is acknowledged, so that the source keeps no log for the load; and it
// keeps to the rate.
func TestLogIsAcknowledged(t *testing.T) {
	b := newBed(t, rig.Shared(t, rig.Newest), "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE other (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int)",
		"INSERT INTO a SELECT g, repeat('x', 100) FROM generate_series(1, 3000) g")
	small(b)
	b.opt.Rate = 1000 // bytes a second: the load does not end before the test has seen enough
	b.run(t)
	for range 3 {
		at := b.src.Query(t, "INSERT INTO other (n) SELECT generate_series(1, 100) RETURNING pg_current_wal_insert_lsn()")
		at, _, _ = strings.Cut(at, "\n")
		rig.Eventually(t, patience, func() bool {
			return b.src.Query(t, fmt.Sprintf("SELECT confirmed_flush_lsn > '%s' FROM pg_replication_slots WHERE slot_name = '%s'", at, b.slot)) == "t"
		}, "the slot is past "+at)
	}
	if b.dst.Query(t, "SELECT copied FROM millrace.job_table WHERE table_name = 'a'") != "f" {
		t.Error("the table is loaded already")
	}
	b.end()
	rest, err := strconv.Atoi(b.dst.Query(t, "SELECT 3000 - count(*) FROM a"))
	if err != nil {
		t.Fatal(err)
	}
	const rate = 100_000
	b.opt.Rate = rate
	began := time.Now()
	b.run(t)
	b.loaded(t)
	if least := time.Duration(rest*100) * time.Second / rate; time.Since(began) < least-200*time.Millisecond {
		t.Errorf("%d rows loaded within %v, at the rate they take %v", rest, time.Since(began), least)
	}
	b.same(t, "a", "other")
}
