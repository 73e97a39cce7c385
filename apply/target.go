package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/session"
)

// target is a table of the destination, as its catalog described it when the
// first change for it came.
type target struct {
	*catalog.Table
	sql     string // the quoted name
	only    string // the same with ONLY: rows of inheritance children are not the table's
	rowType uint32
	// deferrable: a constraint that can be deferred is on the table or refers
	// to it, so that SET CONSTRAINTS means something.
	deferrable bool
	// strict: something on the table looks at others while rows change, such as
	// triggers. Its changes keep their place among those of all tables.
	strict bool
	// single says why updates and deletes must go row by row; empty: they need
	// not.
	single string
	// searched tells by key whether the planner searches an index for a set.
	searched map[string]bool
	// folds are the table's part in the two batches.
	folds [2]*fold
	// cooling is until when sets are not tried, since one has failed; the
	// executor sets it while the next batch is prepared.
	cooling  atomic.Int64 // unix nanoseconds
	failures atomic.Int32
}

// The time for which sets are not tried on a table where one has failed: it
// doubles with each failure in a row.
const (
	coolFirst = 5 * time.Second
	coolMost  = 5 * time.Minute
)

// cool counts a failed set and returns how many there were.
func (t *target) cool(now time.Time) int32 {
	n := t.failures.Add(1)
	t.cooling.Store(now.Add(min(coolFirst<<(min(n, 10)-1), coolMost)).UnixNano())
	return n
}

// inherit takes over what an older description of the table has learned.
func (t *target) inherit(older *target) {
	if older == nil || older.OID != t.OID {
		return
	}
	t.cooling.Store(older.cooling.Load())
	t.failures.Store(older.failures.Load())
	t.searched = older.searched
}

func (t *target) cooled(now time.Time) bool {
	until := t.cooling.Load()
	return until == 0 || now.UnixNano() > until
}

// factsSQL reads what package catalog does not know: the row type, whether
// constraints can be deferred, whether foreign keys act or check at once, and
// whether row triggers fire in this session, on the table or its partitions.
const factsSQL = `
SELECT c.reltype::int8,
       EXISTS (SELECT FROM pg_catalog.pg_constraint k
                WHERE k.condeferrable AND (k.conrelid = c.oid OR k.confrelid = c.oid)),
       EXISTS (SELECT FROM pg_catalog.pg_constraint k
                WHERE k.contype = 'f' AND (k.conrelid = c.oid OR k.confrelid = c.oid)
                  AND (NOT k.condeferrable OR k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd'))),
       EXISTS (SELECT FROM pg_catalog.pg_trigger g
                WHERE (g.tgrelid = c.oid OR c.relkind = 'p' AND g.tgrelid IN (
                       SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p))
                  AND NOT g.tgisinternal AND g.tgtype & 1 = 1 AND g.tgenabled::text = ANY ($2::text[])),
       EXISTS (SELECT FROM pg_catalog.pg_rewrite r
                WHERE r.ev_class = c.oid AND r.ev_type <> '1' AND r.ev_enabled::text = ANY ($2::text[]))
  FROM pg_catalog.pg_class c WHERE c.oid = $1`

// describe reads a table of the destination. replica tells the role in force,
// which decides what triggers, foreign keys and rules do.
func describe(ctx context.Context, conn *pgx.Conn, name millrace.TableName, replica bool) (*target, error) {
	found, err := catalog.DescribeByName(ctx, conn, []millrace.TableName{name})
	if err != nil {
		return nil, session.Wrap("describe table "+name.String(), millrace.PeerDestination, err)
	}
	table := found[name]
	if table == nil {
		return nil, dataError(name, errors.New("no such table at the destination"),
			"create it there, with the columns of the source's table; the next run goes on at this transaction")
	}
	if table.Kind != 'r' && table.Kind != 'p' {
		return nil, dataError(name, errors.New("at the destination this is not a table"),
			"rename or drop it there and create the table; the next run goes on at this transaction")
	}
	t := &target{Table: table, sql: name.SQL(), only: "ONLY " + name.SQL()}
	if table.Kind == 'p' {
		t.only = t.sql // its rows are in the partitions
	}
	return t, t.readFacts(ctx, conn, replica)
}

