package record

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
)

// SetMarkSQL stores a table's mark, in the transaction that holds the rows it
// speaks of. Parameters: job, oid, mark, rows, bytes; MarkTypes gives their types.
// It is fenced by the progress row of the same transaction.
const SetMarkSQL = `INSERT INTO millrace.chunk (job, oid, part, mark, rows, bytes) VALUES ($1, $2, -1, $3, $4, $5)
ON CONFLICT (job, oid, part) DO UPDATE SET mark = excluded.mark, rows = excluded.rows, bytes = excluded.bytes`

// DoneMarkSQL takes a table's mark away and records the table as complete.
// Parameters: job, oid, rows, bytes; DoneTypes gives their types.
const DoneMarkSQL = `WITH gone AS (DELETE FROM millrace.chunk WHERE job = $1 AND oid = $2 AND part > -2)
UPDATE millrace.job_table SET copied = true, rows = $3, bytes = $4 WHERE job = $1 AND oid = $2`

// MarkTypes and DoneTypes are the OIDs of the parameters: text and int8.
var (
	MarkTypes = []uint32{25, 20, 25, 20, 20}
	DoneTypes = []uint32{25, 20, 20, 20}
)

// MarkArgs gives SetMarkSQL's parameters in text form.
func MarkArgs(job string, m *millrace.Mark) [][]byte {
	return [][]byte{[]byte(job), decimal(int64(m.OID)), m.State, decimal(m.Rows), decimal(m.Bytes)}
}

// DoneArgs gives DoneMarkSQL's parameters in text form.
func DoneArgs(job string, m *millrace.Mark) [][]byte {
	return [][]byte{[]byte(job), decimal(int64(m.OID)), decimal(m.Rows), decimal(m.Bytes)}
}

// Marks gives the marks of the tables that are being loaded beside the stream. One of
// a table that is only about to be added is what a load before it was dropped has
// left behind.
func Marks(ctx context.Context, q Querier, job string) (map[millrace.TableName]millrace.Mark, error) {
	const op = "read the marks of the load"
	rows, err := q.Query(ctx, `
		SELECT t.schema_name, t.table_name, c.oid, c.mark, c.rows, c.bytes
		  FROM millrace.chunk c JOIN millrace.job_table t ON t.job = c.job AND t.oid = c.oid
		 WHERE c.job = $1 AND c.part = -1 AND NOT t.adding`, job)
	if err != nil {
		return nil, wrap(op, err)
	}
	marks := map[millrace.TableName]millrace.Mark{}
	var name millrace.TableName
	var m millrace.Mark
	var state string
	var oid int64
	_, err = pgx.ForEachRow(rows, []any{&name.Schema, &name.Name, &oid, &state, &m.Rows, &m.Bytes}, func() error {
		m.OID, m.State = uint32(oid), []byte(state)
		marks[name] = m
		return nil
	})
	return marks, wrap(op, err)
}

// LockMark gives the mark of a table, empty if there is none, and keeps others from
// writing it until the transaction ends. It belongs into the transaction that holds the
// rows that the mark is to speak of.
func LockMark(ctx context.Context, tx pgx.Tx, f Fence, oid uint32) (m millrace.Mark, err error) {
	if err := Hold(ctx, tx, f); err != nil {
		return m, err
	}
	var state string
	err = tx.QueryRow(ctx, `INSERT INTO millrace.chunk AS c (job, oid, part) VALUES ($1, $2, -1)
		ON CONFLICT (job, oid, part) DO UPDATE SET part = excluded.part RETURNING coalesce(c.mark, ''), c.rows, c.bytes`,
		f.Job, int64(oid)).Scan(&state, &m.Rows, &m.Bytes)
	m.OID, m.State = oid, []byte(state)
	return m, wrap("read the mark of the load", err)
}

// SetMark stores a table's mark.
func SetMark(ctx context.Context, db DB, job string, m millrace.Mark) error {
	_, err := db.Exec(ctx, SetMarkSQL, job, int64(m.OID), string(m.State), m.Rows, m.Bytes)
	return wrap("write the mark of the load", err)
}

// BeginLoad leaves a mark for a table: it is to be loaded beside the stream. With
// an empty mark it is loaded from its beginning. What is known of its parts goes.
func BeginLoad(ctx context.Context, db DB, job string, oid uint32, mark string) error {
	if err := ClearParts(ctx, db, job, oid); err != nil {
		return err
	}
	if _, err := db.Exec(ctx, `UPDATE millrace.job_table SET copied = false, rows = 0, bytes = 0 WHERE job = $1 AND oid = $2`,
		job, int64(oid)); err != nil {
		return wrap("begin the load", err)
	}
	_, err := db.Exec(ctx, `INSERT INTO millrace.chunk (job, oid, part, mark) VALUES ($1, $2, -1, $3)`,
		job, int64(oid), mark)
	return wrap("begin the load", err)
}

// OweKeys records that a table lacks its foreign keys until it is loaded. That
// outlives the table's mark: whoever loads it may end before the keys are made.
func OweKeys(ctx context.Context, db DB, job string, oid uint32) error {
	_, err := db.Exec(ctx, `INSERT INTO millrace.chunk (job, oid, part) VALUES ($1, $2, -2) ON CONFLICT DO NOTHING`, job, int64(oid))
	return wrap("record the foreign keys to be made", err)
}

