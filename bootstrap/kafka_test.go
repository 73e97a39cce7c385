package bootstrap

import (
	"context"
	"encoding/json"
	"log/slog"
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
	krecord "github.com/millrace/millrace/kafka/record"
	"github.com/millrace/millrace/record"
)

// unanswered loses the answer to the nth EndTxn: the request reaches the broker, and
// its sender gives up.
type unanswered struct {
	nth    int
	giveUp context.CancelFunc

	mu   sync.Mutex
	sent int
}

func (u *unanswered) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if key != int16(kmsg.EndTxn) || err != nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sent++; u.sent == u.nth {
		u.giveUp()
	}
}

func (u *unanswered) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	u.mu.Lock()
	lost := u.sent == u.nth
	u.mu.Unlock()
	if key == int16(kmsg.EndTxn) && lost {
		<-time.After(time.Second) // its sender has given up by then
	}
}

// kafkaBed is a load into a prefix of topics.
func kafkaBed(t *testing.T, sourceSQL string) (*bed, KafkaOptions) {
	t.Helper()
	b := newBed(t, rig.Newest, rig.Newest, sourceSQL, "")
	k := rig.SharedKafka(t)
	prefix := b.Job
	ro := krecord.Options{Format: krecord.JSON, Prefix: prefix, Toast: krecord.Placeholder,
		Topic: func(n millrace.TableName) string { return kafka.TopicOf(prefix, n) }}
	encoder, err := krecord.NewEncoder(ro)
	if err != nil {
		t.Fatal(err)
	}
	e := &kafka.Endpoint{Peer: millrace.PeerDestination, Brokers: k.Brokers(), Prefix: prefix, Job: b.Job}
	describe := func(_ context.Context, rel *millrace.Relation, key []int) (*krecord.TableVersion, error) {
		return krecord.NewTableVersion(ro, rel, key, nil, nil), nil
	}
	o := KafkaOptions{Options: b.Options, Sink: kafka.Options{Endpoint: e, Encoder: encoder, Describe: describe, Log: slog.New(slog.DiscardHandler)}}
	o.State = kafkaState(t, e)
	return b, o
}

