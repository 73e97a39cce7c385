package record

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/pgoutput"
	"github.com/millrace/millrace/session"
)

func TestMain(m *testing.M) { rig.Main(m) }

// source is a database whose stream tests read at once, in either form.
type source struct {
	db   *rig.DB
	conn *pgx.Conn
	slot string
}

// newSource makes a slot first, so that the stream has all that setup does.
func newSource(t testing.TB, pg *rig.Postgres, setup string) *source {
	t.Helper()
	s := &source{db: pg.NewDB(t)}
	s.slot = "r" + s.db.Name[max(0, len(s.db.Name)-40):]
	conn, err := session.Static(millrace.PeerSource, s.db.URL(), "test").Connect(t.Context(), session.Check)
	if err != nil {
		t.Fatal(err)
	}
	s.conn = conn
	t.Cleanup(func() { conn.Close(context.Background()) })
	s.db.SQL(t, "CREATE PUBLICATION p FOR ALL TABLES")
	s.db.SQL(t, "SELECT pg_catalog.pg_create_logical_replication_slot('"+s.slot+"', 'pgoutput')")
	t.Cleanup(func() { s.db.SQL(t, "SELECT pg_catalog.pg_drop_replication_slot('"+s.slot+"')") })
	s.db.Script(t, setup)
	return s
}

// stream decodes all transactions.
func (s *source) stream(t testing.TB, binary bool) []*millrace.Txn {
	t.Helper()
	rows, err := s.conn.Query(t.Context(), `SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes($1, NULL, NULL,
		'proto_version', '1', 'publication_names', 'p', 'binary', $2)`, s.slot, fmt.Sprint(binary))
	if err != nil {
		t.Fatal(err)
	}
	messages, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		t.Fatal(err)
	}
	var all []*millrace.Txn
	var open *millrace.Txn
	rels := map[uint32]*millrace.Relation{}
	add := func(c millrace.Change) {
		c.Seq = uint64(len(open.Changes) + 1)
		open.Changes = append(open.Changes, c)
	}
	history := &millrace.History{System: "7", Timeline: 1, Generation: 1}
	for _, m := range messages {
		slab := &pgoutput.Slab{}
		switch pgoutput.TagOf(m) {
		case pgoutput.TagBegin:
			b, err := pgoutput.ParseBegin(m)
			check(t, err)
			open = &millrace.Txn{XID: b.XID, Commit: b.Commit, Time: b.Time, From: history, Last: true}
		case pgoutput.TagCommit:
			c, err := pgoutput.ParseCommit(m)
			check(t, err)
			open.End = c.End
			all = append(all, open)
		case pgoutput.TagRelation:
			r, err := pgoutput.ParseRelation(m)
			check(t, err)
			s.define(t, r)
			rels[r.OID] = r
		case pgoutput.TagInsert:
			x, err := pgoutput.ParseInsert(m, slab)
			check(t, err)
			add(millrace.Change{Op: millrace.Insert, Rel: rels[x.OID], New: x.New})
		case pgoutput.TagUpdate:
			x, err := pgoutput.ParseUpdate(m, slab)
			check(t, err)
			add(millrace.Change{Op: millrace.Update, Rel: rels[x.OID], Old: x.Old, OldFull: x.OldFull, New: x.New})
		case pgoutput.TagDelete:
			x, err := pgoutput.ParseDelete(m, slab)
			check(t, err)
			add(millrace.Change{Op: millrace.Delete, Rel: rels[x.OID], Old: x.Old, OldFull: x.OldFull})
		case pgoutput.TagTruncate:
			x, err := pgoutput.ParseTruncate(m)
			check(t, err)
			tr := &millrace.Truncation{RestartIdentity: x.RestartIdentity}
			for _, oid := range x.OIDs {
				tr.Rels = append(tr.Rels, rels[oid])
			}
			add(millrace.Change{Op: millrace.Truncate, Truncated: tr})
		}
	}
	return all
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// define adds what the catalog knows of user types, as capture does.
func (s *source) define(t testing.TB, r *millrace.Relation) {
	t.Helper()
	var oids []uint32
	for _, c := range r.Columns {
		oids = append(oids, c.Type)
	}
	types, err := catalog.ReadTypes(t.Context(), s.conn, oids)
	check(t, err)
	for i := range r.Columns {
		if c := &r.Columns[i]; c.Type >= 16384 {
			c.TypeName, c.TypeKind, c.Def = types[c.Type].Name, types[c.Type].Kind, types[c.Type].Datum()
		}
	}
}

// keyOf is the record key as the sink chooses it: the identity's columns, none
// under FULL.
func keyOf(r *millrace.Relation) []int {
	if r.Identity == millrace.IdentityFull {
		return nil
	}
	return r.Key
}

func topicOf(n millrace.TableName) string { return "t." + n.Schema + "." + n.Name }

func options(f Format) Options {
	return Options{Format: f, Prefix: "t", Database: "app", Version: "1.2.3", Topic: topicOf, Registry: newRegistry()}
}

// registry numbers schemas.
type registry struct {
	ids     map[string]int
	schemas map[string]string // by subject
}

func newRegistry() *registry { return &registry{ids: map[string]int{}, schemas: map[string]string{}} }

func (r *registry) Register(subject, schema string, _ Format) (int, error) {
	if r.ids[schema] == 0 {
		r.ids[schema] = len(r.ids) + 1
	}
	r.schemas[subject] = schema
	return r.ids[schema], nil
}

// encode makes the records of transactions, as a sink would.
func encode(t testing.TB, e Encoder, txns []*millrace.Txn, key func(*millrace.Relation) []int) []*kgo.Record {
	t.Helper()
	var all []*kgo.Record
	for _, x := range txns {
		e.Begin(fmt.Sprintf("%d:%d", x.XID, uint64(x.Commit)), x)
		for i := range x.Changes {
			c := &x.Changes[i]
			rels := []*millrace.Relation{c.Rel}
			if c.Op == millrace.Truncate {
				rels = c.Truncated.Rels
			}
			for _, rel := range rels {
				err := e.Encode(c, rel, key(rel), func(r *Record) error {
					k := &kgo.Record{Topic: topicOf(rel.Name), Key: bytesOf(r.Key), Value: bytesOf(r.Value)}
					for _, h := range r.Headers {
						k.Headers = append(k.Headers, kgo.RecordHeader{Key: h.Key, Value: bytesOf(h.Value)})
					}
					k.Headers = append(k.Headers, positionHeaders(x, c.Seq)...)
					all = append(all, k)
					return nil
				})
				check(t, err)
			}
		}
	}
	return all
}

func positionHeaders(x *millrace.Txn, seq uint64) []kgo.RecordHeader {
	return []kgo.RecordHeader{
		{Key: "commit_lsn", Value: []byte(x.Commit.String())},
		{Key: "xid", Value: fmt.Append(nil, x.XID)},
		{Key: "system", Value: []byte(x.From.System)},
		{Key: "timeline", Value: fmt.Append(nil, x.From.Timeline)},
		{Key: "generation", Value: fmt.Append(nil, x.From.Generation)},
		{Key: "seq", Value: fmt.Append(nil, seq)},
	}
}

func bytesOf(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append([]byte{}, b...)
}

func readFile(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/debezium/" + name)
	check(t, err)
	return string(b)
}

// object parses JSON with numbers as they are written.
func object(t testing.TB, raw []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	var o map[string]any
	if err := d.Decode(&o); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return o
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
