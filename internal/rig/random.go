package rig

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"
)

// RandomSession works on tables t and u (id int PRIMARY KEY, v text), in transactions
// with savepoints that are rolled back and released at any depth. Its rows are its
// own, so that nobody waits for it. An INSERT has up to most rows. On servers that stream only what outgrows 64 kB a statement writes many rows.
func RandomSession(ctx context.Context, url string, rng *rand.Rand, session, transactions, most int) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	next := 1
	do := func(format string, args ...any) {
		if err == nil {
			_, err = conn.Exec(ctx, fmt.Sprintf(format, args...))
		}
	}
	for n := range transactions {
		do("BEGIN")
		var open []string
		for range 3 + rng.IntN(25) {
			table := "tu"[rng.IntN(2):][:1]
			switch k := rng.IntN(20); {
			case k < 8:
				rows := []int{1, 3, most}[rng.IntN(3)]
				do("INSERT INTO %s SELECT i * 10 + %d, 'transaction %d' FROM generate_series(%d, %d) i", table, session, n, next, next+rows-1)
				next += rows
			case k < 10:
				do("UPDATE %s SET v = v || '+' WHERE id %% 10 = %d AND id / 10 %% 5 = %d", table, session, rng.IntN(5))
			case k < 11:
				do("UPDATE %s SET id = id + 10000000 WHERE id %% 10 = %d AND id < 10000000 AND id / 10 %% 7 = %d", table, session, rng.IntN(7))
			case k < 12:
				do("DELETE FROM %s WHERE id %% 10 = %d AND id / 10 %% 5 = %d", table, session, rng.IntN(5))
			case k < 15:
				open = append(open, fmt.Sprintf("s%d", len(open)))
				do("SAVEPOINT %s", open[len(open)-1])
			case k < 18 && len(open) > 0:
				i := rng.IntN(len(open))
				do("ROLLBACK TO %s", open[i])
				open = open[:i+1]
			case k < 19 && len(open) > 0:
				i := rng.IntN(len(open))
				do("RELEASE %s", open[i])
				open = open[:i]
			case k == 19 && session == 0 && rng.IntN(3) == 0:
				do("SAVEPOINT ddl; CREATE TABLE made (id int PRIMARY KEY); INSERT INTO made VALUES (1); ROLLBACK TO ddl; RELEASE ddl")
			}
		}
		if do("%s", []string{"COMMIT", "COMMIT", "COMMIT", "ROLLBACK"}[rng.IntN(4)]); err != nil {
			return err
		}
	}
	return nil
}
