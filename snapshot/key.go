package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/session"
)

// Key is the order in which the chunks of a table are read: that of a unique
// index over columns that are not null, which every change of the stream has, or
// of columns that were chosen. The server decides what comes before what. Native
// tells that the bytes of keys compare in the same way; otherwise Rank asks.
type Key struct {
	Columns []KeyColumn
	Native  bool
	// Shared says that several rows can have the same key. They are read with the
	// same chunk.
	Shared bool
	// Apart says that the key is of other columns than those that tell rows apart in the
	// stream.
	Apart bool

	path string // search_path under which its operators are found; "" as pinned
}

// KeyColumn is one column of a Key.
type KeyColumn struct {
	Name  string
	Index int // in the relation's columns

	kind    kind   // how its values stand in key bytes
	bare    kind   // how they may have stood when the stream had another form
	cast    string // the type's name
	collate string // COLLATE clause, where the column's is not its type's
}

// keyColumns names the columns of the key that chunks of a table are read by:
// what was chosen, or what identifies rows in the stream, or else what is unique.
// None: the table is read in one piece.
func keyColumns(t *catalog.Table, chosen []string) ([]string, error) {
	if chosen == nil {
		return identifying(t), nil
	}
	for _, name := range chosen {
		if c := t.Column(name); c == nil || c.Generated != 0 || !c.NotNull {
			return nil, fmt.Errorf("column %s is none that has a value in each row and change", millrace.DisplayIdent(name))
		}
	}
	if !t.Carries(chosen) {
		return nil, errors.New("the replica identity has other columns")
	}
	return chosen, nil
}

func identifying(t *catalog.Table) []string {
	if t.Identity == millrace.IdentityDefault || t.Identity == millrace.IdentityIndex {
		return t.IdentityColumns()
	}
	best := t.PrimaryKey()
	if best == nil || !best.Immediate {
		best = nil
		for i := range t.Indexes {
			x := &t.Indexes[i]
			fit := x.Unique && x.Valid && x.Immediate && !x.Partial && x.Method == "btree" &&
				!slices.Contains(x.Columns, 0) && t.NotNull(x)
			if fit && (best == nil || len(x.Columns) < len(best.Columns)) {
				best = x
			}
		}
	}
	if best == nil {
		return nil
	}
	var names []string
	for _, n := range best.Columns {
		c := t.ByNum(n)
		if c == nil || c.Generated != 0 {
			return nil
		}
		names = append(names, c.Name)
	}
	return names
}

func sameColumns(a, b []string) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(c string) bool { return !slices.Contains(b, c) })
}

const keySQL = `
SELECT a.attname::text, pg_catalog.format_type(a.atttypid, -1),
       CASE WHEN a.attcollation IN (0, t.typcollation) THEN ''
            ELSE ' COLLATE ' || pg_catalog.quote_ident(cn.nspname) || '.' || pg_catalog.quote_ident(c.collname) END,
       pg_catalog.current_setting('server_encoding') = 'UTF8' AND COALESCE(
           CASE WHEN a.attcollation = 100 THEN d.datlocprovider = 'b' OR d.datlocprovider = 'c' AND d.datcollate IN ('C', 'POSIX')
                ELSE c.collprovider = 'b' OR c.collprovider = 'c' AND c.collcollate IN ('C', 'POSIX') END, false)
  FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
  JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()
  LEFT JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation
  LEFT JOIN pg_catalog.pg_namespace cn ON cn.oid = c.collnamespace
 WHERE a.attrelid = $1 AND a.attname = ANY ($2)`

// newKey finds out how a table's key is ordered. binary tells the form of the
// values.
func newKey(ctx context.Context, q catalog.Querier, t *catalog.Table, rel *millrace.Relation, binary bool, chosen []string) (*Key, error) {
	names, err := keyColumns(t, chosen)
	if err != nil {
		return nil, &millrace.Error{Kind: millrace.KindPreflight, Op: "read the table by the key that was chosen for it", Peer: millrace.PeerSource,
			Table: t.Name, Err: err, Hint: "millrace check says what the key under keys lacks"}
	}
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := q.Query(ctx, keySQL, t.OID, names)
	if err != nil {
		return nil, err
	}
	found := map[string]KeyColumn{}
	byBytes := map[string]bool{}
	var c KeyColumn
	var bytewise bool
	if _, err := pgx.ForEachRow(rows, []any{&c.Name, &c.cast, &c.collate, &bytewise}, func() error {
		found[c.Name], byBytes[c.Name] = c, bytewise
		return nil
	}); err != nil {
		return nil, err
	}
	k := &Key{Native: true, Shared: !t.Distinct(names), Apart: chosen != nil && !sameColumns(chosen, identifying(t))}
	schemas := []string{}
	for _, name := range names {
		c, col := found[name], t.Column(name)
		c.Index = slices.IndexFunc(rel.Columns, func(r millrace.Column) bool { return r.Name == name })
		if col == nil || c.Name == "" || c.Index < 0 {
			return nil, fmt.Errorf("column %s is gone", millrace.DisplayIdent(name))
		}
		base := col.Type.Resolved()
		c.bare = kindOf(base.OID, byBytes[name], true)
		c.kind = kindOf(base.OID, byBytes[name], binary)
		k.Native = k.Native && c.kind != kindServer
		if base.Schema != "pg_catalog" && base.Kind == 'b' && !slices.Contains(schemas, base.Schema) {
			schemas = append(schemas, base.Schema) // where its operators are, most likely
		}
		k.Columns = append(k.Columns, c)
	}
	if len(schemas) > 0 {
		k.path = "pg_catalog"
		for _, s := range schemas {
			k.path += ", " + millrace.QuoteIdent(s)
		}
	}
	return k, nil
}

