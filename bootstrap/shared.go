package bootstrap

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	krecord "github.com/millrace/millrace/kafka/record"
	"github.com/millrace/millrace/session"
)

// Tables that several jobs share, each with the rows of its partitions, can have no
// constraint that looks beyond one key: rows of different jobs come in any order.

// sharedRestart: emptying the tables would take the rows of the other jobs as well.
func sharedRestart(job string) error {
	return &millrace.Error{Kind: millrace.KindConfig, Op: "start job " + job + " over", Peer: millrace.PeerDestination,
		Err:  errors.New("with consistency: key the tables have rows of other jobs as well"),
		Hint: "stop all jobs that share the tables, `millrace cleanup --yes` each, empty the tables, and begin anew"}
}

// alone gives the description of a table without constraints but its primary key.
func alone(v *krecord.TableVersion) *krecord.TableVersion {
	a := *v
	a.Constraints = nil
	for _, c := range v.Constraints {
		if c.Kind == "primary_key" {
			a.Constraints = append(a.Constraints, c)
		}
	}
	return &a
}

// createShared makes a table without constraints but its primary key. Another job may
// make it at this moment: then it is there at the next try.
func createShared(ctx context.Context, tx pgx.Tx, v *krecord.TableVersion) error {
	err := createTable(ctx, tx, alone(v))
	switch session.SQLState(err) {
	case "42P07", "42710", "23505":
		return &millrace.Error{Kind: millrace.KindRetry, Op: "make the table", Peer: millrace.PeerDestination, Table: v.Name(),
			Err: fmt.Errorf("another job makes it at this moment: %w", err)}
	}
	return err
}

// refuseOthersRows refuses rows in a table that no other job has: nobody who shares it has
// put them there. They are looked for first, since a job has a table before its rows.
func refuseOthersRows(ctx context.Context, tx pgx.Tx, t *catalog.Table, job string) error {
	filled := refuseRows(ctx, tx, t)
	if millrace.KindOf(filled) != millrace.KindData {
		return filled
	}
	var shared bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM millrace.job_table WHERE job <> $1 AND schema_name = $2 AND table_name = $3)`,
		job, t.Name.Schema, t.Name.Name).Scan(&shared)
	if err != nil || shared {
		return err
	}
	return filled
}

// refuseShared refuses a table with constraints beyond the key of the records.
func refuseShared(ctx context.Context, tx pgx.Tx, t *catalog.Table, v *krecord.TableVersion) error {
	refuse := func(name, what string) error {
		return &millrace.Error{Kind: millrace.KindData, Op: "take in a table", Peer: millrace.PeerDestination, Table: t.Name,
			Err:  fmt.Errorf("%s %s looks at more than the key of a row, and rows of different keys come in any order (consistency: key)", what, millrace.DisplayIdent(name)),
			Hint: "drop it at the destination, or use consistency: transaction; the next run goes on at this transaction"}
	}
	key := t.MatchIndex(v.Key)
	for i := range t.Indexes {
		if x := &t.Indexes[i]; (x.Unique || x.Exclusion) && x != key {
			return refuse(x.Name, "index")
		}
	}
	var name string
	err := tx.QueryRow(ctx, `SELECT conname FROM pg_catalog.pg_constraint WHERE contype = 'f' AND $1 IN (conrelid, confrelid) LIMIT 1`, t.OID).Scan(&name)
	if err == nil {
		return refuse(name, "foreign key")
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}
