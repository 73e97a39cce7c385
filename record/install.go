package record

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
)

// Format is the version of the record's tables that this program reads and
// writes.
const Format = 1

//go:embed schema.sql
var schemaSQL string

// Querier is what reading needs: a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// DB is what writing needs: a connection or a transaction.
type DB interface {
	Querier
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Begin(ctx context.Context) (pgx.Tx, error)
}

// installLock is the key of the advisory lock under which the schema is made:
// "millrace" in ASCII.
const installLock = 0x6d696c6c72616365

// Schema gives the statements that Install runs in an empty schema millrace, for
// --dry-run.
func Schema() string { return schemaSQL }

// Install makes the schema millrace and what it holds unless it is there. When
// the format is right it executes no DDL, so that a role without any right to
// create can run a job; an empty schema millrace that the role owns is filled.
func Install(ctx context.Context, db DB) error {
	found, err := installed(ctx, db)
	if err != nil {
		return err
	}
	if found {
		return checkPrivileges(ctx, db)
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return wrap(opInstall, err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `SELECT pg_catalog.pg_advisory_xact_lock($1)`, int64(installLock)); err != nil {
		return wrap(opInstall, err)
	}
	// Another instance may have been first.
	if found, err = installed(ctx, tx); err != nil || found {
		return err
	}
	if err := createSchema(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, schemaSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
		return wrap(opInstall, err)
	}
	return wrap(opInstall, tx.Commit(ctx))
}

const opInstall = "install the schema millrace"

func createSchema(ctx context.Context, db DB) error {
	var exists, mayCreate bool
	var role, database string
	err := db.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'millrace'),
		       coalesce((SELECT pg_catalog.has_schema_privilege(oid, 'CREATE') FROM pg_catalog.pg_namespace
		                  WHERE nspname = 'millrace'),
		                pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')),
		       current_user::text, pg_catalog.current_database()::text`).
		Scan(&exists, &mayCreate, &role, &database)
	switch {
	case err != nil:
		return wrap(opInstall, err)
	case !mayCreate && exists:
		return &millrace.Error{Kind: millrace.KindPreflight, Op: opInstall, Peer: millrace.PeerDestination,
			Err: fmt.Errorf("role %s may not create tables in it", millrace.QuoteIdent(role)),
			Hint: fmt.Sprintf("ALTER SCHEMA millrace OWNER TO %s",
				millrace.QuoteIdent(role))}
	case !mayCreate:
		return &millrace.Error{Kind: millrace.KindPreflight, Op: opInstall, Peer: millrace.PeerDestination,
			Err: fmt.Errorf("role %s may not create schemas in database %s",
				millrace.QuoteIdent(role), millrace.QuoteIdent(database)),
			Hint: fmt.Sprintf("CREATE SCHEMA millrace AUTHORIZATION %s (or: GRANT CREATE ON DATABASE %s TO %s)",
				millrace.QuoteIdent(role), millrace.QuoteIdent(database), millrace.QuoteIdent(role))}
	case exists:
		return nil
	}
	_, err = db.Exec(ctx, `CREATE SCHEMA millrace`)
	return wrap(opInstall, err)
}

// installed tells whether the tables are there in the format of this program; in
// another format it is an error.
func installed(ctx context.Context, q Querier) (bool, error) {
	var state, format bool
	err := q.QueryRow(ctx, `
		SELECT coalesce(pg_catalog.bool_or(c.relname = 'job_state'), false),
		       coalesce(pg_catalog.bool_or(c.relname = 'format'), false)
		  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		 WHERE n.nspname = 'millrace' AND c.relname IN ('job_state', 'format') AND c.relkind = 'r'`).
		Scan(&state, &format)
	if err != nil {
		return false, wrap("read the job's record", err)
	}
	if !state && !format {
		return false, nil
	}
	version := 0
	if format {
		err = q.QueryRow(ctx, `SELECT coalesce(pg_catalog.max(version), 0) FROM millrace.format`).Scan(&version)
		if err != nil {
			return false, wrap("read the job's record", err)
		}
	}
	if version != Format || !state {
		return false, &millrace.Error{Kind: millrace.KindPreflight, Op: "read the job's record",
			Peer: millrace.PeerDestination,
			Err:  fmt.Errorf("schema millrace has format %d, this version of millrace knows format %d", version, Format),
			Hint: "use the version of millrace that made it, or remove its jobs and DROP SCHEMA millrace CASCADE"}
	}
	return true, nil
}

// checkPrivileges finds out before anything is done whether the role may write
// the record.
func checkPrivileges(ctx context.Context, q Querier) error {
	var lacking bool
	var role string
	err := q.QueryRow(ctx, `
		SELECT current_user::text, EXISTS (
		    SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		     WHERE n.nspname = 'millrace' AND c.relkind = 'r' AND c.relname <> 'format'
		       AND NOT (pg_catalog.has_schema_privilege(n.oid, 'USAGE')
		            AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
		            AND pg_catalog.has_table_privilege(c.oid, 'INSERT')
		            AND pg_catalog.has_table_privilege(c.oid, 'UPDATE')
		            AND pg_catalog.has_table_privilege(c.oid, 'DELETE')))`).Scan(&role, &lacking)
	if err != nil {
		return wrap(opInstall, err)
	}
	if !lacking {
		return nil
	}
	return &millrace.Error{Kind: millrace.KindPreflight, Op: "use the schema millrace", Peer: millrace.PeerDestination,
		Err:  fmt.Errorf("role %s may not write its tables", millrace.QuoteIdent(role)),
		Hint: grantSQL(role)}
}

func grantSQL(role string) string {
	r := millrace.QuoteIdent(role)
	return "GRANT USAGE ON SCHEMA millrace TO " + r +
		"; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA millrace TO " + r
}

// wrap classifies an error of the target. A missing privilege on the record is
// a prerequisite, not a matter of data.
func wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	var already *millrace.Error
	if !errors.As(err, &already) && session.SQLState(err) == "42501" {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: op, Peer: millrace.PeerDestination, Err: err,
			Hint: grantSQL("ROLE") + " with the role of the destination's URL"}
	}
	return session.Wrap(op, millrace.PeerDestination, err)
}
