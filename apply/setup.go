package apply

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
)

// planSettings leave the planner one way to run a set: a nested loop over the
// set with a search in the table's index. Statistics of the moment must not turn
// that into a scan of the whole table.
const planSettings = `SET plan_cache_mode = force_generic_plan; SET enable_hashjoin = off; SET enable_mergejoin = off;
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_memoize = off; SET enable_material = off; SET enable_nestloop = on;
SET enable_indexscan = on; SET enable_indexonlyscan = on; SET enable_partition_pruning = on`

// setUp prepares the executor's session and tells whether it has the role
// replica, in which ordinary triggers, rules and foreign keys do nothing.
//
// work_mem holds a whole set, which would be written to a temporary file
// otherwise. Notices would only fill the connection while nobody reads.
func setUp(ctx context.Context, conn *pgx.Conn) (replica bool, err error) {
	const op = "set up the session"
	_, err = conn.Exec(ctx, planSettings+`; SET synchronous_commit = off; SET work_mem = '32MB'; SET client_min_messages = error`,
		pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return false, session.Wrap(op, millrace.PeerDestination, err)
	}
	_, err = conn.Exec(ctx, `SET session_replication_role = replica`)
	if session.SQLState(err) == "42501" {
		return false, nil
	}
	return err == nil, session.Wrap(op, millrace.PeerDestination, err)
}

// setUpOrigin makes the session tag its transactions with a replication origin,
// made when it is missing, and tells whether it does: that takes rights, and a
// free place among the server's origins. It is a tag and nothing else, so that
// without it replication is as exact.
func setUpOrigin(ctx context.Context, conn *pgx.Conn, name string) (bool, error) {
	_, err := conn.Exec(ctx, `
		SELECT pg_catalog.pg_replication_origin_create($1)
		 WHERE pg_catalog.pg_replication_origin_oid($1) IS NULL`, name)
	if err == nil || session.SQLState(err) == "23505" { // made by another meanwhile
		_, err = conn.Exec(ctx, `SELECT pg_catalog.pg_replication_origin_session_setup($1)`, name)
	}
	switch session.SQLState(err) {
	case "42501", "55000", "55006", "53400", "53000":
		// Not allowed, switched off, held by a backend that has not ended yet
		// or no place left.
		return false, nil
	}
	return err == nil, session.Wrap("set up the session", millrace.PeerDestination, err)
}
