package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

// router finds and remembers the routes of relations. It has a connection of its
// own, which it opens when it needs it, since the executor's is busy.
type router struct {
	endpoint *session.Endpoint
	job      string
	replica  bool // the role that the executor's session has
	truncate bool // TRUNCATE is applied as such
	log      *slog.Logger

	conn    *pgx.Conn
	routes  map[*millrace.Relation]*route
	targets map[millrace.TableName]*target // as they were described last
	tables  map[uint32]record.Table        // the job's set, by OID at the source
	warned  map[millrace.TableName]string
	// surveyed are targets that were described ahead of their first change.
	surveyed   map[millrace.TableName]*target
	surveyedAt time.Time
}

func newRouter(opt Options, replica bool, tables []record.Table) *router {
	x := &router{endpoint: opt.Endpoint, job: opt.Job, replica: replica, truncate: !opt.TruncateAsDelete, log: opt.Log,
		routes: map[*millrace.Relation]*route{}, targets: map[millrace.TableName]*target{},
		tables: map[uint32]record.Table{}, warned: map[millrace.TableName]string{}}
	for _, t := range tables {
		x.tables[t.OID] = t
	}
	return x
}

func (x *router) connect(ctx context.Context) error {
	if x.conn != nil && !x.conn.IsClosed() {
		return nil
	}
	conn, err := x.endpoint.Connect(ctx, session.Watch)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, planSettings, pgx.QueryExecModeSimpleProtocol); err != nil {
		conn.Close(ctx)
		return session.Wrap("set up the session", millrace.PeerDestination, err)
	}
	x.conn = conn
	return nil
}

func (x *router) close(ctx context.Context) {
	if x.conn != nil {
		x.conn.Close(ctx)
		x.conn = nil
	}
}

// forget makes the next changes look their tables up again.
func (x *router) forget() { clear(x.routes) }

// prepare finds the routes of everything in a transaction.
func (x *router) prepare(ctx context.Context, t *millrace.Txn) error {
	var last *route
	for i := range t.Changes {
		c := &t.Changes[i]
		switch {
		case c.Op == millrace.Message:
			continue
		case c.Op == millrace.Truncate:
			if err := x.prepareTruncate(ctx, c.Truncated); err != nil {
				return err
			}
			continue
		case c.Op == millrace.Merge:
			if _, err := x.route(ctx, c.Rel); err != nil {
				return err
			}
			continue
		case last != nil && last.rel == c.Rel:
		default:
			r, err := x.route(ctx, c.Rel)
			if err == nil && r.askAfter > 0 && r.since >= r.askAfter {
				r, err = x.askAgain(ctx, r)
			}
			if err != nil {
				return err
			}
			last = r
		}
		last.since++
		if putOrRemove(c.Op) {
			if err := last.acceptsPut(); err != nil {
				return err
			}
		}
		if last.binary && !last.blind {
			continue // takes everything
		}
		if err := last.accepts(c); err != nil {
			return err
		}
	}
	return nil
}

// accepts tells whether a change can be applied at all.
func (r *route) accepts(c *millrace.Change) error {
	if !r.binary && (formOf(c.New) == binaryForm || formOf(c.Old) == binaryForm) {
		return fmt.Errorf("table %s: %w", r.rel.Name, millrace.ErrNeedText)
	}
	if r.blind && c.Op != millrace.Insert {
		return dataError(r.to.Name, fmt.Errorf("an %s came without the key of the row, since the table has no replica identity", c.Op),
			"give the source's table a primary key or a replica identity; this "+c.Op.String()+
				" can't be applied any more: take the first load anew with bootstrap --restart-snapshot")
	}
	return nil
}

func (x *router) prepareTruncate(ctx context.Context, t *millrace.Truncation) error {
	oids := make([]uint32, len(t.Rels))
	for i, rel := range t.Rels {
		r, err := x.route(ctx, rel)
		if err != nil {
			return err
		}
		oids[i] = r.to.OID
	}
	if !x.truncate || t.AsDelete {
		return nil
	}
	if err := x.connect(ctx); err != nil {
		return err
	}
	others, err := referencing(ctx, x.conn, oids)
	if err != nil {
		return session.Wrap("apply", millrace.PeerDestination, err)
	}
	if len(others) == 0 {
		return nil
	}
	list := strings.Join(others, ", ")
	return dataError(t.Rels[0].Name,
		fmt.Errorf("the source truncated it, and at the destination these tables reference it: %s", list),
		"drop their foreign keys at the destination, or set apply.truncate: delete")
}

