package record

import (
	"errors"
	"testing"

	"github.com/millrace/millrace"
)

// TestPartsAfterRelease: the Txn of a first part is its maker's again when the
// next part is encoded.
func TestPartsAfterRelease(t *testing.T) {
	for _, f := range Formats {
		e, err := NewEncoder(options(f))
		check(t, err)
		x := benchTxn(millrace.Text)
		c := &x.Changes[0]
		encode := func() (value string) {
			err := e.Encode(c, c.Rel, c.Rel.Key, func(r *Record) error { value = string(r.Value); return nil })
			check(t, err)
			return value
		}
		whole := func(release bool) string {
			y := *x
			e.Begin("700:1073741824", &y)
			now := &e.(*encoder).txn.now
			*now = x.Time
			if release {
				y = millrace.Txn{}
			}
			return encode()
		}
		if want, got := whole(false), whole(true); got != want {
			t.Errorf("%s: the second part has\n%q, want\n%q", f, got, want)
		}
	}
}

// TestFailureLeavesNoHeader: what a change that could not be encoded has left is
// not on the first record of the next try.
func TestFailureLeavesNoHeader(t *testing.T) {
	e, err := NewEncoder(options(JSON))
	check(t, err)
	x := benchTxn(millrace.Text)
	rel := *x.Changes[0].Rel
	rel.Columns = append(append([]millrace.Column{}, rel.Columns...), millrace.Column{Name: "far", Type: 90000, Mod: -1, TypeName: "x.y"})
	row := append(append(millrace.Row{}, x.Changes[0].New...), millrace.Value{Kind: millrace.Binary, Raw: []byte{1}})
	full := append(millrace.Row{}, row...)
	row[3] = millrace.Value{Kind: millrace.Unchanged}
	update := millrace.Change{Op: millrace.Update, Seq: 2, Rel: &rel, New: row}
	e.Begin("1:1", x)
	none := func(*Record) error { return nil }
	if err := e.Encode(&update, &rel, rel.Key, none); !errors.Is(err, millrace.ErrNeedText) {
		t.Fatal(err)
	}
	full[len(full)-1] = millrace.Value{Kind: millrace.Text, Raw: []byte("1")}
	insert := millrace.Change{Op: millrace.Insert, Seq: 1, Rel: &rel, New: full}
	e.Begin("1:1", x)
	check(t, e.Encode(&insert, &rel, rel.Key, func(r *Record) error {
		if len(r.Headers) != 0 {
			t.Errorf("the insert has headers %v", r.Headers)
		}
		return nil
	}))
}
