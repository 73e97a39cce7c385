package kcheck

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Ledger is the source's history in its own words: what each transaction did to
// which row, written by a trigger in that transaction, so that it is there if and
// only if the transaction committed.
type Ledger struct {
	txns map[uint32][]change // in the order in which they were done
	rows map[row][]change    // in the order of the row's locks, which is that of commits
}

// row is a row of a table by its key, a JSON object with sorted members.
type row struct{ table, key string }

func (r row) String() string { return r.table + r.key }

// change is what one transaction did to a row.
type change struct {
	row
	xid   uint32
	op    string // c, u, d, or r: the row as a first load found it
	after string // the row, JSON with sorted members; "" behind d
}

func (c change) String() string { return c.op + " " + c.row.String() }

// same tells whether both sides speak of the same change; what the row looks
// like is judged apart.
func (c change) same(o change) bool { return c.op == o.op && c.row == o.row && c.after == o.after }

// Install is SQL that makes the ledger; it lies in a schema of its own, which is
// not for the job's publication.
const Install = `
CREATE SCHEMA ledger;
CREATE TABLE ledger.entry (n bigserial PRIMARY KEY, xid bigint NOT NULL, tab text NOT NULL, op text NOT NULL, key jsonb NOT NULL, after jsonb);
CREATE FUNCTION ledger.write() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	old_key jsonb := (SELECT jsonb_object_agg(c, to_jsonb(OLD) -> c) FROM unnest(TG_ARGV) c);
	new_key jsonb := (SELECT jsonb_object_agg(c, to_jsonb(NEW) -> c) FROM unnest(TG_ARGV) c);
	tab text := TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME;
	xid bigint := pg_current_xact_id()::text::numeric % 4294967296;
BEGIN
	IF TG_OP = 'UPDATE' AND old_key = new_key THEN
		INSERT INTO ledger.entry (xid, tab, op, key, after) VALUES (xid, tab, 'u', new_key, to_jsonb(NEW));
		RETURN NULL;
	END IF;
	IF TG_OP <> 'INSERT' THEN
		INSERT INTO ledger.entry (xid, tab, op, key) VALUES (xid, tab, 'd', old_key);
	END IF;
	IF TG_OP <> 'DELETE' THEN
		INSERT INTO ledger.entry (xid, tab, op, key, after) VALUES (xid, tab, 'c', new_key, to_jsonb(NEW));
	END IF;
	RETURN NULL;
END $$;
`

// Watch is SQL that has the changes of a table written into the ledger. The
// name of the trigger puts it before those of foreign keys: a row's own change
// stands before those that it cascades to.
func Watch(table string, key ...string) string {
	return fmt.Sprintf(`CREATE TRIGGER "A ledger" AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION ledger.write('%s');`,
		table, strings.Join(key, "', '"))
}

// ReadLedger reads what the source has written so far.
func ReadLedger(ctx context.Context, url string) (*Ledger, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, "SELECT xid, tab, op, key::text, coalesce(after::text, '') FROM ledger.entry ORDER BY n")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	l := &Ledger{txns: map[uint32][]change{}, rows: map[row][]change{}}
	for rows.Next() {
		var c change
		var xid int64
		if err := rows.Scan(&xid, &c.table, &c.op, &c.key, &c.after); err != nil {
			return nil, err
		}
		c.xid = uint32(xid)
		if c.key, err = canonical([]byte(c.key)); err != nil {
			return nil, err
		}
		if c.after, err = canonical([]byte(c.after)); err != nil {
			return nil, err
		}
		l.add(c)
	}
	return l, rows.Err()
}

func (l *Ledger) add(c change) {
	l.txns[c.xid] = append(l.txns[c.xid], c)
	l.rows[c.row] = append(l.rows[c.row], c)
}

// canonical gives JSON with sorted members, whose numbers are as they were; ""
// stays what it is.
func canonical(text []byte) (string, error) {
	if len(text) == 0 {
		return "", nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return "", err
	}
	out, err := json.Marshal(v)
	return string(out), err
}
