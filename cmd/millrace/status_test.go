package main

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/relay"
	"github.com/millrace/millrace/web"
)

func lsn(t *testing.T, s string) *millrace.LSN {
	t.Helper()
	l, err := millrace.ParseLSN(s)
	if err != nil {
		t.Fatal(err)
	}
	return &l
}

func TestStatusText(t *testing.T) {
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	running := &web.Status{Job: "shop", State: "streaming", Reason: "connect to source: connection refused",
		Condition: web.Known("source_unreachable"), HeartbeatAt: &web.Time{Time: at}, HTTP: web.Known("127.0.0.1:8642"),
		Source: web.Source{SystemID: web.Known("77"), Timeline: web.Known(int32(2)), Slot: "millrace_shop"},
		Destination: web.Destination{AckedLSN: lsn(t, "16/B374D848"), CommittedLSN: lsn(t, "16/B374D000"),
			ConsistentFrom: lsn(t, "16/A0000000")},
		Lag: relay.Lag{Seconds: web.Known(75.25), Bytes: web.Known(int64(5 << 30)), Transactions: web.Known(int64(123456)),
			WaitsFor: web.Known("target_lock"), WaitsDetail: web.Known("pid 9 holds a lock on public.orders that pid 4 needs")},
		Rates:     web.Rates{Changes: web.Known(1234.5), Applied: web.Known(7.25), WAL: web.Known(1e6)},
		Load:      &web.Load{Phase: "copying rows", Rows: 5, Bytes: 1 << 20, EstimatedBytes: web.Known(int64(4 << 20)), ETASeconds: web.Known(90.0)},
		Fallbacks: web.Known(int64(12)),
		Alarms:    []web.Alarm{{Name: "max_replication_lag", Since: web.Time{Time: at}, Message: "the destination is behind"}},
		Tables: []web.Table{
			{Table: "public.orders", State: "streaming", RowsCopied: web.Known(int64(1234567)), BytesCopied: web.Known(int64(98 << 20)), Changes: web.Known(int64(42))},
			{Table: `public."Odd"`, State: "waiting"},
		}}
	stopped := &web.Status{Job: "shop", State: "stopped", Reason: "no heartbeat; the state was streaming",
		Hint: "millrace run takes the job up again", StoppedAt: &web.Time{Time: at},
		Source: web.Source{Slot: "millrace_shop", SlotActive: web.Known(false), WALStatus: web.Known("unreserved"),
			ConfirmedFlushLSN: lsn(t, "0/10"), RetainedWALBytes: web.Known(int64(1 << 20)), SafeWALSizeBytes: web.Known(int64(512)),
			SecondsUntilLost: web.Known(61.0), WALHeldBy: web.Known("source_transaction"), Server: web.Known("db1:5432/shop"),
			OldestTransaction: &web.Backend{PID: 7, Application: web.Known("psql"), Seconds: web.Known(3600.0)}},
		LoadStarted: &web.Time{Time: at}}
	now := at.Add(1500 * time.Millisecond)
	golden(t, filepath.Join("testdata", "status.txt"), statusText(running, now)+"\n"+statusText(stopped, now))
}
