package capture_test

import (
	"context"
	"errors"
	"flag"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/capture"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/session"
)

func TestMain(m *testing.M) { rig.Main(m) }

var update = flag.Bool("update", false, "write the transcripts in testdata anew")

// versions are those that can be a source.
var versions = []int{15, 16, 17, 18}

// source is a Source on a database of the rig, with what a job's record holds.
type source struct {
	*capture.Source
	db     *rig.DB
	tables []capture.Table
	cp     millrace.Checkpoint

	mu     sync.Mutex
	shapes []capture.Table // what OnShape was given
}

func (s *source) recorded() []capture.Table {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.shapes)
}

const publication = "everything"

// prepare runs the definitions, makes publication and slot, and takes all
// tables of schema public as the set.
func prepare(t testing.TB, db *rig.DB, definitions string, change ...func(*capture.Options)) *source {
	t.Helper()
	db.Script(t, definitions)
	db.SQL(t, "CREATE PUBLICATION "+publication+" FOR ALL TABLES")
	point := db.Query(t, "SELECT lsn FROM pg_create_logical_replication_slot('"+db.Name+"', 'pgoutput')")
	s := &source{db: db}
	s.tables = set(t, db)
	s.cp = checkpoint(t, db, point)
	opt := options(s)
	for _, f := range change {
		f(&opt)
	}
	s.Source = capture.New(opt)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func options(s *source) capture.Options {
	return capture.Options{
		Endpoint:    session.Static(millrace.PeerSource, s.db.URL(), "test"),
		Slot:        s.db.Name,
		Publication: publication,
		Tables:      func(context.Context) ([]capture.Table, error) { return s.tables, nil },
		Match:       func(n millrace.TableName) bool { return n.Schema == "public" },
		OnShape: func(_ context.Context, table capture.Table) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.shapes = append(s.shapes, table)
			return nil
		},
	}
}

func conditionOf(err error) string {
	var e *millrace.Error
	if errors.As(err, &e) {
		return e.Condition
	}
	return ""
}

// set reads the tables of schema public.
func set(t testing.TB, db *rig.DB) []capture.Table {
	t.Helper()
	conn := dial(t, db)
	defer conn.Close(context.Background())
	all, err := catalog.Tables(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	var oids []uint32
	for _, table := range all {
		if table.Name.Schema == "public" && table.Kind == 'r' {
			oids = append(oids, table.OID)
		}
	}
	full, err := catalog.Describe(t.Context(), conn, oids)
	if err != nil {
		t.Fatal(err)
	}
	var tables []capture.Table
	for _, oid := range oids {
		table := full[oid]
		tables = append(tables, capture.Table{OID: oid, Name: table.Name, Filenode: table.Filenode, Shape: catalog.ShapeOf(table)})
	}
	return tables
}

func dial(t testing.TB, db *rig.DB) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL())
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// checkpoint is the first one of a job whose slot was made at point.
func checkpoint(t testing.TB, db *rig.DB, point string) millrace.Checkpoint {
	t.Helper()
	lsn := parseLSN(t, point)
	return millrace.Checkpoint{
		History: millrace.History{System: db.Query(t, "SELECT system_identifier FROM pg_control_system()"), Timeline: 1, Generation: 7},
		Commit:  lsn, End: lsn, Acked: lsn,
	}
}

func parseLSN(t testing.TB, s string) millrace.LSN {
	t.Helper()
	lsn, err := millrace.ParseLSN(s)
	if err != nil {
		t.Fatal(err)
	}
	return lsn
}

func (s *source) start(t testing.TB) {
	t.Helper()
	if err := s.Start(t.Context(), s.cp); err != nil {
		t.Fatalf("start: %v; hint: %s", err, millrace.HintOf(err))
	}
	s.Ack(s.cp.Acked)
}

// next gives what comes within half a minute.
func (s *source) next(t testing.TB) (*millrace.Txn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	txn, err := s.Next(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		t.Fatal("nothing came for half a minute")
	}
	return txn, err
}

// txn gives the next one that is no sign of life.
func (s *source) txn(t testing.TB) *millrace.Txn {
	t.Helper()
	for {
		txn, err := s.next(t)
		if err != nil {
			t.Fatalf("%v; hint: %s", err, millrace.HintOf(err))
		}
		if !txn.Idle() {
			return txn
		}
		txn.Release()
	}
}

// failure takes everything up to the error, and how many transactions came
// whole before it.
func (s *source) failure(t testing.TB) (whole int, err error) {
	t.Helper()
	for {
		txn, err := s.next(t)
		if err != nil {
			return whole, err
		}
		if !txn.Idle() && txn.Last {
			whole++
		}
		txn.Release()
	}
}

func (s *source) insertPosition(t testing.TB) millrace.LSN {
	t.Helper()
	conn := dial(t, s.db)
	defer conn.Close(context.Background())
	lsn, err := catalog.Position(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	return lsn
}

// noLeaks fails the test if goroutines are left at its end.
func noLeaks(t *testing.T) {
	t.Helper()
	current := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, current) })
}
