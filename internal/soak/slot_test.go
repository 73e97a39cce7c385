package soak

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// TestSlotLSNAdvances: a slot that stands still makes the source keep all its
// WAL, whoever writes it. Where nothing that is published changes, only
// keepalives say how far the source is.
func TestSlotLSNAdvances(t *testing.T) {
	for _, c := range []struct {
		name, table string
		elsewhere   bool
	}{
		{name: "published table", table: "public.published"},
		{name: "unpublished table", table: "public.other"},
		{name: "another database", table: "public.other", elsewhere: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSlotTest(t)
			writeTo := s.source
			if c.elsewhere {
				writeTo = s.source.Server.NewDB(t)
				writeTo.SQL(t, tableSQL("public.other"))
			}
			s.follows(t, writeTo, c.table)
		})
	}
}

type slotTest struct {
	source *rig.DB
	slot   string
}

func tableSQL(name string) string {
	return fmt.Sprintf("CREATE TABLE %s (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text); ALTER TABLE %[1]s ALTER v SET STORAGE EXTERNAL", name)
}

func newSlotTest(t *testing.T) *slotTest {
	t.Helper()
	// A server of its own: what others write would move the slot as well.
	source := rig.Start(t, rig.Newest).NewDB(t)
	target := rig.Shared(t, rig.Newest).NewDB(t)
	source.SQL(t, tableSQL("public.published"))
	source.SQL(t, tableSQL("public.other"))
	source.SQL(t, fmt.Sprintf("CREATE PUBLICATION millrace_%s FOR TABLE public.published", source.Name))
	j := blackbox.NewJob(t, blackbox.Options{Name: source.Name, Source: source, Target: target, Tables: []string{"public.published"}})
	j.Start(t, "--bootstrap")
	if err := j.Wait(time.Minute); err != nil {
		t.Fatal(err)
	}
	return &slotTest{source: source, slot: "millrace_" + source.Name}
}

// follows writes until both positions of the slot have moved by more than the
// WAL of a few idle intervals, then looks at what is left.
func (s *slotTest) follows(t *testing.T, writeTo *rig.DB, table string) {
	t.Helper()
	const distance = 64 << 20
	from := s.source.Query(t, "SELECT pg_current_wal_lsn()")
	ctx, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() { s.write(ctx, t, writeTo, table) })
	defer writer.Wait()
	defer stop()
	var seen string
	rig.Eventually(t, time.Minute, func() bool {
		seen = s.source.Query(t, fmt.Sprintf(`SELECT least(confirmed_flush_lsn, restart_lsn) - '%s' > %d, confirmed_flush_lsn, restart_lsn
			FROM pg_replication_slots WHERE slot_name = '%s'`, from, distance, s.slot))
		return seen[0] == 't'
	}, "both positions move 64 MiB on from", from, &seen)
	stop()
	writer.Wait()
	rig.Eventually(t, time.Minute, func() bool {
		s.source.SQL(t, "CHECKPOINT")
		seen = s.source.Query(t, fmt.Sprintf(`SELECT pg_current_wal_lsn() - restart_lsn < %d, restart_lsn FROM pg_replication_slots WHERE slot_name = '%s'`, distance/4, s.slot))
		return seen[0] == 't'
	}, "less than 16 MiB of WAL are retained on the quiet source", &seen)
}

// write commits about a mebibyte at a time. restart_lsn moves with the records
// of running transactions, which a checkpoint writes.
func (s *slotTest) write(ctx context.Context, t *testing.T, db *rig.DB, table string) {
	for pause(ctx, 50*time.Millisecond) {
		_, err := db.Server.TryQuery(db.Name, fmt.Sprintf("INSERT INTO %s (v) SELECT repeat('x', 8000) FROM generate_series(1, 120)", table))
		if err == nil {
			_, err = s.source.Server.TryQuery(s.source.Name, "CHECKPOINT")
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
}
