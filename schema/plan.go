package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Statement creates or completes one object.
type Statement struct {
	Object string // for errors and progress: "table shop.customer"
	SQL    string
}

// Difference is something that stands in the way, or that is left out.
type Difference struct {
	Object, Text string
}

func (d Difference) String() string { return d.Object + ": " + d.Text }

// Target says what the definitions are made for.
type Target struct {
	Major int
	// Replica tells whether the sessions that write can set
	// session_replication_role. Where they can't, foreign keys are made
	// deferrable, since they are checked while changes are applied.
	Replica bool
	Catalog Querier
}

// Plan is what has to be executed on the target.
type Plan struct {
	Before   []Statement   // in one transaction, before rows are copied
	Indexes  [][]Statement // after it; groups can run side by side
	Keys     []Statement   // foreign keys, not validated
	Validate []Statement
	Kept     []string // objects that the target has already
	Notes    []Difference
	Problems []Difference

	mu     sync.Mutex
	states map[Statement]int // of statements after the copy
}

// planner is the state of making a Plan.
type planner struct {
	*Definitions
	Plan
	inv    *inventory
	target Target
	kept   map[int]bool // by dump id
	groups map[int]int  // index into Indexes, by the dump id of a tree's root
}

// Plan compares the definitions with what the target has.
func (d *Definitions) Plan(ctx context.Context, source Querier, target Target) (*Plan, error) {
	inv, err := takeInventory(ctx, d.entries, source, target.Catalog)
	if err != nil {
		return nil, err
	}
	p := &planner{Definitions: d, inv: inv, target: target, kept: map[int]bool{}, groups: map[int]int{}}
	for i := range d.entries {
		if e := &d.entries[i]; e.desc != "FK CONSTRAINT" && !p.describesKey(e) {
			p.place(e)
		}
	}
	if err := p.foreignKeys(ctx, source); err != nil {
		return nil, err
	}
	return &p.Plan, nil
}

// place decides about one entry.
func (p *planner) place(e *entry) {
	if p.isKept(e) {
		p.kept[e.id] = true
		return
	}
	sql, note, problem := adapt(e, p.target.Major)
	s := Statement{Object: e.title(), SQL: strings.TrimSpace(sql)}
	switch {
	case problem != "":
		p.Problems = append(p.Problems, Difference{s.Object, problem})
	case sql == "":
		p.kept[e.id] = true // so that its comment is left out as well
		p.Notes = append(p.Notes, Difference{s.Object, note})
	case e.section == sectionPostData || p.describesPostData(e):
		root := p.root(e)
		n, ok := p.groups[root]
		if !ok {
			n = len(p.Indexes)
			p.groups[root] = n
			p.Indexes = append(p.Indexes, nil)
		}
		p.Indexes[n] = append(p.Indexes[n], s)
	default:
		p.Before = append(p.Before, s)
	}
}

// describesKey tells whether an entry is the comment on a foreign key, which may
// be left out.
func (p *planner) describesKey(e *entry) bool {
	return e.desc == "COMMENT" && len(e.deps) > 0 && p.byID[e.deps[0]] != nil && p.byID[e.deps[0]].desc == "FK CONSTRAINT"
}

// describesPostData tells whether a comment has to wait for its index.
func (p *planner) describesPostData(e *entry) bool {
	return e.desc == "COMMENT" && slices.ContainsFunc(e.deps, func(id int) bool {
		return p.byID[id] != nil && p.byID[id].section == sectionPostData
	})
}

// isKept tells whether the target has the entry's object already. If it is
// another one under the same name, that becomes a problem.
func (p *planner) isKept(e *entry) bool {
	if e.desc == "SCHEMA" && e.tag == "public" || p.belongsToKept(e) {
		return true
	}
	source := p.inv.source[[2]uint32{e.class, e.oid}]
	if source == nil {
		return false
	}
	target := p.inv.counterpart(source)
	if target == nil {
		return false
	}
	if diffs := differences(source, target); len(diffs) > 0 {
		for _, text := range diffs {
			p.Problems = append(p.Problems, Difference{e.title(), text})
		}
	}
	p.Kept = append(p.Kept, e.title())
	return true
}

// partOf lists the kinds of entries that complete another one: they are there
// when that one is.
var partOf = map[string]bool{
	"COMMENT":           true,
	"DEFAULT":           true,
	"SEQUENCE OWNED BY": true,
	"TABLE ATTACH":      true, // names the partition first
}

func (p *planner) belongsToKept(e *entry) bool {
	if len(e.deps) == 0 {
		return false
	}
	if partOf[e.desc] {
		return p.kept[e.deps[0]]
	}
	if e.desc == "INDEX ATTACH" {
		return !slices.ContainsFunc(e.deps, func(id int) bool {
			return !p.kept[id] && p.byID[id] != nil && p.byID[id].section == sectionPostData
		})
	}
	return e.desc == "SEQUENCE" && strings.HasPrefix(e.defn, "ALTER TABLE") && // an identity's
		slices.ContainsFunc(e.deps, func(id int) bool {
			return p.kept[id] && p.byID[id].desc == "TABLE"
		})
}

// root gives the table at the top of the partition or inheritance tree that an
// entry belongs to: statements on one tree take each other's locks.
func (p *planner) root(e *entry) int {
	at := e
	for range len(p.entries) {
		next := at
		for _, id := range at.deps {
			if dep := p.byID[id]; dep != nil && (dep.desc == "TABLE" || next == at && dep.desc == "INDEX") {
				next = dep
			}
		}
		if next == at {
			break
		}
		at = next
	}
	return at.id
}

// title names an entry as in "table shop.customer". For what has no name of its
// own, such as a default, the tag says what it belongs to.
func (e *entry) title() string {
	name := e.tag
	if e.namespace != "" {
		name = e.namespace + "." + name
	}
	return strings.ToLower(e.desc) + " " + oneLine(name)
}

// oneLine keeps line breaks in names out of errors and logs.
func oneLine(s string) string { return strings.Join(strings.FieldsFunc(s, isBreak), " ") }

func isBreak(r rune) bool { return r == '\n' || r == '\r' }

// Describe gives the statements before and after the copy as scripts, for people.
func (p *Plan) Describe() (before, after string) {
	after = script("indexes and constraints", slices.Concat(p.Indexes...)) +
		script("foreign keys", p.Keys) +
		script("validation of foreign keys", p.Validate)
	return script("definitions", p.Before), after
}

func script(title string, statements []Statement) string {
	if len(statements) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "-- %s\n", title)
	for _, s := range statements {
		b.WriteString(s.SQL + "\n")
	}
	return b.String()
}
