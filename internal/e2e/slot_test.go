package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// TestSlotLSNAdvances: one job, whose slot has to follow whoever writes at the
// source, and must never be ahead of the record.
func TestSlotLSNAdvances(t *testing.T) {
	t.Parallel()
	// A server of its own: what other tests write would move the slot as well.
	p := newPair(t, plan{source: rig.Start(t, rig.Newest), schema: `
		CREATE TABLE published (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text);
		CREATE TABLE other (LIKE published INCLUDING ALL)`,
		options: func(o *blackbox.Options, _ *pair) { o.Tables = []string{"public.published"} }})
	p.source.SQL(t, fmt.Sprintf("DROP PUBLICATION %s; CREATE PUBLICATION %[1]s FOR TABLE published", p.slotName()))
	elsewhere := p.source.Server.NewDB(t)
	elsewhere.SQL(t, "CREATE TABLE other (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)")
	p.Start(t, "--bootstrap")
	p.sync(t)
	for _, phase := range []struct {
		name, table string
		in          *rig.DB
	}{{"published table", "published", p.source}, {"unpublished table", "other", p.source}, {"another database", "other", elsewhere}} {
		t.Run(phase.name, func(t *testing.T) { p.slotFollows(t, phase.in, phase.table) })
	}
	p.source.SQL(t, "DROP TABLE other") // it is not the job's
	p.finish(t)
}

// slotFollows writes until both positions of the slot are behind a position
// that was taken when the writes had begun, then until little WAL is retained.
func (p *pair) slotFollows(t *testing.T, in *rig.DB, table string) {
	t.Helper()
	insert := fmt.Sprintf("INSERT INTO %s (v) SELECT repeat(md5(random()::text), 100) FROM generate_series(1, 300)", table)
	in.SQL(t, insert)
	goal := p.source.Query(t, "SELECT pg_current_wal_lsn()")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var writer sync.WaitGroup
	writer.Go(func() {
		for ctx.Err() == nil {
			// restart_lsn moves with the records of running transactions.
			_, err := in.Server.TryQuery(in.Name, insert)
			if err == nil {
				_, err = in.Server.TryQuery(in.Name, "SELECT pg_log_standby_snapshot(), pg_sleep(0.02)")
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	var seen string
	rig.Eventually(t, patience, func() bool {
		seen = p.slot(t, fmt.Sprintf("least(confirmed_flush_lsn, restart_lsn) >= '%s', confirmed_flush_lsn, restart_lsn", goal))
		f := strings.Split(seen, "|")
		// Read after the slot: it can only be further.
		if acked := p.record(t, fmt.Sprintf("acked_lsn >= '%s', acked_lsn", f[1])); acked[0] != 't' {
			t.Fatalf("the slot is at %s, the record at %s", f[1], acked)
		}
		return f[0] == "t"
	}, "the slot passes", goal, ", it is at (confirmed|restart)", &seen)
	stop()
	writer.Wait()
	const little = 1 << 20
	rig.Eventually(t, patience, func() bool {
		p.sync(t)
		p.source.SQL(t, "CHECKPOINT")
		seen = p.slot(t, fmt.Sprintf("pg_current_wal_lsn() - restart_lsn < %d, pg_current_wal_lsn() - restart_lsn", little))
		return seen[0] == 't'
	}, "the quiet source keeps little WAL for the slot", &seen)
}

// TestKafkaSlotAdvances: so does the slot of a job into Kafka, on a server where
// everybody writes but to what is published, without a record for a consumer.
func TestKafkaSlotAdvances(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	p := &pair{source: rig.Start(t, rig.Newest).NewDB(t)}
	p.source.Script(t, `CREATE TABLE published (id int PRIMARY KEY, v text); CREATE TABLE other (LIKE published);
		INSERT INTO published VALUES (1, 'a'); CREATE PUBLICATION `+p.slotName()+` FOR TABLE published`)
	elsewhere := p.source.Server.NewDB(t)
	p.Job = blackbox.NewJob(t, blackbox.Options{Name: p.source.Name, Source: p.source, Tables: []string{"public.published"}, Extra: fast,
		Kafka: fmt.Sprintf("{brokers: [%q], prefix: %s}", k.Brokers()[0], p.source.Name)})
	p.Start(t, "--bootstrap")
	if r := p.Run(t, "wait", "--now"); r.Code != blackbox.Done {
		t.Fatalf("wait: %s%s", r.Stdout, r.Stderr)
	}
	const little = 1 << 20
	for _, in := range []*rig.DB{p.source, elsewhere} {
		fill(t, in, 4)
		goal := p.source.Query(t, "SELECT pg_current_wal_lsn()")
		var seen string
		rig.Eventually(t, patience, func() bool {
			// restart_lsn moves with the records of running transactions.
			p.source.SQL(t, "SELECT pg_log_standby_snapshot()")
			seen = p.slot(t, fmt.Sprintf("least(confirmed_flush_lsn, restart_lsn) >= '%s' AND pg_current_wal_lsn() - restart_lsn < %d, confirmed_flush_lsn, restart_lsn", goal, little))
			return seen[0] == 't'
		}, "the slot passes", goal, ", it is at (confirmed|restart)", &seen)
	}
	if code := p.Stop(t); code != blackbox.Done {
		t.Errorf("exit code %d", code)
	}
}