// KeysOwed gives the tables that are loaded and lack their foreign keys.
func KeysOwed(ctx context.Context, q Querier, job string) ([]uint32, error) {
	rows, err := q.Query(ctx, `SELECT c.oid FROM millrace.chunk c JOIN millrace.job_table t ON t.job = c.job AND t.oid = c.oid
		 WHERE c.job = $1 AND c.part = -2 AND t.copied`, job)
	if err != nil {
		return nil, wrap("read the foreign keys to be made", err)
	}
	oids, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (uint32, error) {
		var oid int64
		err := row.Scan(&oid)
		return uint32(oid), err
	})
	return oids, wrap("read the foreign keys to be made", err)
}

// KeysMade records that tables have their foreign keys.
func KeysMade(ctx context.Context, db DB, job string, oids []uint32) error {
	all := make([]int64, len(oids))
	for i, oid := range oids {
		all[i] = int64(oid)
	}
	_, err := db.Exec(ctx, `DELETE FROM millrace.chunk WHERE job = $1 AND part = -2 AND oid = ANY ($2)`, job, all)
	return wrap("record the foreign keys", err)
}

// Marked looks for a part that may be copied: it is if it has a mark, whose rows and
// bytes are returned, or if its whole table is.
func Marked(ctx context.Context, q Querier, job string, oid uint32, part int) (p *Part, table bool, err error) {
	const op = "read the marks of copied tables"
	var rows, bytes *int64
	err = q.QueryRow(ctx, `
		SELECT coalesce((SELECT copied FROM millrace.job_table WHERE job = $1 AND oid = $2), false), c.rows, c.bytes
		  FROM (SELECT) one LEFT JOIN millrace.chunk c ON c.job = $1 AND c.oid = $2 AND c.part = $3`,
		job, int64(oid), part).Scan(&table, &rows, &bytes)
	if err != nil || rows == nil {
		return nil, table, wrap(op, err)
	}
	return &Part{OID: oid, Number: part, Rows: *rows, Bytes: *bytes}, table, nil
}

// Parts gives the marks of the parts that are copied under the exported snapshot.
func Parts(ctx context.Context, q Querier, job string) ([]Part, error) {
	const op = "read the marks of copied tables"
	rows, err := q.Query(ctx, `SELECT oid, part, rows, bytes FROM millrace.chunk WHERE job = $1 AND part >= 0`, job)
	if err != nil {
		return nil, wrap(op, err)
	}
	parts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Part, err error) {
		var oid int64
		err = row.Scan(&oid, &p.Number, &p.Rows, &p.Bytes)
		p.OID = uint32(oid)
		return p, err
	})
	return parts, wrap(op, err)
}

// BeginAdding records a table that is about to be taken into the set: until Added
// it does not count, but who meets a change of it knows that it will.
func BeginAdding(ctx context.Context, db DB, job string, t Table) error {
	_, err := db.Exec(ctx, `
		INSERT INTO millrace.job_table (job, oid, schema_name, table_name, target_oid, filenode, shape, adding)
		VALUES ($1, $2, $3, $4, $5, $6, $7, true)
		ON CONFLICT (job, oid) DO UPDATE SET schema_name = excluded.schema_name, table_name = excluded.table_name,
		    target_oid = excluded.target_oid, filenode = excluded.filenode, shape = excluded.shape`,
		job, int64(t.OID), t.Name.Schema, t.Name.Name, int64(t.TargetOID), int64(t.Filenode), t.Shape)
	return wrap("record table "+t.Name.String(), err)
}

// Added makes a table part of the set that BeginAdding has recorded. It fails if
// somebody else has done that since: the table may hold rows by now.
func Added(ctx context.Context, db DB, job string, oid uint32) error {
	const op = "add a table"
	tag, err := db.Exec(ctx, `UPDATE millrace.job_table SET adding = false WHERE job = $1 AND oid = $2 AND adding`, job, int64(oid))
	if err == nil && tag.RowsAffected() == 0 {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: op, Peer: millrace.PeerDestination,
			Err: errors.New("somebody else has added or dropped one of the tables just now"), Hint: "millrace status lists the tables of the job"}
	}
	return wrap(op, err)
}

// BeginDropping records that a table is about to leave the set: until DropTable it
// does not count, but who meets a change of it knows.
func BeginDropping(ctx context.Context, db DB, job string, oid uint32) error {
	return update(ctx, db, "drop a table", job, `UPDATE millrace.job_table SET adding = true WHERE job = $1 AND oid = $2`, int64(oid))
}

// DropTable takes a table out of the set.
func DropTable(ctx context.Context, db DB, job string, oid uint32) error {
	if _, err := db.Exec(ctx, `DELETE FROM millrace.chunk WHERE job = $1 AND oid = $2`, job, int64(oid)); err != nil {
		return wrap("drop a table", err)
	}
	if err := DropStaging(ctx, db, job, oid); err != nil {
		return err
	}
	return update(ctx, db, "drop a table", job, `DELETE FROM millrace.job_table WHERE job = $1 AND oid = $2`, int64(oid))
}

// RaiseSet tells whoever streams that the set of tables, or what is to be loaded of
// it, is another one.
func RaiseSet(ctx context.Context, db DB, job string) error {
	return update(ctx, db, "change the set of tables", job, `UPDATE millrace.job_state SET table_set = table_set + 1 WHERE job = $1`)
}

// RaiseSetAlone is RaiseSet for what must not be undone by a mark that whoever
// streams is about to write: until the end of the transaction nobody writes for the
// job, and whoever did starts anew with the marks as they are then.
func RaiseSetAlone(ctx context.Context, tx pgx.Tx, job string) error {
	if err := RaiseSet(ctx, tx, job); err != nil { // Claim waits for it
		return err
	}
	return EndWriters(ctx, tx, job)
}
