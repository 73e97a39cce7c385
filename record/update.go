package record

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
)

// SetState writes the job's state with its reason and hint.
func SetState(ctx context.Context, db DB, job string, state State, reason, hint string) error {
	return update(ctx, db, "write the job's state", job, `
		UPDATE millrace.job_state
		   SET state = $2, reason = nullif($3, ''), hint = nullif($4, ''), updated_at = pg_catalog.clock_timestamp()
		 WHERE job = $1`, string(state), reason, hint)
}

// SetStateAs is SetState for an instance that has read or claimed the job: once
// another one has claimed it, the state is that one's to write, and the error is
// ErrFenced.
func SetStateAs(ctx context.Context, db DB, f Fence, state State, reason, hint string) error {
	const op = "write the job's state"
	tag, err := db.Exec(ctx, `
		UPDATE millrace.job_state
		   SET state = $4, reason = nullif($5, ''), hint = nullif($6, ''), updated_at = pg_catalog.clock_timestamp()
		 WHERE job = $1 AND generation = $2 AND epoch = $3`,
		f.Job, f.Generation, f.Epoch, string(state), reason, hint)
	if err != nil {
		return wrap(op, err)
	}
	if tag.RowsAffected() == 1 {
		return nil
	}
	var there bool
	if err := db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM millrace.job_state WHERE job = $1)`, f.Job).Scan(&there); err != nil {
		return wrap(op, err)
	}
	if !there {
		return noJob(op)
	}
	return &millrace.Error{Kind: millrace.KindPreflight, Op: op, Peer: millrace.PeerDestination, Err: ErrFenced,
		Hint: "millrace status shows which one works on the job now"}
}

// SetSlot records that the slot exists, where it is consistent, and what of it
// is ours.
func SetSlot(ctx context.Context, db DB, job string, point millrace.LSN, ownsSlot, ownsPublication bool) error {
	return update(ctx, db, "record the slot", job, `
		UPDATE millrace.job_state
		   SET consistent_point = nullif($2::pg_lsn, '0/0'), owns_slot = $3, owns_publication = $4,
		       updated_at = pg_catalog.clock_timestamp()
		 WHERE job = $1`, point.String(), ownsSlot, ownsPublication)
}

// SetConsistentFrom records that the target is consistent from the position on.
func SetConsistentFrom(ctx context.Context, db DB, job string, from millrace.LSN) error {
	return update(ctx, db, "record that the target is consistent", job, `
		UPDATE millrace.job_state
		   SET consistent_from = $2::pg_lsn, updated_at = pg_catalog.clock_timestamp()
		 WHERE job = $1`, from.String())
}

// SetLoadStarted records that the first load begins now: from here on the
// source's xmin is held.
func SetLoadStarted(ctx context.Context, db DB, job string) error {
	return update(ctx, db, "record the load's start", job, `
		UPDATE millrace.job_state
		   SET load_started = pg_catalog.clock_timestamp(), updated_at = pg_catalog.clock_timestamp()
		 WHERE job = $1`)
}

// SetBeside records that the first load, or the rest of it, is done beside the
// stream: mode is that of such a load.
func SetBeside(ctx context.Context, db DB, job, mode string) error {
	return update(ctx, db, "begin the load", job, `
		UPDATE millrace.job_state
		   SET mode = $2, load_started = coalesce(load_started, pg_catalog.clock_timestamp()),
		       updated_at = pg_catalog.clock_timestamp()
		 WHERE job = $1`, mode)
}

// UpdateTable records what is newly known of the table with t.OID: its name, and
// TargetOID, Filenode and Shape where they are not zero.
func UpdateTable(ctx context.Context, db DB, job string, t Table) error {
	return update(ctx, db, "record table "+t.Name.String(), job, `
		UPDATE millrace.job_table
		   SET schema_name = $3, table_name = $4,
		       target_oid = CASE WHEN $5::bigint = 0 THEN target_oid ELSE $5 END,
		       filenode = CASE WHEN $6::bigint = 0 THEN filenode ELSE $6 END,
		       shape = CASE WHEN $7::text = '' THEN shape ELSE $7 END
		 WHERE job = $1 AND oid = $2`,
		int64(t.OID), t.Name.Schema, t.Name.Name, int64(t.TargetOID), int64(t.Filenode), t.Shape)
}

// MarkCopied records that the table with the OID is wholly copied, in the
// transaction that holds the rows, or their last part.
func MarkCopied(ctx context.Context, tx pgx.Tx, f Fence, oid uint32, rows, bytes int64) error {
	if err := Hold(ctx, tx, f); err != nil {
		return err
	}
	return update(ctx, tx, "record the copy", f.Job, `
		UPDATE millrace.job_table SET copied = true, rows = $3, bytes = $4 WHERE job = $1 AND oid = $2`,
		int64(oid), rows, bytes)
}

// MarkPart records that one part of a table is copied. It belongs into the
// transaction that holds the rows.
func MarkPart(ctx context.Context, tx pgx.Tx, f Fence, p Part) error {
	if err := Hold(ctx, tx, f); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO millrace.chunk (job, oid, part, rows, bytes) VALUES ($1, $2, $3, $4, $5)`,
		f.Job, int64(p.OID), p.Number, p.Rows, p.Bytes)
	return wrap("record the copy", err)
}

// Part is one copied part of a table.
type Part struct {
	OID         uint32
	Number      int
	Rows, Bytes int64
}

// ClearParts removes the marks of a table's parts.
func ClearParts(ctx context.Context, db DB, job string, oid uint32) error {
	_, err := db.Exec(ctx, `DELETE FROM millrace.chunk WHERE job = $1 AND oid = $2 AND part > -2`, job, int64(oid))
	return wrap("remove marks of copied parts", err)
}

// update executes one statement that must find its row.
func update(ctx context.Context, db DB, op, job, sql string, args ...any) error {
	tag, err := db.Exec(ctx, sql, append([]any{job}, args...)...)
	if err != nil {
		return wrap(op, err)
	}
	if tag.RowsAffected() == 0 {
		return &millrace.Error{Kind: millrace.KindData, Op: op, Peer: millrace.PeerDestination, Err: ErrNoJob,
			Hint: "millrace bootstrap records a job"}
	}
	return nil
}
