package e2e

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/millrace/millrace/internal/kcheck"
	"github.com/millrace/millrace/internal/rig"
)

// The database comes back whole from the formats that need a registry, and from one
// topic for all. Whoever knows nothing but the registry can read the records.
func TestThroughEachFormat(t *testing.T) {
	t.Parallel()
	// No Avro schema has words for a second dimension and other lower bounds.
	flat := strings.NewReplacer("'[0:1][1:2]={{1,2},{3,NULL}}'", "'{1,NULL,3}'").Replace(roundSchema)
	for _, c := range []struct{ name, schema, format, keys string }{
		{"stream", roundSchema, "json", ", layout: stream"},
		{"avro", flat, "avro", ", partitions: 2"},
		{"json-schema", roundSchema, "json-schema", ", partitions: 2"},
		{"stream inline", flat, "json-inline", ", layout: stream"},
	} {
		if c.name == "stream inline" && !full() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fake := srfake.New()
			t.Cleanup(fake.Close)
			extra := c.keys + ", format: " + c.format
			if registered(c.format) {
				extra += fmt.Sprintf(", registry: {url: %q}", fake.URL())
			}
			r := newRound(t, c.schema, extra, rig.SharedKafka(t))
			r.start(t)
			r.equal(t)
			r.source.Script(t, roundChanges)
			r.finish(t)
			if registered(c.format) {
				r.readByRegistry(t, c.format, fake.URL())
				return
			}
			topics := topicsOf(t, r.kafka)
			if !slices.Contains(topics, r.prefix+".stream") || slices.Contains(topics, r.prefix+".public.kinds") {
				t.Error("the transactions are not in one topic")
			}
		})
	}
}

func registered(format string) bool { return format == "avro" || format == "json-schema" }

// readByRegistry reads all records of tables by the schemas that their first bytes
// name, and follows the rows of one table to the end.
func (r *round) readByRegistry(t *testing.T, format, url string) {
	t.Helper()
	client, err := sr.NewClient(sr.URLs(url))
	if err != nil {
		t.Fatal(err)
	}
	schemas := map[uint32]avro.Schema{}
	read := func(b []byte) map[string]any {
		if len(b) < 5 || b[0] != 0 {
			t.Fatalf("not the wire format of a registry: %.20x", b)
		}
		id := binary.BigEndian.Uint32(b[1:])
		if _, known := schemas[id]; !known {
			schemas[id] = schemaByID(t.Context(), t, client, int(id), format)
		}
		var out map[string]any
		if format == "avro" {
			err = avro.Unmarshal(schemas[id], b[5:], &out)
		} else {
			err = json.Unmarshal(b[5:], &out)
		}
		if err != nil {
			t.Fatalf("schema %d: %v", id, err)
		}
		return out
	}
	rows, ops, records := map[string]bool{}, map[string]int{}, 0
	err = kcheck.Records(t.Context(), r.kafka.Brokers(), r.prefix, kgo.ReadCommitted(), func(rec *kgo.Record) {
		if strings.HasSuffix(rec.Topic, ".transaction") || rec.Key == nil || rec.Value == nil {
			return
		}
		records++
		key, value := read(rec.Key), read(rec.Value)
		if !strings.HasSuffix(rec.Topic, ".public.blob") {
			return
		}
		op, id := fmt.Sprint(value["op"]), fmt.Sprint(key["id"])
		ops[op]++
		if rows[id] = true; op == "d" {
			delete(rows, id)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := r.source.Query(t, "SELECT count(*) FROM blob"); records < 2000 || fmt.Sprint(len(rows)) != want {
		t.Errorf("of %d records, %d rows of blob are left, want %s", records, len(rows), want)
	}
	if ops["r"] != 20 || ops["c"] != 3 || ops["d"] != 3 || ops["u"] != 11 {
		t.Errorf("the records of blob are %v", ops)
	}
}

// schemaByID asks the registry; only Avro's is needed to read a record.
func schemaByID(ctx context.Context, t *testing.T, client *sr.Client, id int, format string) avro.Schema {
	t.Helper()
	s, err := client.SchemaByID(ctx, id)
	if err != nil {
		t.Fatalf("schema %d: %v", id, err)
	}
	if format != "avro" {
		if s.Type != sr.TypeJSON || !json.Valid([]byte(s.Schema)) {
			t.Fatalf("schema %d is of type %v: %s", id, s.Type, s.Schema)
		}
		return nil
	}
	parsed, err := avro.ParseWithCache(s.Schema, "", &avro.SchemaCache{})
	if err != nil {
		t.Fatalf("schema %d: %v: %s", id, err, s.Schema)
	}
	return parsed
}
