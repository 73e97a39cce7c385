package capture

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/datum"
	"github.com/millrace/millrace/pgoutput"
)

// firstUserOID is the lowest OID of what is not built in (FirstNormalObjectId
// in access/transam.h).
const firstUserOID = 16384

// relations knows the tables of the stream. The server describes each before
// its first change, and again after anything that touched its definition; each
// description is judged before the changes that follow it, by comparing it with
// the job's set.
type relations struct {
	opt    Options
	tables map[uint32]*Table // the set by OID
	names  map[millrace.TableName]uint32
	side   func(context.Context, func(*pgx.Conn) error) error

	known   map[uint32]*millrace.Relation // nil: passed over
	oid     uint32                        // of the last one asked for
	rel     *millrace.Relation
	sent    map[uint32]millrace.TableName // names of Type messages
	types   map[uint32]userType           // what was looked up
	noticed map[uint32]bool               // excluded tables that were logged
}

type userType struct {
	name string
	kind byte
	def  *datum.Type
}

func newRelations(opt Options, tables []Table, side func(context.Context, func(*pgx.Conn) error) error) relations {
	r := relations{
		opt:     opt,
		tables:  map[uint32]*Table{},
		names:   map[millrace.TableName]uint32{},
		side:    side,
		known:   map[uint32]*millrace.Relation{},
		sent:    map[uint32]millrace.TableName{},
		types:   map[uint32]userType{},
		noticed: map[uint32]bool{},
	}
	for _, t := range tables {
		r.tables[t.OID] = &t
		r.names[t.Name] = t.OID
	}
	return r
}

// get gives the relation of a change, nil if it is to be passed over.
func (r *relations) get(oid uint32) (*millrace.Relation, error) {
	if oid == r.oid && oid != 0 {
		return r.rel, nil
	}
	rel, ok := r.known[oid]
	if !ok {
		return nil, fmt.Errorf("%w: change of relation %d, which was not described", pgoutput.ErrMalformed, oid)
	}
	r.oid, r.rel = oid, rel
	return rel, nil
}

// named gives the relation if it is known and not passed over.
func (r *relations) named(oid uint32) *millrace.Relation { return r.known[oid] }

func (r *relations) nameType(t pgoutput.Type) {
	r.sent[t.OID] = millrace.TableName{Schema: t.Schema, Name: t.Name}
}

// add judges a description and remembers it. One that is the same as before
// keeps the pointer.
func (r *relations) add(ctx context.Context, rel *millrace.Relation) error {
	r.oid = 0
	t := r.tables[rel.OID]
	if t == nil {
		return r.outside(ctx, rel)
	}
	if err := r.nameColumns(ctx, rel); err != nil {
		return err
	}
	if old := r.known[rel.OID]; old != nil && same(old, rel) {
		return nil
	}
	if shape := catalog.ShapeOfRelation(rel); shape != t.Shape {
		if err := r.reshaped(ctx, t, rel, shape); err != nil {
			return err
		}
	}
	r.known[rel.OID] = rel
	return nil
}

func same(a, b *millrace.Relation) bool {
	return a.OID == b.OID && a.Name == b.Name && a.Identity == b.Identity &&
		slices.Equal(a.Columns, b.Columns) && slices.Equal(a.Key, b.Key)
}

// outside judges a relation that is not in the set.
func (r *relations) outside(ctx context.Context, rel *millrace.Relation) error {
	_, recreated := r.names[rel.Name]
	if !included(r.opt.Match, rel.Name, recreated) {
		r.known[rel.OID] = nil
		if !r.noticed[rel.OID] {
			r.noticed[rel.OID] = true
			r.opt.Log.Info("changes of a table that the patterns exclude are passed over", "table", rel.Name)
		}
		return nil
	}
	if done, err := r.changing(ctx, rel); done || err != nil {
		return err
	}
	why := errors.New("is included by the patterns, but not in the job's set of tables, so it was never copied")
	if recreated {
		why = errors.New("was dropped and created anew since it was copied")
	}
	return &millrace.Error{
		Kind:  millrace.KindData,
		Op:    "stream",
		Peer:  millrace.PeerSource,
		Table: rel.Name,
		Err:   why,
		Hint:  fmt.Sprintf("exclude it with the pattern '!%v', or %s", rel.Name, restartHint),
	}
}