// route gives the route of a relation. A relation that is new, be it for a new
// shape or a new name of a known table, has its target described anew: that is
// likely to have changed as well.
func (x *router) route(ctx context.Context, rel *millrace.Relation) (*route, error) {
	if r := x.routes[rel]; r != nil {
		return r, nil
	}
	if r := x.alike(rel); r != nil {
		x.routes[rel] = r
		return r, nil
	}
	if err := x.connect(ctx); err != nil {
		return nil, err
	}
	r, err := x.newRoute(ctx, rel)
	if x.surveyed[rel.Name] != nil {
		delete(x.surveyed, rel.Name)
		if millrace.KindOf(err) == millrace.KindData { // it has changed since
			r, err = x.newRoute(ctx, rel)
		}
	}
	if err != nil {
		return nil, err
	}
	if r.why != "" && !r.blind && x.warned[rel.Name] != r.why {
		x.log.Warn("updates and deletes go row by row", "table", rel.Name, "reason", r.why)
		x.warned[rel.Name] = r.why
	}
	x.routes[rel], x.targets[rel.Name] = r, r.to
	return r, nil
}

// alike finds the route of a relation that is described in the same way. Rows that
// were loaded and changes of the stream come with relations of their own, and have
// to go through one route: what is on different ones is not kept in order.
func (x *router) alike(rel *millrace.Relation) *route {
	for known, r := range x.routes {
		if known.OID == rel.OID && known.Name == rel.Name && known.Identity == rel.Identity &&
			slices.Equal(known.Columns, rel.Columns) && slices.Equal(known.Key, rel.Key) {
			return r
		}
	}
	return nil
}

func (x *router) newRoute(ctx context.Context, rel *millrace.Relation) (*route, error) {
	to, err := x.describe(ctx, rel.Name)
	if err != nil {
		return nil, err
	}
	to.inherit(x.targets[rel.Name])
	if err := x.confirm(ctx, rel, to); err != nil {
		return nil, err
	}
	r, err := newRoute(rel, to)
	var lacks *millrace.Error
	if errors.As(err, &lacks) && lacks.Hint == "" {
		n := slices.IndexFunc(rel.Columns, func(c millrace.Column) bool { return c.Name == lacks.Column })
		lacks.Hint = fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s%s", to.sql, millrace.QuoteIdent(lacks.Column),
			x.typeName(ctx, &rel.Columns[n]), goesOn)
	}
	if err != nil || !r.sets {
		return r, err
	}
	_, err = x.ask(ctx, r)
	return r, err
}

// typeName names the type of a column as it is declared at the source. Built-in
// types are the same on both sides; of others the stream tells the name.
func (x *router) typeName(ctx context.Context, sent *millrace.Column) string {
	if sent.TypeName != "" {
		return sent.TypeName
	}
	var name string
	err := x.conn.QueryRow(ctx, "SELECT pg_catalog.format_type($1::pg_catalog.oid, $2)", sent.Type, sent.Mod).Scan(&name)
	if err != nil || sent.Type >= firstUserOID {
		return "with the source's type"
	}
	return name
}

// confirm makes sure that the target table is the one that the source's table
// was copied to: tables that were renamed at the source only, or in another
// order, must not be taken for each other. What is new is recorded.
func (x *router) confirm(ctx context.Context, rel *millrace.Relation, to *target) error {
	known, ok := x.tables[rel.OID]
	if !ok || known.Name == rel.Name && known.TargetOID == to.OID {
		return nil
	}
	if known.TargetOID != 0 && known.TargetOID != to.OID {
		var now string
		err := x.conn.QueryRow(ctx, `
			SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
			  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			 WHERE c.oid = $1 AND c.relkind IN ('r', 'p')`, known.TargetOID).Scan(&now)
		switch {
		case errors.Is(err, pgx.ErrNoRows) && known.Name == rel.Name:
			x.log.Warn("the destination's table was made anew", "table", rel.Name)
		case err != nil && !errors.Is(err, pgx.ErrNoRows):
			return session.Wrap("apply", millrace.PeerDestination, err)
		default:
			return dataError(rel.Name, fmt.Errorf("the source's table %s was copied to another table of the destination%s",
				known.Name, nowCalled(now)), "rename tables at the destination as they were renamed at the source; "+
				"the next run goes on at this transaction")
		}
	}
	known.Name, known.TargetOID = rel.Name, to.OID
	if err := record.UpdateTable(ctx, x.conn, x.job, record.Table{OID: rel.OID, Name: rel.Name, TargetOID: to.OID}); err != nil {
		return err
	}
	x.tables[rel.OID] = known
	return nil
}

func nowCalled(name string) string {
	if name == "" {
		return ""
	}
	return ", which is called " + name + " now"
}
