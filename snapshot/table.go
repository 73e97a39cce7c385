package snapshot

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
)

// Table is one table to copy, as it is on both sides.
type Table struct {
	Source *catalog.Table
	Target *catalog.Table
	// Columns are copied, in the source's order: those that both sides have and
	// neither generates.
	Columns []string
	// Binary tells whether every column's binary form means the same on both
	// sides.
	Binary bool
}

// Name is the table's name, the same on both sides.
func (t *Table) Name() millrace.TableName { return t.Source.Name }

// Pair matches the columns of a table by name. What would lose or change values
// in silence is a finding, and so is what would make every row fail.
func Pair(source, target *catalog.Table) (Table, []Finding) {
	t := Table{Source: source, Target: target, Binary: true}
	var found []Finding
	add := func(cure, format string, args ...any) {
		found = append(found, Finding{source.Name.String(), fmt.Sprintf(format, args...), cure})
	}
	alter := func(format string, args ...any) string {
		return "ALTER TABLE " + target.Name.SQL() + " " + fmt.Sprintf(format, args...)
	}
	if target.Kind != 'r' {
		add("replicate partitions into partitions of the same names", "is an ordinary table on the source and not on the target")
		return t, found
	}
	if target.Persistence == 'u' {
		add(alter("SET LOGGED"), "is unlogged on the target: a crash would empty it there, and the job could not notice")
	}
	for i := range source.Columns {
		s := &source.Columns[i]
		d := target.Column(s.Name)
		name := millrace.QuoteIdent(s.Name)
		switch {
		case d == nil && s.Generated != 0:
			// It is nowhere in the stream, and a target may do without it.
		case d == nil:
			add(alter("ADD COLUMN %s %s", name, declared(s)), "column %s is missing on the target", s.Name)
		case s.Generated != 0 && d.Generated == 0:
			add(alter("DROP COLUMN %s", name), "column %s is generated on the source and an ordinary one on the target, where it would stay empty", s.Name)
		case s.Generated != 0:
		case d.Generated != 0:
			add(alter("ALTER COLUMN %s DROP EXPRESSION", name), "column %s is generated on the target only: the source's values can't be written", s.Name)
		default:
			if text := catalog.Compatible(s, d); text != "" {
				add(alter("ALTER COLUMN %s TYPE %s", name, declared(s)), "column %s of the target %s", s.Name, text)
			}
			t.Columns = append(t.Columns, s.Name)
			t.Binary = t.Binary && catalog.BinarySafe(&s.Type, &d.Type)
		}
	}
	for i := range target.Columns {
		d := &target.Columns[i]
		if source.Column(d.Name) == nil && d.NotNull && !d.Default && d.Generated == 0 && d.Identity == 0 {
			add(alter("ALTER COLUMN %s DROP NOT NULL", millrace.QuoteIdent(d.Name)),
				"column %s is only on the target, is NOT NULL and has no default", d.Name)
		}
	}
	return t, found
}

// declared writes a column's type as SQL.
func declared(c *catalog.Column) string {
	if c.Declared != "" {
		return c.Declared
	}
	return c.Type.Name
}

// columnList writes the columns for COPY or SELECT.
func (t *Table) columnList() string {
	quoted := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		quoted[i] = millrace.QuoteIdent(c)
	}
	return strings.Join(quoted, ", ")
}
