package record

import (
	"errors"
	"fmt"
	"testing"

	"github.com/millrace/millrace"
)

// TestChunkRecords: rows of a chunk are r, from a position and no transaction,
// and the id of the chunk may have any name in it.
func TestChunkRecords(t *testing.T) {
	x := benchTxn(millrace.Text)
	x.Commit, x.End, x.XID = 0, 0, 0
	x.Chunk = &millrace.Chunk{Table: x.Changes[0].Rel.Name, Snapshot: "10:20:", Upto: 0x2000}
	x.Changes[0].Op = millrace.Read
	id := `chunk:public."we\ird":3`
	for _, f := range []Format{JSON, JSONInline, Flat, Keys} {
		e, err := NewEncoder(options(f))
		check(t, err)
		e.Begin(id, x)
		err = e.Encode(&x.Changes[0], x.Changes[0].Rel, x.Changes[0].Rel.Key, func(r *Record) error {
			o := object(t, r.Value)
			if f == JSONInline {
				o = o["payload"].(map[string]any)
			}
			if f != JSON && f != JSONInline {
				return nil
			}
			source, txn := o["source"].(map[string]any), o["transaction"].(map[string]any)
			if o["op"] != "r" || txn["id"] != id || source["txId"] != nil || source["snapshot"] != "incremental" || fmt.Sprint(source["lsn"]) != "8192" {
				t.Errorf("%s: %v", f, o)
			}
			return nil
		})
		check(t, err)
	}
}

// TestRefusals: what can't be written stops with table, column and a hint, and
// shows no value.
func TestRefusals(t *testing.T) {
	x := benchTxn(millrace.Text)
	row := x.Changes[0].New
	refuse := func(f Format, o Options, col int, value string, rel *millrace.Relation) {
		t.Helper()
		o.Format = f
		e, err := NewEncoder(o)
		check(t, err)
		old := row[col]
		row[col] = millrace.Value{Kind: millrace.Text, Raw: []byte(value)}
		if value == "" {
			row[col] = millrace.Value{Kind: millrace.Null}
		}
		e.Begin("1:1", x)
		err = e.Encode(&x.Changes[0], rel, []int{0}, func(*Record) error { return nil })
		row[col] = old
		if millrace.KindOf(err) != millrace.KindData || millrace.HintOf(err) == "" {
			t.Errorf("%s: %v", f, err)
			return
		}
		var at *millrace.Error
		if !errors.As(err, &at) || at.Table.Name != "accounts" || at.Column != rel.Columns[col].Name || at.LSN != x.Commit {
			t.Errorf("%s: %v", f, err)
		}
	}
	rel := x.Changes[0].Rel
	refuse(JSON, options(JSON), 3, "\xff\xfe", rel)
	bytes := options(JSON)
	bytes.Decimal = 1
	refuse(JSON, bytes, 2, "NaN", rel)
	refuse(JSONInline, options(JSONInline), 0, "", rel)
	refuse(Avro, options(Avro), 0, "", rel)
	arrays := *rel
	arrays.Columns = append([]millrace.Column{}, rel.Columns...)
	arrays.Columns[3].Type = 1007
	refuse(JSONInline, options(JSONInline), 3, "{{1,2},{3,4}}", &arrays)
	refuse(Avro, options(Avro), 3, "[0:1]={1,2}", &arrays)
	for _, o := range []Options{{Format: "xml", Toast: Placeholder}, {Format: JSON, Toast: "never"}, {Format: Avro, Toast: Placeholder}} {
		if _, err := NewEncoder(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
	for _, o := range []Options{{Format: Flat}, {Format: Keys}, {Format: JSON, Lossy: true}} {
		if _, err := NewDecoder(o, rel, rel.Key); err == nil {
			t.Errorf("%+v can be read", o)
		}
	}
}
