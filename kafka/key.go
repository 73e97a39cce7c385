package kafka

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
)

// TableFacts are what the source's catalog says of a table and the stream does
// not.
type TableFacts struct {
	// PrimaryKey names the columns of the primary key; none: there is none.
	PrimaryKey []string
	// Loose names the columns whose collation is nondeterministic: values that
	// are equal there may differ in their bytes.
	Loose []string
}

func (o *Options) facts(rel *millrace.Relation) *TableFacts {
	if o.Facts == nil {
		return nil
	}
	return o.Facts(rel)
}

// key decides which columns of a relation make the key of its records: those
// that were chosen by name, else those that the relation flags as its replica
// identity.
//
// Under REPLICA IDENTITY FULL every column is flagged, which makes no key, and
// the primary key is not in the stream. What the catalog says of it today may not
// have held for the changes that come now: rows that were distinct then would
// get one key. So the key stays what it was: at first the primary key under the
// snapshot of the first load, then what is pinned in the control topic.
func (o *Options) key(rel *millrace.Relation, d *dest) ([]int, error) {
	facts := o.facts(rel)
	names := o.Keys[rel.Name]
	switch {
	case names != nil:
		if d.key != nil && !slices.Equal(d.key, names) {
			return nil, keyError(rel, fmt.Errorf("its records have the key (%s), and keys asks for (%s): one row would have two keys",
				strings.Join(d.key, ", "), strings.Join(names, ", ")),
				fmt.Sprintf("set keys: {%s: [%s]}, or start over with `millrace bootstrap --restart-snapshot --yes`", rel.Name, strings.Join(d.key, ", ")))
		}
	case rel.Identity == millrace.IdentityNothing:
		return nil, nil
	case rel.Identity != millrace.IdentityFull:
		return rel.Key, o.together(rel, rel.Key, d, facts)
	case d.key != nil:
		names = d.key
		if len(names) > 0 && facts != nil && !sameNames(names, facts.PrimaryKey) {
			return nil, keyError(rel, fmt.Errorf("its primary key is no longer (%s), and under REPLICA IDENTITY FULL the stream does not say since when: "+
				"rows that differ could have got one key", strings.Join(names, ", ")),
				fmt.Sprintf("set keys: {%s: [%s]} to stay with the key that the records have, or start over with "+
					"`millrace bootstrap --restart-snapshot --yes`", rel.Name, strings.Join(names, ", ")))
		}
	case facts != nil:
		names = facts.PrimaryKey
	}
	key := make([]int, 0, len(names))
	for _, n := range names {
		i := slices.IndexFunc(rel.Columns, func(c millrace.Column) bool { return c.Name == n })
		switch {
		case i < 0:
			return nil, keyError(rel, fmt.Errorf("column %s of the key of its records is not in the stream", millrace.DisplayIdent(n)),
				"publish the column, or name another key with keys: and start over with `millrace bootstrap --restart-snapshot --yes`")
		case !slices.Contains(rel.Key, i):
			return nil, keyError(rel, fmt.Errorf("column %s is not part of its replica identity, so that a delete would not say which key is gone",
				millrace.DisplayIdent(n)), "ALTER TABLE "+rel.Name.SQL()+" REPLICA IDENTITY FULL on the source")
		}
		key = append(key, i)
	}
	return key, o.together(rel, key, d, facts)
}

// together makes sure that keys which are equal at the source go to one
// partition.
func (o *Options) together(rel *millrace.Relation, key []int, d *dest, facts *TableFacts) error {
	if d.partitions < 2 || facts == nil {
		return nil
	}
	for _, k := range key {
		if name := rel.Columns[k].Name; slices.Contains(facts.Loose, name) {
			return keyError(rel, fmt.Errorf("%s and topic %s has %d partitions", LooseKey(name), d.name, d.partitions),
				"use a topic with one partition (destination.kafka.partitions, topics), or another key with keys:")
		}
	}
	return nil
}

// LooseKey says what is wrong with a column of a nondeterministic collation in
// the key of a topic with several partitions.
func LooseKey(column string) string {
	return fmt.Sprintf("column %s of its key has a nondeterministic collation: equal keys that are written with other bytes would go to other partitions, "+
		"without order between them,", millrace.DisplayIdent(column))
}

func keyError(rel *millrace.Relation, err error, hint string) error {
	return &millrace.Error{Kind: millrace.KindData, Op: "choose the record key", Peer: millrace.PeerDestination, Table: rel.Name, Err: err, Hint: hint}
}

func sameNames(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

func namesOf(rel *millrace.Relation, key []int) []string {
	names := make([]string, len(key))
	for i, k := range key {
		names[i] = rel.Columns[k].Name
	}
	return names
}
