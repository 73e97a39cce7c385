package record

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// Runtime describes one running instance of a job.
type Runtime struct {
	Job, Instance, Host    string
	PID                    int
	Version                string
	HTTP                   string // where it listens, "" for nowhere
	Condition              string // what it waits for, "" for nothing
	StartedAt, HeartbeatAt time.Time
}

// Beat writes the instance's sign of life with the target's clock, which sets
// r.HeartbeatAt, and forgets instances that have been silent for a day.
func Beat(ctx context.Context, db DB, r *Runtime) error {
	err := db.QueryRow(ctx, `
		INSERT INTO millrace.runtime (job, instance, host, pid, version, http, condition, started_at, heartbeat_at)
		VALUES ($1, $2, $3, $4, $5, nullif($6, ''), nullif($7, ''), $8, pg_catalog.clock_timestamp())
		ON CONFLICT (job, instance) DO UPDATE
		   SET http = excluded.http, condition = excluded.condition, heartbeat_at = excluded.heartbeat_at
		RETURNING heartbeat_at`,
		r.Job, r.Instance, r.Host, r.PID, r.Version, r.HTTP, r.Condition, r.StartedAt).Scan(&r.HeartbeatAt)
	if err != nil {
		return wrap("write the heartbeat", err)
	}
	_, err = db.Exec(ctx, `
		DELETE FROM millrace.runtime
		 WHERE job = $1 AND heartbeat_at < pg_catalog.clock_timestamp() - interval '1 day'`, r.Job)
	return wrap("write the heartbeat", err)
}

// ReadRuntime gives the instance of the job with the newest heartbeat, or nil.
func ReadRuntime(ctx context.Context, q Querier, job string) (*Runtime, error) {
	return readRuntime(ctx, q, job, "")
}

// ReadOther gives the instance with the newest heartbeat among those of the job
// that are not called instance, or nil.
func ReadOther(ctx context.Context, q Querier, job, instance string) (*Runtime, error) {
	return readRuntime(ctx, q, job, instance)
}

func readRuntime(ctx context.Context, q Querier, job, except string) (*Runtime, error) {
	const op = "read the heartbeat"
	if found, err := installed(ctx, q); err != nil || !found {
		return nil, err
	}
	r := &Runtime{Job: job}
	err := q.QueryRow(ctx, `
		SELECT instance, host, pid, version, coalesce(http, ''), coalesce(condition, ''), started_at, heartbeat_at
		  FROM millrace.runtime WHERE job = $1 AND instance <> $2 ORDER BY heartbeat_at DESC LIMIT 1`, job, except).
		Scan(&r.Instance, &r.Host, &r.PID, &r.Version, &r.HTTP, &r.Condition, &r.StartedAt, &r.HeartbeatAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, wrap(op, err)
	}
	r.StartedAt, r.HeartbeatAt = r.StartedAt.UTC(), r.HeartbeatAt.UTC()
	return r, nil
}

// Leave removes the instance's sign of life.
func Leave(ctx context.Context, db DB, job, instance string) error {
	_, err := db.Exec(ctx, `DELETE FROM millrace.runtime WHERE job = $1 AND instance = $2`, job, instance)
	return wrap("remove the heartbeat", err)
}
