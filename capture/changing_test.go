package capture_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/capture"
	"github.com/millrace/millrace/internal/rig"
)

// TestTableThatIsBeingAdded: a change of a table that a verb is about to take in, or out,
// waits, and says for what; one that was taken in meanwhile has the source start anew.
func TestTableThatIsBeingAdded(t *testing.T) {
	for _, adding := range []bool{true, false} {
		var recorded []capture.Table
		s := prepare(t, rig.Shared(t, 18).NewDB(t), twoTables, func(o *capture.Options) {
			o.Recorded = func(context.Context) ([]capture.Table, error) { return recorded, nil }
		})
		recorded = slices.Clone(s.tables)
		at := slices.IndexFunc(recorded, func(x capture.Table) bool { return x.Name.Name == "t" })
		recorded[at].Adding = adding
		s.tables = slices.Delete(slices.Clone(s.tables), at, at+1)
		s.start(t)
		s.db.SQL(t, "INSERT INTO t VALUES (1)")
		_, err := s.failure(t)
		var e *millrace.Error
		if !errors.As(err, &e) || e.Kind != millrace.KindRetry {
			t.Fatalf("adding %v: %v", adding, err)
		}
		if adding && (e.Condition != "changing_tables" || e.Hint == "") || errors.Is(err, millrace.ErrStartAnew) == adding {
			t.Errorf("adding %v: condition %q, hint %q, %v", adding, e.Condition, e.Hint, err)
		}
	}
}

// TestTableThatWasMadeAnew: what is on its way of a table that was dropped stops nothing once
// another one of its name is in the set.
func TestTableThatWasMadeAnew(t *testing.T) {
	s := prepare(t, rig.Shared(t, 18).NewDB(t), twoTables)
	s.db.Script(t, "INSERT INTO u VALUES (1); DROP TABLE u; CREATE TABLE u (id int PRIMARY KEY); INSERT INTO t VALUES (7)")
	s.tables = set(t, s.db)
	s.start(t)
	txn := s.txn(t)
	defer txn.Release()
	if len(txn.Changes) != 1 || txn.Changes[0].Rel.Name.Name != "t" {
		t.Errorf("what comes is %+v", txn.Changes)
	}
}
