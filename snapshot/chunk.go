package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/session"
)

// ChunkTable is a table as its chunks are read: as rows that look as if the
// stream had sent them.
type ChunkTable struct {
	Rel      *millrace.Relation
	Key      *Key // nil: the table can be read in one piece only
	Filenode uint32
	Shape    string // catalog.ShapeOf
	keys     string // its replica identity and unique indexes, as viewSQL shows them
	Rows     int64  // estimated, -1 when unknown
	Bytes    int64
	// Limited says that rows with different keys can be in each other's way: what is
	// unique in it is not the key alone.
	Limited bool

	columns string
	formats []int16
	indexed bool // there is an index that has rows in the order of the key
}

// DescribeChunks describes a table for reading chunks. binary asks for values in
// the form that the stream has when it is started so; keys may choose the key.
func DescribeChunks(ctx context.Context, q catalog.Querier, oid uint32, binary bool, keys catalog.Keys) (*ChunkTable, error) {
	tables, err := catalog.Describe(ctx, q, []uint32{oid})
	if err != nil {
		return nil, session.Wrap("describe a table", millrace.PeerSource, err)
	}
	t := tables[oid]
	if t == nil || t.Kind != 'r' {
		return nil, &millrace.Error{Kind: millrace.KindData, Op: "read a table", Peer: millrace.PeerSource,
			Err: fmt.Errorf("the table with the OID %d is gone", oid), Hint: "take it out of the job with millrace table drop"}
	}
	c := &ChunkTable{Rel: relationOf(t), Filenode: t.Filenode, Shape: catalog.ShapeOf(t), Rows: t.Rows, Bytes: t.Bytes}
	if err := q.QueryRow(ctx, "SELECT "+keysSQL, oid).Scan(&c.keys); err != nil {
		return nil, session.Wrap("describe the keys of a table", millrace.PeerSource, err)
	}
	var names []string
	for i := range t.Columns {
		col := &t.Columns[i]
		if col.Generated != 0 {
			continue
		}
		names = append(names, millrace.QuoteIdent(col.Name))
		format := int16(0)
		if binary && col.Type.HasBinary {
			format = 1
		}
		c.formats = append(c.formats, format)
	}
	c.columns = strings.Join(names, ", ")
	if c.Key, err = newKey(ctx, q, t, c.Rel, binary, keys[t.Name]); err != nil {
		return nil, session.Wrap("describe the key of a table", millrace.PeerSource, err)
	}
	if c.Key != nil {
		c.indexed = t.Sorts(c.Key.columnNames())
		c.Limited = t.Limits(c.Key.columnNames())
	}
	return c, nil
}

// relationOf describes a table as the stream does.
func relationOf(t *catalog.Table) *millrace.Relation {
	rel := &millrace.Relation{OID: t.OID, Name: t.Name, Identity: t.Identity}
	flagged := map[string]bool{}
	for _, name := range t.IdentityColumns() {
		flagged[name] = true
	}
	for i := range t.Columns {
		c := &t.Columns[i]
		if c.Generated != 0 {
			continue
		}
		if flagged[c.Name] {
			rel.Key = append(rel.Key, len(rel.Columns))
		}
		col := millrace.Column{Name: c.Name, Type: c.Type.OID, Mod: c.Mod}
		if c.Type.OID >= firstUserOID {
			col.TypeName = millrace.TableName{Schema: c.Type.Schema, Name: c.Type.Name}.String()
			col.TypeKind = c.Type.Kind
			col.Def = c.Type.Datum()
		}
		rel.Columns = append(rel.Columns, col)
	}
	return rel
}

// firstUserOID is the lowest OID of what is not built in (FirstNormalObjectId in
// access/transam.h).
const firstUserOID = 16384

// ChunkReader reads chunks on a session of its own, each in a transaction of its
// own: Begin, then any of the reads, then End.
type ChunkReader struct {
	conn    *pgx.Conn
	limit   *Limiter
	standby bool
	shown   string // the snapshot of the last View, and what it said
	upto    millrace.LSN
}

// NewChunkReader opens the session. limit is shared by all readers of a load.
func NewChunkReader(ctx context.Context, source *session.Endpoint, limit *Limiter) (*ChunkReader, error) {
	conn, err := source.Connect(ctx, session.Copy)
	if err != nil {
		return nil, err
	}
	r := &ChunkReader{conn: conn, limit: limit}
	if err := conn.QueryRow(ctx, `SELECT pg_catalog.pg_is_in_recovery()`).Scan(&r.standby); err != nil {
		r.Close()
		return nil, session.Wrap("look at the source", millrace.PeerSource, err)
	}
	return r, nil
}

// Conn is the session. It must not be used between Begin and End.
func (r *ChunkReader) Conn() *pgx.Conn { return r.conn }

