package apply

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
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
	ruled  bool // a rewrite rule is in force on it
	// single says why updates and deletes must go row by row; empty: they need
	// not.
	single string
	// searched tells whether the planner searches an index for a set, by its OID.
	searched map[uint32]bool
	// folds are the table's part in the two batches.
	folds [2]*fold
	// cooling is until when sets are not tried, since one has failed; the
	// executor sets it while the next batch is prepared.
	cooling  atomic.Int64 // unix nanoseconds
	failures atomic.Int32
	noted    atomic.Bool // the operator was told of a failed set
}

// The time for which sets are not tried on a table where they fail time and
// again: it doubles with each failure. One failure alone costs less than what
// going row by row would.
const (
	coolFirst = time.Second
	coolMost  = 5 * time.Minute
)

// cool counts a failed set and returns how many there were in a row.
func (t *target) cool(now time.Time) int32 {
	n := t.failures.Add(1)
	if n > 1 {
		t.cooling.Store(now.Add(min(coolFirst<<min(n-2, 10), coolMost)).UnixNano())
	}
	return n
}

// worked counts a set that has done what it should.
func (t *target) worked() {
	if t.failures.Load() != 0 {
		t.failures.Store(0)
	}
}

// inherit takes over what an older description of the table has learned.
func (t *target) inherit(older *target) {
	if older == nil || older.OID != t.OID {
		return
	}
	t.cooling.Store(older.cooling.Load())
	t.failures.Store(older.failures.Load())
	t.noted.Store(older.noted.Load())
	t.searched = older.searched
}

func (t *target) cooled(now time.Time) bool {
	until := t.cooling.Load()
	return until == 0 || now.UnixNano() > until
}

func newTarget(table *catalog.Table) *target {
	t := &target{Table: table, sql: table.Name.SQL(), only: "ONLY " + table.Name.SQL()}
	if table.Kind == 'p' {
		t.only = t.sql // its rows are in the partitions
	}
	return t
}

// judge finds what keeps updates and deletes out of sets.
func (t *target) judge(refusesNull bool) {
	switch {
	case refusesNull:
		t.single = "a domain refuses NULL"
	case t.hasExclusion():
		t.single = "it has an exclusion constraint"
	case t.hasDeferredKey():
		t.single = "it has a deferrable unique constraint"
	}
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
