package apply

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

const goesOn = "; the next run goes on at this transaction"

// wrap makes an error of a batch one of ours.
func (x *executor) wrap(b *batch, err error) error {
	var known *millrace.Error
	if errors.As(err, &known) {
		return err
	}
	var f *failure
	if !errors.As(err, &f) {
		return session.Wrap("apply", millrace.PeerDestination, err)
	}
	if state := session.SQLState(f.err); f.ref == markProgress && (f.err == nil || state == "23502" || state == "23505") {
		return &millrace.Error{Kind: millrace.KindRetry, Op: string(markProgress), Peer: millrace.PeerDestination,
			Err: record.ErrFenced}
	}
	op := "apply"
	if m, ok := f.ref.(mark); ok {
		op = string(m)
	}
	if f.err == nil {
		return session.Wrap(op, millrace.PeerDestination, f)
	}
	wrapped := session.Wrap(op, millrace.PeerDestination, f.err)
	if errors.As(wrapped, &known) && b != nil && !b.empty() {
		known.LSN = b.last().Commit
	}
	return wrapped
}

// withoutDetail gives a failure's text without the values of rows.
func withoutDetail(f *failure) error {
	if f.err == nil {
		return f
	}
	return session.Wrap("apply", millrace.PeerDestination, f.err)
}

// explain names the change that can't be applied, with what cures it.
func (x *executor) explain(ctx context.Context, b *batch, f *failure) error {
	if e := x.explainPrepared(b, f); e != nil {
		return e
	}
	e := &millrace.Error{Kind: millrace.KindData, Op: "apply", Peer: millrace.PeerDestination, LSN: b.last().Commit}
	c, _ := f.ref.(*millrace.Change)
	if c != nil && c.Rel != nil {
		e.Table, e.Op = c.Rel.Name, "apply "+c.Op.String()
	}
	if ref, ok := f.ref.(replacedRef); ok {
		e.Table = ref.to.Name
		e.Err = errors.New("the destination's table is not the one that the job has written so far")
		e.Hint = "rename tables at the destination as they were renamed at the source, and not before it" + goesOn
		return e
	}
	var pg *pgconn.PgError
	if !errors.As(f.err, &pg) {
		x.explainCount(ctx, e, c, f)
		return e
	}
	var known *millrace.Error
	if errors.As(session.Wrap(e.Op, e.Peer, f.err), &known) {
		e.Err = known.Err
	}
	raised := session.Raised(pg)
	if !raised {
		if e.Table == (millrace.TableName{}) && pg.TableName != "" {
			e.Table = millrace.TableName{Schema: pg.SchemaName, Name: pg.TableName}
		}
		e.Column = pg.ColumnName
	}
	switch {
	case c != nil && c.Rel != nil && c.Op != millrace.Merge:
		e.Key = x.keyOf(ctx, c)
	case !raised: // a check at the end of the transaction: only the server knows the row
		e.Key = keyInDetail(pg.Detail)
	}
	if e.Hint = raisedHint + goesOn; !raised {
		e.Hint = hintFor(pg, e)
	}
	return e
}

func (x *executor) explainCount(ctx context.Context, e *millrace.Error, c *millrace.Change, f *failure) {
	if c == nil {
		e.Err = f
		e.Hint = "the destination differs from the source: take the first load anew with bootstrap --restart-snapshot"
		return
	}
	e.Key = x.keyOf(ctx, c)
	switch {
	case f.got == 0 && (c.Op == millrace.Insert || c.Op == millrace.Put):
		e.Err = errors.New("the row was not inserted: a trigger of the destination has suppressed it")
		e.Hint = "disable the trigger for replication" + goesOn
	case f.got == 0:
		e.Err = errors.New("the row is missing at the destination")
		e.Hint = "something else has removed or changed it there: put the row back as the source had it before this transaction" + goesOn
	default:
		e.Err = fmt.Errorf("%d rows of the destination match it", f.got)
		e.Hint = "something else has added rows there: remove what the source does not have" + goesOn
	}
}

