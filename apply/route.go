package apply

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
)

// route is how the changes of one Relation reach their target table: which
// column goes where, how rows are found, and what may be done in sets.
type route struct {
	rel *millrace.Relation
	to  *target

	// source holds for each column of the target the column of the relation
	// that is written to it, or -1.
	source []int
	// column holds for each column of the relation that of the target.
	column []*catalog.Column
	// Columns of the relation, by their indexes:
	insert []int // written by an INSERT: all but those that the target generates
	set    []int // written by an UPDATE that leaves the key as it is
	fixed  []int // GENERATED ALWAYS AS IDENTITY outside the key: an UPDATE can't write them
	key    []int // by which rows are found

	index *catalog.Index // of the target over the key columns, or nil
	equal []string       // the equality operator of each key column
	// image: there is no index to find rows by, so they are compared byte by
	// byte in the key columns, which under FULL are all.
	image    bool
	one      bool  // several rows may be equal: only one of them is meant
	prefer   []int // key columns that an index can narrow the search with
	preferEq []string
	blind    bool // no row can be found: an update or delete is a stop
	keyFixed bool // a key column is GENERATED ALWAYS AS IDENTITY at the target
	// partial: the target has columns that the stream does not send, so that
	// an update of a row and its replacement are not the same.
	partial bool
	sets    bool // updates and deletes may go as sets
	puts    bool // rows may be put: it was looked at
	binary  bool // values may come in binary form
	why     string
	// askAfter is after how many changes the planner is asked again, since it
	// does not search the index; 0: it does. since counts them.
	askAfter, since int

	statements
}

// newRoute ties a relation to its target.
func newRoute(rel *millrace.Relation, to *target) (*route, error) {
	r := &route{rel: rel, to: to, source: make([]int, len(to.Columns)),
		column: make([]*catalog.Column, len(rel.Columns)), binary: true}
	for i := range r.source {
		r.source[i] = -1
	}
	for i := range rel.Columns {
		if err := r.tie(i); err != nil {
			return nil, err
		}
	}
	for i := range to.Columns {
		if r.source[i] < 0 && to.Columns[i].Generated == 0 {
			r.partial = true
		}
	}
	r.findKey()
	for _, i := range r.insert {
		c := r.column[i]
		switch {
		case slices.Contains(r.key, i) && !r.image:
			r.keyFixed = r.keyFixed || c.Identity == 'a'
		case c.Identity == 'a':
			r.fixed = append(r.fixed, i)
		default:
			r.set = append(r.set, i)
		}
	}
	r.why = r.notInSets()
	r.sets = r.why == ""
	return r, nil
}

// tie ties column i of the relation to the target's column of that name.
func (r *route) tie(i int) error {
	sent := &r.rel.Columns[i]
	at := slices.IndexFunc(r.to.Columns, func(c catalog.Column) bool { return c.Name == sent.Name })
	if at < 0 {
		e := dataError(r.to.Name, fmt.Errorf("no such column at the destination"), "") // the router knows the type
		e.Column = sent.Name
		return e
	}
	c := &r.to.Columns[at]
	r.column[i] = c
	if c.Generated != 0 {
		return nil // the target computes it
	}
	r.source[at] = i
	r.insert = append(r.insert, i)
	r.binary = r.binary && binarySafe(sent, c)
	return nil
}

// firstUserOID is the first OID that a type of a user can have; the lower ones
// are the same everywhere.
const firstUserOID = 16384

// binarySafe tells whether the binary form of a sent column means the same to
// the target's. Of a user type the source says only what kind it is: the values
// of enums are sent by their names, others in forms that depend on more.
func binarySafe(sent *millrace.Column, c *catalog.Column) bool {
	if sent.Type >= firstUserOID {
		return sent.TypeKind == 'e' && c.Type.Resolved().Kind == 'e'
	}
	return sent.Type == c.Type.Resolved().OID && catalog.BinarySafe(&c.Type, &c.Type)
}

