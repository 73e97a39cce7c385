package record

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
)

// A transaction that is prepared at the source is prepared at the target under
// a name of the job's own. It never touches the progress rows, which later
// transactions need: it inserts a row into millrace.prepared instead, which is
// seen once it is committed. So there are three states after a crash: the server
// has the name, which is to be decided; the row is there, which means committed;
// or neither, which means rolled back or never prepared.

// InsertPreparedSQL adds the row. It affects one row, or none when the job was
// taken over. Parameters: job, generation, epoch, name, position of the prepare
// record; PreparedTypes gives their types.
const InsertPreparedSQL = `INSERT INTO millrace.prepared (job, gid, prepare_lsn)
SELECT s.job, $4, $5 FROM millrace.job_state s WHERE s.job = $1 AND s.generation = $2 AND s.epoch = $3`

// DeletePreparedSQL removes it, with the progress row of the commit. It affects
// one row, or none when the transaction is not committed. Parameters: job, name.
const DeletePreparedSQL = `DELETE FROM millrace.prepared WHERE job = $1 AND gid = $2`

// The OIDs of the parameters of InsertPreparedSQL and DeletePreparedSQL.
var (
	InsertPreparedTypes = []uint32{25, 20, 20, 25, 3220}
	DeletePreparedTypes = []uint32{25, 25}
)

// InsertPreparedArgs gives the parameters in text form.
func InsertPreparedArgs(job string, cp *millrace.Checkpoint, gid string, at millrace.LSN) [][]byte {
	return [][]byte{[]byte(job), decimal(cp.Generation), decimal(cp.Epoch), []byte(gid), []byte(at.String())}
}

// Prepared is what a target holds of transactions that the job has prepared.
type Prepared struct {
	prefix, suffix string
	// Undecided are prepared and neither committed nor rolled back; Committed are
	// committed, and the progress does not say so yet. By their numbers at the
	// source.
	Undecided, Committed map[uint32]bool
}

// GID is the name of a prepared transaction on the target. Names are those of
// the whole server, and so the database is a part of it: the same source can be
// carried to several.
func (p *Prepared) GID(xid uint32) string {
	return p.prefix + strconv.FormatUint(uint64(xid), 10) + p.suffix
}

// number gives the number of a transaction with such a name.
func (p *Prepared) number(gid string) (uint32, bool) {
	rest, ok := strings.CutPrefix(gid, p.prefix)
	rest, also := strings.CutSuffix(rest, p.suffix)
	n, err := strconv.ParseUint(rest, 10, 32)
	return uint32(n), ok && also && err == nil
}

// ReadPrepared reads what the target holds of the job's generation.
func ReadPrepared(ctx context.Context, q Querier, job string, generation int64) (*Prepared, error) {
	const op = "read the prepared transactions"
	var database int64
	if err := q.QueryRow(ctx, `SELECT oid::int8 FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()`).Scan(&database); err != nil {
		return nil, wrap(op, err)
	}
	p := &Prepared{
		prefix: fmt.Sprintf("millrace_%s_%d_", job, generation), suffix: fmt.Sprintf("_%d", database),
		Undecided: map[uint32]bool{}, Committed: map[uint32]bool{},
	}
	for sql, to := range map[string]map[uint32]bool{
		`SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database() AND $1::text IS NOT NULL`: p.Undecided,
		`SELECT gid FROM millrace.prepared WHERE job = $1`:                                                                     p.Committed,
	} {
		gids, err := texts(ctx, q, sql, job)
		if err != nil {
			return nil, wrap(op, err)
		}
		for _, gid := range gids {
			if xid, ok := p.number(gid); ok {
				to[xid] = true
			}
		}
	}
	return p, nil
}

func texts(ctx context.Context, q Querier, sql string, args ...any) ([]string, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// PreparedNames gives the names of what the job has prepared in this database,
// in any generation but the one that is kept (0: none is), and has not decided.
func PreparedNames(ctx context.Context, q Querier, job string, keep int64) ([]string, error) {
	gids, err := texts(ctx, q, `
		SELECT gid FROM pg_catalog.pg_prepared_xacts
		 WHERE database = pg_catalog.current_database()
		   AND gid ~ ('^millrace_' || $1 || '_[0-9]+_[0-9]+_[0-9]+$')
		   AND NOT gid ~ ('^millrace_' || $1 || '_' || $2 || '_[0-9]+_[0-9]+$')
		 ORDER BY gid`, job, strconv.FormatInt(keep, 10))
	return gids, wrap("read the prepared transactions", err)
}

// RollbackPrepared rolls back what PreparedNames gives: what it holds comes
// again from the source, or from a new first load. It can't be part of a
// transaction.
func RollbackPrepared(ctx context.Context, db DB, job string, keep int64) ([]string, error) {
	gids, err := PreparedNames(ctx, db, job, keep)
	if err != nil {
		return nil, err
	}
	for _, gid := range gids {
		_, err := db.Exec(ctx, RollbackPreparedSQL(gid), pgx.QueryExecModeSimpleProtocol)
		if err != nil && session.SQLState(err) != "42704" { // gone meanwhile
			return nil, wrap("roll back the prepared transaction "+gid, err)
		}
	}
	return gids, nil
}

// RollbackPreparedSQL is the statement for one of them.
func RollbackPreparedSQL(gid string) string {
	return "ROLLBACK PREPARED" + " " + strings.TrimSpace(millrace.QuoteLiteral(gid))
}