// changing looks whether the set of tables is just being changed. One that is being
// added is waited for; of one that has left the publication nothing more comes
// than what is on its way. So it is with one that was dropped, also if another one of
// its name is in the set by now.
func (r *relations) changing(ctx context.Context, rel *millrace.Relation) (left bool, err error) {
	if r.opt.Recorded != nil {
		tables, err := r.opt.Recorded(ctx)
		if err != nil {
			return false, err
		}
		for _, t := range tables {
			if t.OID != rel.OID {
				continue
			}
			if t.Adding {
				return false, &millrace.Error{Kind: millrace.KindRetry, Op: "stream", Peer: millrace.PeerSource, Table: rel.Name, Condition: "changing_tables",
					Err:  errors.New("it is being taken into the job's set, or out of it"),
					Hint: "if millrace table add, or drop, was interrupted, run it again"}
			}
			return false, &millrace.Error{Kind: millrace.KindRetry, Op: "stream", Peer: millrace.PeerSource, Table: rel.Name,
				Err: fmt.Errorf("it is taken into the job's set: %w", millrace.ErrStartAnew)}
		}
	}
	published := true
	err = r.side(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_publication_tables p
			JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
			JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
			WHERE p.pubname = $1 AND c.oid = $2::pg_catalog.oid)`, r.opt.Publication, int64(rel.OID)).Scan(&published)
	})
	if err == nil && !published {
		r.known[rel.OID] = nil
	}
	return !published, err
}

// included applies the patterns; without any, the answer is the fallback.
func included(match func(millrace.TableName) bool, name millrace.TableName, fallback bool) bool {
	if match == nil {
		return fallback
	}
	return match(name)
}

// reshaped judges a table whose columns are not those of the record. If its
// storage is another one as well, the change of definition has rewritten the
// rows, and the stream does not say to what.
func (r *relations) reshaped(ctx context.Context, t *Table, rel *millrace.Relation, shape string) error {
	var filenode uint32
	err := r.side(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT COALESCE(pg_catalog.pg_relation_filenode($1::pg_catalog.oid), 0)::int8", int64(t.OID)).Scan(&filenode)
	})
	if err != nil {
		return err
	}
	if filenode != t.Filenode {
		why := "was rewritten when its columns changed; the rewrite is not in the stream"
		if filenode == 0 {
			why = "has other columns than the copied ones and was dropped since, so that nobody can tell whether it was rewritten"
		}
		return &millrace.Error{
			Kind:  millrace.KindData,
			Op:    "stream",
			Peer:  millrace.PeerSource,
			Table: rel.Name,
			Err:   errors.New(why),
			Hint:  restartHint,
		}
	}
	changed := Table{OID: t.OID, Name: rel.Name, Filenode: filenode, Shape: shape}
	if r.opt.OnShape != nil {
		if err := r.opt.OnShape(ctx, changed); err != nil {
			return err
		}
	}
	*t = changed
	return nil
}

// nameColumns sets name and kind of the columns' user types.
func (r *relations) nameColumns(ctx context.Context, rel *millrace.Relation) error {
	missing := map[uint32]bool{}
	for i := range rel.Columns {
		if oid := rel.Columns[i].Type; oid >= firstUserOID {
			if _, ok := r.types[oid]; !ok {
				missing[oid] = true
			}
		}
	}
	if len(missing) > 0 {
		err := r.side(ctx, func(conn *pgx.Conn) error {
			return r.lookUp(ctx, conn, slices.Sorted(maps.Keys(missing)))
		})
		if err != nil {
			return err
		}
	}
	for i := range rel.Columns {
		if c := &rel.Columns[i]; c.Type >= firstUserOID {
			t := r.types[c.Type]
			c.TypeName, c.TypeKind = t.name, t.kind
			if t.def != nil {
				c.Def = t.def
			}
		}
	}
	return nil
}

// lookUp reads types from the catalog. One that is gone keeps the name that the
// stream gave it, which for a domain would be that of the type beneath.
func (r *relations) lookUp(ctx context.Context, q catalog.Querier, oids []uint32) error {
	types, err := catalog.ReadTypes(ctx, q, oids)
	if err != nil {
		return err
	}
	for _, oid := range oids {
		switch t, sent := types[oid], r.sent[oid]; {
		case t != nil:
			name := millrace.TableName{Schema: t.Schema, Name: t.Name}.String()
			r.types[oid] = userType{name: name, kind: t.Kind, def: t.Datum()}
		case sent != millrace.TableName{}:
			r.types[oid] = userType{name: sent.String()}
		default:
			r.types[oid] = userType{}
		}
	}
	return nil
}

// prepare looks up the user types of the set's tables in one go, so that their
// first descriptions need no connection of their own.
func (r *relations) prepare(ctx context.Context, q catalog.Querier) error {
	if len(r.tables) == 0 {
		return nil
	}
	rows, err := q.Query(ctx, `SELECT DISTINCT atttypid::int8 FROM pg_catalog.pg_attribute
		WHERE attrelid = ANY ($1::pg_catalog.oid[]) AND attnum > 0 AND NOT attisdropped AND atttypid >= $2::int8::pg_catalog.oid`,
		slices.Sorted(maps.Keys(r.tables)), int64(firstUserOID))
	if err != nil {
		return err
	}
	oids, err := pgx.CollectRows(rows, pgx.RowTo[uint32])
	if err != nil || len(oids) == 0 {
		return err
	}
	return r.lookUp(ctx, q, oids)
}
