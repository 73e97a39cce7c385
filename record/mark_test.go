package record_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

// TestMarkOfATableThatIsReadAgain: a load of the table goes on, and is about to
// commit its next mark, when the table is to be read again from its beginning.
func TestMarkOfATableThatIsReadAgain(t *testing.T) {
	url, conn := install(t)
	create(t, conn)
	const oid = 16400
	begin := func(tx pgx.Tx, mark string) error { return record.BeginLoad(t.Context(), tx, "shop", oid, mark) }
	if err := inTx(t, conn, func(tx pgx.Tx) error { return begin(tx, "") }); err != nil {
		t.Fatal(err)
	}
	streaming := connect(t, url, session.Apply)
	exec(t, streaming, "BEGIN")
	if err := inTx(t, conn, func(tx pgx.Tx) error {
		if err := record.RaiseSetAlone(t.Context(), tx, "shop"); err != nil {
			return err
		}
		return begin(tx, "anew")
	}); err != nil {
		t.Fatal(err)
	}
	r := streaming.PgConn().ExecParams(t.Context(), record.SetMarkSQL,
		record.MarkArgs("shop", &millrace.Mark{OID: oid, State: []byte("old")}), record.MarkTypes, nil, nil).Read()
	if _, err := streaming.Exec(t.Context(), "COMMIT"); r.Err == nil && err == nil {
		t.Error("the running load has written its mark")
	}
	j, cp := read(t, conn)
	if m := cp.Tables[j.Tables[0].Name]; string(m.State) != "anew" && string(cp.Tables[j.Tables[1].Name].State) != "anew" {
		t.Errorf("the marks are %v", cp.Tables)
	}
	if j.Set != 1 {
		t.Errorf("the number of the set is %d", j.Set)
	}
}

// TestAddedOnce: of two who add the same table at the same time one is told so. The
// other one's rows may be there already, and must not be loaded a second time.
func TestAddedOnce(t *testing.T) {
	_, conn := install(t)
	create(t, conn)
	table := record.Table{OID: 16500, Name: millrace.TableName{Schema: "public", Name: "new"}, Shape: "a"}
	for range 2 {
		if err := record.BeginAdding(t.Context(), conn, "shop", table); err != nil {
			t.Fatal(err)
		}
	}
	// A stream that has not noticed yet that the table was dropped before leaves its mark.
	if r := conn.PgConn().ExecParams(t.Context(), record.SetMarkSQL, record.MarkArgs("shop", &millrace.Mark{OID: table.OID, State: []byte("old")}),
		record.MarkTypes, nil, nil).Read(); r.Err != nil {
		t.Fatal(r.Err)
	}
	if _, cp := read(t, conn); len(cp.Tables) != 0 {
		t.Errorf("marks of a table that is not added yet: %v", cp.Tables)
	}
	if err := record.Added(t.Context(), conn, "shop", table.OID); err != nil {
		t.Fatal(err)
	}
	if err := record.Added(t.Context(), conn, "shop", table.OID); millrace.KindOf(err) != millrace.KindPreflight {
		t.Errorf("the second one is told %v", err)
	}
}