// keyOf gives the key of the row that a change is about, as (id)=(7).
func (x *executor) keyOf(ctx context.Context, c *millrace.Change) string {
	r := x.batch.routes[c.Rel]
	if r == nil || len(r.key) == 0 || r.image && r.one {
		return "" // the whole row is the key
	}
	row := c.Old
	if row == nil {
		row = c.New
	}
	return r.keyNames() + "=" + x.render(ctx, r, row)
}

// renderKey gives the values of the key columns as text. Those that came in
// binary are turned by the server.
func renderKey(ctx context.Context, e *session.Endpoint, r *route, row millrace.Row) string {
	values := make([]string, len(r.key))
	var conn *pgconn.PgConn
	for n, k := range r.key {
		v := &row[k]
		switch v.Kind {
		case millrace.Null:
			values[n] = "null"
		case millrace.Text:
			values[n] = string(v.Raw)
		default:
			values[n] = `\x` + hex.EncodeToString(v.Raw)
			if conn == nil {
				c, err := e.Connect(ctx, session.Watch)
				if err != nil {
					continue
				}
				defer c.Close(ctx)
				conn = c.PgConn()
			}
			res := conn.ExecParams(ctx, "SELECT $1::text", [][]byte{v.Raw},
				[]uint32{r.column[k].Type.OID}, []int16{1}, nil).Read()
			if res.Err == nil && len(res.Rows) == 1 {
				values[n] = string(res.Rows[0][0])
			}
		}
	}
	return "(" + strings.Join(values, ", ") + ")"
}

// keyInDetail takes the key out of the detail of a violated constraint: "Key
// (id)=(7) already exists."
func keyInDetail(detail string) string {
	rest, ok := strings.CutPrefix(detail, "Key ")
	if !ok {
		return ""
	}
	for _, end := range []string{") already exists", ") conflicts with", ") is not present", ") is still referenced"} {
		if i := strings.Index(rest, end); i >= 0 {
			return rest[:i+1]
		}
	}
	return ""
}

// raisedHint stands for whatever the function's author has written: it may quote
// the row.
const raisedHint = "the destination's log has the message, which is not shown here since it may quote the row; " +
	"change the function, or disable its trigger at the destination"

// hintFor says what cures an error of the destination.
func hintFor(pg *pgconn.PgError, e *millrace.Error) string {
	table := "the table"
	if e.Table != (millrace.TableName{}) {
		table = e.Table.SQL()
	}
	switch pg.Code {
	case "23505", "23P01":
		if strings.HasSuffix(e.Op, millrace.Put.String()) || strings.HasSuffix(e.Op, millrace.Amend.String()) {
			return fmt.Sprintf("compaction has left only the last change of each row, several jobs share the rows, or the job that writes loads the table beside the stream, and for as long as the status says converging a value of constraint %s can be in two rows: "+
				"drop it at the destination, and make it again once the status shows no condition any more", millrace.QuoteIdent(pg.ConstraintName)) + goesOn
		}
		return fmt.Sprintf("a row of the destination violates constraint %s together with it: "+
			"remove what the source does not have, or drop the constraint", millrace.QuoteIdent(pg.ConstraintName)) + goesOn
	case "23503":
		return fmt.Sprintf("the destination lacks a row that constraint %s asks for: "+
			"put it there as the source has it, or drop the constraint", millrace.QuoteIdent(pg.ConstraintName)) + goesOn
	case "23502":
		return fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL (or SET DEFAULT, if the source lacks the column)",
			table, millrace.QuoteIdent(pg.ColumnName)) + goesOn
	case "23514":
		return fmt.Sprintf("drop or relax constraint %s at the destination", millrace.QuoteIdent(pg.ConstraintName)) + goesOn
	case "22001", "22003", "22P02", "22P03", "22026", "42804":
		return "a column of the destination can't hold the value: give it the source's type with ALTER TABLE " + table +
			" ALTER COLUMN … TYPE …" + goesOn
	case "42703", "42P01":
		return "the destination's table was changed while the job ran: make it like the source's" + goesOn
	case "42501":
		return "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON " + table + " to the role of the destination's URL" + goesOn
	case "0A000":
		if strings.Contains(pg.Routine, "truncate") {
			return "drop the foreign keys that refer to it, or set apply.truncate: delete" + goesOn
		}
	}
	return "change the destination so that it takes the row" + goesOn
}
