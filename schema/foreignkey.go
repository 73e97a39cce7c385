package schema

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
)

// foreignKey is a foreign key as the source's catalog describes it.
type foreignKey struct {
	oid, rel    uint32
	name        string
	table       millrace.TableName
	references  millrace.TableName
	partitioned bool // the table that has it is
	def         string
	onDelete    string
	onUpdate    string
	validated   bool
	enforced    bool
	complete    bool // all referenced rows are copied
}

const foreignKeys = `
WITH leaves AS (
	SELECT c.oid AS con, coalesce(l.relid, c.confrelid) AS rel
	  FROM pg_constraint c
	  LEFT JOIN LATERAL (SELECT t.relid::oid FROM pg_partition_tree(c.confrelid) t WHERE t.isleaf) l
	    ON (SELECT r.relkind = 'p' FROM pg_class r WHERE r.oid = c.confrelid)
	 WHERE c.oid = ANY($1::oid[])
)
SELECT c.oid, c.conrelid, c.conname::text, n.nspname::text, r.relname::text, fn.nspname::text, f.relname::text,
       r.relkind = 'p', pg_get_constraintdef(c.oid), c.confdeltype::text, c.confupdtype::text, c.convalidated,
       coalesce((to_jsonb(c)->>'conenforced')::bool, true),
       NOT EXISTS (SELECT FROM leaves l WHERE l.con = c.oid AND l.rel <> ALL($2::oid[]))
  FROM pg_constraint c
  JOIN pg_class r ON r.oid = c.conrelid JOIN pg_namespace n ON n.oid = r.relnamespace
  JOIN pg_class f ON f.oid = c.confrelid JOIN pg_namespace fn ON fn.oid = f.relnamespace
 WHERE c.oid = ANY($1::oid[])`

func (p *planner) readForeignKeys(ctx context.Context, source Querier) (map[uint32]foreignKey, error) {
	var oids []uint32
	for _, e := range p.entries {
		if e.desc == "FK CONSTRAINT" {
			oids = append(oids, e.oid)
		}
	}
	rows, err := source.Query(ctx, foreignKeys, oids, slices.Collect(maps.Keys(p.tables)))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := map[uint32]foreignKey{}
	for rows.Next() {
		var k foreignKey
		if err := rows.Scan(&k.oid, &k.rel, &k.name, &k.table.Schema, &k.table.Name, &k.references.Schema, &k.references.Name,
			&k.partitioned, &k.def, &k.onDelete, &k.onUpdate, &k.validated, &k.enforced, &k.complete); err != nil {
			return nil, err
		}
		all[k.oid] = k
	}
	return all, rows.Err()
}

// foreignKeys plans those of the definitions' foreign keys that the target can
// keep: both ends are copied.
func (p *planner) foreignKeys(ctx context.Context, source Querier) error {
	keys, err := p.readForeignKeys(ctx, source)
	if err != nil {
		return session.Wrap("read foreign keys", millrace.PeerSource, err)
	}
	for i := range p.entries {
		e := &p.entries[i]
		k, ok := keys[e.oid]
		if e.desc != "FK CONSTRAINT" || !ok || !p.created[k.rel] {
			continue
		}
		switch {
		case !k.complete:
			p.note(e, "left out, since not all rows of "+k.references.String()+" are copied")
		case !k.enforced && p.target.Major < 18:
			p.note(e, "left out, since it is not enforced, which needs PostgreSQL 18")
		case strings.Contains(k.def, ", PERIOD ") && p.target.Major < 18:
			p.Problems = append(p.Problems, Difference{e.title(), "a foreign key over a PERIOD needs PostgreSQL 18 on the target"})
		default:
			p.placeKey(e, k)
		}
	}
	return nil
}

func (p *planner) note(e *entry, text string) {
	p.Notes = append(p.Notes, Difference{e.title(), text})
}

// placeKey plans one foreign key. It is added without a look at the rows and
// validated at the very end: other keys' rows may not be there yet.
func (p *planner) placeKey(e *entry, k foreignKey) {
	def := strings.TrimSuffix(k.def, " NOT VALID")
	if !p.target.Replica && k.enforced {
		if acts(k.onDelete) || acts(k.onUpdate) {
			p.Problems = append(p.Problems, Difference{e.title(),
				"it changes rows by itself (CASCADE, SET NULL or SET DEFAULT), and the target's role can't switch that off"})
			return
		}
		def = p.deferrable(e, k, def)
	}
	if p.hasKey(e, def) {
		p.Kept = append(p.Kept, e.title())
		return
	}
	table := "ALTER TABLE ONLY " + k.table.SQL()
	if k.partitioned {
		table = "ALTER TABLE " + k.table.SQL()
	}
	add := Statement{e.title(), table + " ADD CONSTRAINT " + millrace.QuoteIdent(k.name) + " " + def + ";"}
	switch {
	case !k.enforced:
		p.Keys = append(p.Keys, add)
	case k.partitioned && p.target.Major < 18:
		// Those of partitioned tables can't be NOT VALID before 18.
		p.Validate = append(p.Validate, add)
	default:
		add.SQL = strings.TrimSuffix(add.SQL, ";") + " NOT VALID;"
		p.Keys = append(p.Keys, add)
		if k.validated {
			p.Validate = append(p.Validate, Statement{e.title(),
				"ALTER TABLE " + k.table.SQL() + " VALIDATE CONSTRAINT " + millrace.QuoteIdent(k.name) + ";"})
		}
	}
	for i := range p.entries {
		if c := &p.entries[i]; p.describesKey(c) && c.deps[0] == e.id {
			p.Validate = append(p.Validate, Statement{c.title(), strings.TrimSpace(c.defn)})
		}
	}
}

// acts tells whether an action of a foreign key (pg_constraint.confdeltype)
// changes rows.
func acts(action string) bool { return action == "c" || action == "n" || action == "d" }

// deferrable makes a foreign key checkable at the end of a transaction. RESTRICT
// is never deferred; NO ACTION is the same rule at a later time.
func (p *planner) deferrable(e *entry, k foreignKey, def string) string {
	for _, a := range []struct{ code, text string }{
		{k.onUpdate, " ON UPDATE RESTRICT"}, {k.onDelete, " ON DELETE RESTRICT"},
	} {
		if i := strings.LastIndex(def, a.text); a.code == "r" && i >= 0 {
			def = def[:i] + def[i+len(a.text):]
			p.note(e, "made NO ACTION instead of RESTRICT, so that it can be deferred")
		}
	}
	if k.onDelete == "r" || k.onUpdate == "r" || !endsWith(lex(def), "DEFERRABLE") && !endsWith(lex(def), "INITIALLY", "DEFERRED") {
		def += " DEFERRABLE"
	}
	return def
}

// hasKey tells whether the target's table has the same foreign key, be it
// deferrable or not.
func (p *planner) hasKey(e *entry, def string) bool {
	source := p.inv.source[[2]uint32{e.class, e.oid}]
	if source == nil {
		return false
	}
	plain := func(s string) string {
		s = strings.TrimSuffix(s, " NOT VALID")
		s = strings.TrimSuffix(s, " INITIALLY DEFERRED")
		return strings.TrimSuffix(s, " DEFERRABLE")
	}
	for _, t := range p.inv.constraints[source.table] {
		if plain(t.traits["definition"]) == plain(def) {
			return true
		}
	}
	if t := p.inv.target[source.key()]; t != nil {
		p.Problems = append(p.Problems, Difference{e.title(),
			"is " + def + " on the source, " + t.traits["definition"] + " on the target"})
		return true
	}
	return false
}
