package kafka_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
	krecord "github.com/millrace/millrace/kafka/record"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/spool"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(errandVariable); text != "" {
		if err := runErrand(text); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	rig.Main(m)
}

var prefixes atomic.Int64

// patience is for what does not depend on us.
const patience = time.Minute

// newPrefix is one that no other test of this run uses.
func newPrefix() string { return fmt.Sprintf("t%d", prefixes.Add(1)) }

func endpoint(k *rig.Kafka, prefix string) *kafka.Endpoint {
	return &kafka.Endpoint{Peer: millrace.PeerDestination, Brokers: k.Brokers(), Prefix: prefix, Job: "job"}
}

// plainFormat writes rows as they are, so that tests of the sink see what they
// have put in.
type plainFormat struct{}

func (plainFormat) Begin(string, *millrace.Txn) {}

func (plainFormat) Encode(c *millrace.Change, rel *millrace.Relation, key []int, emit func(*krecord.Record) error) error {
	row := c.New
	if c.Op == millrace.Delete {
		row = c.Old
	}
	if c.Op == millrace.Truncate {
		return emit(&krecord.Record{Value: []byte(`{"op":"T"}`), Event: true})
	}
	var k, v bytes.Buffer
	for _, i := range key {
		k.Write(row[i].Raw)
	}
	fmt.Fprintf(&v, `{"op":%q`, string(c.Op))
	for i, col := range rel.Columns {
		fmt.Fprintf(&v, `,%q:%q`, col.Name, row[i].Raw)
	}
	v.WriteByte('}')
	return emit(&krecord.Record{Key: k.Bytes(), Value: v.Bytes(), Row: row, Canonical: k.Bytes(), Event: true})
}

func text(values ...string) millrace.Row {
	row := make(millrace.Row, len(values))
	for i, v := range values {
		row[i] = millrace.Value{Kind: millrace.Text, Raw: []byte(v)}
	}
	return row
}

func relation(oid uint32, name string) *millrace.Relation {
	return &millrace.Relation{OID: oid, Name: millrace.TableName{Schema: "public", Name: name}, Identity: millrace.IdentityDefault,
		Columns: []millrace.Column{{Name: "id", Type: 23}, {Name: "v", Type: 25}}, Key: []int{0}}
}

var history = &millrace.History{System: "7", Timeline: 1, Generation: 1}

// txn is a transaction that inserts one row into each of the relations.
func txn(n int, value string, rels ...*millrace.Relation) *millrace.Txn {
	t := &millrace.Txn{XID: uint32(1000 + n), Commit: millrace.LSN(n * 100), End: millrace.LSN(n*100 + 50), Time: time.UnixMilli(1700000000000),
		From: history, Last: true}
	for i, rel := range rels {
		t.Changes = append(t.Changes, millrace.Change{Op: millrace.Insert, Seq: uint64(i + 1), Rel: rel, New: text(fmt.Sprint(n), value)})
	}
	return t
}

func options(t *testing.T, e *kafka.Endpoint) kafka.Options {
	t.Helper()
	s, err := spool.Open(spool.Options{Dir: t.TempDir(), Job: "job"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return kafka.Options{Endpoint: e, Encoder: plainFormat{}, Spool: s, Log: slog.New(slog.DiscardHandler)}
}

// loaded records a job whose first load is complete, with no rows; reload does it
// once more.
func loaded(t *testing.T, o kafka.Options, rels ...*millrace.Relation) {
	t.Helper()
	load(t, o, 0, rels)
}

func reload(t *testing.T, o kafka.Options, rels ...*millrace.Relation) {
	t.Helper()
	load(t, o, 1, rels)
}

func load(t *testing.T, o kafka.Options, former int64, rels []*millrace.Relation) {
	t.Helper()
	ctx := deadline(t)
	job := &record.Job{Generation: former, Name: "job", State: record.Bootstrapping, SystemID: history.System, Timeline: 1, Slot: "s", Mode: "consistent"}
	for _, rel := range rels {
		job.Tables = append(job.Tables, record.Table{OID: rel.OID, Name: rel.Name})
	}
	s := kafka.New(o)
	l, err := s.Load(ctx, job)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Start(ctx, 10, true, false, false, job.Tables); err != nil {
		t.Fatal(err)
	}
	if err := l.Finish(ctx); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// claimed opens and claims a sink.
func claimed(t *testing.T, o kafka.Options) (*kafka.Sink, millrace.Checkpoint) {
	t.Helper()
	s := kafka.New(o)
	if _, err := s.Open(deadline(t)); err != nil {
		t.Fatal(err)
	}
	cp, err := s.Claim(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, cp
}

func write(t *testing.T, s *kafka.Sink, txns ...*millrace.Txn) {
	t.Helper()
	for _, x := range txns {
		if err := s.Write(deadline(t), x); err != nil {
			t.Fatal(err)
		}
	}
	s.Flush()
}

func awaitDurable(t *testing.T, s *kafka.Sink, at millrace.LSN) {
	t.Helper()
	ctx := deadline(t)
	for done := millrace.LSN(0); done < at; {
		var err error
		if done, err = s.Durable(ctx, done); err != nil {
			t.Fatal(err)
		}
	}
}

// rec is a record as a reader sees it.
type rec struct {
	topic, key, value string
	partition         int32
	headers           map[string]string
}

// readTopics reads all that is committed in the topics of the prefix that end
// with one of the names, until n records have come.
func readTopics(t *testing.T, k *rig.Kafka, n int, topics ...string) []rec {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...), kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx := deadline(t)
	var all []rec
	for len(all) < n {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			t.Fatalf("%d of %d records: %v", len(all), n, err)
		}
		fetches.EachRecord(func(r *kgo.Record) { all = append(all, recOf(r)) })
	}
	return all
}

func recOf(r *kgo.Record) rec {
	h := map[string]string{}
	for _, x := range r.Headers {
		h[x.Key] = string(x.Value)
	}
	return rec{r.Topic, string(r.Key), string(r.Value), r.Partition, h}
}

func ends(t *testing.T, recs []rec) []kafka.End {
	t.Helper()
	var all []kafka.End
	for _, r := range recs {
		if !strings.HasSuffix(r.topic, ".transaction") || !strings.Contains(r.value, `"END"`) {
			continue
		}
		var e kafka.End
		if err := json.Unmarshal([]byte(r.value), &e); err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}
