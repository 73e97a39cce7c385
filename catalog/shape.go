package catalog

import (
	"strconv"
	"strings"

	"github.com/millrace/millrace"
)

// ShapeOf writes a table's shape as canonical text: name, type and typmod of
// each column, in the order in which the stream sends them. Two shapes are
// equal exactly when the texts are. Type OIDs are those of the table's own
// server, so shapes of different servers cannot be compared.
func ShapeOf(t *Table) string {
	var b strings.Builder
	for i := range t.Columns {
		if c := &t.Columns[i]; c.Generated == 0 {
			writeShape(&b, c.Name, c.Type.OID, c.Mod)
		}
	}
	return b.String()
}

// ShapeOfRelation is ShapeOf for a relation as the stream described it.
func ShapeOfRelation(r *millrace.Relation) string {
	var b strings.Builder
	for i := range r.Columns {
		writeShape(&b, r.Columns[i].Name, r.Columns[i].Type, r.Columns[i].Mod)
	}
	return b.String()
}

func writeShape(b *strings.Builder, name string, oid uint32, mod int32) {
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	b.WriteString(millrace.QuoteIdent(name))
	b.WriteByte(':')
	b.WriteString(strconv.FormatUint(uint64(oid), 10))
	b.WriteByte(':')
	b.WriteString(strconv.FormatInt(int64(mod), 10))
}