func kafkaState(t *testing.T, e *kafka.Endpoint) *kafka.State {
	t.Helper()
	ctl, err := e.OpenControl()
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	s, err := ctl.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The last commit of a load is one whose outcome may not be known. Then it is found
// out before the slot is dropped: a load that is complete keeps it, and so does one of
// which a table is, since that goes on beside the stream.
func TestUnknownOutcomeOfALoad(t *testing.T) {
	t.Parallel()
	// The record, the slot, a chunk of each of two tables, the end.
	for nth, want := range map[int]struct{ complete, slot bool }{2: {}, 4: {slot: true}, 5: {true, true}} {
		complete := want.complete
		b, o := kafkaBed(t, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); INSERT INTO a VALUES (1); INSERT INTO b VALUES (2)")
		ctx, cancel := context.WithCancel(t.Context())
		o.Sink.Endpoint.Hooks = []kgo.Hook{&unanswered{nth: nth, giveUp: cancel}}
		err := RunKafka(ctx, o)
		if complete != (err == nil) {
			t.Errorf("commit %d: %v", nth, err)
		}
		o.Sink.Endpoint.Hooks = nil
		// A commit is confirmed before its marker is in the topic.
		rig.Eventually(t, time.Minute, func() bool {
			s := kafkaState(t, o.Sink.Endpoint)
			return s.Job != nil && complete == (s.Job.ConsistentFrom != 0)
		}, "the record says whether the load is complete")
		if got := b.slot(t, "count(*)") == "1"; got != want.slot {
			t.Errorf("commit %d: there is a slot: %t", nth, got)
		}
	}
}

// A load that holds its snapshot for too long goes on beside the stream, also if no table is complete.
func TestTimeoutOfALoadIntoKafka(t *testing.T) {
	t.Parallel()
	b, o := kafkaBed(t, "CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a SELECT i, repeat('x', 1000) FROM generate_series(1, 10000) i")
	o.Rate, o.Timeout = 1<<20, 1500*time.Millisecond
	if err := RunKafka(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	s := kafkaState(t, o.Sink.Endpoint)
	if s.Job == nil || s.Job.ConsistentFrom != 0 || len(s.Checkpoint.Tables) != 1 {
		t.Errorf("the record is %+v, with marks %v", s.Job, s.Checkpoint.Tables)
	}
	if got := b.slot(t, "count(*)"); got != "1" {
		t.Error("the slot is gone")
	}
}

// What has ended a load stands in the record, with its cure.
func TestRecordTellsWhyALoadIntoKafkaEnded(t *testing.T) {
	t.Parallel()
	b, o := kafkaBed(t, "CREATE TABLE large (id int PRIMARY KEY, v text); INSERT INTO large VALUES (1, repeat('x', 2000000))")
	err := RunKafka(t.Context(), o)
	if err == nil {
		t.Fatal("a row that is larger than a message was loaded")
	}
	j := kafkaState(t, o.Sink.Endpoint).Job
	if j == nil || j.State != record.Failed || j.Reason != err.Error() || j.Hint == "" {
		t.Errorf("the record is %+v after %v", j, err)
	}
	if got := b.slot(t, "count(*)"); got != "0" {
		t.Errorf("%s slots are left", got)
	}
}

// Under REPLICA IDENTITY FULL the record's key is the primary key that the snapshot
// shows, and records of a chunk have the position that it was taken at.
func TestLoadPinsKeys(t *testing.T) {
	t.Parallel()
	b, o := kafkaBed(t, `CREATE TABLE a (x int, y int, PRIMARY KEY (y, x)); ALTER TABLE a REPLICA IDENTITY FULL; INSERT INTO a VALUES (1, 2);
		CREATE TABLE b (id int); ALTER TABLE b REPLICA IDENTITY FULL; INSERT INTO b VALUES (2)`)
	if err := RunKafka(t.Context(), o); err != nil {
		t.Fatalf("%v\nhint: %s", err, millrace.HintOf(err))
	}
	var s *kafka.State
	rig.Eventually(t, time.Minute, func() bool {
		s = kafkaState(t, o.Sink.Endpoint)
		return s.Job.ConsistentFrom != 0
	}, "the load is recorded as complete")
	if a, b := s.Topics[b.Job+".public.a"].Key, s.Topics[b.Job+".public.b"].Key; len(a) != 2 || a[0] != "y" || b == nil || len(b) != 0 {
		t.Errorf("keys %v and %v", a, b)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(o.Sink.Endpoint.Brokers...), kgo.ConsumeTopics(b.Job+".public.a"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	records := cl.PollFetches(ctx).Records()
	if len(records) == 0 {
		t.Fatal("no record came")
	}
	var value struct{ Source struct{ LSN uint64 } }
	if err := json.Unmarshal(records[0].Value, &value); err != nil {
		t.Fatal(err)
	}
	lsn := millrace.LSN(value.Source.LSN)
	if lsn != s.Job.ConsistentPoint || lsn == 0 || string(records[0].Key) != `{"y":2,"x":1}` {
		t.Errorf("source.lsn is %v, key %s; the load was at %v", lsn, records[0].Key, s.Job.ConsistentPoint)
	}
}

// A key whose equality is not that of its bytes can't choose one of several
// partitions. The server's build may lack such collations, so that the catalog's
// answer stands here.
func TestNondeterministicKeyIsAProblem(t *testing.T) {
	table := &catalog.Table{Name: millrace.TableName{Schema: "public", Name: "a"}, Identity: millrace.IdentityDefault,
		Columns: []catalog.Column{{AttNum: 1, Name: "name", Collate: 'n', NotNull: true}, {AttNum: 2, Name: "other", Collate: 'd'}},
		Indexes: []catalog.Index{{Columns: []int16{1}, Unique: true, Primary: true, Valid: true, Immediate: true}}}
	o := kafka.Options{Endpoint: &kafka.Endpoint{Prefix: "p"}}
	for partitions, want := range []int{0, 0, 1} {
		o.Topics.Partitions = partitions
		if got := TopicProblems(&o, []*catalog.Table{table}); len(got) != want {
			t.Errorf("%d partitions: %v", partitions, got)
		}
	}
}

// Keys that were chosen are the keys of the records; what can't be one is found
// before anything is made.
func TestLoadTakesChosenKeys(t *testing.T) {
	t.Parallel()
	b, o := kafkaBed(t, `CREATE TABLE a (id int PRIMARY KEY, tenant int NOT NULL, maybe int); ALTER TABLE a REPLICA IDENTITY FULL; INSERT INTO a VALUES (1, 2);
		CREATE TABLE b (id int PRIMARY KEY, tenant int NOT NULL)`)
	name := func(s string) millrace.TableName { return millrace.TableName{Schema: "public", Name: s} }
	for problem, keys := range map[string]map[millrace.TableName][]string{
		"REPLICA IDENTITY FULL": {name("b"): {"tenant"}},
		"SET NOT NULL":          {name("a"): {"maybe"}},
		"name another column":   {name("a"): {"nix"}},
		"take it out of keys":   {name("c"): {"id"}},
		"CREATE UNIQUE INDEX":   {name("a"): {"tenant"}}, // with compact
	} {
		o.Sink.Keys, o.Sink.Topics.Compact = keys, strings.HasPrefix(problem, "CREATE")
		if err := RunKafka(t.Context(), o); millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(err.Error()+millrace.HintOf(err), problem) {
			t.Errorf("%s: %v; hint: %s", problem, err, millrace.HintOf(err))
		}
	}
	// A compacted topic takes a key that tells rows apart.
	o.Sink.Keys, o.Sink.Topics.Compact = map[millrace.TableName][]string{name("a"): {"tenant", "id"}}, true
	if err := RunKafka(t.Context(), o); err != nil {
		t.Fatalf("%v\nhint: %s", err, millrace.HintOf(err))
	}
	rig.Eventually(t, time.Minute, func() bool {
		pins := kafkaState(t, o.Sink.Endpoint).Topics
		return strings.Join(pins[b.Job+".public.a"].Key, " ") == "tenant id" && strings.Join(pins[b.Job+".public.b"].Key, " ") == "id"
	}, "the keys are pinned")
}
