package backfill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/rig"
)

// earlyDDL has large values that updates leave alone, keys that move, keys that are equal
// and written in different ways, a further unique column, and whole old rows.
const earlyDDL = `CREATE TABLE ints (id int8 PRIMARY KEY, n int NOT NULL DEFAULT 0, big text);
ALTER TABLE ints ALTER big SET STORAGE EXTERNAL;
CREATE TABLE nums (id numeric, n int NOT NULL, big text, PRIMARY KEY (id));
ALTER TABLE nums ALTER big SET STORAGE EXTERNAL;
CREATE TABLE uniq (id int PRIMARY KEY, u int NOT NULL UNIQUE, n int NOT NULL DEFAULT 0);
CREATE TABLE fulls (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, big text);
ALTER TABLE fulls REPLICA IDENTITY FULL; ALTER TABLE fulls ALTER big SET STORAGE EXTERNAL;
CREATE TABLE bare (n int); ALTER TABLE bare REPLICA IDENTITY FULL;`

const earlyFill = `INSERT INTO ints SELECT g, 0, repeat(md5(g::text), 70 + (g % 2)) FROM generate_series(1, 400) g;
INSERT INTO nums SELECT g, 0, repeat(md5(g::text), 80) FROM generate_series(1, 250) g;
INSERT INTO uniq SELECT g, g FROM generate_series(1, 500) g;
INSERT INTO fulls SELECT g, 0, repeat(md5(g::text), 70) FROM generate_series(1, 150) g;
INSERT INTO bare SELECT g FROM generate_series(1, 200) g;`

// earlyChanges draws a transaction.
func earlyChanges(rng *rand.Rand, truncates bool) string {
	a, b := rng.IntN(600), rng.IntN(600)
	stmts := []string{
		fmt.Sprintf("UPDATE ints SET n = n + 1 WHERE id BETWEEN %d AND %d", a, a+20),
		fmt.Sprintf("UPDATE ints SET id = %d WHERE id = %d AND NOT EXISTS (SELECT FROM ints WHERE id = %[1]d)", b, a),
		fmt.Sprintf("DELETE FROM ints WHERE id = %d", a),
		fmt.Sprintf("DELETE FROM ints WHERE id = %[2]d; UPDATE ints SET id = %[2]d WHERE id = %[1]d", a, b),
		fmt.Sprintf("INSERT INTO ints VALUES (%d, 7, repeat(md5('%d'), 75)) ON CONFLICT (id) DO UPDATE SET n = ints.n + 1", a, b),
		fmt.Sprintf("UPDATE nums SET n = n + 1 WHERE id BETWEEN %d AND %d", a/2, a/2+5),
		fmt.Sprintf("UPDATE nums SET id = id * 1.00, n = n + 1 WHERE id = %d", a/2),
		fmt.Sprintf("UPDATE nums SET id = %d WHERE id = %d AND NOT EXISTS (SELECT FROM nums WHERE id = %[1]d)", b/2, a/2),
		fmt.Sprintf("UPDATE uniq SET n = n + 1 WHERE id BETWEEN %d AND %d", a, a+10),
		fmt.Sprintf("UPDATE uniq SET u = -%[1]d WHERE id = %[1]d; UPDATE uniq SET u = %[1]d WHERE id = %[2]d AND NOT EXISTS (SELECT FROM uniq WHERE u = %[1]d)", a, b),
		fmt.Sprintf("DELETE FROM uniq WHERE id = %d", a),
		fmt.Sprintf("UPDATE fulls SET n = n + 1 WHERE id = %d; UPDATE fulls SET id = -id WHERE id = %d", a/4, b/4),
		fmt.Sprintf("INSERT INTO bare VALUES (%d); DELETE FROM bare WHERE n = %d", a, b/10),
	}
	if truncates && rng.IntN(150) == 0 {
		return "TRUNCATE ints; INSERT INTO ints SELECT g, 9, repeat(md5(g::text), 70) FROM generate_series(1, 300) g"
	}
	var sql []string
	for range 1 + rng.IntN(3) {
		sql = append(sql, stmts[rng.IntN(len(stmts))])
	}
	return strings.Join(sql, "; ")
}

// TestEarlyChangesConverge: who takes what passes early as what holds behind it, in order, has
// what the source has once the load is over and the stream has passed it; also if the
// loading job was ended in between.
func TestEarlyChangesConverge(t *testing.T) {
	b := newBed(t, rig.Shared(t, rig.Newest), earlyDDL, earlyFill)
	small(b)
	b.opt.Early = true
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	stop := b.writeSQL(t, 2, func(n int) func() string {
		rng := rand.New(rand.NewPCG(seed, uint64(n)))
		return func() string { return earlyChanges(rng, n == 0) }
	})
	b.run(t)
	rig.Eventually(t, patience, func() bool {
		return b.dst.Query(t, "SELECT coalesce(sum(rows), 0) > 0 FROM millrace.chunk") == "t" || b.dst.Query(t, "SELECT count(*) FROM millrace.job_table WHERE NOT copied") == "0"
	}, "the load goes on")
	b.end()
	b.run(t)
	b.loaded(t)
	stop()
	b.same(t, "ints", "nums", "uniq", "fulls", "bare")
}

// writeSQL runs writers, each with transactions of its own, until the returned function is called.
func (b *bed) writeSQL(t *testing.T, writers int, draws func(n int) func() string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for n := range writers {
		draw := draws(n)
		wg.Go(func() {
			conn, err := pgx.Connect(context.Background(), b.src.URL())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close(context.Background())
			for ctx.Err() == nil {
				if _, err := conn.Exec(context.Background(), "BEGIN; "+draw()+"; COMMIT", pgx.QueryExecModeSimpleProtocol); err != nil {
					_, _ = conn.Exec(context.Background(), "ROLLBACK") // two writers collided
				}
			}
		})
	}
	stopped := sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stopped)
	return stopped
}