// Close ends the session, without waiting for a server that may be gone.
func (r *ChunkReader) Close() { closeNow(r.conn) }

// ErrRewritten says that a table has another name, other columns, other keys or
// another file than when it was described: describe it anew.
var ErrRewritten = errors.New("the table has changed since it was described")

// View is what a chunk is read in: a snapshot, and a position of the source's log
// read after it. The commit record of whatever the snapshot sees lies below Upto.
type View struct {
	Visibility
	Upto millrace.LSN
	// From is set on a standby, whose snapshots don't list what is running: the
	// position of replay before the snapshot was taken. See [View.Shows].
	From millrace.LSN
}

// keysSQL shows what the key of a table was chosen from. Without the index that makes
// it unique, equal keys could straddle the bounds of chunks.
const keysSQL = `COALESCE((SELECT c.relreplident::text FROM pg_catalog.pg_class c WHERE c.oid = $1), '') ||
       COALESCE((SELECT pg_catalog.string_agg(i.indexrelid::text || CASE WHEN i.indisreplident THEN 'r' ELSE 'u' END, ' ' ORDER BY i.indexrelid)
                   FROM pg_catalog.pg_index i WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid), '')`

// viewSQL reads the snapshot, and whether the table that is locked by its name is
// still the one that was described, with the same file and columns (catalog.ShapeOf).
const viewSQL = `
SELECT pg_catalog.pg_current_snapshot()::text, COALESCE(pg_catalog.pg_relation_filenode($1), 0)::int8,
       pg_catalog.pg_is_in_recovery(), COALESCE(pg_catalog.to_regclass($2)::pg_catalog.oid = $1, false),
       COALESCE((SELECT pg_catalog.string_agg('"' || pg_catalog.replace(a.attname::text, '"', '""') || '":' || a.atttypid::int8 || ':' || a.atttypmod, ' ' ORDER BY a.attnum)
                   FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''), ''),
       ` + keysSQL

// Begin starts a transaction, locks the table against a change of its
// definition, and only then takes the snapshot, so that no rewrite can come
// between the two.
func (r *ChunkReader) Begin(ctx context.Context, t *ChunkTable) (View, error) {
	var v View
	var text, shape, keys string
	if r.standby {
		var err error
		if v.From, err = replayed(ctx, r.conn); err != nil {
			return v, err
		}
	}
	var filenode uint32
	var same, standby bool
	begin := fmt.Sprintf(`BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL lock_timeout = %d; `+
		`LOCK TABLE ONLY %s IN ACCESS SHARE MODE; SET LOCAL lock_timeout = 0; SET LOCAL enable_sort = off; `+
		`SET LOCAL enable_seqscan = off; SET LOCAL max_parallel_workers_per_gather = 0`, lockWait.Milliseconds(), t.Rel.Name.SQL())
	_, err := r.conn.Exec(ctx, begin, pgx.QueryExecModeSimpleProtocol)
	if err == nil && t.Key != nil {
		err = t.Key.findOperators(ctx, r.conn, "LOCAL")
	}
	if err == nil {
		err = r.conn.QueryRow(ctx, viewSQL, t.Rel.OID, t.Rel.Name.SQL()).Scan(&text, &filenode, &standby, &same, &shape, &keys)
	}
	if state := session.SQLState(err); state == "42P01" || state == "3F000" { // it has another name, or none
		return v, fmt.Errorf("table %s: %w", t.Rel.Name, ErrRewritten)
	}
	if err != nil {
		return v, r.wrap(t, err)
	}
	if standby != r.standby {
		return v, errPromoted
	}
	if filenode != t.Filenode || !same || shape != t.Shape || keys != t.keys {
		return v, fmt.Errorf("table %s: %w", t.Rel.Name, ErrRewritten)
	}
	if v.Visibility, err = ParseVisibility(text); err != nil {
		return v, err
	}
	if r.standby {
		v.Upto, err = replayed(ctx, r.conn)
		v.Upto += inReplay
		return v, err
	}
	if text == r.shown {
		v.Upto = r.upto // it shows nothing more than then
		return v, nil
	}
	// Before the rows: reading them may write hints to the log, which nobody is
	// in a hurry to flush.
	if v.Upto, err = catalog.Position(ctx, r.conn); err == nil {
		r.shown, r.upto = text, v.Upto
	}
	return v, session.Wrap("read a chunk", millrace.PeerSource, err)
}

// End ends the transaction and waits until the source has flushed what the
// snapshot shows: of asynchronous commits it could vanish in a crash of the
// source, and no log would ever take it back from the destination.
func (r *ChunkReader) End(ctx context.Context, v View) error {
	if err := r.Abandon(ctx); err != nil {
		return err
	}
	return r.Flushed(ctx, v)
}

