package bootstrap

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
	"github.com/millrace/millrace/session"
)

// createTable makes a table of its description, with the types that it needs.
func createTable(ctx context.Context, tx pgx.Tx, v *krecord.TableVersion) error {
	types, err := v.CreateTypes()
	if err != nil {
		return err
	}
	for _, sql := range types {
		if err := unlessThere(ctx, tx, sql); err != nil {
			return describeError(v, err)
		}
	}
	sql, _ := v.CreateTable()
	_, err = tx.Exec(ctx, sql)
	return describeError(v, err)
}

// unlessThere executes a statement that may fail since its object is there already.
func unlessThere(ctx context.Context, tx pgx.Tx, sql string) error {
	if _, err := tx.Exec(ctx, "SAVEPOINT object"); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, sql)
	switch session.SQLState(err) {
	case "42710", "42P06", "42P07", "23505": // the last: somebody else makes it at this moment
		_, err = tx.Exec(ctx, "ROLLBACK TO SAVEPOINT object")
	}
	return err
}

// describeError says what cures a definition that the destination refuses. What can
// be tried again is left as it is.
func describeError(v *krecord.TableVersion, err error) error {
	if err == nil || session.Retryable(err) {
		return err
	}
	return &millrace.Error{Kind: millrace.KindData, Op: "make the table", Peer: millrace.PeerDestination, Table: v.Name(), LSN: v.Commit, Err: err,
		Hint: "create it at the destination, with the columns of the source's table; the next run goes on at this transaction"}
}

// addKeys adds the foreign keys of a table that are not there, without a look at the
// rows first, so that the stream is not held up while they are validated: in each
// state that can be seen they hold. A key to a table that the job does not have is
// left out.
func addKeys(ctx context.Context, conn *pgx.Conn, v *krecord.TableVersion, replica bool, log *slog.Logger) error {
	for _, c := range v.Constraints {
		if c.Kind != "foreign_key" {
			continue
		}
		var there, valid bool
		err := conn.QueryRow(ctx, `SELECT pg_catalog.count(*) > 0, COALESCE(pg_catalog.bool_and(convalidated), false) FROM pg_catalog.pg_constraint
			WHERE contype = 'f' AND conrelid = pg_catalog.to_regclass($1) AND conname = $2`, v.Name().SQL(), c.Name).Scan(&there, &valid)
		if err != nil {
			return session.Wrap("read foreign keys", millrace.PeerDestination, err)
		}
		if valid {
			continue
		}
		def, why := keyDefinition(c.Definition, replica)
		if why == "" && !there {
			why, err = addKey(ctx, conn, v, c.Name, def)
		}
		if err == nil && why == "" && checked(c.Definition) { // one that was added by a run which has ended before as well
			err = validateKey(ctx, conn, v, c.Name)
		}
		if err != nil {
			return err
		}
		if why != "" {
			log.Warn("a foreign key is left out", "table", v.Name(), "constraint", c.Name, "cause", why)
		}
	}
	return nil
}

// checked tells whether the source knows that all rows hold a key. What it does not know
// itself can't be asked of the destination.
func checked(def string) bool {
	return !strings.HasSuffix(def, " NOT VALID") && !strings.HasSuffix(def, notEnforced)
}

// notEnforced is how the definition of a key ends that PostgreSQL, from version 18 on, does
// not look at.
const notEnforced = " NOT ENFORCED"

// keyDefinition gives the definition as the destination can have it. A role that
// can't switch keys off has them checked at the end of each transaction, and none
// that changes rows by itself: the stream has those changes as well.
func keyDefinition(def string, replica bool) (_, why string) {
	def = strings.TrimSuffix(def, " NOT VALID")
	if replica {
		return def, ""
	}
	for _, action := range []string{"CASCADE", "SET NULL", "SET DEFAULT"} {
		if strings.Contains(def, " ON DELETE "+action) || strings.Contains(def, " ON UPDATE "+action) {
			return "", "it changes rows by itself, and the destination's role may not set session_replication_role"
		}
	}
	def = strings.NewReplacer(" ON DELETE RESTRICT", "", " ON UPDATE RESTRICT", "").Replace(def)
	if !strings.Contains(def, " DEFERRABLE") {
		def += " DEFERRABLE"
	}
	return def, ""
}

func addKey(ctx context.Context, conn *pgx.Conn, v *krecord.TableVersion, name, def string) (why string, err error) {
	table, constraint := v.Name().SQL(), millrace.QuoteIdent(name)
	_, err = conn.Exec(ctx, fmt.Sprintf("ALTER TABLE %s ADD CONSTRAINT %s %s NOT VALID", table, constraint, def))
	switch session.SQLState(err) {
	case "42P01", "3F000", "42830", "42703":
		return "the table that it refers to is not at the destination, or has no such key", nil
	case "42601":
		if strings.HasSuffix(def, notEnforced) || strings.Contains(def, notEnforced+" ") {
			return "it is not enforced, which the destination's version does not know", nil
		}
	}
	return "", session.Wrap(fmt.Sprintf("add foreign key %s of table %s", constraint, v.Name()), millrace.PeerDestination, err)
}

func validateKey(ctx context.Context, conn *pgx.Conn, v *krecord.TableVersion, name string) error {
	constraint := millrace.QuoteIdent(name)
	_, err := conn.Exec(ctx, fmt.Sprintf("ALTER TABLE %s VALIDATE CONSTRAINT %s", v.Name().SQL(), constraint))
	return session.Wrap(fmt.Sprintf("validate foreign key %s of table %s", constraint, v.Name()), millrace.PeerDestination, err)
}
