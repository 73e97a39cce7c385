package capture

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
)

// A changed file node proves a rewrite only if it is known from when the
// columns were still the same: TRUNCATE, VACUUM FULL and CLUSTER change it too.
// So the source is looked at now and then, and what is seen is taken over once
// the stream has passed the moment of looking with the columns that were seen.
// Had a change of definition rewritten the table before that moment, the
// columns would be others.
const (
	lookEvery         = 10 * time.Minute
	lookAfterTruncate = 5 * time.Second // at most that often
)

// sighting is what a look at the source found changed.
type sighting struct {
	tables []Table
	at     millrace.LSN // the source's position after the look
}

// look finds tables whose file node is not the one given. It updates those.
func look(ctx context.Context, q catalog.Querier, filenodes map[uint32]uint32) (*sighting, error) {
	oids := make([]uint32, 0, len(filenodes))
	for oid := range filenodes {
		oids = append(oids, oid)
	}
	rows, err := q.Query(ctx, `SELECT c.oid::int8, pg_catalog.pg_relation_filenode(c.oid)::int8 FROM pg_catalog.pg_class c
		WHERE c.oid = ANY ($1::pg_catalog.oid[]) AND pg_catalog.pg_relation_filenode(c.oid) IS NOT NULL`, oids)
	if err != nil {
		return nil, err
	}
	var oid, filenode uint32
	var changed []uint32
	_, err = pgx.ForEachRow(rows, []any{&oid, &filenode}, func() error {
		if filenodes[oid] != filenode {
			changed = append(changed, oid)
		}
		return nil
	})
	if err != nil || len(changed) == 0 {
		return nil, err
	}
	tables, err := catalog.Describe(ctx, q, changed)
	if err != nil {
		return nil, err
	}
	s := &sighting{}
	for oid, t := range tables {
		s.tables = append(s.tables, Table{OID: oid, Name: t.Name, Filenode: t.Filenode, Shape: catalog.ShapeOf(t)})
		filenodes[oid] = t.Filenode
	}
	s.at, err = catalog.Position(ctx, q)
	return s, err
}

// filenodes are those of the record.
func filenodes(tables []Table) map[uint32]uint32 {
	m := make(map[uint32]uint32, len(tables))
	for _, t := range tables {
		m[t.OID] = t.Filenode
	}
	return m
}

// watch looks at the source every ten minutes, and soon after a TRUNCATE.
func (f *feed) watch(seen map[uint32]uint32) {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-timer.C:
		case <-f.truncated:
			timer.Reset(lookAfterTruncate)
			continue
		}
		timer.Reset(lookEvery)
		err := f.side(f.ctx, func(conn *pgx.Conn) error {
			s, err := look(f.ctx, conn, seen)
			if s != nil && err == nil {
				select {
				case f.sightings <- s:
				case <-f.ctx.Done():
				}
			}
			return err
		})
		if err != nil && f.ctx.Err() == nil {
			// Nothing is lost: at worst a later change of definition is taken
			// for a rewrite.
			f.src.log.Debug("look at the tables of the source", "cause", err)
		}
	}
}

// passed takes over what was seen, once the stream is at the position.
func (f *feed) passed(position millrace.LSN) error {
	if f.sighting == nil {
		select {
		case f.sighting = <-f.sightings:
		default:
			return nil
		}
	}
	if position < f.sighting.at {
		return nil
	}
	s := f.sighting
	f.sighting = nil
	return f.rels.sighted(f.ctx, s.tables)
}

// sighted records new file nodes of tables whose columns are the same.
func (r *relations) sighted(ctx context.Context, tables []Table) error {
	for _, s := range tables {
		t := r.tables[s.OID]
		if t == nil || t.Shape != s.Shape || t.Filenode == s.Filenode {
			continue
		}
		changed := *t
		changed.Filenode = s.Filenode
		if r.opt.OnShape != nil {
			if err := r.opt.OnShape(ctx, changed); err != nil {
				return err
			}
		}
		*t = changed
	}
	return nil
}