// Flushed is what End waits for.
func (r *ChunkReader) Flushed(ctx context.Context, v View) error {
	if r.standby { // what is replayed is flushed, there and at its primary
		return nil
	}
	return AwaitFlushed(ctx, r.conn, v.Upto)
}

// Abandon ends the transaction of a chunk that is not used.
func (r *ChunkReader) Abandon(ctx context.Context) error {
	_, err := r.conn.Exec(ctx, `ROLLBACK`)
	return session.Wrap("end a chunk", millrace.PeerSource, err)
}

// Range is a part of a table by key: behind After, up to and with Upto. Nil is
// open.
type Range struct{ After, Upto []byte }

// Rows are what one read gave.
type Rows struct {
	Changes []millrace.Change // Read
	Keys    [][]byte          // of each
	Size    int64             // memory, in bytes
	// Final says that nothing of the range is left behind the last row.
	Final bool
}

// Range reads rows from the range's beginning, in the order of the key: at most
// most, and no more than size bytes unless the first row is larger. Of a key that is
// shared it reads all rows or none, and so more, if they are the first.
func (r *ChunkReader) Range(ctx context.Context, t *ChunkTable, in Range, most int, size int64) (*Rows, error) {
	var p params
	var where []string
	for _, b := range []struct {
		key []byte
		op  string
	}{{in.After, ">"}, {in.Upto, "<="}} {
		if b.key == nil {
			continue
		}
		row, err := t.Key.row(&p, b.key)
		if err != nil {
			return nil, err
		}
		where = append(where, t.Key.tuple("x.")+" "+b.op+" "+row)
	}
	order := t.Key.names("x.")
	columns, formats, limit := t.columns, t.formats, fmt.Sprintf("LIMIT %d", most)
	if t.Key.Shared { // the server says which keys are equal
		columns += ", pg_catalog.dense_rank() OVER (ORDER BY " + order + ")"
		formats = append(slices.Clone(formats), 0)
		limit = fmt.Sprintf("FETCH FIRST %d ROWS WITH TIES", most)
	}
	sql := fmt.Sprintf("SELECT %s FROM ONLY %s AS x", columns, t.Rel.Name.SQL())
	if len(where) > 0 {
		sql += " WHERE " + strings.Join(where, " AND ")
	}
	sql += " ORDER BY " + order + " " + limit
	rows := &Rows{}
	n := 0
	var g group
	err := r.read(ctx, t, sql, &p, formats, func(row millrace.Row, used int64, rank []byte) (bool, error) {
		n++
		g.next(rows, rank)
		if rows.Size > 0 && rows.Size+used > size && (!t.Key.Shared || g.cut(rows)) {
			return false, nil
		}
		if rows.Size > mostShared {
			return false, errShared(t)
		}
		key, err := t.Key.EncodeKey(row)
		if err != nil {
			return false, err
		}
		if last := len(rows.Keys) - 1; t.Key.Native && last >= 0 {
			if order := bytes.Compare(rows.Keys[last], key); order > 0 || order == 0 && !t.Key.Shared {
				return false, ErrOrder
			}
		}
		rows.add(t, row, key, used)
		return true, nil
	})
	rows.Final = n < most && n == len(rows.Changes)
	return rows, err
}

// group is where the rows of one key begin that is shared.
type group struct {
	rank string
	at   int   // their first row
	size int64 // of those before
}

func (g *group) next(rows *Rows, rank []byte) {
	if string(rank) != g.rank {
		g.rank, g.at, g.size = string(rank), len(rows.Changes), rows.Size
	}
}

// cut leaves the rows before the group, if there are any.
func (g *group) cut(rows *Rows) bool {
	if g.at == 0 {
		return false
	}
	rows.Changes, rows.Keys, rows.Size = rows.Changes[:g.at], rows.Keys[:g.at], g.size
	return true
}

// mostShared bounds the rows of one key, in bytes: they are in memory together.
const mostShared = 32 << 20

func errShared(t *ChunkTable) error {
	return &millrace.Error{Kind: millrace.KindData, Op: "read a chunk", Peer: millrace.PeerSource, Table: t.Rel.Name,
		Err:  fmt.Errorf("the rows of one key have more than %d MiB", mostShared>>20),
		Hint: "under keys, name columns whose values fewer rows share"}
}

// ErrOrder says that rows did not come in the order of their key's bytes, although
// the key is Native.
var ErrOrder = errors.New("the keys do not come in the order of their bytes")

// One reads the row with exactly this key, down to its bytes: what the server
// takes for equal may be another one.
func (r *ChunkReader) One(ctx context.Context, t *ChunkTable, key []byte) (*Rows, error) {
	var p params
	row, err := t.Key.row(&p, key)
	if err != nil {
		return nil, err
	}
	sql := fmt.Sprintf("SELECT %s FROM ONLY %s AS x WHERE ROW(%s) = %s", t.columns, t.Rel.Name.SQL(), t.Key.names("x."), row)
	rows := &Rows{Final: true}
	err = r.read(ctx, t, sql, &p, t.formats, func(row millrace.Row, used int64, _ []byte) (bool, error) {
		found, err := t.Key.EncodeKey(row)
		if err == nil && bytes.Equal(found, key) {
			rows.add(t, row, found, used)
		}
		return true, err
	})
	return rows, err
}

