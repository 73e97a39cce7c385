package capture

import (
	"fmt"
	"maps"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/pgoutput"
)

// judge knows relations as the record has them.
type judge struct {
	tables map[uint32]Table
	types  map[uint32]userType
	match  func(millrace.TableName) bool
	names  map[millrace.TableName]uint32
	known  map[uint32]*millrace.Relation // nil: passed over
}

// judge gives what can be asked from another goroutine.
func (r *relations) judge() judge {
	j := judge{tables: make(map[uint32]Table, len(r.tables)), types: maps.Clone(r.types), match: r.opt.Match, names: r.names,
		known: map[uint32]*millrace.Relation{}}
	for oid, t := range r.tables {
		j.tables[oid] = *t
	}
	return j
}

// add takes a relation that is as the record has it.
func (j *judge) add(rel *millrace.Relation) error {
	t, ok := j.tables[rel.OID]
	if !ok {
		if _, recreated := j.names[rel.Name]; included(j.match, rel.Name, recreated) {
			return fmt.Errorf("%w: table %v is not in the job's set", errNotAhead, rel.Name)
		}
		j.known[rel.OID] = nil
		return nil
	}
	for i := range rel.Columns {
		c := &rel.Columns[i]
		if c.Type < firstUserOID {
			continue
		}
		u, ok := j.types[c.Type]
		if !ok {
			return fmt.Errorf("%w: column %s of table %v has a new type", errNotAhead, c.Name, rel.Name)
		}
		c.TypeName, c.TypeKind = u.name, u.kind
		if u.def != nil {
			c.Def = u.def
		}
	}
	if rel.Name != t.Name || catalog.ShapeOfRelation(rel) != t.Shape {
		return fmt.Errorf("%w: table %v has a new name or shape", errNotAhead, rel.Name)
	}
	if old := j.known[rel.OID]; old == nil || !same(old, rel) {
		j.known[rel.OID] = rel
	}
	return nil
}

// counted counts changes by table, for those who count what passes: of a transaction
// that is applied ahead nothing does but its commit.
type counted struct {
	tables map[uint32]*millrace.Tally
	last   *millrace.Tally
}

func (c *counted) table(rel *millrace.Relation) *millrace.Tally {
	if c.last != nil && c.last.Rel.OID == rel.OID {
		return c.last
	}
	if c.last = c.tables[rel.OID]; c.last == nil {
		if c.tables == nil {
			c.tables = map[uint32]*millrace.Tally{}
		}
		c.last = &millrace.Tally{Rel: rel}
		c.tables[rel.OID] = c.last
	}
	return c.last
}

func (c *counted) add(rel *millrace.Relation, tag pgoutput.Tag, bytes int64) {
	t := c.table(rel)
	t.Bytes += bytes
	switch tag {
	case pgoutput.TagInsert:
		t.Inserts++
	case pgoutput.TagUpdate:
		t.Updates++
	default:
		t.Deletes++
	}
}

// take adds what another has counted.
func (c *counted) take(o *counted) {
	for _, more := range o.tables {
		t := c.table(more.Rel)
		t.Inserts += more.Inserts
		t.Updates += more.Updates
		t.Deletes += more.Deletes
		t.Bytes += more.Bytes
	}
}

func (c *counted) tallies() []millrace.Tally {
	all := make([]millrace.Tally, 0, len(c.tables))
	for _, t := range c.tables {
		all = append(all, *t)
	}
	return all
}
