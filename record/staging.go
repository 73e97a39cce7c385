package record

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
)

// StagingTable names the table in which the rows of one that is read again are kept
// until all of them are there. oid is the table's at the source.
func StagingTable(job string, oid uint32) millrace.TableName {
	return millrace.TableName{Schema: "millrace", Name: fmt.Sprintf("redo_%s_%d", job, oid)}
}

// MakeStaging makes an empty staging table for a table of the target, with the same
// columns and indexes.
func MakeStaging(ctx context.Context, db DB, job string, oid uint32, target millrace.TableName) error {
	if err := DropStaging(ctx, db, job, oid); err != nil {
		return err
	}
	_, err := db.Exec(ctx, fmt.Sprintf("CREATE TABLE %s (LIKE %s INCLUDING GENERATED INCLUDING INDEXES INCLUDING STORAGE INCLUDING COMPRESSION)",
		StagingTable(job, oid).SQL(), target.SQL()), pgx.QueryExecModeSimpleProtocol)
	if session.SQLState(err) == "42501" {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: "make a table for the new rows", Peer: millrace.PeerDestination, Table: target, Err: err,
			Hint: "GRANT USAGE, CREATE ON SCHEMA millrace TO the role of the destination's URL"}
	}
	return wrap("make a table for the new rows of "+target.String(), err)
}

// DropStaging drops the staging tables of tables, those that are there.
func DropStaging(ctx context.Context, db DB, job string, oids ...uint32) error {
	const op = "drop a table of staged rows"
	names := make([]string, len(oids))
	for i, oid := range oids {
		names[i] = StagingTable(job, oid).Name
	}
	rows, err := db.Query(ctx, `SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		 WHERE n.nspname = 'millrace' AND c.relkind = 'r' AND c.relname = ANY ($1::text[])`, names)
	if err != nil {
		return wrap(op, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return wrap(op, err)
	}
	for _, name := range found {
		if _, err := db.Exec(ctx, "DROP TABLE "+millrace.TableName{Schema: "millrace", Name: name}.SQL()); err != nil {
			return wrap(op, err)
		}
	}
	return nil
}

// dropAllStaging drops those of a job.
func dropAllStaging(ctx context.Context, db DB, job string) error {
	tables, err := Tables(ctx, db, job)
	if err != nil {
		return err
	}
	oids := make([]uint32, len(tables))
	for i := range tables {
		oids[i] = tables[i].OID
	}
	return DropStaging(ctx, db, job, oids...)
}
