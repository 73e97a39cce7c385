package snapshot

import (
	"context"
	"fmt"
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/session"
)

const benchDDL = `CREATE TABLE accounts (aid int, bid int, abalance int, filler char(84))`

// BenchmarkCopy measures a load of two million pgbench rows against what a
// person would type: one psql writing binary COPY into another.
func BenchmarkCopy(b *testing.B) {
	const rows = 2_000_000
	src, dst := rig.Shared(b, 17).NewDB(b), rig.Shared(b, 18).NewDB(b)
	src.SQL(b, benchDDL+fmt.Sprintf(`; INSERT INTO accounts SELECT i, 1, 0, '' FROM generate_series(1, %d) i`, rows))
	src.Script(b, `VACUUM ANALYZE accounts`)
	size := src.Query(b, `SELECT pg_table_size('accounts')`)
	var bytes int64
	if _, err := fmt.Sscan(size, &bytes); err != nil {
		b.Fatal(err)
	}
	dst.SQL(b, benchDDL)
	for _, streams := range []int{1, 2} {
		b.Run(fmt.Sprintf("millrace-%d", streams), func(b *testing.B) {
			b.SetBytes(bytes)
			for b.Loop() {
				b.StopTimer()
				dst.Script(b, `TRUNCATE accounts; CHECKPOINT`)
				bed := newBenchBed(b, src, dst)
				b.StartTimer()
				h, err := Hold(b.Context(), bed.source, bed.exported, bed.tables, streams)
				if err != nil {
					b.Fatal(err)
				}
				if err := Copy(b.Context(), Options{Source: bed.source, Target: bed.target, Holder: h, Tables: bed.pairs,
					Replica: true, MinPart: 64 << 20}); err != nil {
					b.Fatal(err)
				}
				h.Release()
			}
			b.ReportMetric(rows/(b.Elapsed().Seconds()/float64(b.N)), "rows/s")
		})
	}
	b.Run("psql", func(b *testing.B) {
		b.SetBytes(bytes)
		for b.Loop() {
			b.StopTimer()
			dst.Script(b, `TRUNCATE accounts; CHECKPOINT`)
			b.StartTimer()
			pipe := fmt.Sprintf(`%s -X -d '%s' -c 'COPY accounts TO STDOUT (FORMAT binary)' | %s -X -q -d '%s' -c 'COPY accounts FROM STDIN (FORMAT binary)'`,
				src.Server.Bin("psql"), src.URL(), dst.Server.Bin("psql"), dst.URL())
			if out, err := exec.CommandContext(b.Context(), "bash", "-o", "pipefail", "-c", pipe).CombinedOutput(); err != nil {
				b.Fatalf("%v\n%s", err, out)
			}
		}
		b.ReportMetric(rows/(b.Elapsed().Seconds()/float64(b.N)), "rows/s")
	})
}

type benchBed struct {
	source, target *session.Endpoint
	exported       string
	tables         []*catalog.Table
	pairs          []*Table
}

func newBenchBed(b *testing.B, src, dst *rig.DB) *benchBed {
	b.Helper()
	bed := &benchBed{
		source: session.Static(millrace.PeerSource, src.URL(), "bench"),
		target: session.Static(millrace.PeerDestination, dst.URL(), "bench"),
	}
	var described [2]*catalog.Table
	for i, e := range []*session.Endpoint{bed.source, bed.target} {
		conn, err := e.Connect(b.Context(), session.Copy)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { conn.Close(context.Background()) })
		name := millrace.TableName{Schema: "public", Name: "accounts"}
		all, err := catalog.DescribeByName(b.Context(), conn, []millrace.TableName{name})
		if err != nil {
			b.Fatal(err)
		}
		described[i] = all[name]
		if i == 0 {
			tx, err := conn.BeginTx(b.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			if err != nil {
				b.Fatal(err)
			}
			if err := tx.QueryRow(b.Context(), `SELECT pg_export_snapshot()`).Scan(&bed.exported); err != nil {
				b.Fatal(err)
			}
		}
	}
	pair, _ := Pair(described[0], described[1])
	bed.tables, bed.pairs = described[:1], []*Table{&pair}
	return bed
}
