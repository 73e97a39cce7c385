package connector

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/rig"
)

// TestSlotLSNAdvances: under a steady write load the slot follows what the platform
// holds, in both ways to run, so that the source's log does not pile up: by the state
// that each sync is given, and by acknowledgements. The long form takes ten minutes.
func TestSlotLSNAdvances(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"poll", "continuous"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			p := shopWithSlot(t, config{"mode": mode})
			p.only("orders", "items")
			ctx, cancel := context.WithCancel(t.Context())
			var load, platform sync.WaitGroup
			defer platform.Wait()
			defer load.Wait()
			defer cancel()
			load.Go(func() { steadyLoad(ctx, t, p.source.URL()) })
			if mode == "poll" {
				platform.Go(func() {
					for ctx.Err() == nil {
						messages, code := p.run(t, "read", p.readArgs(t)...)
						if got := failure(messages); code != 0 && !strings.HasPrefix(got, "transient_error") { // which a platform tries again
							t.Errorf("read: exit code %d: %s", code, got)
							return
						}
						for _, m := range messages {
							p.commit(m)
						}
					}
				})
			} else {
				p.config["ack"] = "stdin"
				l := p.start(t)
				platform.Go(func() { l.acknowledgeAll(ctx, t) })
			}
			p.watchSlot(t)
			cancel()
			load.Wait()
			platform.Wait()
		})
	}
}

// steadyLoad writes about a hundred transactions a second.
func steadyLoad(ctx context.Context, t *testing.T, url string) {
	conn, err := pgx.Connect(context.WithoutCancel(ctx), url)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close(context.WithoutCancel(ctx))
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		sql := fmt.Sprintf("UPDATE orders SET total = %d, note = repeat('x', 2000) WHERE id = %d; INSERT INTO items VALUES (%d, 1, 'y')", i, 1+i%500, 1000+i)
		if i%100 == 0 { // which the server writes every 15 s: restart_lsn can't move without
			sql += "; SELECT pg_log_standby_snapshot()"
		}
		if _, err := conn.Exec(context.WithoutCancel(ctx), sql); err != nil {
			t.Error(err)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// acknowledgeAll commits each STATE and says so, until ctx ends.
func (l *live) acknowledgeAll(ctx context.Context, t *testing.T) {
	for states := 0; ; {
		select {
		case <-ctx.Done():
			return
		case m, ok := <-l.messages:
			if !ok {
				t.Error("the connector ended")
				return
			}
			if m.Type != "STATE" {
				continue
			}
			states++
			if _, err := fmt.Fprintf(l.stdin, "{\"ack\":%d}\n", states); err != nil {
				t.Error(err)
				return
			}
		}
	}
}

// watchSlot waits, again and again, until both positions of the slot have passed
// what the source had written by then, and looks at the log that is retained.
func (p *platform) watchSlot(t *testing.T) {
	t.Helper()
	rounds, between := 3, time.Duration(0)
	if os.Getenv("MILLRACE_SOAK") != "" {
		rounds, between = 60, 10*time.Second
	}
	began := time.Now()
	first := p.source.Query(t, "SELECT pg_current_wal_lsn()")
	most := 0
	for round := range rounds {
		written := p.source.Query(t, "SELECT pg_current_wal_lsn()")
		rig.Eventually(t, patience, func() bool {
			return p.source.Query(t, "SELECT confirmed_flush_lsn >= '"+written+"' AND restart_lsn >= '"+written+"' FROM pg_replication_slots WHERE slot_name = '"+p.slot()+"'") == "t"
		}, "the slot passes what was written, in round", round)
		kept := strings.Split(p.source.Query(t, "SELECT pg_current_wal_lsn() - restart_lsn, pg_current_wal_lsn() - '"+first+"'::pg_lsn FROM pg_replication_slots WHERE slot_name = '"+p.slot()+"'"), "|")
		retained, err := strconv.Atoi(kept[0])
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, retained)
		if between > 0 {
			rig.Linger(t, between, "the log goes on")
			t.Logf("%v: %s bytes written, %s retained", time.Since(began).Round(time.Second), kept[1], kept[0])
		}
	}
	total := p.source.Query(t, "SELECT pg_current_wal_lsn() - '"+first+"'::pg_lsn")
	t.Logf("%v, %s bytes written, at most %d retained", time.Since(began).Round(time.Second), total, most)
	t.Attr("slot", fmt.Sprintf("%s bytes written in %v, at most %d retained", total, time.Since(began).Round(time.Second), most))
	if n, err := strconv.Atoi(total); between > 0 && (err != nil || most > n/10) {
		t.Errorf("%d bytes were retained of %s", most, total)
	}
}
