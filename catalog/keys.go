package catalog

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
)

// Keys are columns that were chosen instead of a table's primary key.
type Keys map[millrace.TableName][]string

// ParseKeys reads chosen keys: tables and columns are written as in a pattern,
// folded to lower case unless they are quoted. There is one error per table that
// is wrong.
func ParseKeys(texts map[string][]string) (Keys, []error) {
	keys := Keys{}
	var errs []error
	for _, table := range slices.Sorted(maps.Keys(texts)) {
		name, err := ParseTableName(table)
		var columns []string
		if err == nil {
			columns, err = parseColumns(texts[table])
		}
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", table, err))
		case keys[name] != nil:
			errs = append(errs, fmt.Errorf("%s: the table is named twice", table))
		default:
			keys[name] = columns
		}
	}
	return keys, errs
}

func parseColumns(texts []string) ([]string, error) {
	if len(texts) == 0 {
		return nil, errors.New("want a list of columns")
	}
	columns := make([]string, 0, len(texts))
	for _, text := range texts {
		parts, err := splitPattern(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", text, err)
		}
		name, ok := parts[0].literal()
		switch {
		case len(parts) > 1 || !ok || name == "":
			return nil, fmt.Errorf("column %q: want the name of one column", text)
		case slices.Contains(columns, name):
			return nil, fmt.Errorf("column %q is named twice", text)
		}
		columns = append(columns, name)
	}
	return columns, nil
}

// Distinct tells whether no two rows of the table can have the same values in
// these columns.
func (t *Table) Distinct(columns []string) bool {
	for i := range t.Indexes {
		x := &t.Indexes[i]
		if x.tellsApart() && t.NotNull(x) && !slices.ContainsFunc(x.Columns, func(n int16) bool {
			return !slices.Contains(columns, t.ByNum(n).Name)
		}) {
			return true
		}
	}
	return false
}

// Limits tells whether rows with different values in these columns can be refused
// together: whether there is a further unique index, or an exclusion constraint.
func (t *Table) Limits(columns []string) bool {
	return slices.ContainsFunc(t.Indexes, func(x Index) bool {
		return x.Exclusion || x.Unique && slices.ContainsFunc(columns, func(name string) bool {
			c := t.Column(name)
			return c == nil || !slices.Contains(x.Columns, c.AttNum)
		})
	})
}

// Sorts tells whether there is an index from which rows can be read in the order
// of these columns.
func (t *Table) Sorts(columns []string) bool {
	return slices.ContainsFunc(t.Indexes, func(x Index) bool {
		if !x.Valid || x.Partial || x.Method != "btree" || len(x.Columns) < len(columns) {
			return false
		}
		for k, name := range columns {
			c := t.Column(name)
			if c == nil || x.Columns[k] != c.AttNum || k < len(x.Collations) && x.Collations[k] != c.Collation {
				return false
			}
		}
		return true
	})
}

// Carries tells whether each change of the stream says which values of these
// columns the row had before. An UPDATE or DELETE has those of the replica
// identity; under FULL it has all, and a table without an identity gets nothing but
// INSERT.
func (t *Table) Carries(columns []string) bool {
	if t.Identity == millrace.IdentityFull {
		return true
	}
	identity := t.IdentityColumns()
	if len(identity) == 0 {
		return true
	}
	return len(identity) == len(columns) && !slices.ContainsFunc(columns, func(c string) bool { return !slices.Contains(identity, c) })
}
