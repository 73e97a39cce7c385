package backfill

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/apply"
	"github.com/millrace/millrace/capture"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/relay"
	"github.com/millrace/millrace/session"
)

func TestMain(m *testing.M) {
	code := rig.Run(m)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// patience is how long a test waits for what must come.
const patience = 90 * time.Second

// bed is a job that loads its tables beside the stream.
type bed struct {
	src, dst       *rig.DB
	source, target *session.Endpoint
	opt            Options // of the loads
	log            *slog.Logger
	slot           string
	paused         bool // the loads rest at first
	text           bool // values come as text

	backfill *Source // of the run
	stop     context.CancelFunc
	ended    chan error
}

// newBed makes both databases with the same tables, fills those of the source,
// and records a job that has yet to load all of them.
func newBed(t *testing.T, pg *rig.Postgres, ddl, fill string) *bed {
	t.Helper()
	return newBedAt(t, pg, nil, ddl, fill)
}

// newBedAt is newBed for a job that reads from a standby, if there is one.
func newBedAt(t *testing.T, pg, standby *rig.Postgres, ddl, fill string) *bed {
	t.Helper()
	target := rig.Shared(t, rig.Newest)
	if pg.ICU() {
		target = pg // the tables have its collations
	}
	b := &bed{src: pg.NewDB(t), dst: target.NewDB(t), log: slog.New(slog.DiscardHandler)}
	if testing.Verbose() {
		b.log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	b.src.Script(t, ddl)
	b.dst.Script(t, ddl)
	b.src.Script(t, fill)
	b.src.SQL(t, "CREATE PUBLICATION p FOR ALL TABLES")
	b.slot = b.src.Name
	point := b.makeSlot(t, standby)
	b.source = session.Static(millrace.PeerSource, b.src.URL(), "shop")
	if standby != nil {
		b.source = session.Static(millrace.PeerSource, rig.URLs(b.src.Name, "standby", pg, standby), "shop")
	}
	b.target = session.Static(millrace.PeerDestination, b.dst.URL(), "shop")
	b.record(t, point)
	t.Cleanup(b.end)
	return b
}

// makeSlot makes the job's slot and gives its consistent point.
func (b *bed) makeSlot(t *testing.T, standby *rig.Postgres) string {
	t.Helper()
	create := "SELECT lsn FROM pg_create_logical_replication_slot('" + b.slot + "', 'pgoutput')"
	if standby == nil {
		t.Cleanup(func() {
			_, _ = b.src.Server.TryQuery(b.src.Name, "SELECT pg_drop_replication_slot('"+b.slot+"')")
		})
		return b.src.Query(t, create)
	}
	standby.AwaitReplay(t, b.src.Server)
	made := make(chan string, 1)
	go func() {
		point, err := standby.TryQuery(b.src.Name, create)
		if err != nil {
			t.Error(err)
		}
		made <- point
	}()
	var point string
	rig.Eventually(t, patience, func() bool {
		b.src.SQL(t, "SELECT pg_log_standby_snapshot()") // it waits for that
		select {
		case point = <-made:
			return true
		default:
			return false
		}
	}, "the slot on the standby")
	return point
}

func (b *bed) record(t *testing.T, point string) {
	t.Helper()
	ctx := t.Context()
	src, err := b.source.Connect(ctx, session.Watch)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close(ctx)
	server, err := catalog.ReadServer(ctx, src)
	if err != nil {
		t.Fatal(err)
	}
	all, err := catalog.Tables(ctx, src)
	if err != nil {
		t.Fatal(err)
	}
	j := &record.Job{Name: "shop", State: record.CatchingUp, SystemID: server.SystemID, Timeline: server.Timeline, Slot: b.slot, Publication: "p", Mode: "incremental"}
	for _, table := range all {
		if table.Kind == 'r' {
			described, err := catalog.Describe(ctx, src, []uint32{table.OID})
			if err != nil {
				t.Fatal(err)
			}
			d := described[table.OID]
			j.Tables = append(j.Tables, record.Table{OID: table.OID, Name: table.Name, Filenode: d.Filenode, Shape: catalog.ShapeOf(d)})
		}
	}
	dst, err := b.target.Connect(ctx, session.Watch)
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close(ctx)
	at, err := millrace.ParseLSN(point)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{record.Install(ctx, dst), record.Create(ctx, dst, j), record.FirstProgress(ctx, dst, j.Fence(), 1, at)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, table := range j.Tables {
		if err := record.BeginLoad(ctx, dst, "shop", table.OID, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// run starts the job; end stops it.
func (b *bed) run(t *testing.T) {
	t.Helper()
	stream := capture.New(capture.Options{Endpoint: b.source, Slot: b.slot, Publication: "p", Log: b.log, Tables: b.tables})
	opt := b.opt
	opt.Stream, opt.Endpoint, opt.Log = stream, b.source, b.log
	opt.Staging = func(oid uint32) millrace.TableName { return record.StagingTable("shop", oid) }
	b.backfill = New(opt)
	b.backfill.paused = b.paused
	if b.text {
		b.backfill.UseText()
	}
	sink := apply.New(apply.Options{Endpoint: b.target, Job: "shop", Instance: "test", Log: b.log})
	var from millrace.Source = b.backfill
	if opt.Early {
		from = loosened{b.backfill}
	}
	r := relay.New(relay.Options{Source: from, Sink: sink, Log: b.log, Backoff: relay.Backoff{Min: 20 * time.Millisecond, Max: time.Second}})
	ctx, cancel := context.WithCancel(context.Background())
	b.stop, b.ended = cancel, make(chan error, 1)
	ended := b.ended
	go func() { ended <- r.Run(ctx) }()
}

func (b *bed) tables(ctx context.Context) ([]capture.Table, error) {
	conn, err := b.target.Connect(ctx, session.Watch)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	recorded, err := record.Tables(ctx, conn, "shop")
	var tables []capture.Table
	for _, t := range recorded {
		tables = append(tables, capture.Table{OID: t.OID, Name: t.Name, Filenode: t.Filenode, Shape: t.Shape})
	}
	return tables, err
}

func (b *bed) end() {
	if b.stop != nil {
		b.stop()
		if err := <-b.ended; err != nil {
			b.log.Info("the run ended", "cause", err)
		}
		b.stop = nil
	}
}

// loaded waits until all tables are loaded.
func (b *bed) loaded(t *testing.T) {
	t.Helper()
	rig.Eventually(t, patience, func() bool {
		select {
		case err := <-b.ended:
			b.ended <- err
			t.Fatalf("the run ended: %v (hint: %s)", err, millrace.HintOf(err))
		default:
		}
		return b.dst.Query(t, "SELECT count(*) FROM millrace.job_table WHERE NOT copied") == "0"
	}, "all tables are loaded", func() string {
		return b.dst.Query(t, "SELECT string_agg(oid || ' ' || mark, E'\n') FROM millrace.chunk")
	})
}

// same waits until the destination holds what the source has, and compares.
func (b *bed) same(t *testing.T, tables ...string) {
	t.Helper()
	at := b.src.Query(t, "SELECT pg_current_wal_insert_lsn()")
	rig.Eventually(t, patience, func() bool {
		select {
		case err := <-b.ended:
			b.ended <- err
			t.Fatalf("the run ended: %v (hint: %s)", err, millrace.HintOf(err))
		default:
		}
		b.backfill.RequestPosition()
		return b.dst.Query(t, "SELECT acked_lsn >= '"+at+"' FROM millrace.job") == "t"
	}, "the destination is at "+at)
	for _, table := range tables {
		sum := fmt.Sprintf("SELECT count(*) || ' ' || coalesce(md5(string_agg(x::text, ',' ORDER BY x::text COLLATE \"C\")), '') FROM %s x", table)
		if want, got := b.src.Query(t, sum), b.dst.Query(t, sum); got != want {
			t.Errorf("table %s: the source has %s, the destination %s", table, want, got)
		}
	}
}

// loosened takes changes as who reads them from a log does into which they have passed early.
type loosened struct{ *Source }

func (s loosened) Next(ctx context.Context) (*millrace.Txn, error) {
	t, err := s.Source.Next(ctx)
	if err == nil {
		for i := range t.Changes {
			if t.Changes[i].Early {
				t.Changes[i].Loosen()
			}
		}
	}
	return t, err
}
