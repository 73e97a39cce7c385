package check

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/session"
)

// Source is what a connector finds: it has no target, and its slot is made before
// it runs.
type Source struct {
	Report
	Server      *catalog.Server
	Publication *catalog.Publication // nil: there is none
	Slot        *catalog.Slot        // nil: there is none
	Tables      []*catalog.Table     // selected, described
	// PublicationSQL makes the publication where there is none.
	PublicationSQL string
}

// RunSource looks at the source alone. Slot and publication must be there, unless
// o.CreatePublication says that the first read makes what is missing of them. An
// error means that the server can't be asked; it says whether that may pass.
func RunSource(ctx context.Context, o Options) (*Source, error) {
	o.SchemaMode = schemaExisting
	c := &checker{Options: o}
	defer c.close()
	found := &Source{}
	conn, err := o.Source.Connect(ctx, session.Check)
	if err != nil {
		return found, err
	}
	c.source = conn
	steps := []func(context.Context) error{c.checkSource, c.selectTables, c.checkPublication, c.checkSourceTables,
		func(ctx context.Context) (err error) {
			found.Slot, err = c.checkMadeSlot(ctx)
			return err
		}}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			if ctx.Err() != nil {
				return found, context.Cause(ctx)
			}
			if session.Retryable(err) {
				return found, err
			}
			c.failed(err)
		}
	}
	c.sort()
	found.Report, found.Server, found.Publication, found.Tables = c.report, c.server, c.pub, c.tables
	found.PublicationSQL = c.publicationSQL
	return found, nil
}

// checkMadeSlot looks at a slot that somebody has made for the job.
func (c *checker) checkMadeSlot(ctx context.Context) (*catalog.Slot, error) {
	slot, err := catalog.ReadSlot(ctx, c.source, c.Slot)
	if err != nil {
		return nil, session.Wrap("read slot "+c.Slot, millrace.PeerSource, err)
	}
	subject := "slot " + c.Slot
	name := millrace.QuoteLiteral(c.Slot)
	create := fmt.Sprintf("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", name)
	again := fmt.Sprintf("SELECT pg_drop_replication_slot(%s); %s; and reset the connection's state", name, create)
	switch {
	case slot == nil && c.server != nil && c.server.SlotsUsed >= c.server.MaxReplicationSlots:
		c.problem("source", "raise max_replication_slots and restart the server, or drop a slot that nobody uses",
			"all %d replication slots (max_replication_slots) are in use", c.server.MaxReplicationSlots)
	case slot == nil && !c.CreatePublication:
		c.problem(subject, create+"; or let the first read make it: create_slot: true", "does not exist")
	case slot == nil:
	case slot.Plugin != "pgoutput" || c.server != nil && slot.Database != c.server.Database:
		c.problem(subject, "name another one, or "+again, "is one of plugin %s in database %s", slot.Plugin, slot.Database)
	case slot.TwoPhase:
		c.problem(subject, again, "has two-phase commit, with which tables can't be loaded beside the stream")
	case slot.WALStatus == "lost" || slot.InvalidationReason != "":
		c.problem(subject, again, "is lost (%s)", strings.TrimSpace(slot.WALStatus+" "+slot.InvalidationReason))
	case slot.WALStatus == "unreserved":
		c.warn(subject, "raise max_slot_wal_keep_size on the source, and sync more often", "is about to be lost: WAL that it needs may be removed")
	}
	return slot, nil
}