func (t *target) readFacts(ctx context.Context, conn *pgx.Conn, replica bool) error {
	op := "describe table " + t.Name.String()
	firing := []string{"A", "O"}
	if replica {
		firing = []string{"A", "R"}
	}
	var rowType int64
	var foreign, triggers, rules bool
	err := conn.QueryRow(ctx, factsSQL, t.OID, firing).Scan(&rowType, &t.deferrable, &foreign, &triggers, &rules)
	if errors.Is(err, pgx.ErrNoRows) {
		return &millrace.Error{Kind: millrace.KindRetry, Op: op, Peer: millrace.PeerDestination,
			Err: errors.New("the table was dropped meanwhile")}
	}
	if err != nil {
		return session.Wrap(op, millrace.PeerDestination, err)
	}
	if rules {
		return dataError(t.Name, errors.New("a rule at the destination would rewrite its changes"),
			"ALTER TABLE "+t.sql+" DISABLE RULE for its rules, or let the role SET session_replication_role")
	}
	t.rowType = uint32(rowType)
	t.strict = triggers || foreign && !replica
	refusing, err := t.refusesNull(ctx, conn)
	if err != nil {
		return session.Wrap(op, millrace.PeerDestination, err)
	}
	switch {
	case refusing:
		t.single = "a domain refuses NULL"
	case t.hasExclusion():
		t.single = "it has an exclusion constraint"
	case t.hasDeferredKey():
		t.single = "it has a deferrable unique constraint"
	}
	return nil
}

func (t *target) hasExclusion() bool {
	for i := range t.Indexes {
		if t.Indexes[i].Exclusion {
			return true
		}
	}
	return false
}

func (t *target) hasDeferredKey() bool {
	for i := range t.Indexes {
		if t.Indexes[i].Unique && !t.Indexes[i].Immediate {
			return true
		}
	}
	return false
}

// refusesNull tells whether a column's domain takes no NULL. The array of the
// table's row type holds NULL where nothing was sent, and reading it would fail.
func (t *target) refusesNull(ctx context.Context, conn *pgx.Conn) (bool, error) {
	tried := map[uint32]bool{}
	for i := range t.Columns {
		ty := &t.Columns[i].Type
		if ty.Kind != 'd' || tried[ty.OID] {
			continue
		}
		tried[ty.OID] = true
		sql := "SELECT NULL::" + millrace.QuoteIdent(ty.Schema) + "." + millrace.QuoteIdent(ty.Name)
		_, err := conn.Exec(ctx, sql)
		switch state := session.SQLState(err); {
		case err == nil:
		case strings.HasPrefix(state, "23"):
			return true, nil
		default:
			return false, err
		}
	}
	return false, nil
}

// dataError is a stop that is cured at the destination. The caller adds the
// transaction.
func dataError(name millrace.TableName, err error, hint string) *millrace.Error {
	return &millrace.Error{Kind: millrace.KindData, Op: "apply", Peer: millrace.PeerDestination,
		Table: name, Err: err, Hint: hint}
}

// referencing names the tables other than those given that have foreign keys to
// one of them.
func referencing(ctx context.Context, conn *pgx.Conn, oids []uint32) ([]string, error) {
	rows, err := conn.Query(ctx, `
		SELECT DISTINCT pg_catalog.format('%I.%I', n.nspname, c.relname)
		  FROM pg_catalog.pg_constraint k
		  JOIN pg_catalog.pg_class c ON c.oid = k.conrelid
		  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		 WHERE k.contype = 'f' AND k.confrelid = ANY ($1::pg_catalog.oid[])
		   AND NOT k.conrelid = ANY ($1::pg_catalog.oid[])
		 ORDER BY 1`, oids)
	if err != nil {
		return nil, fmt.Errorf("look for foreign keys: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for foreign keys: %w", err)
	}
	return names, nil
}
