package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
)

// CheckKeys finds keys that were chosen instead of primary keys and can't be: the
// table is none of the job's, or its changes do not have them.
func CheckKeys(keys catalog.Keys, tables []*catalog.Table) []Finding {
	byName := map[millrace.TableName]*catalog.Table{}
	for _, t := range tables {
		byName[t.Name] = t
	}
	var found []Finding
	for _, name := range slices.SortedFunc(maps.Keys(keys), func(a, b millrace.TableName) int { return strings.Compare(a.String(), b.String()) }) {
		t := byName[name]
		if t == nil {
			found = append(found, Finding{Subject: name.String(), Text: "keys names it, and it is no table of the job", Cure: "correct it, or take it out of keys"})
			continue
		}
		if f := checkKey(t, keys[name]); f != nil {
			found = append(found, *f)
			continue
		}
		if !t.Carries(keys[name]) {
			found = append(found, Finding{Subject: name.String(), Cure: "ALTER TABLE " + t.Name.SQL() + " REPLICA IDENTITY FULL",
				Text: "keys names other columns than its replica identity: an UPDATE or DELETE does not say which values they had"})
		}
	}
	return found
}

func checkKey(t *catalog.Table, columns []string) *Finding {
	const cure = "name another column under keys"
	for _, column := range columns {
		col := t.Column(column)
		shown := millrace.DisplayIdent(column)
		f := &Finding{Subject: t.Name.String(), Cure: cure}
		switch {
		case col == nil:
			f.Text = fmt.Sprintf("keys names the column %s, which it does not have", shown)
		case col.Generated != 0:
			f.Text = fmt.Sprintf("keys names the column %s, which is generated and so not in the stream", shown)
		case !col.NotNull:
			f.Text = fmt.Sprintf("keys names the column %s, which may be NULL: NULL has no place in an order", shown)
			f.Cure = fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL; or %s", t.Name.SQL(), millrace.QuoteIdent(column), cure)
		default:
			continue
		}
		return f
	}
	return nil
}
