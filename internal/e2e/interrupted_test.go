package e2e

import (
	"syscall"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// TestInterruptedLoad: the snapshot of a first load ends with its process. Tables
// that are complete stay, and the rest is read beside the stream.
func TestInterruptedLoad(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		end  func(*testing.T, *pair)
	}{
		{"stopped", func(t *testing.T, p *pair) {
			p.stopsLoading(t)
		}},
		{"killed", func(t *testing.T, p *pair) {
			p.Signal(t, syscall.SIGKILL)
			rig.Eventually(t, patience, func() bool { return !p.Running() }, "the process ends")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// One table is there at once, the other takes about 30 s.
			p := newPair(t, plan{schema: `CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a SELECT i, 'v' FROM generate_series(1, 100) i;
				CREATE TABLE b (id int PRIMARY KEY, v text); INSERT INTO b SELECT i, repeat(md5(i::text), 30) FROM generate_series(1, 30000) i`,
				options: func(o *blackbox.Options, _ *pair) { o.Extra += "snapshot: {rate: 1MiB, parallel: 2}\n" }})
			p.Start(t, "--bootstrap")
			rig.Eventually(t, patience, func() bool {
				out, err := p.target.Server.TryQuery(p.target.Name, "SELECT string_agg(table_name, ' ') FROM millrace.job_table WHERE copied")
				return err == nil && out == "a"
			}, "one of two tables is copied")
			c.end(t, p)
			p.source.SQL(t, "INSERT INTO a VALUES (101, 'meanwhile'); DELETE FROM b WHERE id = 1")

			p.source.SQL(t, "DELETE FROM b WHERE id > 500") // the load is to be short now
			p.Start(t)                                      // run alone goes on with it
			rig.Eventually(t, patience, func() bool { return p.record(t, "state") == "streaming" }, "the job streams")
			if got := p.record(t, "consistent_from > consistent_point"); got != "t" {
				t.Errorf("consistent_from is behind the consistent point: %s, want t", got)
			}
			p.source.SQL(t, "UPDATE a SET v = 'streamed' WHERE id = 5; UPDATE b SET v = 'streamed' WHERE id = 5")
			p.finish(t)
			if n := p.source.Query(t, "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"); n != "1" {
				t.Errorf("%s slots in the source's database", n)
			}
		})
	}
}

// stopsLoading sends SIGTERM into the first load.
func (p *pair) stopsLoading(t *testing.T) {
	t.Helper()
	if code := p.Stop(t); code != blackbox.Done {
		t.Errorf("exit code %d after SIGTERM, want %d", code, blackbox.Done)
	}
	if state := p.record(t, "state"); state != "stopped" {
		t.Errorf("state %s after SIGTERM, want stopped", state)
	}
}
