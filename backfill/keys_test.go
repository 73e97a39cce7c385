package backfill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/internal/rig"
)

const chosenDDL = `CREATE EXTENSION IF NOT EXISTS citext SCHEMA public;
CREATE TABLE loose (tenant int NOT NULL, name public.citext NOT NULL, v int NOT NULL, big text);
CREATE INDEX ON loose (tenant, name); ALTER TABLE loose REPLICA IDENTITY FULL; ALTER TABLE loose ALTER big SET STORAGE EXTERNAL;
CREATE TABLE daily (id int PRIMARY KEY, day date NOT NULL, v int NOT NULL, big text);
CREATE INDEX ON daily (day); ALTER TABLE daily REPLICA IDENTITY FULL; ALTER TABLE daily ALTER big SET STORAGE EXTERNAL;
CREATE TABLE swapped (a int, b int, v int NOT NULL, PRIMARY KEY (a, b)); CREATE INDEX ON swapped (b, a);`

const chosenFill = `INSERT INTO loose SELECT g % 40, 'n' || g % 3, g, CASE WHEN g % 50 = 0 THEN repeat('x', 3000) END FROM generate_series(1, 3000) g;
INSERT INTO daily SELECT g, date '2026-01-01' + g % 60, 0, CASE WHEN g % 50 = 0 THEN repeat('x', 3000) END FROM generate_series(1, 3000) g;
INSERT INTO swapped SELECT g % 50, g, 0 FROM generate_series(1, 2000) g`

var chosenKeys = catalog.Keys{
	{Schema: "public", Name: "loose"}:   {"tenant", "name"},
	{Schema: "public", Name: "daily"}:   {"day"},
	{Schema: "public", Name: "swapped"}: {"b", "a"},
}

// chosenWrites are written with three random numbers.
var chosenWrites = []string{
	"UPDATE loose SET v = v + 1 WHERE tenant = %[1]d AND name = 'N1'", "UPDATE loose SET tenant = %[2]d %% 40 WHERE tenant = %[1]d AND name = 'n2'",
	"UPDATE loose SET name = upper(name::text) WHERE tenant = %[1]d", "INSERT INTO loose VALUES (%[1]d + 3, 'N%[3]d', 1, NULL), (%[1]d + 3, 'n%[3]d', 1, NULL)",
	"DELETE FROM loose WHERE v = %[2]d", "UPDATE daily SET day = date '2026-01-01' + %[1]d WHERE id = 50 * %[3]d",
	"UPDATE daily SET v = v + 1 WHERE day = date '2026-01-01' + %[1]d", "DELETE FROM daily WHERE id = %[2]d",
	"UPDATE swapped SET v = v + 1 WHERE b = %[2]d", "UPDATE swapped SET a = %[1]d WHERE b = %[2]d",
}

// writeRandom runs writers until the returned function is called: random statements,
// with numbers below most in them.
func (b *bed) writeRandom(t *testing.T, writers int, stmts []string, most ...int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for w := range writers {
		conn, err := pgx.Connect(ctx, b.src.URL())
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer conn.Close(context.Background())
			rng := rand.New(rand.NewPCG(uint64(w), 11))
			for ctx.Err() == nil {
				var sql []string
				for range 1 + rng.IntN(3) {
					var numbers []any
					for _, n := range most {
						numbers = append(numbers, rng.IntN(n))
					}
					sql = append(sql, fmt.Sprintf(stmts[rng.IntN(len(stmts))], numbers...))
				}
				if _, err := conn.Exec(context.Background(), "BEGIN; "+strings.Join(sql, "; ")+"; COMMIT; SELECT pg_sleep(0.02)", pgx.QueryExecModeSimpleProtocol); err != nil {
					_, _ = conn.Exec(context.Background(), "ROLLBACK") // two writers collided
				}
			}
		})
	}
	stopped := sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stopped)
	return stopped
}

// TestChosenKeys loads tables by keys that were chosen, which rows share or which a
// table without a primary key has, under writes and over restarts.
func TestChosenKeys(t *testing.T) {
	b := newBed(t, rig.Shared(t, rig.Newest), chosenDDL, chosenFill)
	small(b)
	b.opt.ChunkBytes = 24 << 10
	b.opt.Keys = chosenKeys
	stop := b.writeRandom(t, 2, chosenWrites, 40, 3000, 60)
	// Behind a stream that always lags there is no headway: on a machine that is too slow for
	// them the writers rest in the end.
	rest := time.AfterFunc(patience/3, stop)
	defer rest.Stop()
	for range 3 {
		b.run(t)
		left := b.dst.Query(t, "SELECT coalesce(sum(rows), 0) FROM millrace.chunk")
		rig.Eventually(t, patience, func() bool {
			return b.dst.Query(t, "SELECT coalesce(sum(rows), 0) FROM millrace.chunk") != left || b.dst.Query(t, "SELECT count(*) FROM millrace.job_table WHERE NOT copied") == "0"
		}, "the load goes on")
		keys := b.dst.Query(t, "SELECT DISTINCT mark::json->>'key' FROM millrace.chunk JOIN millrace.job_table USING (job, oid) WHERE table_name = 'loose' AND mark LIKE '%upto%'")
		if keys != "" && keys != `["tenant","name"]` {
			t.Errorf("the mark's key is %s", keys)
		}
		b.end()
	}
	b.run(t)
	b.loaded(t)
	stop()
	b.same(t, "loose", "daily", "swapped")
}

// TestAnotherKeyWhileLoading: a table whose chosen key is another one in the middle of its
// load is read again.
func TestAnotherKeyWhileLoading(t *testing.T) {
	b := newBed(t, rig.Shared(t, rig.Newest), chosenDDL, chosenFill)
	b.opt.ChunkBytes, b.opt.Rate = 24<<10, 256<<10
	b.opt.Keys = chosenKeys
	b.run(t)
	rig.Eventually(t, patience, func() bool { return b.dst.Query(t, "SELECT count(*) FROM millrace.chunk WHERE rows > 0") != "0" }, "something is loaded")
	b.end()
	b.opt.Rate = 0
	b.opt.Keys = catalog.Keys{{Schema: "public", Name: "loose"}: {"name"}, {Schema: "public", Name: "daily"}: {"id", "day"}}
	b.run(t)
	b.loaded(t)
	b.same(t, "loose", "daily", "swapped")
}
