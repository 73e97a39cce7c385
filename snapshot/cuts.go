package snapshot

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/session"
)

// samplePages is how many pages of a table are looked at to find where it can be
// cut: enough that ranges differ in size by some tenths, and read in a moment.
const samplePages = 400

// Cut is a key at which a table can be cut.
type Cut struct {
	Key     []byte
	literal string // as SQL
}

// Cuts gives up to n keys, in ascending order, that cut the table into ranges with
// about as many rows each. They are taken from a sample of its pages: that needs
// no statistics, which know nothing of keys of several columns, and no COUNT.
func (t *ChunkTable) Cuts(ctx context.Context, conn *pgx.Conn, n int) ([]Cut, error) {
	if t.Key == nil || n < 1 {
		return nil, nil
	}
	const op = "cut a table into ranges"
	pages, err := pagesOf(ctx, conn, t.Rel.OID)
	if err != nil {
		return nil, session.Wrap(op, millrace.PeerSource, err)
	}
	percent := min(100, 100*float64(samplePages)/float64(max(1, pages)))
	names := t.Key.names("")
	var formats []int16
	texts := ""
	for i := range t.Key.Columns {
		formats = append(formats, t.formats[t.Key.Columns[i].Index])
		texts += ", " + millrace.QuoteIdent(t.Key.Columns[i].Name) + "::pg_catalog.text"
	}
	formats = append(formats, make([]int16, len(t.Key.Columns))...)
	sql := fmt.Sprintf(`SELECT %[1]s%[5]s FROM (SELECT %[1]s, pg_catalog.row_number() OVER (ORDER BY %[1]s) AS "#", pg_catalog.count(*) OVER () AS "##"
		FROM ONLY %[2]s TABLESAMPLE SYSTEM (%[3]f)) x
		WHERE "#" %% (1 + "##" / %[4]d) = 0 ORDER BY "#"`, names, t.Rel.Name.SQL(), percent, n+1, texts)
	result := conn.PgConn().ExecParams(ctx, sql, nil, nil, nil, formats).Read()
	if result.Err != nil {
		return nil, session.Wrap(op, millrace.PeerSource, result.Err)
	}
	cuts := make([]Cut, 0, len(result.Rows))
	row := make(millrace.Row, len(t.Rel.Columns))
	for _, values := range result.Rows {
		var literals []string
		for i := range t.Key.Columns {
			c := &t.Key.Columns[i]
			kind := millrace.Text
			if formats[i] == 1 {
				kind = millrace.Binary
			}
			row[c.Index] = millrace.Value{Kind: kind, Raw: values[i]}
			literals = append(literals, millrace.QuoteLiteral(string(values[len(t.Key.Columns)+i]))+"::"+c.cast+c.collate)
		}
		key, err := t.Key.EncodeKey(row)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", op, err)
		}
		cuts = append(cuts, Cut{Key: key, literal: "ROW(" + strings.Join(literals, ", ") + ")"})
	}
	return slices.CompactFunc(cuts, func(a, b Cut) bool { return string(a.Key) == string(b.Key) }), nil
}

func pagesOf(ctx context.Context, q catalog.Querier, oid uint32) (n int64, err error) {
	sql := strings.Replace(pagesSQL, "$1::oid[]", "ARRAY[$1::oid]", 1)
	err = q.QueryRow(ctx, sql, oid).Scan(new(int64), &n)
	return n, err
}
