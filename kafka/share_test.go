package kafka_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
	krecord "github.com/millrace/millrace/kafka/record"
)

// Shares of a prefix have each change once between them, those of a key in one of them and in
// their order; each keeps its share.
func TestSharesOfAPrefix(t *testing.T) {
	t.Parallel()
	e := endpoint(rig.SharedKafka(t), newPrefix())
	o := readable(t, e, 4)
	a, b := relation(1, "a"), relation(2, "b")
	loaded(t, o, a, b)
	s, _ := claimed(t, o)
	for n := 1; n <= 30; n++ {
		x := one(n, set(a, millrace.Insert, n, "a"), set(b, millrace.Insert, n, "b"))
		if n > 3 {
			x = one(n, set(a, millrace.Insert, n, "a"), set(a, millrace.Update, n-1, fmt.Sprint("now", n)), moved(a, n-2, 1000+n, "moved"), set(b, millrace.Delete, n-3, ""), set(b, millrace.Insert, n, "b"))
		}
		write(t, s, x)
	}
	awaitDurable(t, s, 3050)
	rows, tables, cursors := map[string]rowsOf{"a": {}, "b": {}}, map[string]rowsOf{"a": {}, "b": {}}, [][]byte{}
	seen := map[string]int{} // of a key, by which share
	whole1 := openReader(t, kafka.ReaderOptions{Endpoint: e, History: history, Share: &kafka.Share{N: 1, Of: 1}})
	for range 30 {
		_, changes := whole(t, whole1)
		for i := range changes {
			tables[changes[i].Rel.Name.Name].apply(t, changes[i:i+1])
		}
	}
	for n := 1; n <= 3; n++ {
		r := openReader(t, kafka.ReaderOptions{Endpoint: e, History: history, Share: &kafka.Share{N: n, Of: 3}})
		mine := 0
		for i := 1; i <= 30; i++ {
			x, changes := whole(t, r)
			if x.Commit != millrace.LSN(i*100) {
				t.Fatalf("share %d: %+v", n, x)
			}
			for c := range changes {
				key := changes[c].Rel.Name.Name + string(append(changes[c].Old, changes[c].New...)[0].Raw)
				if by := seen[key]; by != 0 && by != n {
					t.Errorf("changes of %s are in shares %d and %d", key, by, n)
				}
				seen[key] = n
				rows[changes[c].Rel.Name.Name].apply(t, changes[c:c+1])
			}
			mine += len(changes)
			if i == 30 {
				cursors = append(cursors, x.Cursor)
			}
		}
		if mine == 0 {
			t.Errorf("share %d has nothing", n)
		}
	}
	if got, want := fmt.Sprint(rows), fmt.Sprint(tables); got != want || len(want) < 100 {
		t.Errorf("the shares have %s, want %s", got, want)
	}
	for name, share := range map[string]*kafka.Share{"another share": {N: 2, Of: 3}, "another number": {N: 1, Of: 2}, "no share": nil} {
		if _, err := kafka.OpenReader(deadline(t), kafka.ReaderOptions{Endpoint: e, History: history, Cursor: cursors[0], Share: share}); millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(err.Error(), "share: 1/3") {
			t.Errorf("%s: %v", name, err)
		}
	}
	write(t, s, one(31, set(a, millrace.Truncate, 0, "")))
	awaitDurable(t, s, 3150)
	stopped := 0
	for n, cursor := range cursors {
		r := openReader(t, kafka.ReaderOptions{Endpoint: e, History: history, Cursor: cursor, Share: &kafka.Share{N: n + 1, Of: 3}})
		if _, err := r.Next(deadline(t)); millrace.KindOf(err) == millrace.KindResync && strings.Contains(err.Error(), "truncated") {
			stopped++
		} else if err != nil {
			t.Error(err)
		}
	}
	if stopped != 1 {
		t.Errorf("a TRUNCATE stops %d of the shares", stopped)
	}
}

// Rows that may have one key between them can't be told apart by it.
func TestSharesNeedAKeyThatIsUnique(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	for constraint, fine := range map[string]bool{"": false, `PRIMARY KEY (id, v)`: false, `UNIQUE ("id")`: true, "PRIMARY KEY (id)": true} {
		e := endpoint(k, newPrefix())
		o := readable(t, e, 1)
		a := relation(1, "a")
		a.Identity, a.Key = millrace.IdentityFull, []int{0, 1}
		o.Keys = map[millrace.TableName][]string{a.Name: {"id"}}
		describe := o.Describe
		o.Describe = func(ctx context.Context, rel *millrace.Relation, key []int) (*krecord.TableVersion, error) {
			v, err := describe(ctx, rel, key)
			if constraint != "" {
				v.Constraints = append(v.Constraints, krecord.ConstraintDef{Name: "c", Kind: "unique", Definition: constraint})
			}
			return v, err
		}
		loaded(t, o, a)
		s, _ := claimed(t, o)
		write(t, s, one(1, set(a, millrace.Insert, 1, "a")))
		awaitDurable(t, s, 150)
		r := openReader(t, kafka.ReaderOptions{Endpoint: e, History: history, Share: &kafka.Share{N: 1, Of: 1}})
		_, err := r.Next(deadline(t))
		if !fine && (millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(err.Error(), "several of its rows") || millrace.HintOf(err) == "") || fine && err != nil {
			t.Errorf("constraint %q: %v", constraint, err)
		}
	}
}
