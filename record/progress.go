package record

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
)

// Fence is what a writer holds: only the one whose generation and epoch are
// those of the record can write.
type Fence struct {
	Job        string
	Generation int64
	Epoch      int64
}

// AppendSQL adds one progress row. When the job was taken over it raises: 23502,
// as there is no job of that epoch to name, or 23505. So a COMMIT may follow it
// without waiting for the answer. Parameters: job, generation,
// epoch, seq, timeline, xid, commit_lsn, committed_lsn, acked_lsn, commit time,
// cursor; AppendTypes gives their types.
//
// The epoch alone would not fence: a transaction that has read it before a
// takeover may commit after it. The primary key (job, seq) closes that gap, as
// the newcomer's first row takes the number that the old writer's would have.
const AppendSQL = `INSERT INTO millrace.progress
(job, seq, epoch, timeline, last_xid, commit_lsn, committed_lsn, acked_lsn, last_commit_ts, cursor)
VALUES ((SELECT s.job FROM millrace.job_state s WHERE s.job = $1 AND s.generation = $2 AND s.epoch = $3),
$4, $3, $5, $6, $7, $8, $9, $10, $11)`

// AppendTypes are the OIDs of AppendSQL's parameters: text, int8, int4, pg_lsn,
// timestamptz and bytea.
var AppendTypes = []uint32{25, 20, 20, 20, 23, 20, 3220, 3220, 3220, 1184, 17}

// AppendArgs gives AppendSQL's parameters in text form for the row that makes cp
// the checkpoint. cp.Seq is the number of the row.
func AppendArgs(job string, cp *millrace.Checkpoint) [][]byte {
	args := [][]byte{
		[]byte(job), decimal(cp.Generation), decimal(cp.Epoch), decimal(cp.Seq), decimal(int64(cp.Timeline)),
		nil, nil, []byte(cp.End.String()), []byte(cp.Acked.String()), nil, nil,
	}
	if cp.Commit != 0 {
		args[5] = decimal(int64(cp.LastXID))
		args[6] = []byte(cp.Commit.String())
	}
	if cp.LastTime != 0 {
		args[9] = time.UnixMicro(cp.LastTime).UTC().AppendFormat(nil, "2006-01-02 15:04:05.999999Z07:00")
	}
	if cp.Cursor != nil {
		args[10] = fmt.Appendf(nil, `\x%x`, cp.Cursor)
	}
	return args
}

func decimal(n int64) []byte { return fmt.Appendf(nil, "%d", n) }

// FirstProgress writes the row that a stream starts from: everything up to point
// is on the target. No transaction was applied yet, so commit_lsn stays null: a
// commit record may lie exactly at the consistent point and is not in the
// snapshot.
func FirstProgress(ctx context.Context, db DB, f Fence, timeline int32, point millrace.LSN) error {
	const op = "record the first position"
	tag, err := db.Exec(ctx, `
		INSERT INTO millrace.progress (job, seq, epoch, timeline, committed_lsn, acked_lsn)
		SELECT s.job, 1 + coalesce((SELECT pg_catalog.max(p.seq) FROM millrace.progress p WHERE p.job = $1), 0),
		       s.epoch, $4, $5::pg_lsn, $5::pg_lsn
		  FROM millrace.job_state s WHERE s.job = $1 AND s.generation = $2 AND s.epoch = $3`,
		f.Job, f.Generation, f.Epoch, timeline, point.String())
	if err != nil {
		return appendError(op, err)
	}
	if tag.RowsAffected() != 1 {
		return fenced(op, ErrFenced)
	}
	return nil
}

// appendError turns the unique violation of a progress row into a fence.
func appendError(op string, err error) error {
	if session.SQLState(err) == "23505" {
		return fenced(op, fmt.Errorf("%w: %w", ErrFenced, err))
	}
	return wrap(op, err)
}

// fenced asks for a reconnect, where Claim or the busy slot decides who goes on.
func fenced(op string, err error) error {
	return &millrace.Error{Kind: millrace.KindRetry, Op: op, Peer: millrace.PeerDestination, Err: err,
		Condition: "destination_unreachable"}
}

// endWait bounds the wait for the former writer's backends to end. It only has
// to outlast a backend that is rolling back; the caller tries again.
const endWait = 30 * time.Second

// Claim takes the job over: it raises the epoch, ends the backends of former
// writers and waits until they are gone, and only then reads the checkpoint,
// which nobody else can move any more. The caller must own the source's slot.
func Claim(ctx context.Context, db DB, job, _ string) (int64, millrace.Checkpoint, error) {
	const op = "claim the job"
	var none millrace.Checkpoint
	if err := takeOver(ctx, db, job); err != nil {
		return 0, none, err
	}
	j, cp, err := Read(ctx, db, job)
	if err != nil {
		return 0, none, err
	}
	if j == nil {
		return 0, none, noJob(op)
	}
	return j.Epoch, cp, nil
}

