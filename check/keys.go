package check

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/snapshot"
)

// checkKeys looks at the keys that were chosen instead of primary keys.
func (c *checker) checkKeys(context.Context) error {
	if c.source == nil || len(c.tables) == 0 {
		return nil
	}
	wrong := map[string]bool{}
	for _, f := range snapshot.CheckKeys(c.Keys, c.tables) {
		wrong[f.Subject] = true
		c.problem(f.Subject, f.Cure, "%s", f.Text)
	}
	for _, t := range c.tables {
		columns := c.Keys[t.Name]
		if columns == nil || wrong[t.Name.String()] || t.Sorts(columns) || !c.loading() || c.Mode == modeNone {
			continue
		}
		quoted := make([]string, len(columns))
		for i, column := range columns {
			quoted[i] = millrace.QuoteIdent(column)
		}
		c.warn(t.Name.String(), fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (%s)", t.Name.SQL(), strings.Join(quoted, ", ")),
			"no index has its rows in the order of keys: each chunk beside the stream sorts all of the table")
	}
	return nil
}
