package backfill

import (
	"github.com/millrace/millrace"
)

// A table that is read again keeps its rows as they are until all of the new ones are
// at the destination: they are loaded into a table of their own, the staging table, by
// the same rules as any other, and what passes of the stream goes there as well. In
// the end, in one transaction, the differences are written to the table itself.

// redirect has changes go to the staging table where the table's rows are staged.
func (s *Source) redirect(changes []millrace.Change) {
	if s.opt.Staging == nil {
		return
	}
	for i := range changes {
		c := &changes[i]
		if c.Op == millrace.Truncate {
			for n, rel := range c.Truncated.Rels {
				c.Truncated.Rels[n] = s.stagedFor(rel)
			}
		} else if c.Rel != nil {
			c.Rel = s.stagedFor(c.Rel)
		}
	}
}

// stagedFor gives the relation of the staging table for that of the table, or just
// that.
func (s *Source) stagedFor(rel *millrace.Relation) *millrace.Relation {
	l := s.loads[rel.OID]
	if l == nil || !l.replace {
		return rel
	}
	if r := l.staged[rel]; r != nil {
		return r
	}
	if l.staged == nil {
		l.staged = map[*millrace.Relation]*millrace.Relation{}
	}
	r := *rel
	r.OID, r.Name = 0, s.opt.Staging(l.oid) // no table of the job
	l.staged[rel] = &r
	return &r
}

// merged ends the load of a table whose rows are staged.
func (s *Source) merged(l *load) []millrace.Change {
	if s.opt.Staging == nil || !l.replace {
		return nil
	}
	return []millrace.Change{{Op: millrace.Merge, Seq: 1, Rel: l.table.Rel}}
}
