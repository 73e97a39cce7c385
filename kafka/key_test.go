package kafka_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
)

// full gives the relation under REPLICA IDENTITY FULL.
func full(rel *millrace.Relation) *millrace.Relation {
	f := *rel
	f.Identity, f.Key = millrace.IdentityFull, []int{0, 1}
	return &f
}

func facts(f kafka.TableFacts) func(*millrace.Relation) *kafka.TableFacts {
	return func(*millrace.Relation) *kafka.TableFacts { return &f }
}

// keysOf reads the keys of n records of the table.
func keysOf(t *testing.T, k *rig.Kafka, e *kafka.Endpoint, n int) string {
	t.Helper()
	var keys []string
	for _, r := range readTopics(t, k, n, e.Prefix+".public.a") {
		keys = append(keys, r.key)
	}
	return strings.Join(keys, " ")
}

// Under REPLICA IDENTITY FULL the key is the primary key that the table had when
// it was loaded, and not the one that the catalog shows later.
func TestKeyUnderFullStaysWhatItWas(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	a := full(relation(1, "a"))
	refused := func(o kafka.Options, hint string) {
		t.Helper()
		s, _ := claimed(t, o)
		defer func() { _ = s.Close() }()
		err := s.Write(deadline(t), txn(9, "v", a))
		if millrace.KindOf(err) != millrace.KindData || !strings.Contains(err.Error(), "public.a") || !strings.Contains(millrace.HintOf(err), hint) {
			t.Errorf("%v; hint: %s", err, millrace.HintOf(err))
		}
	}
	e := endpoint(k, newPrefix())
	o := options(t, e)
	o.Facts = facts(kafka.TableFacts{PrimaryKey: []string{"id"}})
	loaded(t, o, a)
	s, _ := claimed(t, o)
	write(t, s, txn(1, "v", a))
	awaitDurable(t, s, 150)
	_ = s.Close()
	o.Facts = facts(kafka.TableFacts{PrimaryKey: []string{"v"}})
	refused(o, "keys: {public.a: [id]}")
	o.Facts = facts(kafka.TableFacts{})
	refused(o, "keys: {public.a: [id]}")
	// Named, it is what the operator answers for.
	o.Keys = map[millrace.TableName][]string{a.Name: {"id"}}
	s, _ = claimed(t, o)
	write(t, s, txn(2, "v", a))
	awaitDurable(t, s, 250)
	_ = s.Close()
	if got := keysOf(t, k, e, 2); got != "1 2" {
		t.Errorf("keys %s", got)
	}
	o.Keys = map[millrace.TableName][]string{a.Name: {"v"}}
	refused(o, "keys: {public.a: [id]}")

	// A table that had none does not get one in the middle of its history.
	e = endpoint(k, newPrefix())
	o = options(t, e)
	o.Facts = facts(kafka.TableFacts{})
	loaded(t, o, a)
	s, _ = claimed(t, o)
	write(t, s, txn(1, "v", a))
	awaitDurable(t, s, 150)
	_ = s.Close()
	o.Facts = facts(kafka.TableFacts{PrimaryKey: []string{"id"}})
	s, _ = claimed(t, o)
	write(t, s, txn(2, "v", a))
	awaitDurable(t, s, 250)
	if got := keysOf(t, k, e, 2); got != " " {
		t.Errorf("keys %q", got)
	}
}

// A chosen key has to be one that every change tells.
func TestChosenKeys(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	for name, c := range map[string]struct {
		rel  *millrace.Relation
		keys []string
		want string
	}{
		"another column":       {full(relation(1, "a")), []string{"v"}, ""},
		"part of the identity": {relation(1, "a"), []string{"id"}, ""},
		"not in the identity":  {relation(1, "a"), []string{"v"}, "REPLICA IDENTITY FULL"},
		"not there":            {full(relation(1, "a")), []string{"nix"}, "publish the column"},
		"both, in their order": {full(relation(1, "a")), []string{"v", "id"}, ""},
	} {
		e := endpoint(k, newPrefix())
		o := options(t, e)
		o.Keys = map[millrace.TableName][]string{c.rel.Name: c.keys}
		loaded(t, o, c.rel)
		s, _ := claimed(t, o)
		err := s.Write(deadline(t), txn(7, "v", c.rel))
		if c.want != "" {
			if millrace.KindOf(err) != millrace.KindData || !strings.Contains(millrace.HintOf(err), c.want) {
				t.Errorf("%s: %v; hint: %s", name, err, millrace.HintOf(err))
			}
			continue
		}
		s.Flush()
		awaitDurable(t, s, 750)
		want := strings.NewReplacer("id", "7", "v", "v").Replace(strings.Join(c.keys, ""))
		if got := keysOf(t, k, e, 1); got != want || err != nil {
			t.Errorf("%s: key %q, %v", name, got, err)
		}
	}
}

// Text that is equal by its collation and not by its bytes can't choose one of
// several partitions.
func TestNondeterministicKey(t *testing.T) {
	t.Parallel()
	a := relation(1, "a")
	for partitions, ok := range map[int]bool{1: true, 2: false} {
		o := options(t, endpoint(rig.SharedKafka(t), newPrefix()))
		o.Topics.Partitions = partitions
		o.Facts = facts(kafka.TableFacts{PrimaryKey: []string{"id"}, Loose: []string{"id"}})
		loaded(t, o, a)
		s, _ := claimed(t, o)
		err := s.Write(deadline(t), txn(1, "v", a))
		if ok != (err == nil) || !ok && (!strings.Contains(err.Error(), "nondeterministic") || !strings.Contains(millrace.HintOf(err), "partitions")) {
			t.Errorf("%d partitions: %v; hint: %s", partitions, err, millrace.HintOf(err))
		}
	}
}

// A change of a chosen key is a delete of the old one and an insert of the new one,
// as it is with a primary key, and comes back as the update that it was.
func TestChangeOfAChosenKey(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := readable(t, e, 4)
	a := full(relation(1, "a"))
	o.Keys = map[millrace.TableName][]string{a.Name: {"v"}}
	loaded(t, o, a)
	s, _ := claimed(t, o)
	x := txn(1, "old", a)
	x.Changes = append(x.Changes,
		millrace.Change{Op: millrace.Update, Seq: 2, Rel: a, Old: text("1", "old"), OldFull: true, New: text("2", "old")},
		millrace.Change{Op: millrace.Update, Seq: 3, Rel: a, Old: text("2", "old"), OldFull: true, New: text("2", "new")})
	write(t, s, x)
	awaitDurable(t, s, 150)
	ops := map[string]string{} // by key, in their order
	for _, r := range readTopics(t, k, 5, e.Prefix+".public.a") {
		var v struct{ Op string }
		if r.value != "" {
			if err := json.Unmarshal([]byte(r.value), &v); err != nil {
				t.Fatal(err)
			}
		}
		ops[r.key] += v.Op + " "
	}
	if want := (map[string]string{`{"v":"old"}`: "c u d  ", `{"v":"new"}`: "c "}); !maps.Equal(ops, want) {
		t.Errorf("%q", ops)
	}
	_, changes := whole(t, openReader(t, kafka.ReaderOptions{Endpoint: e}))
	if len(changes) != 3 || describeChange(&changes[2]) != "3 update a old(2,old) new(2,new)" {
		t.Errorf("%d changes, %s", len(changes), describeChange(&changes[2]))
	}
}
