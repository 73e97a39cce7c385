package bootstrap

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
	"github.com/millrace/millrace/snapshot"
)

// dying ends what a verb does at a commit of its own, once that is sent or once it is answered,
// as a kill does: nothing is tidied up.
type dying struct {
	nth      int
	answered bool
	die      context.CancelFunc

	mu   sync.Mutex
	seen int
}

func (d *dying) at(key int16, answered bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if key == int16(kmsg.EndTxn) && answered == d.answered && err == nil {
		if d.seen++; d.seen == d.nth {
			d.die()
		}
	}
}

func (d *dying) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	d.at(key, false, err)
}

func (d *dying) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	d.at(key, true, err)
}

// setBed is a job into a prefix that has the given tables.
func setBed(t *testing.T, sourceSQL string, tables ...string) (*bed, Options) {
	t.Helper()
	b, o := kafkaBed(t, sourceSQL)
	b.match(t, tables...)
	o.Patterns = b.Patterns
	if err := RunKafka(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	verb := o.Options
	verb.Into = &o.Sink
	return b, verb
}

// TestTableVerbsThatDie: killed at any of its steps, a verb that is run again comes to the end that it
// would have come to, and the record says at no moment what the publication does not hold.
func TestTableVerbsThatDie(t *testing.T) {
	t.Parallel()
	b, verb := setBed(t, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY, v int)", "public.a")
	b.match(t, "public.b")
	verb.Patterns = b.Patterns
	e := verb.Into.Endpoint
	verbs := []struct {
		name string
		run  func(context.Context) ([]millrace.TableName, error)
		had  string // what the record says behind it: tables, and those that are loaded
	}{
		{"add", func(ctx context.Context) ([]millrace.TableName, error) { return AddTables(ctx, verb) }, "a b+"},
		{"resnapshot", func(ctx context.Context) ([]millrace.TableName, error) { return Resnapshot(ctx, verb) }, "a b+"},
		{"drop", func(ctx context.Context) ([]millrace.TableName, error) {
			return DropTables(ctx, verb, func(millrace.TableName) bool { return false })
		}, "a"},
	}
	set := int64(0)
	for _, step := range []struct {
		nth      int
		answered bool
	}{{1, false}, {1, true}, {2, false}, {2, true}} {
		for _, v := range verbs {
			what := fmt.Sprintf("%s, killed at commit %d (answered: %t)", v.name, step.nth, step.answered)
			ctx, die := context.WithCancel(t.Context())
			e.Hooks = []kgo.Hook{&dying{nth: step.nth, answered: step.answered, die: die}}
			_, err := v.run(ctx)
			die()
			e.Hooks = nil
			published := b.src.Query(t, "SELECT count(*) FROM pg_publication_tables WHERE pubname = '"+b.Publication+"' AND tablename = 'b'") == "1"
			rig.Eventually(t, time.Minute, func() bool { // a commit is confirmed before its marker is in the topic
				for _, table := range kafkaState(t, e).Job.Tables {
					if table.Name.Name == "b" && !table.Adding && !published {
						return false
					}
				}
				return true
			}, what+": no table counts that is not published")
			if err != nil || v.name == "resnapshot" {
				if names, err := v.run(t.Context()); err == nil && len(names) != 1 {
					t.Errorf("%s: again: %v", what, names)
				} else if err != nil && millrace.KindOf(err) != millrace.KindPreflight {
					t.Errorf("%s: again: %v", what, err)
				}
			}
			rig.Eventually(t, time.Minute, func() bool { return recordedSet(kafkaState(t, e)) == v.had }, what+": the record says "+v.had)
			if now := kafkaState(t, e).Job.Set; now <= set {
				t.Errorf("%s: whoever streams is not told", what)
			} else {
				set = now
			}
		}
	}
	if got := b.src.Query(t, "SELECT string_agg(tablename, ' ') FROM pg_publication_tables WHERE pubname = '"+b.Publication+"'"); got != "a" {
		t.Errorf("the publication has %s", got)
	}
}

// A table that was added again is emptied first, also if it is to be read again before that was done.
func TestReadAgainBeforeItIsEmptied(t *testing.T) {
	t.Parallel()
	b, verb := setBed(t, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); INSERT INTO b VALUES (1)", "public.a", "public.b")
	b.match(t, "public.b")
	verb.Patterns = b.Patterns
	for _, do := range []func(context.Context, Options) ([]millrace.TableName, error){
		func(ctx context.Context, o Options) ([]millrace.TableName, error) {
			return DropTables(ctx, o, func(millrace.TableName) bool { return false })
		}, AddTables, Resnapshot,
	} {
		if _, err := do(t.Context(), verb); err != nil {
			t.Fatal(err)
		}
	}
	rig.Eventually(t, time.Minute, func() bool {
		s := kafkaState(t, verb.Into.Endpoint)
		var m snapshot.Mark
		err := json.Unmarshal(s.Checkpoint.Tables[millrace.TableName{Schema: "public", Name: "b"}].State, &m)
		return err == nil && s.Job.Set == 3 && m.Empty && m.Since > 0
	}, "the mark says that the table is to be emptied, and since when it is there")
}

// recordedSet names the tables of a record: * for one that does not count, + for one that is loaded
// beside the stream.
func recordedSet(s *kafka.State) (all string) {
	for _, t := range s.Job.Tables {
		if all != "" {
			all += " "
		}
		all += t.Name.Name
		if t.Adding {
			all += "*"
		}
		if _, ok := s.Checkpoint.Tables[t.Name]; ok {
			all += "+"
		}
	}
	return all
}

// What a table that is added would be in the way of is told before anything is changed.
func TestAddedTablesHaveTheirTopics(t *testing.T) {
	t.Parallel()
	b, verb := setBed(t, "CREATE TABLE a (id int PRIMARY KEY); CREATE SCHEMA other; CREATE TABLE other.b (id int PRIMARY KEY)", "public.a")
	verb.Into.Topics.Names = map[millrace.TableName]string{{Schema: "other", Name: "b"}: kafka.TopicOf(verb.Into.Endpoint.Prefix, millrace.TableName{Schema: "public", Name: "a"})}
	b.match(t, "other.*")
	verb.Patterns = b.Patterns
	_, err := AddTables(t.Context(), verb)
	if millrace.KindOf(err) != millrace.KindPreflight || millrace.HintOf(err) == "" {
		t.Errorf("a topic for two tables: %v", err)
	}
	if got := recordedSet(kafkaState(t, verb.Into.Endpoint)); got != "a" {
		t.Errorf("the record has %s", got)
	}
}

// A publication that can't be changed leaves the job as it is: a table that is recorded as one that leaves, or
// joins, would hold up whoever streams.
func TestTableVerbsThatAreRefused(t *testing.T) {
	t.Parallel()
	b, verb := setBed(t, "CREATE TABLE a (id int PRIMARY KEY, v int NOT NULL); ALTER TABLE a REPLICA IDENTITY FULL; CREATE TABLE b (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY)", "public.a")
	b.match(t, "public.b")
	verb.Patterns = b.Patterns
	if _, err := AddTables(t.Context(), verb); err != nil {
		t.Fatal(err)
	}
	b.src.Script(t, `CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN RAISE insufficient_privilege; END';
		CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('ALTER PUBLICATION') EXECUTE FUNCTION refuse()`)
	_, err := DropTables(t.Context(), verb, func(millrace.TableName) bool { return false })
	refused := func(err error, sql string) {
		t.Helper()
		if millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(millrace.HintOf(err), sql) {
			t.Errorf("%v (hint: %s)", err, millrace.HintOf(err))
		}
		if got := recordedSet(kafkaState(t, verb.Into.Endpoint)); got != "a b+" {
			t.Errorf("the record has %s", got)
		}
	}
	refused(err, `DROP TABLE ONLY "public"."b"`)
	b.match(t, "public.c")
	verb.Patterns = b.Patterns
	_, err = AddTables(t.Context(), verb)
	refused(err, `ADD TABLE ONLY "public"."c"`)
	b.match(t, "public.a")
	verb.Patterns, verb.Keys = b.Patterns, catalog.Keys{{Schema: "public", Name: "a"}: {"v"}}
	_, err = Resnapshot(t.Context(), verb) // several rows may have one key
	refused(err, "millrace table drop public.a")
}