// kindOf tells how a type's order is known. Those that are not listed are the
// server's to compare: among them numeric, floats (NaN, -0), character(n), enums
// and whatever follows a language's rules.
func kindOf(oid uint32, byBytes, binary bool) kind {
	switch oid {
	case 20, 21, 23:
		return kindInt
	case 1082:
		if binary {
			return kindDate
		}
	case 1114, 1184:
		if binary {
			return kindTime
		}
	case 2950:
		return kindUUID
	case 17:
		return kindBytes
	case 25, 1043:
		if byBytes {
			return kindText
		}
	case 16:
		return kindBool
	}
	return kindServer
}

// In tells where the key's columns are in a relation, nil if one is not there, and
// whether the stream sends all of them when it sends the old row's key.
func (k *Key) In(rel *millrace.Relation) (at []int, sent bool) {
	sent = true
	for i := range k.Columns {
		n := slices.IndexFunc(rel.Columns, func(c millrace.Column) bool { return c.Name == k.Columns[i].Name })
		if n < 0 {
			return nil, false
		}
		at = append(at, n)
		sent = sent && (rel.Identity == millrace.IdentityFull || slices.Contains(rel.Key, n))
	}
	return at, sent
}

func (k *Key) columnNames() []string {
	names := make([]string, len(k.Columns))
	for i := range k.Columns {
		names[i] = k.Columns[i].Name
	}
	return names
}

// tuple writes the key's columns with a prefix, as a row.
func (k *Key) tuple(prefix string) string { return "ROW(" + k.names(prefix) + ")" }

// names writes the key's columns with a prefix, as a list.
func (k *Key) names(prefix string) string {
	list := make([]string, len(k.Columns))
	for i := range k.Columns {
		list[i] = prefix + millrace.QuoteIdent(k.Columns[i].Name)
	}
	return strings.Join(list, ", ")
}

// params collects what a statement is sent with.
type params struct {
	values  [][]byte
	formats []int16
}

func (p *params) add(v *millrace.Value, cast string) string {
	p.values = append(p.values, v.Raw)
	format := int16(0)
	if v.Kind == millrace.Binary {
		format = 1
	}
	p.formats = append(p.formats, format)
	return fmt.Sprintf("$%d::%s", len(p.values), cast)
}

// row writes a key as ROW(…) of parameters.
func (k *Key) row(p *params, key []byte) (string, error) {
	values, err := k.decodeKey(key)
	if err != nil {
		return "", err
	}
	list := make([]string, len(values))
	for i := range values {
		list[i] = p.add(&values[i], k.Columns[i].cast) + k.Columns[i].collate
	}
	return "ROW(" + strings.Join(list, ", ") + ")", nil
}

// Rank tells for each key how many of the bounds come before it: 0 means that it
// is at or before the first. Bounds ascend. conn is asked only if the order is
// not known here.
func (k *Key) Rank(ctx context.Context, conn *pgx.Conn, keys, bounds [][]byte) ([]int, error) {
	ranks := make([]int, len(keys))
	if len(bounds) == 0 {
		return ranks, nil
	}
	if k.Native {
		for i, key := range keys {
			ranks[i], _ = slices.BinarySearchFunc(bounds, key, bytes.Compare)
		}
		return ranks, nil
	}
	const most = 500 // keys a statement; parameters are limited to 65535
	for from := 0; from < len(keys); from += most {
		to := min(from+most, len(keys))
		if err := k.ask(ctx, conn, keys[from:to], bounds, ranks[from:to]); err != nil {
			return nil, err
		}
	}
	return ranks, nil
}

// ask has the server compare.
func (k *Key) ask(ctx context.Context, conn *pgx.Conn, keys, bounds [][]byte, ranks []int) error {
	const op = "compare keys"
	var p params
	var list, sum []string
	for _, key := range keys {
		row, err := k.row(&p, key)
		if err != nil {
			return err
		}
		list = append(list, row)
	}
	for _, b := range bounds {
		row, err := k.row(&p, b)
		if err != nil {
			return err
		}
		sum = append(sum, "(\x00 > "+row+")::pg_catalog.int4")
	}
	form := strings.Join(sum, " + ")
	for i := range list {
		list[i] = strings.ReplaceAll(form, "\x00", list[i])
	}
	if err := k.findOperators(ctx, conn, ""); err != nil {
		return session.Wrap(op, millrace.PeerSource, err)
	}
	sql := "SELECT pg_catalog.array_to_string(ARRAY[" + strings.Join(list, ", ") + "], ',')"
	result := conn.PgConn().ExecParams(ctx, sql, p.values, nil, p.formats, nil).Read()
	if result.Err != nil {
		return session.Wrap(op, millrace.PeerSource, result.Err)
	}
	parts := strings.Split(string(result.Rows[0][0]), ",")
	for i := range ranks {
		if _, err := fmt.Sscan(parts[i], &ranks[i]); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	return nil
}

// findOperators sets the path that the key's operators need, if it is not the
// pinned one. pg_catalog comes first, so nothing can be put before what is
// built in.
func (k *Key) findOperators(ctx context.Context, conn *pgx.Conn, local string) error {
	if k.path == "" {
		return nil
	}
	_, err := conn.Exec(ctx, "SET "+local+" search_path = "+k.path)
	return err
}

// IntKey is the key of a table over one integer column that is not null.
func IntKey(column string, index int) *Key {
	return &Key{Native: true, Columns: []KeyColumn{{Name: column, Index: index, kind: kindInt, bare: kindInt, cast: "int8"}}}
}
