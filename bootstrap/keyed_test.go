package bootstrap

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/apply"
	"github.com/millrace/millrace/backfill"
	"github.com/millrace/millrace/capture"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/relay"
	"github.com/millrace/millrace/session"
)

// TestInterruptedRanges interrupts loads of a table that is copied by ranges of its
// key, alone: its complete ranges stay, and the rest is read beside the stream.
func TestInterruptedRanges(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, `CREATE TABLE t (a int, b text COLLATE "C", v int NOT NULL DEFAULT 0, pad text, PRIMARY KEY (a, b));
		INSERT INTO t SELECT g / 3, md5(g::text), 0, repeat('x', 300) FROM generate_series(1, 20000) g ORDER BY 1, 2; ANALYZE t`, ``)
	b.MinKeyed, b.Rate = 1<<20, 2<<20
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, b.Options) }()
	rig.Eventually(t, time.Minute, func() bool {
		rows, err := b.dst.Server.TryQuery(b.dst.Name, "SELECT coalesce(sum(rows), 0) > 3000 FROM millrace.chunk WHERE part = -1")
		return err == nil && rows == "t"
	}, "some ranges are complete")
	cancel()
	if err := <-ended; err == nil {
		t.Fatal("the load was over before it was interrupted")
	}
	kept := b.dst.Query(t, "SELECT rows FROM millrace.chunk WHERE part = -1")
	if there := b.dst.Query(t, "SELECT count(*) FROM t"); there != kept || there == "0" {
		t.Fatalf("the mark speaks of %s rows, %s are there", kept, there)
	}
	mark := b.dst.Query(t, "SELECT mark FROM millrace.chunk WHERE part = -1")
	if n := strings.Count(mark, `"state"`); n > 7 {
		t.Errorf("a mark of %d ranges, though two readers were at work: %s", n, mark)
	}
	b.src.SQL(t, "UPDATE t SET v = v + 1 WHERE a % 7 = 0; DELETE FROM t WHERE a % 11 = 0; UPDATE t SET a = a + 5000 WHERE a % 13 = 0")
	if err := Run(t.Context(), b.Options); err != nil {
		t.Fatal(err)
	}
	if there := b.dst.Query(t, "SELECT count(*) FROM t"); there != kept {
		t.Errorf("%s of %s rows are left when the load goes on", there, kept)
	}
	b.goOn(t)
	sum := `SELECT count(*) || ' ' || md5(string_agg(x::text, ',' ORDER BY x::text COLLATE "C")) FROM t x`
	if want, got := b.src.Query(t, sum), b.dst.Query(t, sum); got != want {
		t.Errorf("the source has %s, the target %s", want, got)
	}
}

// goOn streams until all tables are loaded.
func (b *bed) goOn(t *testing.T) {
	t.Helper()
	stream := capture.New(capture.Options{Endpoint: b.Source, Slot: b.Slot, Publication: b.Publication, Log: slog.New(slog.DiscardHandler),
		Tables: func(ctx context.Context) ([]capture.Table, error) {
			conn, err := b.Target.Connect(ctx, session.Watch)
			if err != nil {
				return nil, err
			}
			defer conn.Close(ctx)
			var tables []capture.Table
			recorded, err := record.Tables(ctx, conn, b.Job)
			for _, t := range recorded {
				tables = append(tables, capture.Table{OID: t.OID, Name: t.Name, Filenode: t.Filenode, Shape: t.Shape})
			}
			return tables, err
		}})
	r := relay.New(relay.Options{Source: backfill.New(backfill.Options{Stream: stream, Endpoint: b.Source}),
		Sink: apply.New(apply.Options{Endpoint: b.Target, Job: b.Job, Instance: "test"}), Backoff: relay.Backoff{Min: 20 * time.Millisecond, Max: time.Second}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	at := b.src.Query(t, "SELECT pg_current_wal_insert_lsn()")
	rig.Eventually(t, time.Minute, func() bool {
		select {
		case err := <-ended:
			ended <- err
			t.Fatal(err)
		default:
		}
		return b.dst.Query(t, fmt.Sprintf("SELECT acked_lsn >= '%s' AND NOT EXISTS (SELECT FROM millrace.job_table WHERE NOT copied) FROM millrace.job", at)) == "t"
	}, "all is loaded")
	cancel()
	if err := <-ended; err != nil {
		t.Log(err) // it was stopped
	}
}
