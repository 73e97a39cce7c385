package check

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
)

// checkKeys looks at the keys that were chosen instead of primary keys.
func (c *checker) checkKeys(context.Context) error {
	if c.source == nil || len(c.tables) == 0 {
		return nil
	}
	byName := map[millrace.TableName]*catalog.Table{}
	for _, t := range c.tables {
		byName[t.Name] = t
	}
	names := slices.SortedFunc(maps.Keys(c.Keys), func(a, b millrace.TableName) int { return strings.Compare(a.String(), b.String()) })
	for _, name := range names {
		if t := byName[name]; t != nil {
			c.checkKey(t, c.Keys[name])
			continue
		}
		c.problem(name.String(), "correct it, or take it out of keys", "keys names it, and it is no table of the job")
	}
	return nil
}

func (c *checker) checkKey(t *catalog.Table, columns []string) {
	const cure = "name another column under keys"
	name := t.Name.String()
	for _, column := range columns {
		col := t.Column(column)
		switch shown := millrace.DisplayIdent(column); {
		case col == nil:
			c.problem(name, cure, "keys names the column %s, which it does not have", shown)
			return
		case col.Generated != 0:
			c.problem(name, cure, "keys names the column %s, which is generated and so not in the stream", shown)
			return
		case !col.NotNull:
			c.problem(name, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL; or %s", t.Name.SQL(), millrace.QuoteIdent(column), cure),
				"keys names the column %s, which may be NULL: NULL has no place in an order", shown)
			return
		}
	}
	if !t.Carries(columns) {
		c.problem(name, "ALTER TABLE "+t.Name.SQL()+" REPLICA IDENTITY FULL",
			"keys names other columns than its replica identity: an UPDATE or DELETE does not say which values they had")
	}
	if !t.Sorts(columns) && c.loading() && c.Mode != modeNone {
		quoted := make([]string, len(columns))
		for i, column := range columns {
			quoted[i] = millrace.QuoteIdent(column)
		}
		c.warn(name, fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s)", t.Name.SQL(), strings.Join(quoted, ", ")),
			"no index has its rows in the order of keys: each chunk beside the stream sorts all of the table")
	}
}