// takeOver commits durably and after the last commit of a former writer. So the
// new epoch can't be given to two instances by a crash of the target, and the
// checkpoint that is read next, which may be acknowledged at once, is durable
// even where the former writer did not wait for the disk.
func takeOver(ctx context.Context, db DB, job string) error {
	const op = "claim the job"
	tx, err := db.Begin(ctx)
	if err != nil {
		return wrap(op, err)
	}
	defer tx.Rollback(ctx)
	if err := durably(ctx, tx); err != nil {
		return wrap(op, err)
	}
	tag, err := tx.Exec(ctx, `UPDATE millrace.job_state SET epoch = epoch + 1 WHERE job = $1`, job)
	if err != nil {
		return wrap(op, err)
	}
	if tag.RowsAffected() == 0 {
		return noJob(op)
	}
	if err := EndWriters(ctx, tx, job); err != nil {
		return err
	}
	return wrap(op, tx.Commit(ctx))
}

// durably makes the commit of the transaction wait for the disk at least.
func durably(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT pg_catalog.set_config('synchronous_commit', 'on', true)
		WHERE pg_catalog.current_setting('synchronous_commit') IN ('off', 'local')`)
	return err
}

func noJob(op string) error {
	return &millrace.Error{Kind: millrace.KindData, Op: op, Peer: millrace.PeerDestination, Err: ErrNoJob,
		Hint: "millrace bootstrap records a job"}
}

// Hold proves that the writer has not been replaced by a new first load, and
// keeps it so until the end of the transaction: Seize waits for it. Without an Epoch
// it does not matter which instance works on the job.
func Hold(ctx context.Context, tx pgx.Tx, f Fence) error {
	const op = "write the job's record"
	tag, err := tx.Exec(ctx, `
		SELECT FROM millrace.job_state WHERE job = $1 AND generation = $2 AND epoch = coalesce(nullif($3, 0), epoch) FOR KEY SHARE`,
		f.Job, f.Generation, f.Epoch)
	if err != nil {
		return wrap(op, err)
	}
	if tag.RowsAffected() == 1 {
		return nil
	}
	return &millrace.Error{Kind: millrace.KindPreflight, Op: op, Peer: millrace.PeerDestination, Err: ErrFenced,
		Hint: "millrace status shows which one works on the job now"}
}

// Seize comes before Create where the job has a record: once it returns, no
// former load can commit rows before the transaction ends, so that what it left
// can be found and removed in the same transaction.
func Seize(ctx context.Context, tx pgx.Tx, job string) error {
	// First, since one that stands still inside its transaction would be waited
	// for without end.
	if err := EndWriters(ctx, tx, job); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `SELECT FROM millrace.job_state WHERE job = $1 FOR UPDATE`, job)
	return wrap("record the job", err)
}

// EndWriters ends the backends that write for the job, except the caller's own,
// and waits until they are gone: what they had under way is committed or rolled
// back then.
func EndWriters(ctx context.Context, q Querier, job string) error {
	const op = "end the former writers"
	for deadline := time.Now().Add(endWait); ; {
		left, err := endWriters(ctx, q, job)
		if err != nil {
			return wrap(op, err)
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fenced(op, fmt.Errorf("%d of their backends do not end", left))
		}
		select {
		case <-ctx.Done():
			return wrap(op, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// endWriters asks the backends that write for the job to end and returns how
// many are still there. Those of another role are left alone, since they cannot
// be told from a stranger that took the name: the progress row fences them.
func endWriters(ctx context.Context, q Querier, job string) (int, error) {
	// Within a transaction the activity would be that of the first look.
	if err := q.QueryRow(ctx, `SELECT pg_catalog.pg_stat_clear_snapshot()::text`).Scan(nil); err != nil {
		return 0, err
	}
	var left int
	err := q.QueryRow(ctx, `
		SELECT pg_catalog.count(pg_catalog.pg_terminate_backend(a.pid))
		  FROM pg_catalog.pg_stat_activity a
		 WHERE a.datname = pg_catalog.current_database() AND a.pid <> pg_catalog.pg_backend_pid()
		   AND a.application_name IN ($1, $2)
		   AND a.usesysid IN (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname IN (current_user, session_user))`,
		"millrace:"+job+":apply", "millrace:"+job+":copy").Scan(&left)
	return left, err
}

const (
	trimKeep  = 1000  // rows that stay, for people who look
	trimBatch = 10000 // rows per statement, so that no transaction is long
)

// Trim deletes old progress rows in batches. The newest row of each timeline
// stays: wait_for judges tokens of earlier timelines by it.
func Trim(ctx context.Context, db DB, job string) error {
	for {
		tag, err := db.Exec(ctx, `
			DELETE FROM millrace.progress WHERE job = $1 AND seq IN (
			    SELECT p.seq FROM millrace.progress p
			     WHERE p.job = $1
			       AND p.seq <= (SELECT pg_catalog.max(m.seq) FROM millrace.progress m WHERE m.job = $1) - $2
			       AND EXISTS (SELECT FROM millrace.progress n
			                    WHERE n.job = $1 AND n.seq = p.seq + 1 AND n.timeline = p.timeline)
			     ORDER BY p.seq LIMIT $3)`, job, int64(trimKeep), int64(trimBatch))
		if err != nil {
			return wrap("trim progress rows", err)
		}
		if tag.RowsAffected() < trimBatch {
			return nil
		}
	}
}