// findKey chooses how rows are found. What counts is what the relation flags as
// its identity; only under FULL, where the whole old row comes, is a key of the
// target as good.
func (r *route) findKey() {
	full := r.rel.Identity == millrace.IdentityFull
	switch {
	case full:
		r.fullKey()
	case len(r.rel.Key) == 0:
		r.blind = true
	default:
		r.key = r.rel.Key
		names := make([]string, len(r.key))
		for i, k := range r.key {
			names[i] = r.rel.Columns[k].Name
		}
		r.useIndex(r.to.MatchIndex(names))
	}
	if r.key == nil && full {
		r.key, r.one = r.insert, true
	}
	if r.index == nil && !r.blind {
		r.image = true
		r.findPrefer()
	}
}

// fullKey looks for a key of the target that the relation sends.
func (r *route) fullKey() {
	for i := range r.to.Indexes {
		x := &r.to.Indexes[i]
		key := make([]int, 0, len(x.Columns))
		names := make([]string, 0, len(x.Columns))
		for _, num := range x.Columns {
			at := slices.IndexFunc(r.to.Columns, func(c catalog.Column) bool { return c.AttNum == num })
			if at >= 0 && r.source[at] >= 0 {
				key = append(key, r.source[at])
				names = append(names, r.to.Columns[at].Name)
			}
		}
		if len(key) == 0 || len(key) != len(x.Columns) || r.to.MatchIndex(names) == nil || !r.to.NotNull(x) {
			continue
		}
		r.key = key
		if r.useIndex(r.to.MatchIndex(names)); r.index != nil {
			return // the primary key comes first
		}
		r.key = nil
	}
}

// useIndex takes the operators for r.key from the index, if it can be used.
func (r *route) useIndex(x *catalog.Index) {
	if x == nil {
		return
	}
	equal := make([]string, len(r.key))
	for i, k := range r.key {
		n := slices.Index(x.Columns, r.column[k].AttNum)
		if !usable(x, n, r.column[k]) {
			return
		}
		equal[i] = operator(x.Operators[n])
	}
	r.index, r.equal = x, equal
}

// usable tells whether a comparison with the column's own collation can use
// column n of the index.
func usable(x *catalog.Index, n int, c *catalog.Column) bool {
	return n >= 0 && x.Operators[n].Name != "" && x.Collations[n] == c.Collation
}

func operator(o catalog.Operator) string {
	return "OPERATOR(" + millrace.QuoteIdent(o.Schema) + "." + o.Name + ")"
}

// findPrefer looks for an index whose first columns narrow the search for a row
// that is compared as a whole.
func (r *route) findPrefer() {
	for i := range r.to.Indexes {
		x := &r.to.Indexes[i]
		if !x.Valid || x.Partial || x.Method != "btree" && x.Method != "hash" {
			continue
		}
		var prefer []int
		var equal []string
		for n, num := range x.Columns {
			at := slices.IndexFunc(r.to.Columns, func(c catalog.Column) bool { return c.AttNum == num })
			if at < 0 || !r.to.Columns[at].NotNull || !slices.Contains(r.key, r.source[at]) || !usable(x, n, &r.to.Columns[at]) {
				break
			}
			prefer = append(prefer, r.source[at])
			equal = append(equal, operator(x.Operators[n]))
		}
		if len(prefer) > len(r.prefer) && (x.Method == "btree" || len(prefer) == len(x.Columns)) {
			r.prefer, r.preferEq = prefer, equal
		}
	}
}

// notInSets says why updates and deletes of this relation go row by row.
func (r *route) notInSets() string {
	switch {
	case r.to.strict:
		return "triggers or foreign keys at the destination act on it"
	case r.to.single != "":
		return r.to.single
	case r.blind:
		return "it has no replica identity"
	case r.image:
		return "the destination has no unique index on " + r.keyNames()
	case len(r.insert) == 0:
		return "it has no columns"
	}
	for _, k := range r.key {
		if r.column[k].Generated != 0 {
			return "the destination generates its key"
		}
	}
	return ""
}

func (r *route) keyNames() string {
	names := make([]string, len(r.key))
	for i, k := range r.key {
		names[i] = millrace.DisplayIdent(r.rel.Columns[k].Name)
	}
	return "(" + strings.Join(names, ", ") + ")"
}
