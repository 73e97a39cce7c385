package kcheck

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// said makes a record of table "public.t" or, without key, of the transaction
// topic.
func said(xid int, seq int, key, value string) *kgo.Record {
	r := &kgo.Record{Topic: "p.public.t", Headers: []kgo.RecordHeader{
		{Key: "commit_lsn", Value: fmt.Appendf(nil, "0/%X", 100*xid)}, {Key: "xid", Value: fmt.Append(nil, xid)}, {Key: "generation", Value: []byte("1")}}}
	if key == "" {
		r.Topic = "p.transaction"
	} else {
		r.Key = fmt.Appendf(nil, `{"id":%s}`, key)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "seq", Value: fmt.Append(nil, seq)})
	}
	if value != "" {
		r.Value = []byte(value)
	}
	return r
}

func begin(xid int) *kgo.Record {
	return said(xid, 0, "", fmt.Sprintf(`{"status":"BEGIN","id":"%d:1"}`, xid))
}

func end(xid, count int) *kgo.Record {
	return said(xid, 0, "", fmt.Sprintf(`{"status":"END","id":"%d:1","partitions":[{"topic":"p.public.t","partition":0,"count":%d},{"topic":"p.schema","partition":0,"count":1}]}`, xid, count))
}

func value(op, after string) string {
	return fmt.Sprintf(`{"before":null,"after":%s,"op":%q}`, after, op)
}

// story is a first load of rows 1 and 2 and two transactions behind it.
func story() []*kgo.Record {
	chunk := func(r *kgo.Record) *kgo.Record {
		r.Headers[0].Value, r.Headers[1].Value = []byte("0/5"), []byte("0")
		r.Value = []byte(strings.ReplaceAll(string(r.Value), `"0:1"`, `"chunk:public.t:1"`))
		return r
	}
	return []*kgo.Record{
		chunk(begin(0)), chunk(said(0, 1, "1", value("r", `{"id":1,"v":"b"}`))), chunk(said(0, 2, "2", value("r", `{"id":2,"v":"a"}`))), chunk(end(0, 2)), // 0..3
		begin(8), said(8, 1, "1", value("u", `{"id":1,"v":"c"}`)), said(8, 2, "3", value("c", `{"v":"x","id":3}`)), end(8, 2), // 4..7
		begin(9), said(9, 1, "1", value("d", "null")), said(9, 1, "1", ""), said(9, 2, "3", value("u", `{"id":3,"v":"y"}`)), end(9, 3), // 8..12
	}
}

// written is the ledger of the same, with one transaction before the first load.
func written() *Ledger {
	l := &Ledger{txns: map[uint32][]change{}, rows: map[row][]change{}}
	add := func(xid uint32, op, id, after string) {
		l.add(change{row{"public.t", `{"id":` + id + `}`}, xid, op, after})
	}
	add(6, "c", "1", `{"id":1,"v":"a"}`)
	add(6, "c", "2", `{"id":2,"v":"a"}`)
	add(7, "u", "1", `{"id":1,"v":"b"}`)
	add(8, "u", "1", `{"id":1,"v":"c"}`)
	add(8, "c", "3", `{"id":3,"v":"x"}`)
	add(9, "d", "1", "")
	add(9, "u", "3", `{"id":3,"v":"y"}`)
	return l
}

func verdictOf(t *testing.T, records []*kgo.Record, l *Ledger) *Verdict {
	t.Helper()
	h := newHistory("p")
	for _, r := range records {
		if err := h.see(r); err != nil {
			t.Fatal(err)
		}
	}
	return h.Verify(l)
}

// TestFaultsAreFound: the history as it was is right, and no single thing can
// be taken from it, added or moved without a fault of the right name.
func TestFaultsAreFound(t *testing.T) {
	if v := verdictOf(t, story(), written()); v.Err() != nil || v.Transactions != 2 || v.Changes != 4 || v.Rows != 3 || v.Snapshot != 2 {
		t.Fatalf("the history as it was: %s: %v", v, v.Err())
	}
	for name, c := range map[string]struct {
		spoil func([]*kgo.Record) []*kgo.Record
		want  string
	}{
		"a record is missing":            {without(5), "torn"},
		"a tombstone is missing":         {without(10), "torn"},
		"a row of the load is missing":   {without(2), "lost"},
		"an END is missing":              {without(12), "torn"},
		"a BEGIN is missing":             {without(8), "torn"},
		"a transaction is missing":       {without(4, 5, 6, 7), "lost or repeated"},
		"the last one is missing":        {without(8, 9, 10, 11, 12), "lost or repeated"},
		"the load is missing":            {without(0, 1, 2, 3), "lost"},
		"a record comes twice":           {twice(6), "torn"},
		"a transaction comes twice":      {twice(8, 9, 10, 11, 12), "repeated"},
		"two transactions are exchanged": {func(r []*kgo.Record) []*kgo.Record { return append(append(r[:4:4], r[8:]...), r[4:8]...) }, "disorder"},
		"two changes are exchanged": {func(r []*kgo.Record) []*kgo.Record {
			r[5].Headers[3].Value, r[6].Headers[3].Value = []byte("2"), []byte("1")
			return r
		}, "disorder"},
		"a value is another": {func(r []*kgo.Record) []*kgo.Record { r[11].Value = []byte(value("u", `{"id":3,"v":"z"}`)); return r }, "disorder"},
		"the load is of another time": {func(r []*kgo.Record) []*kgo.Record {
			r[1].Value = []byte(value("r", `{"id":1,"v":"a"}`))
			return r
		}, "lost or repeated"},
		"a key is in two partitions": {func(r []*kgo.Record) []*kgo.Record { r[11].Partition = 1; return r }, "disorder"},
		"it was never committed": {func(r []*kgo.Record) []*kgo.Record {
			return append(r, begin(10), said(10, 1, "7", value("c", `{"id":7}`)), end(10, 1))
		}, "repeated"},
		"a tombstone of a living row": {func(r []*kgo.Record) []*kgo.Record { r[11].Value = nil; return r }, "repeated"},
	} {
		v := verdictOf(t, c.spoil(story()), written())
		if !slices.ContainsFunc(v.Faults, func(f string) bool { return strings.HasPrefix(f, c.want) }) {
			t.Errorf("%s: %q, want one that begins with %q", name, v.Faults, c.want)
		}
	}
}

func without(gone ...int) func([]*kgo.Record) []*kgo.Record {
	return func(all []*kgo.Record) (left []*kgo.Record) {
		for i, r := range all {
			if !slices.Contains(gone, i) {
				left = append(left, r)
			}
		}
		return left
	}
}

func twice(again ...int) func([]*kgo.Record) []*kgo.Record {
	return func(all []*kgo.Record) []*kgo.Record {
		for _, i := range again {
			all = append(all, all[i])
		}
		return all
	}
}

// Only the newest generation counts: a load that was begun anew replaces what
// came before.
func TestNewestGeneration(t *testing.T) {
	old := story()[:2]
	all := story()
	for _, r := range all {
		r.Headers[2].Value = []byte("2")
	}
	if v := verdictOf(t, append(old, all...), written()); v.Err() != nil {
		t.Error(v.Err())
	}
}
