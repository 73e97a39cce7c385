package record

import (
	"context"

	"github.com/millrace/millrace/session"
)

// Origin names the replication origin that tags a job's transactions on the
// target, so that other subscribers can leave them out. It is a tag only: where
// the job stands is told by its progress rows.
func Origin(job string) string { return "millrace_" + job }

// OriginAhead is that of transactions which are applied while they are open, beside
// the others: one session at a time can have an origin. No job's name has a dot.
func OriginAhead(job string) string { return Origin(job) + ".ahead" }

// dropOrigin removes the origins where the role may; without that right the job
// could not have made one either, or lost it since, and an unused origin does
// no harm.
func dropOrigin(ctx context.Context, db DB, job string) error {
	_, err := db.Exec(ctx, `
		SELECT pg_catalog.pg_replication_origin_drop(o.roname)
		  FROM pg_catalog.pg_replication_origin o WHERE o.roname IN ($1, $2)`, Origin(job), OriginAhead(job))
	switch session.SQLState(err) {
	case "42501", "55006": // not allowed, or still held by a backend that is ending
		return nil
	}
	return wrap("drop the replication origin", err)
}