// All reads the whole table and gives it away in pieces of about size bytes.
func (r *ChunkReader) All(ctx context.Context, t *ChunkTable, size int64, give func(*Rows) error) error {
	rows := &Rows{}
	sql := fmt.Sprintf("SELECT %s FROM ONLY %s AS x", t.columns, t.Rel.Name.SQL())
	err := r.read(ctx, t, sql, &params{}, t.formats, func(row millrace.Row, used int64, _ []byte) (bool, error) {
		if rows.Size > 0 && rows.Size+used > size {
			if err := give(rows); err != nil {
				return false, err
			}
			rows = &Rows{Changes: make([]millrace.Change, 0, len(rows.Changes)+len(rows.Changes)/8)}
		}
		rows.add(t, row, nil, used)
		return true, nil
	})
	if err != nil {
		return err
	}
	rows.Final = true
	return give(rows)
}

func (r *Rows) add(t *ChunkTable, row millrace.Row, key []byte, size int64) {
	r.Changes = append(r.Changes, millrace.Change{Op: millrace.Read, Seq: uint64(len(r.Changes) + 1), Rel: t.Rel, New: row})
	if key != nil {
		r.Keys = append(r.Keys, key)
	}
	r.Size += size
}

const changeSize = int64(unsafe.Sizeof(millrace.Change{}))

// read runs a query and gives its rows to take, with the size and the text of a
// column behind those of the table, until that says no. What is left then is read
// and forgotten.
func (r *ChunkReader) read(ctx context.Context, t *ChunkTable, sql string, p *params, formats []int16,
	take func(millrace.Row, int64, []byte) (bool, error)) error {
	result := r.conn.PgConn().ExecParams(ctx, sql, p.values, nil, p.formats, formats)
	var mem rowMemory
	more := true
	for result.NextRow() {
		if !more {
			continue
		}
		values, behind := result.Values(), []byte(nil)
		if len(values) > len(t.formats) {
			values, behind = values[:len(t.formats)], values[len(t.formats)]
		}
		row, size := mem.copy(values, t.formats)
		if err := r.limit.wait(ctx, int(size)); err != nil {
			_, _ = result.Close() // the session is given up
			return err
		}
		var err error
		if more, err = take(row, size+changeSize, behind); err != nil {
			_, _ = result.Close() // the first error counts
			return err
		}
	}
	if _, err := result.Close(); err != nil {
		return r.wrap(t, err)
	}
	return nil
}

func (r *ChunkReader) wrap(t *ChunkTable, err error) error {
	wrapped := session.Wrap("read a chunk", millrace.PeerSource, err)
	var e *millrace.Error
	if !errors.As(wrapped, &e) {
		return wrapped
	}
	e.Table = t.Rel.Name
	switch session.SQLState(err) {
	case "42501":
		e.Hint = "GRANT SELECT ON " + t.Rel.Name.SQL() + " to the source's role; with row level security it needs BYPASSRLS, " +
			"or to own the table without FORCE ROW LEVEL SECURITY"
	case "55P03":
		e.Kind = millrace.KindRetry
		e.Hint = "another session alters the table or waits to: let it finish or end it"
	}
	return wrapped
}

// rowMemory holds the values of rows in a few large pieces.
type rowMemory struct {
	bytes  []byte
	values []millrace.Value
}

const (
	memoryBytes  = 64 << 10
	memoryValues = 1024
)

func (m *rowMemory) copy(values [][]byte, formats []int16) (row millrace.Row, size int64) {
	if len(m.values) < len(values) {
		m.values = make([]millrace.Value, max(memoryValues, len(values)))
	}
	row, m.values = m.values[:len(values):len(values)], m.values[len(values):]
	size = int64(len(values)) * int64(unsafe.Sizeof(millrace.Value{}))
	for i, v := range values {
		if v == nil {
			row[i].Kind = millrace.Null
			continue
		}
		if cap(m.bytes)-len(m.bytes) < len(v) {
			m.bytes = make([]byte, 0, max(memoryBytes, len(v)))
		}
		at := len(m.bytes)
		m.bytes = append(m.bytes, v...)
		row[i] = millrace.Value{Kind: millrace.Text, Raw: m.bytes[at:len(m.bytes):len(m.bytes)]}
		if formats[i] == 1 {
			row[i].Kind = millrace.Binary
		}
		size += int64(len(v))
	}
	return row, size
}
