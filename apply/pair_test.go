package apply

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/pgoutput"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

func TestMain(m *testing.M) {
	// Each check of the property test is many round trips; the flag asks for more.
	if err := flag.Set("rapid.checks", "25"); err != nil {
		panic(err)
	}
	code := rig.Run(m)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// pair is a source whose transactions are read through a slot, and a
// destination with the record of a job.
type pair struct {
	src, dst *rig.DB
	binary   bool
	rels     map[uint32]*millrace.Relation
	shapes   map[string]*millrace.Relation
	conn     *pgx.Conn // to the source, which reads the slot
	opt      Options
	point    millrace.LSN
	system   string
	unused   *atomic.Int64 // Txns that were not released yet
}

// newPair makes both databases with the same definitions.
func newPair(t testing.TB, binary bool, ddl string) *pair {
	t.Helper()
	return newPairOn(t, rig.Shared(t, rig.Newest), binary, ddl)
}

func newPairOn(t testing.TB, dst *rig.Postgres, binary bool, ddl string) *pair {
	t.Helper()
	p := &pair{unused: new(atomic.Int64), src: rig.Shared(t, rig.Newest).NewDB(t), dst: dst.NewDB(t), binary: binary,
		rels: map[uint32]*millrace.Relation{}, shapes: map[string]*millrace.Relation{}}
	p.src.Script(t, ddl)
	p.dst.Script(t, ddl)
	p.src.SQL(t, "CREATE PUBLICATION p FOR ALL TABLES")
	point := p.src.Query(t, "SELECT lsn FROM pg_create_logical_replication_slot('"+p.src.Name+"', 'pgoutput')")
	var err error
	if p.point, err = millrace.ParseLSN(point); err != nil {
		t.Fatal(err)
	}
	if p.conn, err = pgx.Connect(t.Context(), p.src.URL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.conn.Close(context.Background()) })
	p.system = "77"
	p.opt = Options{Endpoint: session.Static(millrace.PeerDestination, p.dst.URL(), "shop"), Job: "shop", Instance: "test"}
	if testing.Verbose() {
		p.opt.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	p.record(t)
	return p
}

// record makes the job's record, consistent at the slot's start.
func (p *pair) record(t testing.TB) {
	t.Helper()
	ctx := t.Context()
	conn, err := session.Static(millrace.PeerDestination, p.dst.URL(), "shop").Connect(ctx, session.Watch)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	j := &record.Job{Name: "shop", State: record.Streaming, SystemID: p.system, Timeline: 1, Slot: "s", Publication: "p", Mode: "none"}
	rows, err := p.conn.Query(ctx, `SELECT c.oid::int8, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
		WHERE relkind IN ('r', 'p') AND nspname NOT IN ('pg_catalog', 'information_schema')`)
	if err != nil {
		t.Fatal(err)
	}
	j.Tables, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (record.Table, error) {
		var tab record.Table
		var oid int64
		err := row.Scan(&oid, &tab.Name.Schema, &tab.Name.Name)
		tab.OID = uint32(oid)
		return tab, err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		record.Install(ctx, conn), record.Create(ctx, conn, j), record.FirstProgress(ctx, conn, j.Fence(), 1, p.point),
		record.SetConsistentFrom(ctx, conn, "shop", p.point),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// open makes a sink that owns the job.
func (p *pair) open(t testing.TB) *Sink {
	t.Helper()
	s := New(p.opt)
	reopen(t, s)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func reopen(t testing.TB, s *Sink) millrace.Checkpoint {
	t.Helper()
	if _, err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	cp, err := s.Claim(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return cp
}

// change runs a script at the source and gives its transactions.
func (p *pair) change(t testing.TB, sql string) []*millrace.Txn {
	t.Helper()
	p.src.Script(t, sql)
	return p.take(t)
}

// take reads what the source has committed since the last call.
func (p *pair) take(t testing.TB) []*millrace.Txn {
	t.Helper()
	rows, err := p.conn.Query(t.Context(), `SELECT data FROM pg_logical_slot_get_binary_changes($1, NULL, NULL,
		'proto_version', '1', 'publication_names', 'p', 'messages', 'true', 'binary', $2)`, p.src.Name, fmt.Sprint(p.binary))
	if err != nil {
		t.Fatal(err)
	}
	msgs, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		t.Fatal(err)
	}
	var txns []*millrace.Txn
	var open *millrace.Txn
	for _, m := range msgs {
		open = p.message(t, m, open)
		if open != nil && open.End != 0 {
			txns = append(txns, open)
			open = nil
		}
	}
	return txns
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// message adds a message to the open transaction; its End is set with the last.
func (p *pair) message(t testing.TB, m []byte, open *millrace.Txn) *millrace.Txn {
	t.Helper()
	var slab pgoutput.Slab
	c := millrace.Change{Op: millrace.Op(m[0])}
	switch pgoutput.TagOf(m) {
	case pgoutput.TagBegin:
		b := must(pgoutput.ParseBegin(m))(t)
		open = &millrace.Txn{XID: b.XID, Commit: b.Commit, Time: b.Time, Last: true, Size: 1000}
		p.unused.Add(1)
		open.OnRelease(func(x *millrace.Txn) {
			p.unused.Add(-1)
			for i := range x.Changes { // nobody may look at it any more
				clear(x.Changes[i].New)
				clear(x.Changes[i].Old)
			}
		})
		return open
	case pgoutput.TagCommit:
		open.End = must(pgoutput.ParseCommit(m))(t).End
		return open
	case pgoutput.TagRelation:
		rel := must(pgoutput.ParseRelation(m))(t)
		for i := range rel.Columns {
			if c := &rel.Columns[i]; c.Type >= firstUserOID {
				kind := p.src.Query(t, fmt.Sprintf("SELECT typtype FROM pg_type WHERE oid = %d", c.Type))
				c.TypeName, c.TypeKind = "some.type", kind[0]
			}
		}
		shape := fmt.Sprintf("%+v", *rel)
		if p.shapes[shape] == nil {
			p.shapes[shape] = rel
		}
		p.rels[rel.OID] = p.shapes[shape]
		return open
	case pgoutput.TagInsert:
		i := must(pgoutput.ParseInsert(m, &slab))(t)
		c.Rel, c.New = p.rels[i.OID], i.New
	case pgoutput.TagUpdate:
		u := must(pgoutput.ParseUpdate(m, &slab))(t)
		c.Rel, c.Old, c.OldFull, c.New = p.rels[u.OID], u.Old, u.OldFull, u.New
	case pgoutput.TagDelete:
		d := must(pgoutput.ParseDelete(m, &slab))(t)
		c.Rel, c.Old, c.OldFull = p.rels[d.OID], d.Old, d.OldFull
	case pgoutput.TagTruncate:
		tr := must(pgoutput.ParseTruncate(m))(t)
		c.Truncated = &millrace.Truncation{RestartIdentity: tr.RestartIdentity}
		for _, oid := range tr.OIDs {
			c.Truncated.Rels = append(c.Truncated.Rels, p.rels[oid])
		}
	default:
		return open
	}
	if open == nil {
		t.Fatalf("a change outside a transaction: %q", m)
	}
	c.Seq = uint64(len(open.Changes) + 1)
	open.Changes = append(open.Changes, c)
	open.Size += int64(len(m)) + 200
	return open
}

// split makes parts of a transaction, of n changes each.
func split(txn *millrace.Txn, n int) []*millrace.Txn {
	var parts []*millrace.Txn
	for from := 0; from < len(txn.Changes); from += n {
		part := *txn
		part.OnRelease(nil)
		to := min(from+n, len(txn.Changes))
		part.Changes, part.Part, part.Last = txn.Changes[from:to], len(parts), to == len(txn.Changes)
		parts = append(parts, &part)
	}
	parts[len(parts)-1].OnRelease(func(*millrace.Txn) { txn.Release() })
	return parts
}

// write gives transactions to the sink and waits until they are durable.
func write(t testing.TB, s *Sink, txns []*millrace.Txn) {
	t.Helper()
	if err := tryWrite(t, s, txns); err != nil {
		t.Fatalf("%v\nhint: %s", err, millrace.HintOf(err))
	}
}

func tryWrite(t testing.TB, s *Sink, txns []*millrace.Txn) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var end millrace.LSN
	for _, txn := range txns {
		end = max(end, txn.End)
		if err := s.Write(ctx, txn); err != nil {
			return err
		}
	}
	s.Flush()
	if end == 0 {
		return nil
	}
	_, err := s.Durable(ctx, end-1)
	return err
}

// same compares all user tables of both sides as text.
func (p *pair) same(t testing.TB) {
	t.Helper()
	list := p.src.Query(t, `SELECT string_agg(format('SELECT %L AS "table", t::text FROM ONLY %I.%I t', c.oid::regclass, nspname, relname), ' UNION ALL ')
		FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind = 'r' AND nspname NOT IN ('pg_catalog', 'information_schema', 'millrace')`)
	sql := "SELECT * FROM (" + list + ") x ORDER BY 1, 2"
	p.sameQuery(t, sql)
}

func (p *pair) sameQuery(t testing.TB, sql string) {
	t.Helper()
	want, got := p.src.Query(t, sql), p.dst.Query(t, sql)
	if want == got {
		return
	}
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := 0; i < len(w) || i < len(g); i++ {
		var a, b string
		if i < len(w) {
			a = w[i]
		}
		if i < len(g) {
			b = g[i]
		}
		if a != b {
			t.Fatalf("line %d of %d and %d:\nsource      %.300s\ndestination %.300s", i+1, len(w), len(g), a, b)
		}
	}
}

// released checks that every Txn was given back.
func (p *pair) released(t testing.TB) {
	t.Helper()
	if n := p.unused.Load(); n != 0 {
		t.Errorf("%d transactions were not released", n)
	}
}

// bothForms runs a test with text and with binary values.
func bothForms(t *testing.T, f func(t *testing.T, binary bool)) {
	for _, b := range []bool{false, true} {
		name := "text"
		if b {
			name = "binary"
		}
		t.Run(name, func(t *testing.T) { f(t, b) })
	}
}

func sessionOf(url string) *session.Endpoint {
	return session.Static(millrace.PeerDestination, url, "shop")
}

// rowsOnly has all changes go row by row.
func (w *writer) rowsOnly(on bool) {
	w.q.mu.Lock()
	defer w.q.mu.Unlock()
	w.q.prep.unfoldable, w.q.spare.unfoldable = on, on
}

func dial(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func exec(t testing.TB, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
